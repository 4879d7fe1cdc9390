/* The compute limit: GPU time is what is charged, and a launch waits until the time before it is paid for.

   The region holds one number, the instant up to which the partition's time is used up. A launch that costs c at
   a share of p per cent moves it by c * 100 / p and starts where it stood; so the share holds over any two launches,
   processes queue in the order they came, and a killed one leaves nothing behind. What a launch costs is
   measured by two events around one launch in many, per kernel and number of blocks; what NVML reports of the
   processes' use corrects the sum. Each thread buys a little ahead, so that most launches cost a subtraction. */
#define _GNU_SOURCE
#include "launch.h"
#include "capture.h"
#include "devices.h"
#include "nvml.h"
#include "parts.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    KERNELS = 1 << 12,
    CACHE = 64,
    PROBES = 64,
    SAMPLES = 8,
    SLACK_NS = 20 * 1000 * 1000,     /* how much unused time may be caught up */
    AHEAD_NS = 200 * 1000,           /* how much a thread buys at once */
    PROBE_EVERY_NS = 2 * 1000 * 1000,
    FIRST_COST_NS = 20 * 1000,       /* until it is measured */
    FIRST_WAIT_NS = 100 * 1000 * 1000,
    CHECK_NS = 500 * 1000 * 1000,
    FREE_PCT = 4,                    /* of the GPU, that a burst leaves to others who use it */
};

struct kernel {
    void *_Atomic what;
    shared64 blocks;
    _Atomic(CUcontext) context;      /* the same one may be launched in several, also on several GPUs */
    shared64 cost_ns;                /* 0: not measured yet */
    shared64 charged_unknown;        /* launches charged by guess */
    shared64 samples[SAMPLES];
    shared32 sample_count, probing;
};

struct probe { struct kernel *kernel; _Atomic(CUcontext) context; CUevent from, to; shared32 state; };
enum { PROBE_FREE, PROBE_OPEN, PROBE_SENT, PROBE_READING };

static struct kernel kernels[KERNELS];
static struct probe probes[PROBES];
static shared32 generation; /* threads forget what they bought when it changes */

static _Thread_local struct {
    int64_t credit_ns[MAX_DEVICES];
    uint32_t generation;
    struct { void *what; uint64_t blocks; CUcontext context; int64_t cost_ns, until_probe; uint32_t device; } cache[CACHE];
} mine;

static size_t place(const void *what, uint64_t blocks)
{
    uint64_t mixed = ((uint64_t)(uintptr_t)what ^ blocks << 32 ^ blocks) * 0x9e3779b97f4a7c15ull;
    return (size_t)(mixed >> 40);
}

static struct kernel *kernel_of(void *what, uint64_t blocks, CUcontext context)
{
    size_t start = place(what, blocks);
    for (size_t i = 0; i < 32; i++) {
        struct kernel *kernel = &kernels[(start + i) % KERNELS];
        void *seen = atomic_load(&kernel->what);
        if (seen == NULL && atomic_compare_exchange_strong(&kernel->what, &seen, what)) {
            atomic_store(&kernel->blocks, blocks);
            atomic_store(&kernel->context, context);
            return kernel;
        }
        if (seen == what && atomic_load(&kernel->blocks) == blocks && atomic_load(&kernel->context) == context)
            return kernel;
    }
    return &kernels[start % KERNELS]; /* a crowd shares */
}

static uint32_t share_pct(const struct device *device)
{
    uint32_t pct = atomic_load_explicit(&device->region.limit->core_pct, memory_order_relaxed);
    if (pct == 0 || pct > 100)
        return 100;
    if (atomic_load_explicit(&device->region.limit->flags, memory_order_relaxed) & BERTH_BURST) {
        /* What others leave is there to be used. Two that both want all of it are each sure of their own share, and
           what one has beyond it shrinks as the other comes: they settle at their shares. A little is left free
           beside others: on a GPU that is full they could not show that they want more. */
        uint32_t others = atomic_load_explicit(&device->region.use->others_pct, memory_order_relaxed);
        uint32_t most = others == 0 ? 100 : 100 - FREE_PCT, left = others < most ? most - others : 0;
        if (left > pct)
            return left;
    }
    return pct;
}

static uint64_t scaled(const struct device *device, uint64_t ns)
{
    uint32_t factor = atomic_load_explicit(&device->region.use->factor_milli, memory_order_relaxed);
    return factor == 0 ? ns : ns * factor / 1000;
}

/* Charges what turned out beside what was charged; nobody waits here. */
static void correct(struct device *device, int64_t ns)
{
    struct berth_use_file *use = device->region.use;
    atomic_fetch_add(&use->paid_until_ns, (uint64_t)(ns * 100 / (int64_t)share_pct(device)));
    atomic_fetch_add(&use->gpu_ns, (uint64_t)ns);
    if (device->region.slot >= 0)
        atomic_fetch_add(&use->slots[device->region.slot].gpu_ns, (uint64_t)ns);
}

static void sleep_until(uint64_t ns)
{
    struct timespec at = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) { }
}

/* Buys GPU time and waits until it begins. */
static void buy(struct device *device, uint64_t ns)
{
    struct berth_use_file *use = device->region.use;
    uint32_t pct = share_pct(device);
    uint64_t now = clock_ns(), wall = ns * 100 / pct, paid = atomic_load(&use->paid_until_ns), start;
    do {
        start = (int64_t)(paid - (now - SLACK_NS)) < 0 ? now - SLACK_NS : paid;
    } while (!atomic_compare_exchange_weak(&use->paid_until_ns, &paid, start + wall));
    atomic_fetch_add(&use->gpu_ns, ns);
    if (device->region.slot >= 0)
        atomic_fetch_add(&use->slots[device->region.slot].gpu_ns, ns);
    if (pct < 100 && start > now)
        sleep_until(start);
}

/* ---- measuring ---- */

static void learn(struct kernel *kernel, uint64_t ns)
{
    uint32_t count = atomic_fetch_add(&kernel->sample_count, 1);
    atomic_store(&kernel->samples[count % SAMPLES], ns ? ns : 1);
    /* The smallest at first, then the second smallest of the last few: others' work in between only ever makes a launch seem longer. */
    uint64_t least = UINT64_MAX, second = UINT64_MAX;
    for (uint32_t i = 0; i <= count && i < SAMPLES; i++) {
        uint64_t sample = atomic_load(&kernel->samples[i]);
        if (sample < least) {
            second = least;
            least = sample;
        } else if (sample < second) {
            second = sample;
        }
    }
    atomic_store(&kernel->cost_ns, count < 4 ? least : second);
}

static bool read_probe(struct device *device, struct probe *probe)
{
    uint32_t sent = PROBE_SENT;
    float ms = 0;
    if (!atomic_compare_exchange_strong(&probe->state, &sent, PROBE_READING))
        return false;
    CUresult result = real.cuEventQuery(probe->to);
    if (result == CUDA_ERROR_NOT_READY) {
        atomic_store(&probe->state, PROBE_SENT);
        return false;
    }
    struct kernel *kernel = probe->kernel;
    if (result == CUDA_SUCCESS && real.cuEventElapsedTime(&ms, probe->from, probe->to) == CUDA_SUCCESS) {
        bool first = atomic_load(&kernel->cost_ns) == 0;
        learn(kernel, (uint64_t)((double)ms * 1e6));
        uint64_t guessed = first ? atomic_exchange(&kernel->charged_unknown, 0) : 0;
        if (guessed != 0) {
            uint64_t cost = atomic_load(&kernel->cost_ns);
            correct(device, (int64_t)guessed * ((int64_t)scaled(device, cost) - FIRST_COST_NS));
        }
    }
    atomic_store(&kernel->probing, 0);
    atomic_store(&probe->state, PROBE_FREE);
    return true;
}

/* Those of the caller's context: another's may end at any moment, and its time is another GPU's. */
static void read_probes(struct device *device, CUcontext context)
{
    int mode = capture_relax();
    for (int i = 0; i < PROBES; i++)
        if (atomic_load_explicit(&probes[i].state, memory_order_relaxed) == PROBE_SENT && atomic_load(&probes[i].context) == context)
            read_probe(device, &probes[i]);
    capture_restore(mode);
}

static bool can_probe(void)
{
    return HAVE(cuEventCreate) && HAVE(cuEventRecord) && HAVE(cuEventQuery) && HAVE(cuEventElapsedTime) && HAVE(cuCtxGetCurrent);
}

static void record(CUevent event, CUstream stream, bool per_thread)
{
    if (per_thread && HAVE(cuEventRecord_ptsz))
        real.cuEventRecord_ptsz(event, stream);
    else
        real.cuEventRecord(event, stream);
}

static void drop_events(struct probe *probe)
{
    if (HAVE(cuEventDestroy_v2)) {
        real.cuEventDestroy_v2(probe->from);
        real.cuEventDestroy_v2(probe->to);
    }
    atomic_store(&probe->context, NULL);
}

/* Events belong to a context: the probe gets new ones where it has another's. */
static bool make_events(struct probe *probe, CUcontext context)
{
    if (atomic_load(&probe->context) == context)
        return true;
    int mode = capture_relax();
    if (atomic_load(&probe->context) != NULL)
        drop_events(probe);
    bool made = real.cuEventCreate(&probe->from, 0) == CUDA_SUCCESS;
    if (made && real.cuEventCreate(&probe->to, 0) != CUDA_SUCCESS) {
        made = false;
        if (HAVE(cuEventDestroy_v2))
            real.cuEventDestroy_v2(probe->from);
    }
    capture_restore(mode);
    if (made)
        atomic_store(&probe->context, context);
    return made;
}

/* One that has events of this context, else one that has none, else any. */
static struct probe *free_probe(CUcontext context)
{
    for (int choice = 0; choice < 3; choice++)
        for (int i = 0; i < PROBES; i++) {
            uint32_t free_state = PROBE_FREE;
            CUcontext has = atomic_load(&probes[i].context);
            if ((choice == 2 || has == (choice == 0 ? context : NULL)) && atomic_compare_exchange_strong(&probes[i].state, &free_state, PROBE_OPEN))
                return &probes[i];
        }
    return NULL;
}

static struct probe *probe_begin(struct kernel *kernel, CUcontext context, CUstream stream, bool per_thread)
{
    if (!can_probe() || capturing(stream, per_thread) || atomic_exchange(&kernel->probing, 1) != 0)
        return NULL;
    struct probe *probe = free_probe(context);
    if (probe != NULL && make_events(probe, context)) {
        probe->kernel = kernel;
        record(probe->from, stream, per_thread);
        return probe;
    }
    if (probe != NULL)
        atomic_store(&probe->state, PROBE_FREE);
    atomic_store(&kernel->probing, 0);
    return NULL;
}

void pace_context_ends(CUcontext context, bool gone)
{
    for (int i = 0; i < PROBES; i++) {
        struct probe *probe = &probes[i];
        uint32_t state = atomic_load(&probe->state);
        if (atomic_load(&probe->context) != context || (state != PROBE_FREE && state != PROBE_SENT) ||
            !atomic_compare_exchange_strong(&probe->state, &state, PROBE_READING))
            continue;
        if (atomic_load(&probe->context) == context) {
            if (gone) /* and took its events along */
                atomic_store(&probe->context, NULL);
            else
                drop_events(probe);
            if (state == PROBE_SENT)
                atomic_store(&probe->kernel->probing, 0);
            state = PROBE_FREE;
        }
        atomic_store(&probe->state, state);
    }
}

void pace_measured(struct probe *probe, CUstream stream, bool per_thread, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        atomic_store(&probe->kernel->probing, 0);
        atomic_store(&probe->state, PROBE_FREE);
        return;
    }
    record(probe->to, stream, per_thread);
    atomic_store(&probe->state, PROBE_SENT);
}

/* What NVML says that the region's processes used, beside what they were charged. */
static void check(struct device *device)
{
    struct berth_use_file *use = device->region.use;
    uint64_t now = clock_ns(), then = atomic_load(&use->checked_at_ns);
    if (now - then < CHECK_NS || !atomic_compare_exchange_strong(&use->checked_at_ns, &then, now))
        return;
    uint64_t charged = atomic_load(&use->gpu_ns), since = atomic_exchange(&use->charged_then_ns, charged);
    uint64_t after_us = atomic_load(&use->measured_at_us), latest_us = after_us;
    NVdevice handle = nvml_handle(device);
    unsigned count = 512;
    if (handle == NULL || !HAVE(nvmlDeviceGetProcessUtilization))
        return;
    NVutilization *samples = malloc(count * sizeof *samples);
    uint64_t measured_pct = 0, others_pct = 0;
    unsigned reported = 0;
    if (samples != NULL && real.nvmlDeviceGetProcessUtilization(handle, samples, &count, after_us) == NV_SUCCESS)
        for (unsigned i = 0; i < count && i < 512; i++) {
            if (samples[i].time_us > latest_us)
                latest_us = samples[i].time_us;
            bool ours = false;
            for (uint32_t s = 0; s < atomic_load(&use->slots_seen) && s < BERTH_SLOTS; s++)
                if (atomic_load(&use->slots[s].state) != 0 && use->slots[s].pid == samples[i].pid) {
                    measured_pct += samples[i].sm_pct;
                    reported += samples[i].sm_pct != 0;
                    ours = true;
                    break;
                }
            if (!ours)
                others_pct += samples[i].sm_pct;
        }
    free(samples);
    atomic_store(&use->measured_at_us, latest_us);
    atomic_store(&use->others_pct, others_pct > 100 ? 100 : (uint32_t)others_pct);
    if (reported == 0 || then == 0 || after_us == 0 || now - then > 4ull * CHECK_NS || charged <= since)
        return;
    /* NVML rounds down to whole per cents: half a point for each process is what that loses on average. */
    uint64_t measured_ns = (measured_pct * 2 + reported) * (now - then) / 200, charged_ns = charged - since;
    atomic_fetch_add(&use->measured_ns, measured_ns);
    uint32_t factor = atomic_load(&use->factor_milli);
    if (factor == 0)
        factor = 1000;
    /* A report is coarse and late: believe it where it differs by more than that, and then step by step. */
    uint64_t apart = measured_ns > charged_ns ? measured_ns - charged_ns : charged_ns - measured_ns;
    if (apart * 200 < (now - then) * 3)
        return;
    uint64_t wanted = (uint64_t)factor * measured_ns / charged_ns;
    wanted = wanted < 250 ? 250 : wanted > 8000 ? 8000 : wanted;
    atomic_store(&use->factor_milli, (uint32_t)((2ull * factor + wanted) / 3));
}

/* ---- a launch ---- */

static CUcontext current_context(void)
{
    CUcontext context = NULL;
    return HAVE(cuCtxGetCurrent) && real.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}

__attribute__((noinline)) static struct probe *pace_slowly(void *what, uint64_t blocks, CUstream stream, bool per_thread)
{
    struct device *device = device_current();
    CUcontext context = current_context();
    uint32_t now_generation = atomic_load(&generation);
    size_t at = place(what, blocks) % CACHE;
    if (mine.generation != now_generation) {
        memset(&mine, 0, sizeof mine);
        mine.generation = now_generation;
    }
    if (device == NULL || atomic_load(&device->region.limit->core_pct) == 0) {
        mine.cache[at].what = what;
        mine.cache[at].blocks = blocks;
        mine.cache[at].context = context;
        mine.cache[at].device = 0;
        mine.cache[at].cost_ns = 0;
        mine.cache[at].until_probe = 1024; /* then look again: the partition may have got a limit */
        return NULL;
    }
    if (capturing(stream, per_thread))
        return NULL; /* it becomes a node and is charged when its graph runs */
    read_probes(device, context);
    check(device);
    struct kernel *kernel = kernel_of(what, blocks, context);
    uint64_t cost = atomic_load(&kernel->cost_ns);
    if (cost == 0 && atomic_load(&kernel->probing) && can_probe()) { /* the first one tells what the next will cost */
        uint64_t until = clock_ns() + FIRST_WAIT_NS;
        for (uint64_t pause = 20000; (cost = atomic_load(&kernel->cost_ns)) == 0 && atomic_load(&kernel->probing) && clock_ns() < until; pause += pause / 2) {
            sleep_until(clock_ns() + (pause < 1000000 ? pause : 1000000));
            read_probes(device, context);
        }
    }
    bool guess = cost == 0;
    cost = guess ? FIRST_COST_NS : scaled(device, cost);
    if (cost == 0)
        cost = 1;
    int64_t *credit_ns = &mine.credit_ns[device->ordinal];
    if (*credit_ns < (int64_t)cost) {
        uint64_t launches = !guess && cost < AHEAD_NS ? AHEAD_NS / cost : 1;
        buy(device, launches * cost);
        *credit_ns += (int64_t)(launches * cost);
    }
    *credit_ns -= (int64_t)cost;
    bool measure = guess || mine.cache[at].what != what || mine.cache[at].blocks != blocks || mine.cache[at].context != context || atomic_load(&kernel->sample_count) < 4 ||
                   --mine.cache[at].until_probe <= 0;
    if (guess)
        atomic_fetch_add(&kernel->charged_unknown, 1);
    mine.cache[at].what = guess ? NULL : what;
    mine.cache[at].blocks = blocks;
    mine.cache[at].context = context;
    mine.cache[at].device = (uint32_t)device->ordinal;
    mine.cache[at].cost_ns = (int64_t)cost;
    if (measure)
        mine.cache[at].until_probe = cost < PROBE_EVERY_NS ? (int64_t)(PROBE_EVERY_NS / cost) : 1;
    return measure ? probe_begin(kernel, context, stream, per_thread) : NULL;
}

struct probe *pace(void *what, uint64_t blocks, CUstream stream, bool per_thread)
{
    size_t at = place(what, blocks) % CACHE;
    int64_t *credit_ns = &mine.credit_ns[mine.cache[at].device];
    if (LIKELY(mine.cache[at].what == what && mine.cache[at].blocks == blocks && *credit_ns >= mine.cache[at].cost_ns &&
               (!atomic_load_explicit(&several, memory_order_relaxed) || mine.cache[at].context == current_context()) &&
               mine.cache[at].until_probe-- > 0)) {
        *credit_ns -= mine.cache[at].cost_ns;
        return NULL;
    }
    return pace_slowly(what, blocks, stream, per_thread);
}

static void pace_forget(void)
{
    if (!atomic_load(&pacing))
        return; /* nothing is known yet, and its memory is not touched */
    atomic_fetch_add(&generation, 1);
    memset(&mine, 0, sizeof mine);
    mine.generation = atomic_load(&generation);
    memset(kernels, 0, sizeof kernels);
    memset(probes, 0, sizeof probes);
}

PART(.forget = pace_forget);

#define LAUNCH(what, blocks, stream, per_thread, call)                            \
    do {                                                                          \
        if (LIKELY(!atomic_load_explicit(&pacing, memory_order_relaxed)))         \
            return call;                                                          \
        struct probe *probe = pace((void *)(what), (blocks), (stream), (per_thread)); \
        CUresult result = call;                                                   \
        if (UNLIKELY(probe != NULL))                                              \
            pace_measured(probe, (stream), (per_thread), result);                 \
        return result;                                                            \
    } while (0)

#define BLOCKS ((uint64_t)gx * gy * gz)

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes, CUstream stream, void **params, void **extra)
{
    LAUNCH(function, BLOCKS, stream, false, REAL(cuLaunchKernel)(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, params, extra));
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes, CUstream stream, void **params, void **extra)
{
    LAUNCH(function, BLOCKS, stream, true, REAL(cuLaunchKernel_ptsz)(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, params, extra));
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes, CUstream stream, void **params)
{
    LAUNCH(function, BLOCKS, stream, false, REAL(cuLaunchCooperativeKernel)(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, params));
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes, CUstream stream, void **params)
{
    LAUNCH(function, BLOCKS, stream, true, REAL(cuLaunchCooperativeKernel_ptsz)(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, params));
}

#define LAUNCH_BLOCKS (launch == NULL ? 0 : (uint64_t)launch->grid_x * launch->grid_y * launch->grid_z)

CUresult cuLaunchKernelEx(const CUlaunch *launch, CUfunction function, void **params, void **extra)
{
    LAUNCH(function, LAUNCH_BLOCKS, launch != NULL ? launch->stream : NULL, false, REAL(cuLaunchKernelEx)(launch, function, params, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunch *launch, CUfunction function, void **params, void **extra)
{
    LAUNCH(function, LAUNCH_BLOCKS, launch != NULL ? launch->stream : NULL, true, REAL(cuLaunchKernelEx_ptsz)(launch, function, params, extra));
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUcooperative *list, unsigned count, unsigned flags)
{
    if (atomic_load_explicit(&pacing, memory_order_relaxed) && list != NULL && count != 0) {
        struct probe *probe = pace(list[0].function, (uint64_t)list[0].grid_x * list[0].grid_y * list[0].grid_z, list[0].stream, false);
        CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
        if (probe != NULL)
            pace_measured(probe, list[0].stream, false, result);
        return result;
    }
    return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
}

CUresult cuLaunch(CUfunction function) { LAUNCH(function, 1, NULL, false, REAL(cuLaunch)(function)); }
CUresult cuLaunchGrid(CUfunction function, int width, int height) { LAUNCH(function, (uint64_t)width * (uint64_t)height, NULL, false, REAL(cuLaunchGrid)(function, width, height)); }
CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    LAUNCH(function, (uint64_t)width * (uint64_t)height, stream, false, REAL(cuLaunchGridAsync)(function, width, height, stream));
}

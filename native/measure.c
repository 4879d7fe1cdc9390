/* What a launch costs: two events around one launch in many, for each kernel and number of blocks.

   Launches of one kernel with the same blocks may take any time (a persistent kernel works as long
   as its data last), so what is charged is their mean, and a launch that was measured is charged
   what it took. Others' work in between makes a launch seem longer. So where others compute,
   launches count that came right behind others of this process, which leave nobody a gap; and where
   most of them agree on the least, that is what it takes. */
#define _GNU_SOURCE
#include "measure.h"
#include "capture.h"
#include "parts.h"
#include "share.h"

#include <string.h>

enum {
    KERNELS = 1 << 12,
    PROBES = 64,
    PROBES_EACH = 8,
    MEAN_OF = 64,
    ALONE_OF = 1024,
    EVENT_STEP_NS = 1000,
    SAMPLES = sizeof((struct kernel *)0)->samples / sizeof(shared64)
};

struct probe {
    struct kernel *kernel;
    _Atomic(CUcontext) context;
    CUevent from, to;
    uint64_t begun_ns, charged_ns;
    bool behind; /* the stream was not done with what was before */
    shared32 state;
};
enum { PROBE_FREE, PROBE_OPEN, PROBE_SENT, PROBE_READING };

static struct kernel kernels[KERNELS];
static struct probe probes[PROBES];

static size_t place(const void *what, uint64_t blocks)
{
    uint64_t mixed = ((uint64_t)(uintptr_t)what ^ blocks << 32 ^ blocks) * 0x9e3779b97f4a7c15ull;
    return (size_t)(mixed >> 40);
}

struct kernel *measure_kernel(void *what, uint64_t blocks, CUcontext context)
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
        if (seen == what && atomic_load(&kernel->blocks) == blocks &&
            atomic_load(&kernel->context) == context)
            return kernel;
    }
    return &kernels[start % KERNELS]; /* a crowd shares */
}

/* What the last few launches took that agree on the least, if they are many; 0 otherwise. */
static uint64_t agreed(const uint64_t *samples, uint32_t count, uint64_t mean, bool *varies)
{
    uint64_t least = UINT64_MAX, most = 0, near_sum = 0, near_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        least = samples[i] < least ? samples[i] : least;
        most = samples[i] > most ? samples[i] : most;
    }
    for (uint32_t i = 0; i < count; i++)
        if (samples[i] <= least + least / 16) {
            near_sum += samples[i];
            near_count++;
        }
    /* By more than what a GPU tells two instants apart by. */
    uint64_t alike = least + least / 4 + EVENT_STEP_NS;
    *varies = most > alike || mean > alike;
    return near_count * 3 >= count ? near_sum / near_count : 0;
}

/* Keeps apart what launches took while nobody else computed, which is known at NVML's next look;
   returns their mean, 0 while they are too few to tell. */
static uint64_t take_note(struct device *device, struct kernel *kernel, uint64_t ns)
{
    uint64_t looked_ns, count;
    bool alone = share_alone(device, &looked_ns);
    if (atomic_exchange(&kernel->pending_since_ns, looked_ns) != looked_ns) {
        uint64_t least = atomic_load(&kernel->alone.least_ns);
        if (alone && (count = atomic_load(&kernel->pending.count)) != 0 &&
            atomic_load(&kernel->alone.count) < ALONE_OF) {
            atomic_fetch_add(&kernel->alone.sum_ns, atomic_load(&kernel->pending.sum_ns));
            atomic_fetch_add(&kernel->alone.count, count);
            if (least == 0 || atomic_load(&kernel->pending.least_ns) < least)
                atomic_store(&kernel->alone.least_ns, atomic_load(&kernel->pending.least_ns));
            if (atomic_load(&kernel->pending.most_ns) > atomic_load(&kernel->alone.most_ns))
                atomic_store(&kernel->alone.most_ns, atomic_load(&kernel->pending.most_ns));
        }
        memset(&kernel->pending, 0, sizeof kernel->pending);
    }
    if (alone) {
        atomic_fetch_add(&kernel->pending.sum_ns, ns);
        if (atomic_fetch_add(&kernel->pending.count, 1) == 0 ||
            ns < atomic_load(&kernel->pending.least_ns))
            atomic_store(&kernel->pending.least_ns, ns);
        if (ns > atomic_load(&kernel->pending.most_ns))
            atomic_store(&kernel->pending.most_ns, ns);
    }
    count = atomic_load(&kernel->alone.count);
    bool alike =
        atomic_load(&kernel->alone.most_ns) <= atomic_load(&kernel->alone.least_ns) * 5 / 4;
    return count >= (alike ? SAMPLES : ALONE_OF / 4) ? atomic_load(&kernel->alone.sum_ns) / count
                                                     : 0;
}

/* Takes up what a launch seemed to take; returns what it is believed to have taken. */
static uint64_t learn(struct device *device, struct kernel *kernel, uint64_t ns, bool behind)
{
    bool contended = share_contended(device), knows = contended && share_knows(device);
    uint64_t samples[SAMPLES], cost, mean = atomic_load(&kernel->mean_ns);
    uint32_t count = atomic_load(&kernel->sample_count);
    bool varies;
    if (behind && contended && atomic_fetch_add(&kernel->behind_count, 1) == 0)
        atomic_store(&kernel->sample_count,
                     count = 0); /* the first that is worth more than those before */
    if (!knows || behind || atomic_load(&kernel->behind_count) == 0) {
        count = atomic_fetch_add(&kernel->sample_count, 1);
        atomic_store(&kernel->samples[count % SAMPLES], ns ? ns : 1);
        count++;
        int64_t weight = count < MEAN_OF ? count : MEAN_OF;
        mean = (uint64_t)((int64_t)mean + ((int64_t)ns - (int64_t)mean) / weight);
        atomic_store(&kernel->mean_ns, mean);
    }
    count = count < SAMPLES ? count : SAMPLES;
    for (uint32_t i = 0; i < count; i++)
        samples[i] = atomic_load(&kernel->samples[i]);
    cost = agreed(samples, count, mean, &varies);
    bool trimmed = contended && cost != 0 && share_may_trim(device);
    uint64_t alone = take_note(device, kernel, ns);
    bool as_alone = contended && !trimmed && alone != 0;
    cost = trimmed ? cost : as_alone ? alone : mean;
    atomic_store(&kernel->varies, varies);
    atomic_store(&kernel->cost_ns, cost ? cost : 1);
    if (as_alone)
        return cost;
    bool kept = trimmed || (knows && !behind && atomic_load(&kernel->behind_count) != 0);
    return kept && ns > cost ? cost : ns;
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
    if (result == CUDA_SUCCESS &&
        real.cuEventElapsedTime(&ms, probe->from, probe->to) == CUDA_SUCCESS && ms >= 0) {
        uint64_t took = (uint64_t)((double)ms * 1e6);
        bool first = atomic_load(&kernel->cost_ns) == 0;
        uint64_t believed = learn(device, kernel, took, probe->behind);
        uint64_t guessed = first ? atomic_exchange(&kernel->charged_unknown, 0) : 0;
        share_backlog(device, probe->begun_ns, took);
        if (guessed != 0) {
            uint64_t cost = atomic_load(&kernel->cost_ns);
            share_correct(device,
                          (int64_t)guessed * ((int64_t)share_scaled(device, cost) - FIRST_COST_NS));
        } else if (probe->charged_ns != 0) {
            share_correct(device,
                          (int64_t)share_scaled(device, believed) - (int64_t)probe->charged_ns);
        }
    }
    atomic_fetch_sub(&kernel->probing, 1);
    atomic_store(&probe->state, PROBE_FREE);
    return true;
}

void measure_read(struct device *device, CUcontext context)
{
    int mode = capture_relax();
    for (int i = 0; i < PROBES; i++)
        if (atomic_load_explicit(&probes[i].state, memory_order_relaxed) == PROBE_SENT &&
            atomic_load(&probes[i].context) == context)
            read_probe(device, &probes[i]);
    capture_restore(mode);
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
            if ((choice == 2 || has == (choice == 0 ? context : NULL)) &&
                atomic_compare_exchange_strong(&probes[i].state, &free_state, PROBE_OPEN))
                return &probes[i];
        }
    return NULL;
}

/* Whether the stream has work yet to do. */
static bool busy(CUstream stream, bool per_thread)
{
    int mode = capture_relax();
    CUresult result = CUDA_SUCCESS;
    if (per_thread && HAVE(cuStreamQuery_ptsz))
        result = real.cuStreamQuery_ptsz(stream);
    else if (HAVE(cuStreamQuery))
        result = real.cuStreamQuery(stream);
    capture_restore(mode);
    return result == CUDA_ERROR_NOT_READY;
}

struct probe *measure_begin(struct kernel *kernel, CUcontext context, CUstream stream,
                            bool per_thread, uint64_t charged_ns)
{
    if (!share_measures() || capturing(stream, per_thread))
        return NULL;
    if (atomic_fetch_add(&kernel->probing, 1) >= (charged_ns != 0 ? PROBES_EACH : 1)) {
        atomic_fetch_sub(&kernel->probing, 1);
        return NULL;
    }
    struct probe *probe = free_probe(context);
    if (probe != NULL && make_events(probe, context)) {
        probe->kernel = kernel;
        probe->charged_ns = charged_ns;
        probe->begun_ns = clock_ns();
        probe->behind = busy(stream, per_thread);
        record(probe->from, stream, per_thread);
        return probe;
    }
    if (probe != NULL)
        atomic_store(&probe->state, PROBE_FREE);
    atomic_fetch_sub(&kernel->probing, 1);
    return NULL;
}

void measure_context_ends(CUcontext context, bool gone)
{
    for (int i = 0; i < PROBES; i++) {
        struct probe *probe = &probes[i];
        uint32_t state = atomic_load(&probe->state);
        if (atomic_load(&probe->context) != context ||
            (state != PROBE_FREE && state != PROBE_SENT) ||
            !atomic_compare_exchange_strong(&probe->state, &state, PROBE_READING))
            continue;
        if (atomic_load(&probe->context) == context) {
            if (gone) /* and took its events along */
                atomic_store(&probe->context, NULL);
            else
                drop_events(probe);
            if (state == PROBE_SENT)
                atomic_fetch_sub(&probe->kernel->probing, 1);
            state = PROBE_FREE;
        }
        atomic_store(&probe->state, state);
    }
}

void measure_end(struct probe *probe, CUstream stream, bool per_thread, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        atomic_fetch_sub(&probe->kernel->probing, 1);
        atomic_store(&probe->state, PROBE_FREE);
        return;
    }
    record(probe->to, stream, per_thread);
    atomic_store(&probe->state, PROBE_SENT);
}

static void measure_forget(void)
{
    if (!atomic_load(&pacing))
        return; /* nothing is known yet, and its memory is not touched */
    memset(kernels, 0, sizeof kernels);
    memset(probes, 0, sizeof probes);
}

PART(.forget = measure_forget);

/* What a launch costs: two events around one launch in many, for each kernel and number of blocks.

   A launch that was not measured before (kernels.c) is measured in any case: by a probe of its
   own, or, where those run out, by one that is stretched over all that follow it in its stream. So
   whatever was charged, the sum becomes what the GPU took. */
#define _GNU_SOURCE
#include "measure.h"
#include "capture.h"
#include "kernels.h"
#include "parts.h"
#include "share.h"

#include <string.h>

#define LONGEST_WAIT_NS (100u * 1000 * 1000)
#define STEP_WAIT_NS (1000u * 1000)
enum {
    PROBES = 64,
    STRETCHED = 16, /* more of them, for launches that must be measured */
    PROBES_EACH = 8,
};

struct probe {
    struct device *_Atomic device;
    struct kernel *kernel; /* NULL: nothing is learned about one */
    struct family *family; /* NULL: stretched over several */
    _Atomic(CUcontext) context;
    _Atomic(CUstream) stream;
    CUevent from, to;
    shared64 begun_ns, charged_ns;
    uint64_t last_charged_ns, blocks;
    uint32_t launches;
    uint32_t stops;          /* of the partition when it began */
    bool behind;             /* the stream was not done with what was before */
    _Atomic bool per_thread; /* of the stream */
    _Atomic bool estimated;  /* no such launch was measured before */
    shared32 state;
};
enum { PROBE_FREE, PROBE_OPEN, PROBE_SENT, PROBE_READING };

static struct probe probes[PROBES + STRETCHED];
shared32 measure_open;

/* Publishes what of this process runs unmeasured: it is charged if the process is killed. */
static void tell_open(struct device *device)
{
    uint64_t since = 0, charged = 0;
    if (device->region.slot < 0)
        return;
    for (int i = 0; i < PROBES + STRETCHED; i++) {
        const struct probe *probe = &probes[i];
        uint64_t begun = LOAD(probe->begun_ns);
        if (LOAD_ACQUIRE(probe->state) == PROBE_FREE || LOAD(probe->device) != device ||
            begun == 0 || !LOAD(probe->estimated))
            continue;
        since = since == 0 || begun < since ? begun : since;
        charged += LOAD(probe->charged_ns);
    }
    struct berth_slot *slot = &device->region.use->slots[device->region.slot];
    STORE(slot->open_charged_ns, charged);
    STORE(slot->open_since_ns, since);
}

static void done_with(struct probe *probe)
{
    if (probe->kernel != NULL)
        atomic_fetch_sub(&probe->kernel->probing, 1);
    if (probe->family != NULL)
        atomic_fetch_sub(&probe->family->probing, 1);
    atomic_fetch_sub(&measure_open, 1);
    probe->launches = 0;
    atomic_store(&probe->begun_ns, 0);
    struct device *device = atomic_load(&probe->device); /* the next launch may be another GPU's */
    atomic_store(&probe->state, PROBE_FREE);
    tell_open(device);
}

/* With the probe held. What was charged becomes what was taken. */
static void settle(struct probe *probe, uint64_t took)
{
    struct device *device = probe->device;
    uint64_t trusted = took, each = took / probe->launches;
    if (probe->kernel != NULL)
        trusted = kernels_learn(device, probe->kernel, took, probe->behind);
    kernels_follow(device, probe->family, each, probe->blocks, probe->estimated);
    share_backlog(device, probe->begun_ns, took);
    share_correct(device, (int64_t)share_scaled(device, trusted) - (int64_t)probe->charged_ns);
}

/* Holds a probe whose launches are done; what they took. */
static bool hold_done(struct probe *probe, CUresult *result)
{
    uint32_t sent = PROBE_SENT;
    if (!atomic_compare_exchange_strong(&probe->state, &sent, PROBE_READING))
        return false;
    *result = real.cuEventQuery(probe->to);
    if (*result != CUDA_ERROR_NOT_READY)
        return true;
    atomic_store(&probe->state, PROBE_SENT);
    return false;
}

/* Headers of CUDA 13 know the second name only. */
static bool elapsed(const struct probe *probe, float *ms)
{
    __typeof__(real.cuEventElapsedTime) ask =
        HAVE(cuEventElapsedTime) ? real.cuEventElapsedTime : real.cuEventElapsedTime_v2;
    return ask(ms, probe->from, probe->to) == CUDA_SUCCESS && *ms >= 0;
}

/* How often the partition was kept from the GPU. */
static uint32_t stops_of(const struct device *device)
{
    return LOAD(device->region.limit->stops);
}

static void read_probe(struct probe *probe)
{
    float ms = 0;
    CUresult result;
    if (!hold_done(probe, &result))
        return;
    bool stopped = probe->stops != stops_of(probe->device);
    if (result == CUDA_SUCCESS && !stopped && elapsed(probe, &ms))
        settle(probe, (uint64_t)((double)ms * 1e6));
    done_with(probe);
}

static void read_all(CUcontext context, bool any)
{
    int mode = capture_relax();
    for (int i = 0; i < PROBES + STRETCHED; i++)
        if (LOAD(probes[i].state) == PROBE_SENT &&
            (any || atomic_load(&probes[i].context) == context))
            read_probe(&probes[i]);
    capture_restore(mode);
}

void measure_read(CUcontext context)
{
    if (LOAD(measure_open) != 0)
        read_all(context, false);
}

void measure_settle(void)
{
    CUcontext context = context_current();
    if (context != NULL)
        read_all(context, false);
}

static void record(CUevent event, CUstream stream, bool per_thread)
{
    REAL_EITHER(cuEventRecord)(event, stream);
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
static struct probe *free_probe(CUcontext context, int from, int to)
{
    for (int choice = 0; choice < 3; choice++)
        for (int i = from; i < to; i++) {
            uint32_t free_state = PROBE_FREE;
            CUcontext has = atomic_load(&probes[i].context);
            if ((choice == 2 || has == (choice == 0 ? context : NULL)) &&
                atomic_compare_exchange_strong(&probes[i].state, &free_state, PROBE_OPEN)) {
                if (make_events(&probes[i], context))
                    return &probes[i];
                atomic_store(&probes[i].state, PROBE_FREE);
                return NULL;
            }
        }
    return NULL;
}

/* The one that is stretched over this stream, if the stream is not done with what it measures: so
   no time is in it in which the stream had nothing to do. */
static struct probe *stretched(const struct launch *launch)
{
    for (int i = PROBES; i < PROBES + STRETCHED; i++) {
        struct probe *probe = &probes[i];
        uint32_t sent = PROBE_SENT;
        if (atomic_load(&probe->context) != launch->context || probe->stream != launch->stream ||
            probe->per_thread != launch->per_thread ||
            !atomic_compare_exchange_strong(&probe->state, &sent, PROBE_OPEN))
            continue;
        bool same = atomic_load(&probe->context) == launch->context &&
                    probe->stream == launch->stream && probe->per_thread == launch->per_thread;
        int mode = capture_relax();
        bool underway = same && real.cuEventQuery(probe->to) == CUDA_ERROR_NOT_READY;
        capture_restore(mode);
        if (underway)
            return probe;
        atomic_store(&probe->state, PROBE_SENT);
        if (same)
            measure_read(launch->context);
    }
    return NULL;
}

/* Whether the stream has work yet to do. */
static bool busy(CUstream stream, bool per_thread)
{
    int mode = capture_relax();
    CUresult result = REAL_EITHER(cuStreamQuery)(stream);
    capture_restore(mode);
    return result == CUDA_ERROR_NOT_READY;
}

/* For a launch that must be measured and has no probe of its own. */
static struct probe *stretch(const struct launch *launch)
{
    struct probe *probe = stretched(launch);
    for (uint64_t waited = 0; probe == NULL && waited < LONGEST_WAIT_NS; waited += STEP_WAIT_NS) {
        probe = free_probe(launch->context, PROBES, PROBES + STRETCHED);
        if (probe != NULL)
            return probe;
        share_sleep(STEP_WAIT_NS);
        measure_read(launch->context);
        probe = stretched(launch);
    }
    if (probe == NULL)
        return NULL;
    if (probe->family != NULL && probe->family != launch->family) {
        atomic_fetch_sub(&probe->family->probing, 1);
        probe->family = NULL;
    }
    probe->launches++;
    probe->charged_ns += launch->charged_ns;
    probe->last_charged_ns = launch->charged_ns;
    return probe;
}

struct probe *measure_begin(const struct launch *launch)
{
    struct kernel *kernel = launch->kernel;
    struct probe *probe = NULL;
    if (!share_measures() || capturing(launch->stream, launch->per_thread))
        return NULL;
    bool may = kernel == NULL || atomic_fetch_add(&kernel->probing, 1) < PROBES_EACH;
    if (may)
        probe = free_probe(launch->context, 0, PROBES);
    if (probe == NULL && kernel != NULL)
        atomic_fetch_sub(&kernel->probing, 1);
    if (probe == NULL) {
        kernel = NULL;
        probe = launch->estimated ? stretch(launch) : NULL;
        if (probe == NULL || probe->launches > 1)
            return probe;
    }
    probe->device = launch->device;
    probe->kernel = kernel;
    probe->family = launch->family;
    probe->stream = launch->stream;
    probe->per_thread = launch->per_thread;
    atomic_store(&probe->charged_ns, launch->charged_ns);
    probe->last_charged_ns = launch->charged_ns;
    probe->blocks = launch->blocks;
    probe->launches = 1;
    probe->estimated = launch->estimated;
    probe->stops = stops_of(launch->device);
    probe->begun_ns = clock_ns();
    probe->behind = busy(launch->stream, launch->per_thread);
    atomic_fetch_add(&launch->family->probing, 1);
    atomic_fetch_add(&measure_open, 1);
    record(probe->from, launch->stream, launch->per_thread);
    return probe;
}

/* What is not done when its context goes is never measured: it is charged the time since the first
   launch of it began. */
static void settle_cut(struct device *device, uint64_t since_ns, uint64_t charged_ns)
{
    uint64_t took = clock_ns() - since_ns;
    if (took > charged_ns)
        share_correct(device, (int64_t)(took - charged_ns));
}

void measure_context_ends(CUcontext context, bool gone)
{
    struct device *device = NULL;
    uint64_t since_ns = UINT64_MAX, charged_ns = 0;
    if (!gone)
        read_all(context, false);
    for (int i = 0; i < PROBES + STRETCHED; i++) {
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
            if (state == PROBE_SENT) {
                device = probe->device;
                charged_ns += probe->charged_ns;
                since_ns = probe->begun_ns < since_ns ? probe->begun_ns : since_ns;
                done_with(probe);
                continue;
            }
        }
        atomic_store(&probe->state, state);
    }
    if (device != NULL)
        settle_cut(device, since_ns, charged_ns);
}

/* The process ends: what is done is read, and the rest is charged by the time since it began,
   without waiting for it. */
void measure_exits(void)
{
    uint64_t since_ns[MAX_DEVICES], charged_ns[MAX_DEVICES] = { 0 };
    memset(since_ns, 0xff, sizeof since_ns);
    read_all(NULL, true);
    for (int i = 0; i < PROBES + STRETCHED; i++) {
        struct probe *probe = &probes[i];
        uint32_t sent = PROBE_SENT;
        if (!atomic_compare_exchange_strong(&probe->state, &sent, PROBE_READING))
            continue;
        int at = probe->device->ordinal;
        charged_ns[at] += probe->charged_ns;
        since_ns[at] = probe->begun_ns < since_ns[at] ? probe->begun_ns : since_ns[at];
        done_with(probe);
    }
    for (int i = 0; i < MAX_DEVICES; i++)
        if (since_ns[i] != UINT64_MAX)
            settle_cut(device_at(i), since_ns[i], charged_ns[i]);
}

void measure_end(struct probe *probe, CUstream stream, bool per_thread, CUresult result)
{
    if (result == CUDA_SUCCESS) {
        record(probe->to, stream, per_thread);
        tell_open(probe->device);
        atomic_store(&probe->state, PROBE_SENT);
        return;
    }
    share_correct(probe->device, -(int64_t)probe->last_charged_ns);
    probe->charged_ns -= probe->last_charged_ns;
    if (--probe->launches == 0)
        done_with(probe);
    else
        atomic_store(&probe->state, PROBE_SENT); /* as far as it was recorded before */
}

static void measure_forget(void)
{
    if (!atomic_load(&pacing))
        return; /* nothing is known yet, and its memory is not touched */
    kernels_forget();
    memset(probes, 0, sizeof probes);
    atomic_store(&measure_open, 0);
}

PART(.forget = measure_forget);

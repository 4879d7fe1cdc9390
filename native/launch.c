/* A launch is charged before it is let go, by what launches like it were measured to take
   (measure.c), out of the partition's time (share.c). Each thread buys a little ahead, so that most
   launches cost a subtraction. */
#define _GNU_SOURCE
#include "launch.h"
#include "capture.h"
#include "kernels.h"
#include "measure.h"
#include "parts.h"
#include "share.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    CACHE = 64,
    DEBT_NS = 200 * 1000,        /* how much a thread buys at once while others compute, */
    AHEAD_WALL_NS = 1500 * 1000, /* else what the partition gets in this time */
    PROBE_EVERY_NS = 2 * 1000 * 1000,
    PROBE_VARYING_NS = 100 * 1000, /* of kernels whose launches differ */
    FIRST_WAIT_NS = 100 * 1000 * 1000,
};

/* What a thread knows of launches with these blocks; in one line of the processor's cache. */
struct known_launch {
    _Alignas(64) void *what;
    uint64_t blocks;
    CUcontext context;
    int64_t cost_ns, until_probe;
    int device;
};

/* What a thread has bought: it alone takes of it, without a locked instruction. */
typedef _Atomic int64_t credit;

static _Thread_local struct thread {
    struct known_launch cache[CACHE];
    credit credit_ns[MAX_DEVICES];
    uint32_t chance;
    struct thread *next;
    bool listed;
} mine;

static inline void credit_by(credit *credit, int64_t ns)
{
    STORE(*credit, LOAD(*credit) + ns);
}

/* Any number below `most`. */
static uint64_t any_below(uint64_t most)
{
    mine.chance = mine.chance * 1664525u + 1013904223u;
    return (most * (uint64_t)(mine.chance >> 8)) >> 24;
}

/* How many launches to leave out before the next is measured: any number about the mean, since
   launches may take turns. None while other processes compute, because any launch may have to wait
   for them. */
static int64_t until_next(struct device *device, struct kernel *kernel, uint64_t cost)
{
    uint64_t every_ns = atomic_load(&kernel->varies) ? PROBE_VARYING_NS : PROBE_EVERY_NS;
    return cost >= every_ns || share_contended(device) ? 0
                                                       : (int64_t)any_below(every_ns * 2 / cost);
}

/* The first launch of a kernel tells what the next will cost, and the first of a function what it
   costs with other blocks. 0: not known; one that is waited for in vain takes longer than
   `waited`. */
static uint64_t wait_for_first(struct launch *launch, uint64_t *waited)
{
    struct kernel *kernel = launch->kernel;
    uint64_t pause = 20000, cost;
    *waited = 0;
    for (;;) {
        cost = kernel != NULL ? atomic_load(&kernel->cost_ns) : 0;
        bool coming =
            (kernel != NULL && atomic_load(&kernel->probing) != 0) ||
            (atomic_load(&launch->family->mean_ns) == 0 && atomic_load(&launch->family->probing));
        if (cost != 0 || !coming || !share_measures() || *waited >= FIRST_WAIT_NS)
            return cost;
        share_sleep(pause);
        *waited += pause;
        pause = pause + pause / 2 < 1000000 ? pause + pause / 2 : 1000000;
        measure_read(launch->context);
    }
}

/* A thread that waits for its time wakes on a core that has slept, which runs slowly for a while:
   it should wait seldom. Beside others it buys little at once, because the correction by NVML is
   the more exact then. */
static uint64_t ahead_ns(const struct device *device)
{
    return share_contended(device) ? DEBT_NS : share_within(device, AHEAD_WALL_NS);
}

/* ---- what was bought and not used ---- */

static struct turn turn; /* of the list */
static struct thread *listed;
static pthread_key_t ending;
static bool has_key;

/* With the turn. */
static void give_back(struct thread *thread)
{
    for (int i = 0; i < MAX_DEVICES; i++) {
        int64_t left = LOAD(thread->credit_ns[i]);
        struct device *device = left > 0 ? device_at(i) : NULL;
        if (device != NULL)
            share_correct(device, -left);
        STORE(thread->credit_ns[i], 0);
    }
}

static void thread_ends(void *of_mine)
{
    (void)of_mine;
    IN_TURN(&turn);
    for (struct thread **at = &listed; *at != NULL; at = &(*at)->next)
        if (*at == &mine) {
            *at = mine.next;
            break;
        }
    mine.listed = false;
    give_back(&mine);
}

/* What all threads have bought is given back: those that go on until the process has ended buy
   anew. One that ends the process in a signal handler amid its own turn does not wait for it. */
static void exits_now(void)
{
    if (turn_try(&turn)) {
        for (struct thread *thread = listed; thread != NULL; thread = thread->next)
            give_back(thread);
        turn_leave(&turn);
    }
    measure_exits();
}

/* This thread gives back what it has when it ends, or the process does. */
static void enlist(void)
{
    static bool exits; /* before the driver's own, which was there earlier */
    IN_TURN(&turn);
    if (!exits)
        exits = atexit(exits_now) == 0;
    if (!has_key)
        has_key = pthread_key_create(&ending, thread_ends) == 0;
    if (has_key && pthread_setspecific(ending, &mine) == 0) {
        mine.next = listed;
        listed = &mine;
    }
    mine.listed = true;
}

__attribute__((noinline)) static struct probe *pace_slowly(void *what, uint64_t blocks,
                                                           CUstream stream, bool per_thread)
{
    struct device *device = device_current();
    CUcontext context = context_current();
    struct known_launch *cached = &mine.cache[kernels_place(what, blocks) % CACHE];
    if (device == NULL || !share_limits(device)) {
        /* Looked at again after 1,024 launches: the partition may have got a limit by then. */
        *cached = (struct known_launch){
            .what = what,
            .blocks = blocks,
            .context = context,
            .until_probe = 1024,
        };
        return NULL;
    }
    if (capturing(stream, per_thread))
        return NULL; /* it becomes a node and is charged when its graph runs */
    if (UNLIKELY(!mine.listed))
        enlist();
    measure_read(context);
    share_check(device);
    struct launch launch = { .device = device,
                             .kernel = kernels_of(what, blocks, context),
                             .family = kernels_family(what, blocks, context),
                             .context = context,
                             .stream = stream,
                             .blocks = blocks,
                             .per_thread = per_thread };
    uint64_t waited, cost = wait_for_first(&launch, &waited);
    bool guess = launch.estimated = cost == 0,
         same = cached->what == what && cached->blocks == blocks && cached->context == context;
    if (guess) {
        cost = kernels_estimate(device, launch.family, blocks);
        cost = cost > waited ? cost : waited;
    }
    cost = share_scaled(device, cost);
    if (cost == 0)
        cost = 1;
    credit *credit_ns = &mine.credit_ns[device->ordinal];
    if (LOAD(*credit_ns) < (int64_t)cost) {
        uint64_t ahead = ahead_ns(device);
        uint64_t launches = !guess && cost < ahead ? ahead / cost : 1;
        share_buy(device, launches * cost);
        credit_by(credit_ns, (int64_t)(launches * cost));
    }
    credit_by(credit_ns, -(int64_t)cost);
    bool measure = guess || !same || atomic_load(&launch.kernel->sample_count) < 4 ||
                   cached->until_probe-- <= 0;
    if (measure && !guess && atomic_load(&launch.kernel->probing) != 0 && share_contended(device) &&
        any_below(8) != 0)
        measure = false; /* one of those that come behind it will do */
    *cached = (struct known_launch){
        .what = guess ? NULL : what,
        .blocks = blocks,
        .context = context,
        .cost_ns = (int64_t)cost,
        .until_probe = cached->until_probe,
        .device = device->ordinal,
    };
    /* Also behind a guess: launches that are all measured at the beginning, before NVML tells of
       others, would be charged for what those took in between. */
    if (launch.kernel != NULL && (measure || cached->until_probe < 0))
        cached->until_probe = until_next(device, launch.kernel, cost);
    launch.charged_ns = cost;
    return measure ? measure_begin(&launch) : NULL;
}

/* Whether this thread has bought enough time for such a launch, which need not be measured. */
static inline __attribute__((always_inline)) bool paid(struct known_launch *cached,
                                                       const void *what, uint64_t blocks)
{
    credit *credit_ns = &mine.credit_ns[cached->device];
    int64_t cost_ns = cached->cost_ns, left = LOAD(*credit_ns);
    if (UNLIKELY(cached->what != what || cached->blocks != blocks || left < cost_ns ||
                 cached->until_probe <= 0))
        return false;
    cached->until_probe--;
    STORE(*credit_ns, left - cost_ns);
    return true;
}

struct probe *pace(void *what, uint64_t blocks, CUstream stream, bool per_thread)
{
    struct known_launch *cached = &mine.cache[kernels_place(what, blocks) % CACHE];
    if (LIKELY(!LOAD(pacing)))
        return NULL;
    bool here = !LOAD(several) || cached->context == context_current();
    return here && paid(cached, what, blocks) ? NULL
                                              : pace_slowly(what, blocks, stream, per_thread);
}

static void pace_forget(void)
{
    if (!atomic_load(&pacing))
        return;    /* nothing is known yet, and its memory is not touched */
    listed = NULL; /* the other threads are the parent's */
    memset(&mine, 0, sizeof mine);
}

PART(.turn = &turn, .forget = pace_forget);

/* ---- the calls ---- */

/* Whether nothing is to be done for a launch. Of several GPUs the context must be asked which. */
static inline __attribute__((always_inline)) bool settled(const void *what, uint64_t blocks)
{
    return LIKELY(!LOAD(pacing)) ||
           (LIKELY(!LOAD(several)) &&
            paid(&mine.cache[kernels_place(what, blocks) % CACHE], what, blocks));
}

static CUresult measured(struct probe *probe, CUstream stream, bool per_thread, CUresult result)
{
    if (probe != NULL)
        measure_end(probe, stream, per_thread, result);
    return result;
}

static inline uint64_t blocks_of(const CUlaunch *launch)
{
    return launch == NULL ? 0 : (uint64_t)launch->grid_x * launch->grid_y * launch->grid_z;
}

static inline CUstream stream_of(const CUlaunch *launch)
{
    return launch == NULL ? NULL : launch->stream;
}

/* Each call is two functions. What is paid for needs no call but the driver's, which takes its
   place on the stack; the other charges and perhaps measures. */
#define LAUNCH(name, per_thread, blocks, stream, params, args)                \
    __attribute__((noinline)) static CUresult charged_##name params           \
    {                                                                         \
        struct probe *probe = pace(function, blocks, stream, per_thread);     \
        return measured(probe, stream, per_thread, REAL(name) args);          \
    }                                                                         \
    CUresult name params                                                      \
    {                                                                         \
        bool direct = LIKELY(real.name != NULL) && settled(function, blocks); \
        return (direct ? real.name : charged_##name)args;                     \
    }
#define LAUNCHES(name, ...) LAUNCH(name, false, __VA_ARGS__) LAUNCH(name##_ptsz, true, __VA_ARGS__)

#include "hooks.h"

/* Makes the context of a stream current, by which its GPU is charged. */
static bool enter(CUstream stream)
{
    CUcontext context = NULL;
    return (uintptr_t)stream > 2 && REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS &&
           context_enter(context);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUcooperative *list, unsigned count, unsigned flags)
{
    struct probe *probes[MAX_DEVICES];
    if (!LOAD(pacing) || list == NULL ||
        count > MAX_DEVICES) /* the driver takes one for each GPU at most */
        return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    for (unsigned i = 0; i < count; i++) {
        bool pushed = enter(list[i].stream);
        probes[i] =
            pace(list[i].function, (uint64_t)list[i].grid_x * list[i].grid_y * list[i].grid_z,
                 list[i].stream, false);
        context_leave(pushed);
    }
    CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    for (unsigned i = 0; i < count; i++) {
        bool pushed = probes[i] != NULL && enter(list[i].stream);
        if (probes[i] != NULL)
            measure_end(probes[i], list[i].stream, false, result);
        context_leave(pushed);
    }
    return result;
}

LAUNCH(cuLaunch, false, 1, NULL, (CUfunction function), (function))
LAUNCH(cuLaunchGrid, false, (uint64_t)width *(uint64_t)height, NULL,
       (CUfunction function, int width, int height), (function, width, height))
LAUNCH(cuLaunchGridAsync, false, (uint64_t)width *(uint64_t)height, stream,
       (CUfunction function, int width, int height, CUstream stream),
       (function, width, height, stream))

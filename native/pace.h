/* What the three parts of the compute limit know of each other: share.c keeps the partition's time, measure.c learns
   what a launch costs, launch.c charges it. */
#ifndef BERTH_PACE_H
#define BERTH_PACE_H

#include "devices.h"
#include "launch.h"

/* ---- share.c ---- */

/* Whether the partition's compute is limited at all. */
bool share_limits(const struct device *device);
/* Buys GPU time and waits until it begins. */
void share_buy(struct device *device, uint64_t ns);
/* Charges what turned out beside what was charged; nobody waits here. */
void share_correct(struct device *device, int64_t ns);
/* What a launch is charged that was measured to take so long. */
uint64_t share_scaled(const struct device *device, uint64_t ns);
/* Whether others compute on the card, so that a launch may seem longer than it is. */
bool share_contended(const struct device *device);
/* Whether NVML told that nobody does, at its last look, which was at `looked_ns`. */
bool share_alone(const struct device *device, uint64_t *looked_ns);
/* Whether NVML tells what this partition computes, so that a launch may be left out that others may have kept. */
bool share_knows(const struct device *device);
/* Whether the least that launches seem to take may be what they all take, since NVML would tell otherwise. */
bool share_may_trim(const struct device *device);
/* Work was on its way to the GPU for so long, from `begun_ns` on. */
void share_backlog(struct device *device, uint64_t begun_ns, uint64_t took_ns);
/* Compares with NVML, now and then. */
void share_check(struct device *device);
void share_sleep(uint64_t ns);

/* ---- measure.c ---- */

struct kernel {
    void *_Atomic what;
    shared64 blocks;
    _Atomic(CUcontext) context; /* the same one may be launched in several, also on several GPUs */
    shared64 cost_ns;           /* 0: not measured yet */
    shared64 mean_ns;           /* of many launches, as they seemed */
    struct { shared64 sum_ns, count, least_ns, most_ns; } alone, pending; /* those that nobody else's work can have kept */
    shared64 pending_since_ns;
    shared64 charged_unknown;   /* launches charged by guess */
    shared64 samples[16];
    shared32 sample_count, behind_count, probing;
    shared32 varies;            /* its launches differ */
};

enum { FIRST_COST_NS = 20 * 1000 }; /* what a launch is charged until it is measured */

struct kernel *measure_kernel(void *what, uint64_t blocks, CUcontext context);
bool measure_can(void);
/* Reads what is done of the caller's context: another's may end at any moment, and its time is another GPU's. */
void measure_read(struct device *device, CUcontext context);
/* Begins to measure a launch that was charged `charged_ns`, 0 if by guess; NULL where that cannot be now. */
struct probe *measure_begin(struct kernel *kernel, CUcontext context, CUstream stream, bool per_thread, uint64_t charged_ns);

#endif

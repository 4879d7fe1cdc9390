/* What a launch costs, by measuring one in many. */
#ifndef BERTH_MEASURE_H
#define BERTH_MEASURE_H

#include "devices.h"

struct kernel {
    void *_Atomic what;
    shared64 blocks;
    _Atomic(CUcontext) context; /* the same one may be launched in several, also on several GPUs */
    shared64 cost_ns;           /* 0: not measured yet */
    shared64 mean_ns;           /* of many launches, as they seemed */
    struct {
        shared64 sum_ns, count, least_ns, most_ns;
    } alone, pending; /* those that nobody else's work can have kept */
    shared64 pending_since_ns;
    shared64 charged_unknown; /* launches charged by guess */
    shared64 samples[16];
    shared32 sample_count, behind_count, probing;
    shared32 varies; /* its launches differ */
};

enum { FIRST_COST_NS = 20 * 1000 }; /* what a launch is charged until it is measured */

struct probe;
struct kernel *measure_kernel(void *what, uint64_t blocks, CUcontext context);
/* Reads what is done of the caller's context: another's may end at any moment, and its time is
   another GPU's. */
void measure_read(struct device *device, CUcontext context);
/* Begins to measure a launch that was charged `charged_ns`, 0 if by guess; NULL where that cannot
   be now. */
struct probe *measure_begin(struct kernel *kernel, CUcontext context, CUstream stream,
                            bool per_thread, uint64_t charged_ns);
void measure_end(struct probe *probe, CUstream stream, bool per_thread, CUresult result);
/* A context is gone, or is about to go: what was made in it must not be used again. */
void measure_context_ends(CUcontext context, bool gone);

#endif

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
    shared64 samples[16];
    shared32 sample_count, behind_count, probing;
    shared32 varies; /* its launches differ */
};

/* What launches of one function took of late, whatever their blocks; or of all graphs, which are
   made anew for each launch by some programs. */
struct family {
    void *_Atomic what;
    _Atomic(CUcontext) context;
    shared64 mean_ns, mean_blocks; /* 0: not measured yet */
    shared32 probing;
};

/* What a launch is charged if nothing was measured yet. */
enum { FIRST_COST_NS = 20 * 1000 };

struct probe;
/* What is known of launches with these blocks; NULL where the table is full, since shapes that
   change for ever would fill any. `blocks` is 0 for a graph. */
struct kernel *measure_kernel(void *what, uint64_t blocks, CUcontext context);
struct family *measure_family(void *what, uint64_t blocks, CUcontext context);
/* What a launch may take that was not measured with these blocks. */
uint64_t measure_estimate(const struct device *device, const struct family *family,
                          uint64_t blocks);
/* Reads what is done of the caller's context: another's may end at any moment, and its time is
   another GPU's. */
void measure_read(CUcontext context);
/* The caller has waited for the GPU: what is done of any context is read. */
extern shared32 measure_open; /* launches that are being measured, on their way included */
void measure_settle(void);
void measure_exits(void);

/* A launch that is measured: `kernel` is NULL where the table is full. One that was charged by an
   estimate is measured in any case: alone, or together with those before it in its stream. */
struct launch {
    struct device *device;
    struct kernel *kernel;
    struct family *family;
    CUcontext context;
    CUstream stream;
    uint64_t blocks, charged_ns;
    bool per_thread, estimated;
};
/* Begins to measure; NULL where that cannot be now. */
struct probe *measure_begin(const struct launch *launch);
void measure_end(struct probe *probe, CUstream stream, bool per_thread, CUresult result);
/* A context is gone, or is about to go: what was made in it must not be used again. */
void measure_context_ends(CUcontext context, bool gone);

#endif

/* What a launch costs, by measuring one in many. */
#ifndef BERTH_MEASURE_H
#define BERTH_MEASURE_H

#include "kernels.h"

struct probe;
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

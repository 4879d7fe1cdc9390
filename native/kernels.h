/* What is known of each kernel's launches. */
#ifndef BERTH_KERNELS_H
#define BERTH_KERNELS_H

#include "devices.h"

struct kernel {
    void *_Atomic what;
    shared64 blocks;
    _Atomic(CUcontext) context; /* the same one may be launched in several, also on several GPUs */
    shared64 cost_ns;           /* 0: not measured yet */
    shared64 mean_ns;           /* of many launches, as they seemed */
    struct spread {
        shared64 sum_ns, count, least_ns, most_ns;
    } alone, pending; /* those that no other partition's work can have delayed */
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

/* Where what is known of launches with these blocks begins, in a table of any size. */
static inline size_t kernels_place(const void *what, uint64_t blocks)
{
    uint64_t mixed = ((uintptr_t)what ^ blocks << 32 ^ blocks) * 0x9e3779b97f4a7c15ull;
    return (size_t)(mixed >> 40);
}

/* What is known of launches with these blocks; NULL where the table is full, since shapes that
   change for ever would fill any. `blocks` is 0 for a graph. */
struct kernel *kernels_of(void *what, uint64_t blocks, CUcontext context);
struct family *kernels_family(void *what, uint64_t blocks, CUcontext context);
/* What a launch may take that was not measured with these blocks. */
uint64_t kernels_estimate(const struct device *device, const struct family *family,
                          uint64_t blocks);
/* Takes up what a launch seemed to take; returns what it is believed to have taken. */
uint64_t kernels_learn(struct device *device, struct kernel *kernel, uint64_t ns, bool behind);
/* Takes up what launches of a family took each; `estimated`: such a launch was not measured before.
 */
void kernels_follow(struct device *device, struct family *family, uint64_t ns, uint64_t blocks,
                    bool estimated);
void kernels_forget(void);

#endif

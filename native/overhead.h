/* What only the driver knows the size of: an estimate is taken, then corrected by measuring
   (overhead.c). */
#ifndef BERTH_OVERHEAD_H
#define BERTH_OVERHEAD_H

#include "devices.h"
#include "ledger.h"

struct overhead {
    struct device *device;
    shared64 *learned; /* a lesson; 0: not yet */
    uint64_t reserved;
    struct nvml_snapshot *before; /* the card (nvml_delta.h) */
    const char *call;
    bool known, doubtful,
        trusted;     /* doubtful: NVML did not tell; believed: whatever the card says is its own */
    bool concurrent; /* another thread made a context of this GPU when it began */
    uint32_t number; /* of the contexts of this GPU that were begun */
};
/* The bytes of what was learned, which is not 0. */
uint64_t overhead_lesson_bytes(uint64_t lesson);
bool overhead_begin(struct overhead *overhead, struct device *device, shared64 *learned,
                    uint64_t first, const char *call);
/* The same for what loads in parts: of what the largest before it took as much as there is room
   for, since most are smaller. */
void overhead_begin_part(struct overhead *overhead, struct device *device, shared64 *learned,
                         const char *call);
/* False where the driver took more than may be had: the caller undoes what it did and cancels.
   `made` is NULL unless a context was made. */
bool overhead_end(struct overhead *overhead, CUcontext made, uint64_t *bytes);
/* What was taken is too much and stays: counts it as far as there is room, and says how far. */
uint64_t overhead_count(const struct overhead *overhead, uint64_t bytes);
/* What is loaded for good was as large: the next is charged so before it is loaded. */
void overhead_learn(const struct overhead *overhead, uint64_t bytes);
void overhead_cancel(struct overhead *overhead);
/* A call failed that may have loaded something first: what is told of that stays charged, as far as
   there is room. */
void overhead_failed(struct overhead *overhead, uint64_t *bytes);
/* Puts it down under a name. Where that is there already, the larger of two contexts' stays and
   anything else's is added. */
void overhead_note(enum kind kind, const void *key, void *owner, struct device *device,
                   uint64_t bytes);
/* A module or library of this name is new, or may be: its variables are yet to load. */
void overhead_renamed(const void *owner);

#endif

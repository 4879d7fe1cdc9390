/* What may be had beyond the limit, in the memory of the host. */
#ifndef BERTH_SWAP_H
#define BERTH_SWAP_H

#include "devices.h"

/* What did not fit, as managed memory that stays with the host; records a refusal where it may not
   be had (`left` was left of the limit), or where it has no address (`ptr` is NULL). */
CUresult swap_allocate(struct device *device, CUdeviceptr *ptr, uint64_t bytes, uint64_t left,
                       const char *call);
void swap_give(struct device *device, uint64_t bytes);

#endif

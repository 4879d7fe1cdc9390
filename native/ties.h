/* What holds physical memory beside handles and mappings. */
#ifndef BERTH_TIES_H
#define BERTH_TIES_H

#include "devices.h"

struct record; /* of one piece of physical memory (vmm.c) */
/* A part of a sparse array, or a piece of a multicast object: what it holds. */
struct tie {
    const void *holder;
    CUmap_info part;
    CUdevice dev;
    size_t offset;
    struct record *record;
};

/* Without memory for it the record stays counted until the process ends. */
void ties_add(struct tie new);
/* Takes out one tie of a holder: of this part, or of this device and these offsets, or any. */
struct record *ties_take(const void *holder, const CUmap_info *part, CUdevice dev, size_t from,
                         size_t bytes);

#endif

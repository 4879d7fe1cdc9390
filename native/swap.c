/* Memory beyond the limit, where the partition allows it: managed memory that stays with the host
   and that the card reaches from there, slowly. So the limit holds for the card's own memory as it
   does without it.

   How much of it is in use is told by the sum over the region's slots, each of which only its own
   process writes: what a killed process had goes with its slot. A process first says what it wants
   and then looks at the sum, so that of two that ask at once both may be refused, and never both be
   given too much. */
#define _GNU_SOURCE
#include "swap.h"
#include "ledger.h"
#include "settings.h"

enum { GLOBAL = 1, PREFER = 3, REACHED_BY = 5, HOST = -1 };

static uint64_t allowed(const struct device *device)
{
    return atomic_load_explicit(&device->region.limit->swap_bytes, memory_order_relaxed);
}

static bool reserve(struct device *device, uint64_t bytes, uint64_t *left)
{
    struct berth_use_file *use = device->region.use;
    uint64_t most = allowed(device), sum = 0;
    *left = 0;
    if (device->region.slot < 0 || bytes > most)
        return false;
    atomic_fetch_add(&use->slots[device->region.slot].swapped, bytes);
    uint32_t seen = atomic_load(&use->slots_seen);
    for (uint32_t i = 0; i < seen && i < BERTH_SLOTS; i++)
        if (atomic_load(&use->slots[i].state) == 1)
            sum += atomic_load(&use->slots[i].swapped);
    if (sum <= most)
        return true;
    atomic_fetch_sub(&use->slots[device->region.slot].swapped, bytes);
    *left = most > sum - bytes ? most - (sum - bytes) : 0;
    return false;
}

void swap_give(struct device *device, uint64_t bytes)
{
    if (device->region.slot >= 0)
        atomic_fetch_sub(&device->region.use->slots[device->region.slot].swapped, bytes);
}

CUresult swap_allocate(struct device *device, CUdeviceptr *ptr, uint64_t bytes, uint64_t left,
                       const char *call)
{
    uint64_t swap_left = 0;
    CUcontext context = NULL;
    bool may = allowed(device) != 0 && ptr != NULL && HAVE(cuMemAllocManaged);
    if (!may || !reserve(device, bytes, &swap_left)) {
        left = left > swap_left ? left : swap_left;
        refuse(device, bytes, left, call);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = real.cuMemAllocManaged(ptr, bytes, GLOBAL);
    if (result != CUDA_SUCCESS) {
        swap_give(device, bytes);
        return result;
    }
    /* Where the driver does not take the advice, pages move to the card as they are used, and back
       when it is full. */
    if (HAVE(cuMemAdvise)) {
        (void)real.cuMemAdvise(*ptr, bytes, PREFER, HOST);
        (void)real.cuMemAdvise(*ptr, bytes, REACHED_BY, device->handle);
    }
    if (HAVE(cuCtxGetCurrent))
        real.cuCtxGetCurrent(&context);
    ledger_put((struct entry){ .key = *ptr,
                               .bytes = bytes,
                               .owner = context,
                               .kind = SWAPPED,
                               .device = (uint16_t)device->ordinal });
    static shared32 told;
    if (atomic_exchange(&told, 1) == 0)
        log_line("%s of %llu bytes on GPU %d is above the limit and stays in the host's memory, "
                 "which is slower",
                 call, (unsigned long long)bytes, device->ordinal);
    return CUDA_SUCCESS;
}

/* The card's memory comes in whole steps: of linear memory the driver takes 2 MiB for 1 MiB and a
   byte, and puts small allocations together into one step. Addresses tell which: memory in the same
   2 MiB of addresses is in the same step. So a step is charged with the first allocation in it, and
   given back with the last.

   A driver that gives bytes as they are asked for, as the fake one may, is told by a first
   allocation of an odd number of bytes: the card's free memory is less by an odd number then. */
#define _GNU_SOURCE
#include "steps.h"
#include "nvml_delta.h"

enum { EXACT = 1, WHOLE = 2, PROBES = 16, PROBE_BYTES = (1 << 20) + 1 };

/* What the card has less after an allocation of an odd size; 0 where that cannot be tried. */
static uint64_t probe(struct device *device)
{
    CUdeviceptr at;
    uint64_t left, before, after;
    if (!HAVE(cuMemAlloc_v2) || !HAVE(cuMemFree_v2) || !take_quietly(device, STEP_BYTES, &left))
        return 0;
    before = driver_free();
    if (real.cuMemAlloc_v2(&at, PROBE_BYTES) != CUDA_SUCCESS) {
        give(device, STEP_BYTES);
        return 0;
    }
    after = driver_free();
    CUresult freed = real.cuMemFree_v2(at);
    for (int i = 0; i < 3 && freed != CUDA_SUCCESS; i++)
        freed = real.cuMemFree_v2(at);
    if (freed == CUDA_SUCCESS) /* or it stays charged until the process ends */
        give(device, STEP_BYTES);
    return above(before, after);
}

/* Neighbours may allocate meanwhile: what is neither is tried again. */
static bool is_exact(struct device *device)
{
    shared32 *learned = &device->region.use->rounding;
    uint32_t known = atomic_load(learned);
    for (int i = 0; i < PROBES && known == 0 && device->region.slot >= 0; i++) {
        uint64_t less = probe(device);
        known = less == PROBE_BYTES ? EXACT : less != 0 && less % STEP_BYTES == 0 ? WHOLE : 0;
        if (less == 0)
            break;
    }
    if (known != 0)
        atomic_store(learned, known);
    if (known == EXACT)
        atomic_store(&device->exact, 1);
    return known == EXACT;
}

uint64_t steps_most_slow(struct device *device, uint64_t bytes)
{
    if (is_exact(device) || bytes > UINT64_MAX - STEP_BYTES)
        return bytes;
    return (bytes + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
}

/* What the steps of an address range come to that nothing else is in: before the range counts in
   them (`by` is 1), or once it does no more (-1). */
static uint64_t steps_of_its_own(uint64_t at, uint64_t bytes, int by)
{
    uint64_t first = at / STEP_BYTES, last = (at + bytes - 1) / STEP_BYTES, own = last - first + 1;
    bool parts_first = at % STEP_BYTES != 0, parts_last = (at + bytes) % STEP_BYTES != 0;
    if (bytes == 0)
        return 0;
    if ((parts_first || (parts_last && first == last)) && !ledger_share(STEP, first, by))
        own--;
    if (parts_last && first != last && !ledger_share(STEP, last, by))
        own--;
    return own * STEP_BYTES;
}

bool steps_settle(struct device *device, uint64_t at, uint64_t bytes, uint64_t taken,
                  const char *call)
{
    uint64_t own = steps_of_its_own(at, bytes, 1);
    if (own <= taken) {
        give(device, taken - own);
        return true;
    }
    if (obtain_for(device, own - taken, bytes, call))
        return true;
    (void)steps_of_its_own(at, bytes, -1);
    give(device, taken);
    return false;
}

void steps_give(const struct entry *entry)
{
    bool rounded = entry->kind == LINEAR && entry->count != 0;
    give(device_at(entry->device),
         rounded ? steps_of_its_own(entry->key, entry->bytes, -1) : entry->bytes);
}

/* The card's memory comes in whole steps of 2 MiB, which small allocations share. */
#ifndef BERTH_STEPS_H
#define BERTH_STEPS_H

#include "devices.h"
#include "ledger.h"

enum { STEP_BYTES = 2 << 20 };

/* What one allocation takes of the card at most, if it shares no step. The first such call of a
   partition finds out whether the driver rounds up at all. */
uint64_t steps_most_slow(struct device *device, uint64_t bytes);
/* What memory at an address was given, of which `taken` is charged: shared steps are given back.
   False where it lies in more steps than may be had, which is refused; then nothing is charged. */
bool steps_settle(struct device *device, uint64_t at, uint64_t bytes, uint64_t taken,
                  const char *call);
/* Gives back what an entry is charged for. */
void steps_give(const struct entry *entry);
/* An entry is taken out before the driver frees what it names, since the name may be given anew at
   once; it is put back where the driver refused (`result`). */
static inline CUresult steps_freed(bool known, const struct entry *entry, CUresult result)
{
    if (known && UNLIKELY(result != CUDA_SUCCESS))
        ledger_put(*entry);
    else if (known)
        steps_give(entry);
    return result;
}

static inline bool steps_exact(const struct device *device)
{
    return LIKELY(LOAD(device->exact) != 0);
}

static inline uint64_t steps_most(struct device *device, uint64_t bytes)
{
    return steps_exact(device) ? bytes : steps_most_slow(device, bytes);
}

#endif

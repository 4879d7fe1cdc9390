/* What the account of a region and its members know of each other. */
#ifndef BERTH_ACCOUNT_H
#define BERTH_ACCOUNT_H

#include "region.h"

static inline void raise_to(shared64 *cell, uint64_t value)
{
    uint64_t seen = LOAD(*cell);
    while (seen < value && !atomic_compare_exchange_weak(cell, &seen, value)) { }
}

/* Has those that go through the slots look at this one too. */
static inline void see_slot(struct berth_use_file *use, uint32_t index)
{
    uint32_t seen = LOAD(use->slots_seen);
    while (seen < index + 1 && !atomic_compare_exchange_weak(&use->slots_seen, &seen, index + 1)) {
    }
}

/* Writes who has joined into its slot, where something else stands there. */
void account_sign(const struct berth_region *region, uint32_t index);
/* A slot's process is gone: its last change is completed, what it held given back, the slot free.
   The caller alone buries it. */
void account_end(struct berth_use_file *use, uint32_t index);
/* Moves what is charged from one slot to another, which the caller alone changes. */
void account_move(struct berth_use_file *use, uint32_t from, uint32_t to, uint64_t bytes);
/* Whether a member other than the slot's borrows memory of any. */
bool account_is_borrowed(struct berth_use_file *use, uint32_t index);

#endif

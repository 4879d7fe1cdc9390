/* What this process holds. */
#ifndef BERTH_LEDGER_H
#define BERTH_LEDGER_H

#include "berth.h"

enum kind {
    LINEAR = 1, /* finds what is pooled too: a pointer is one or the other */
    ARRAY,
    MIPMAP,
    POOLED,
    HANDLE,
    CONTEXT,
    MODULE,
    LIBRARY,
    GRAPH,
    EXTERNAL,
    GREEN,
    CONTEXT_LIMIT,
    STEP, /* a step of the card's memory that allocations share: `count` is how many */
    ASKED /* a module or library whose variables are loaded, or a kernel that is, in the context
             that owns the entry */
};
struct entry {
    uint64_t key, bytes;
    void *owner;
    uint16_t kind, device;
    uint32_t count;
};
static inline struct entry entry_of(enum kind kind, uint64_t key, uint64_t bytes, void *owner,
                                    int gpu)
{
    return (struct entry){ key, bytes, owner, (uint16_t)kind, (uint16_t)gpu, 0 };
}
void ledger_put(struct entry entry);
/* Puts an entry in. False where there is one of its kind and key: of the two the larger bytes stay
   there, and the smaller are in `entry` afterwards. */
bool ledger_add(struct entry *entry);
bool ledger_take(enum kind kind, uint64_t key, struct entry *entry);
bool ledger_get(enum kind kind, uint64_t key, struct entry *entry);
/* Adds to the count of an entry; false where there is none or the count would pass below 0. */
bool ledger_count(enum kind kind, uint64_t key, int by);
/* One more in what several share (`by` is 1), or one less (-1): whether it is the first or was the
   last. */
bool ledger_share(enum kind kind, uint64_t key, int by);
/* Adds to the bytes of an entry, or puts it in where there is none; one without bytes takes its
   owner and device. False where there is one of another device. */
bool ledger_charge(struct entry entry);
/* Takes out everything that belongs to a context; the caller frees the list. */
struct entry *ledger_take_owned(void *owner, size_t *count);

#endif

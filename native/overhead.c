/* What the driver takes for itself, for a context or a module: an estimate is taken first, then
   corrected by measuring.

   The first process of a region measures and the region remembers, so that the next takes the right
   amount. */
#define _GNU_SOURCE
#include "overhead.h"
#include "nvml_delta.h"
#include "parts.h"
#include "steps.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define SANE_BYTES (2ull << 30)
enum { COLD_WAIT_MS = 50 };

/* What is learned, and how well it was told, in one word; 0: nothing yet. */
static uint64_t lesson(uint64_t bytes, enum evidence reported)
{
    return (bytes + 1) << 2 | reported;
}

uint64_t overhead_lesson_bytes(uint64_t word)
{
    return (word >> 2) - 1;
}

/* Threads that make contexts on one GPU at once measure each other's: each is then charged what was
   taken for it, or what it measured where that is more, and nothing is learned. By GPU: how many
   have begun (the upper half), and how many are under way. */
static shared64 making[MAX_DEVICES];

static void making_begins(struct overhead *overhead)
{
    uint64_t before = atomic_fetch_add(&making[overhead->device->ordinal], (1ull << 32) + 1);
    overhead->concurrent = (uint32_t)before != 0;
    overhead->number = (uint32_t)(before >> 32) + 1;
}

static bool made_concurrently(const struct overhead *overhead)
{
    uint64_t now = atomic_load(&making[overhead->device->ordinal]);
    return overhead->concurrent || (uint32_t)(now >> 32) != overhead->number;
}

static void making_ends(const struct overhead *overhead)
{
    if (overhead->learned == &overhead->device->region.use->context_bytes)
        atomic_fetch_sub(&making[overhead->device->ordinal], 1);
}

/* Whether others of the partition hold any of its memory. */
static bool others_hold(struct device *device)
{
    struct berth_slot *slot = processes_slot(device);
    uint64_t own = slot != NULL ? atomic_load(&slot->held) : 0;
    return atomic_load(&device->region.use->total.used) > own;
}

/* Takes `first` for a context of unknown size. Of a partition that has less than that
   left, all is taken; but if others hold the rest, their contexts may be the first too: their
   measurement is waited for, for at most COLD_WAIT_MS. Returns what is known then, 0 where nothing
   is; `reserved` is 0 where something is known or nothing was taken. */
static uint64_t take_cold(struct device *device, shared64 *learned, uint64_t first,
                          uint64_t *reserved)
{
    for (int waited_ms = 0;; waited_ms++) {
        uint64_t known = atomic_load(learned);
        *reserved = known == 0 ? region_take_some(&device->region, first) : 0;
        if (known != 0 || *reserved == first || (*reserved != 0 && !others_hold(device)))
            return known;
        give(device, *reserved);
        *reserved = 0;
        if (waited_ms == COLD_WAIT_MS)
            return 0;
        KEEPS_ERRNO;
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
}

static bool begin(struct overhead *overhead, struct device *device, shared64 *learned,
                  uint64_t first, const char *call)
{
    bool context = learned == &device->region.use->context_bytes;
    uint64_t known = atomic_load(learned), reserved = 0;
    if (known == 0)
        region_reap(&device->region);
    if (known == 0 && context) {
        known = take_cold(device, learned, first, &reserved);
        if (known == 0 && reserved == 0) {
            if (!obtain(device, first, call))
                return false;
            reserved = first;
        }
    }
    overhead->known = known != 0;
    if (known == 0) {
        overhead->reserved = context ? reserved : region_take_some(&device->region, first);
    } else if (obtain(device, overhead_lesson_bytes(known), call)) {
        overhead->reserved = overhead_lesson_bytes(known);
    } else {
        return false;
    }
    if (!context || known == 0 || (known & 3) < EVIDENCE_LIST || processes_wanted(device))
        overhead->before =
            snapshot_before(device, context ? known != 0 ? A_CONTEXT : A_FIRST_CONTEXT : A_MODULE);
    return true;
}

bool overhead_begin(struct overhead *overhead, struct device *device, shared64 *learned,
                    uint64_t first, const char *call)
{
    *overhead = (struct overhead){ .device = device, .learned = learned, .call = call };
    if (learned == &device->region.use->context_bytes)
        making_begins(overhead);
    if (begin(overhead, device, learned, first, call))
        return true;
    making_ends(overhead);
    return false;
}

void overhead_begin_part(struct overhead *overhead, struct device *device, shared64 *learned,
                         const char *call)
{
    uint64_t known = atomic_load(learned), most = known != 0 ? overhead_lesson_bytes(known) : 0;
    *overhead = (struct overhead){ .device = device, .learned = learned, .call = call };
    overhead->reserved = region_take_some(&device->region, most);
    overhead->before = snapshot_before(device, A_MODULE);
}

void overhead_cancel(struct overhead *overhead)
{
    free(overhead->before);
    give(overhead->device, overhead->reserved);
    making_ends(overhead);
}

void overhead_failed(struct overhead *overhead, uint64_t *bytes)
{
    struct device *device = overhead->device;
    enum evidence reported;
    *bytes = snapshot_delta(device, overhead->before, overhead->reserved, NULL, &reported);
    overhead->before = NULL;
    if (reported < EVIDENCE_TOTAL)
        *bytes = 0;
    if (*bytes < overhead->reserved)
        give(device, overhead->reserved - *bytes);
    else
        *bytes = overhead_count(overhead, *bytes);
}

uint64_t overhead_count(const struct overhead *overhead, uint64_t bytes)
{
    uint64_t more = above(bytes, overhead->reserved);
    return overhead->reserved + region_take_some(&overhead->device->region, more);
}

/* One context is like another: what is told best of any is charged for all. Of two that are told as
   well, the larger; of the least of several the smaller, since each has another's allocations in
   it; and of what the card as a whole lost the first, which was alone. */
static uint64_t learn_context(shared64 *learned, uint64_t bytes, enum evidence reported)
{
    uint64_t seen = atomic_load(learned), best;
    do {
        enum evidence was = (enum evidence)(seen & 3);
        uint64_t had = seen != 0 ? overhead_lesson_bytes(seen) : 0;
        bool kept =
            seen != 0 && (was > reported ||
                          (was == reported && (reported == EVIDENCE_TOTAL ||
                                               (reported == EVIDENCE_LEAST) == (had < bytes))));
        best = kept ? seen : lesson(bytes, reported);
    } while (best != seen && !atomic_compare_exchange_weak(learned, &seen, best));
    return overhead_lesson_bytes(best);
}

static void learn(shared64 *learned, uint64_t bytes, enum evidence reported)
{
    uint64_t seen = atomic_load(learned);
    while ((seen == 0 || overhead_lesson_bytes(seen) < bytes) &&
           !atomic_compare_exchange_weak(learned, &seen, lesson(bytes, reported))) { }
}

void overhead_learn(const struct overhead *overhead, uint64_t bytes)
{
    learn(overhead->learned, bytes, EVIDENCE_NONE);
}

bool overhead_end(struct overhead *overhead, CUcontext made, uint64_t *bytes)
{
    struct device *device = overhead->device;
    uint64_t left;
    enum evidence reported;
    bool context = overhead->learned == &device->region.use->context_bytes,
         looked = overhead->before != NULL;
    *bytes = snapshot_delta(device, overhead->before, overhead->reserved, made, &reported);
    overhead->before = NULL;
    if (*bytes > SANE_BYTES && context)
        *bytes = overhead->reserved;
    bool concurrent = context && made_concurrently(overhead);
    if (concurrent && *bytes < overhead->reserved)
        *bytes = overhead->reserved;
    if (context && looked && !concurrent)
        *bytes = learn_context(overhead->learned, *bytes, reported);
    /* Amid others that allocate, a module may seem smaller than it is: it counts as large as any
       before it. */
    if (!context && overhead->known && reported < EVIDENCE_TOTAL && *bytes < overhead->reserved)
        *bytes = overhead->reserved;
    /* Where NVML did not tell, another process's allocation may be in what was measured: a context
       is no larger than that, and a module is measured again (module.c). */
    overhead->doubtful = reported != EVIDENCE_LIST && !context && !overhead->trusted;
    if (*bytes > SANE_BYTES && overhead->doubtful)
        return false;
    if (*bytes > overhead->reserved) {
        uint64_t lacks = *bytes - overhead->reserved;
        if (overhead->doubtful ? !take_quietly(device, lacks, &left)
                               : !obtain_for(device, lacks, *bytes, overhead->call))
            return false;
    } else {
        give(device, overhead->reserved - *bytes);
    }
    /* Functions and variables that bring nothing are many, and the others need room. */
    if (!context && (*bytes != 0 || overhead->learned == &device->region.use->module_bytes))
        learn(overhead->learned, *bytes, reported);
    making_ends(overhead);
    return true;
}

/* Of two threads that made the same primary context at once, the smaller part is given back: it is
   one context. */
void overhead_note(enum kind kind, const void *key, void *owner, struct device *device,
                   uint64_t bytes)
{
    struct entry entry = entry_of(kind, (uintptr_t)key, bytes, owner, device->ordinal);
    if (kind != CONTEXT)
        (void)ledger_charge(entry); /* under another GPU's, it stays until the process ends */
    else if (!ledger_add(&entry))
        steps_give(&entry);
}

static void overhead_forget(void)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        atomic_store(&making[i], 0);
}

PART(.forget = overhead_forget);

void overhead_renamed(const void *owner)
{
    struct entry asked;
    if (limits_any())
        (void)ledger_take(ASKED, (uintptr_t)owner, &asked);
}

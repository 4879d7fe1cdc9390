/* The account of a region: what each process takes and gives back, and what was refused. */
#define _GNU_SOURCE
#include "account.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

__extension__ typedef unsigned __int128 u128;

/* ---- the total ---- */

struct total {
    uint64_t used, tag;
};

static bool swap_total(struct berth_use_file *use, struct total from, struct total to)
{
    u128 old = ((u128)from.tag << 64) | from.used, new = ((u128)to.tag << 64) | to.used;
    return __sync_bool_compare_and_swap((u128 *)(void *)&use->total, old, new);
}

static struct total read_total(struct berth_use_file *use)
{
    struct total now;
    now.used =
        LOAD_ACQUIRE(use->total.used); /* the halves may be of two moments: the swap finds out */
    now.tag = LOAD_ACQUIRE(use->total.tag);
    return now;
}

static uint64_t limit_of(const struct berth_region *region)
{
    return LOAD(region->limit->mem_bytes);
}

/* Before slot `index` overwrites a tag: that the change it names was done. */
static void note_last(struct berth_use_file *use, uint64_t tag, uint32_t index)
{
    uint32_t last = (uint32_t)(tag & ((1u << BERTH_TAG_SLOT_BITS) - 1));
    if (last != 0 && last <= BERTH_SLOTS && last != index + 1)
        raise_to(&use->slots[last - 1].noted, tag >> BERTH_TAG_SLOT_BITS);
}

enum outcome { DONE, FULL };

/* One change of `used` in the name of slot `index`: by `up` below `limit`, then down by `down`. */
static enum outcome change(struct berth_use_file *use, uint32_t index, uint64_t up, uint64_t down,
                           uint64_t limit, uint64_t *left, bool estimate)
{
    struct berth_slot *slot = &use->slots[index];
    uint64_t seq = LOAD(slot->seq) + 1, held = LOAD(slot->held);
    uint64_t after = up ? held + up : (held > down ? held - down : 0);
    STORE(slot->next_held, after);
    STORE_RELEASE(slot->intent, seq);
    for (;;) {
        struct total now = read_total(use);
        if (up && (now.used > limit || up > limit - now.used)) {
            STORE_RELEASE(slot->intent, 0);
            if (left != NULL)
                *left = now.used < limit ? limit - now.used : 0;
            return FULL;
        }
        note_last(use, now.tag, index);
        struct total next = { up ? now.used + up : (now.used > down ? now.used - down : 0),
                              seq << BERTH_TAG_SLOT_BITS | (index + 1) };
        if (swap_total(use, now, next)) {
            STORE(slot->held, after);
            STORE(slot->seq, seq);
            STORE_RELEASE(slot->intent, 0);
            if (!estimate) { /* an estimate is no peak; what remains of it when it is corrected may
                                be one */
                if (LOAD(use->peak) < next.used)
                    raise_to(&use->peak, next.used);
                if (LOAD(slot->peak) < after)
                    STORE(slot->peak, after);
            }
            return DONE;
        }
    }
}

/* Whether the last change of a slot happened. */
static bool is_done(struct berth_use_file *use, uint32_t index, uint64_t seq)
{
    /* In this order: a process notes the change before it overwrites the tag. */
    bool last = atomic_load(&use->total.tag) == (seq << BERTH_TAG_SLOT_BITS | (index + 1));
    return atomic_load(&use->slots[index].noted) >= seq || last;
}

/* Completes the record of a dead slot. The caller holds the slot's lock. */
static void settle(struct berth_use_file *use, uint32_t index)
{
    struct berth_slot *slot = &use->slots[index];
    uint64_t seq = LOAD_ACQUIRE(slot->intent);
    if (seq == 0)
        return;
    if (is_done(use, index, seq)) {
        STORE(slot->held, LOAD(slot->next_held));
        if (LOAD(slot->seq) < seq)
            STORE(slot->seq, seq);
    }
    STORE_RELEASE(slot->intent, 0);
}

/* ---- whether the total is right ----

   Any member may write into the counters. What a process holds itself it knows without them; what
   the others hold stands in their slots. So one store into the total, or into a slot of a process
   that still allocates, is found by the next that looks, and lifts no limit for long. Counters that
   are forged all together are for NVML to tell from. */

enum { VERIFY_BYTES = 16 << 20, VERIFY_EVERY = 256, VERIFY_TRIES = 8 };

/* What a slot holds, with its last change where that happened. */
static uint64_t held_of(struct berth_use_file *use, uint32_t index)
{
    struct berth_slot *slot = &use->slots[index];
    uint64_t seq = LOAD_ACQUIRE(slot->intent);
    return seq != 0 && is_done(use, index, seq) ? LOAD(slot->next_held) : LOAD(slot->held);
}

static uint64_t sum_of(struct berth_use_file *use, uint32_t slots)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < slots && i < BERTH_SLOTS; i++)
        if (LOAD_ACQUIRE(use->slots[i].state) != BERTH_FREE)
            sum += held_of(use, i);
    return sum;
}

void account_sign(const struct berth_region *region, uint32_t index)
{
    struct berth_slot *slot = &region->use->slots[index];
    if (LOAD(slot->state) == BERTH_MEMBER && LOAD(slot->pid) == region->pid &&
        LOAD(slot->start_ticks) == region->start_ticks &&
        LOAD(slot->pid_namespace) == region->pid_namespace)
        return;
    STORE(slot->pid, region->pid);
    STORE(slot->start_ticks, region->start_ticks);
    STORE(slot->pid_namespace, region->pid_namespace);
    STORE_RELEASE(slot->state, BERTH_MEMBER);
}

/* With the turn of the slot. True where the total was wrong: it is the sum of the slots then. */
static bool verify(struct berth_region *region)
{
    struct berth_use_file *use = region->use;
    uint32_t index = (uint32_t)region->slot;
    struct berth_slot *slot = &use->slots[index];
    STORE(slot->held, region->held);
    account_sign(region, index); /* this process lives, whatever is written there */
    see_slot(use, index);
    if (sum_of(use, LOAD(use->slots_seen)) == LOAD(use->total.used))
        return false; /* without a look at a thousand slots that were never used */
    for (int tries = 0; tries < VERIFY_TRIES; tries++) {
        struct total now = read_total(use), right = { sum_of(use, BERTH_SLOTS), 0 };
        if (right.used == now.used)
            return false;
        if (read_total(use).tag != now.tag)
            continue; /* others changed it meanwhile */
        uint64_t seq = LOAD(slot->seq) + 1;
        right.tag = seq << BERTH_TAG_SLOT_BITS | (index + 1);
        STORE(slot->next_held, region->held);
        STORE_RELEASE(slot->intent, seq);
        note_last(use, now.tag, index);
        bool swapped = swap_total(use, now, right);
        if (swapped)
            STORE(slot->seq, seq);
        STORE_RELEASE(slot->intent, 0);
        if (swapped) {
            atomic_fetch_add(&use->mended, 1);
            return true;
        }
    }
    return false;
}

/* With the turn: what any change of this process looks at first. */
static void look_at_total(struct berth_region *region, uint64_t bytes)
{
    struct berth_use_file *use = region->use;
    bool wrong =
        LOAD(use->slots[region->slot].held) != region->held || LOAD(use->total.used) < region->held;
    if (__builtin_expect(wrong || bytes >= VERIFY_BYTES || ++region->changes % VERIFY_EVERY == 0,
                         0))
        verify(region);
}

/* ---- in this process's slot ---- */

static bool take_bytes(struct berth_region *region, uint64_t bytes, uint64_t *left, bool estimate)
{
    if (bytes == 0)
        return true;
    if (region->slot < 0) {
        *left = 0;
        return false;
    }
    IN_TURN(&region->turn);
    look_at_total(region, bytes);
    uint32_t slot = (uint32_t)region->slot;
    uint64_t limit = limit_of(region);
    enum outcome outcome = change(region->use, slot, bytes, 0, limit, left, estimate);
    if (outcome == FULL && verify(region))
        outcome = change(region->use, slot, bytes, 0, limit, left, estimate);
    region->held += outcome == DONE ? bytes : 0;
    return outcome == DONE;
}

bool region_take(struct berth_region *region, uint64_t bytes, uint64_t *left)
{
    return take_bytes(region, bytes, left, false);
}

/* As an estimate, which is no peak: the driver may refuse it yet. */
bool region_take_beyond(struct berth_region *region, uint64_t bytes)
{
    if (region->slot < 0 || !region_is_witness(region))
        return false;
    IN_TURN(&region->turn);
    bool done =
        change(region->use, (uint32_t)region->slot, bytes, 0, UINT64_MAX, NULL, true) == DONE;
    region->held += done ? bytes : 0;
    return done;
}

void region_note_peak(struct berth_region *region)
{
    raise_to(&region->use->peak, LOAD(region->use->total.used));
    if (region->slot >= 0)
        raise_to(&region->use->slots[region->slot].peak,
                 LOAD(region->use->slots[region->slot].held));
}

uint64_t region_take_some(struct berth_region *region, uint64_t bytes)
{
    uint64_t left = 0;
    while (bytes != 0 && !take_bytes(region, bytes, &left, true))
        bytes = left < bytes ? left : bytes - 1;
    return bytes;
}

void region_give(struct berth_region *region, uint64_t bytes)
{
    if (bytes == 0 || region->slot < 0)
        return;
    IN_TURN(&region->turn);
    look_at_total(region, bytes);
    change(region->use, (uint32_t)region->slot, 0, bytes, 0, NULL, false);
    region->held -= bytes < region->held ? bytes : region->held;
}

void account_move(struct berth_use_file *use, uint32_t from, uint32_t to, uint64_t bytes)
{
    change(use, to, bytes, 0, UINT64_MAX, NULL, true);
    change(use, from, 0, bytes, 0, NULL, false);
}

bool account_is_borrowed(struct berth_use_file *use, uint32_t index)
{
    for (uint32_t i = 0; i < BERTH_SLOTS; i++)
        if (i != index && atomic_load(&use->slots[i].state) == BERTH_MEMBER &&
            atomic_load(&use->slots[i].borrowed) != 0)
            return true;
    return false;
}

/* Which of the exported memory others hold is not known: while any borrows, all of it may be. */
void account_end(struct berth_use_file *use, uint32_t index)
{
    struct berth_slot *slot = &use->slots[index];
    settle(use, index);
    uint64_t held = LOAD(slot->held), exported = LOAD(slot->exported_bytes);
    uint64_t lent =
        exported != 0 && account_is_borrowed(use, index) ? (exported < held ? exported : held) : 0;
    if (held != lent)
        change(use, index, 0, held - lent, 0, NULL, false);
    STORE_RELEASE(slot->state, lent != 0 ? BERTH_LENDS : BERTH_FREE);
}

void region_refuse(struct berth_region *region, const char *call, uint64_t asked, uint64_t left)
{
    struct berth_use_file *use = region->use;
    atomic_fetch_add(&use->refused, 1);
    uint64_t sum = LOAD(use->refused_bytes), next;
    do
        next = sum + asked < sum ? UINT64_MAX : sum + asked;
    while (!atomic_compare_exchange_weak(&use->refused_bytes, &sum, next));
    uint64_t number = atomic_fetch_add(&use->refusal_count, 1) + 1;
    struct berth_refusal *refusal = &use->refusals[number % BERTH_REFUSALS];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    /* Odd while it is written. One that is being written is left to its writer, unless that must
       have died long ago. */
    uint64_t seen = LOAD(refusal->number);
    if ((seen & 1) != 0 && number < (seen >> 1) + 16 * BERTH_REFUSALS)
        return;
    if (!atomic_compare_exchange_strong(&refusal->number, &seen, number * 2 + 1))
        return;
    refusal->time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    refusal->asked_bytes = asked;
    refusal->left_bytes = left;
    refusal->limit_bytes = limit_of(region);
    refusal->pid = (uint32_t)getpid();
    refusal->uid = (uint32_t)getuid();
    memset(refusal->command, 0, sizeof refusal->command);
    strncpy(refusal->command, program_invocation_short_name, sizeof refusal->command - 1);
    memset(refusal->call, 0, sizeof refusal->call);
    strncpy(refusal->call, call, sizeof refusal->call - 1);
    STORE_RELEASE(refusal->number, number * 2);
}

/* What a context sets aside for its kernels: heap, buffer of printf, and the stack of every thread
   that can run at once. What is above the value that the context began with counts from the moment
   that it is set, though the driver may take it only when a kernel needs it.

   The driver is called without a lock, so two threads may set one limit at once. Each first charges
   all that its own call may add. The charge is lowered to what the driver then says only by a call
   that no other of this limit and context overlaps; where calls overlap, that is the last of them
   to end. So the charge is
   never below what the driver has, and equal to it when no call is under way. */
#define _GNU_SOURCE
#include "aside.h"
#include "ledger.h"
#include "parts.h"

#include <string.h>

/* One limit of one context. Its entry in the ledger holds the bytes that are charged, and in
   `count` the largest stack that any function needed: the driver never makes stacks smaller again.
 */
struct aside {
    struct device *device;
    CUcontext context;
    int limit;
    uint64_t threads;      /* which each take as much */
    uint64_t base;         /* what the context began with */
    struct calls *calls;   /* of this limit, while one is under way */
    uint32_t ended_before; /* calls that had ended when this one began */
    bool overlapped;       /* another was under way then */
};

/* What a limit's value is multiplied by: there is a stack for every thread that can run at once. */
static uint64_t threads_of(const struct device *device, int limit)
{
    int sms = 0, threads = 0;
    if (limit != CU_LIMIT_STACK || !HAVE(cuDeviceGetAttribute) ||
        real.cuDeviceGetAttribute(&sms, CU_ATTRIBUTE_SMS, device->handle) != CUDA_SUCCESS ||
        real.cuDeviceGetAttribute(&threads, CU_ATTRIBUTE_SM_THREADS, device->handle) !=
            CUDA_SUCCESS ||
        sms <= 0 || threads <= 0)
        return 1;
    return (uint64_t)sms * (uint64_t)threads;
}

static uint64_t set_aside(const struct aside *aside, uint64_t value)
{
    uint64_t bytes;
    return __builtin_mul_overflow(value, aside->threads, &bytes) ? UINT64_MAX >> 2 : bytes;
}

/* A driver that cannot tell at all: what is set counts whole. */
static CUresult limit_now(int limit, size_t *value)
{
    *value = 0;
    return HAVE(cuCtxGetLimit) ? real.cuCtxGetLimit(value, limit) : CUDA_SUCCESS;
}

static uint64_t set_aside_key(CUcontext context, int limit)
{
    return (uint64_t)(uintptr_t)context * 4 + (unsigned)limit;
}

/* What a context begins with is a part of the context's own size. `now`: what it has now. */
static uint64_t begun_with(int limit, uint64_t now)
{
    static shared64 begun[CU_LIMIT_HEAP + 1]; /* plus one */
    uint64_t nothing = 0;
    atomic_compare_exchange_strong(&begun[limit], &nothing, now + 1);
    return atomic_load(&begun[limit]) - 1;
}

/* The calls of one limit of one context: 0 under way where its place is free. Those beyond the last
   place share it, and are settled later than they could be. */
struct calls {
    uint64_t key;
    uint32_t under_way, ended;
};
enum { PLACES = 64 };

static struct turn turn; /* of the counts and of the entries; never across a call of the driver */
static struct calls places[PLACES + 1];

/* With the turn. */
static struct calls *calls_of(uint64_t key)
{
    struct calls *free_place = &places[PLACES];
    for (int i = 0; i < PLACES; i++) {
        if (places[i].under_way != 0 && places[i].key == key)
            return &places[i];
        if (places[i].under_way == 0 && free_place == &places[PLACES])
            free_place = &places[i];
    }
    free_place->key = key;
    return free_place;
}

static uint64_t above(uint64_t bytes, uint64_t base)
{
    return bytes > base ? bytes - base : 0;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* With the turn. */
static struct entry entry_of(const struct aside *aside)
{
    struct entry entry = { .key = set_aside_key(aside->context, aside->limit),
                           .owner = aside->context,
                           .kind = SET_ASIDE,
                           .device = (uint16_t)aside->device->ordinal };
    (void)ledger_get(SET_ASIDE, entry.key, &entry);
    return entry;
}

/* Charges what `wanted` bytes lack, before the driver is asked. The call is under way also where
   that does not fit, until aside_end or aside_refused. */
static bool aside_begin(struct aside *aside, uint64_t wanted, const char *call)
{
    turn_take(&turn);
    uint64_t lacks = above(wanted, entry_of(aside).bytes);
    aside->calls = calls_of(set_aside_key(aside->context, aside->limit));
    aside->ended_before = aside->calls->ended;
    aside->overlapped = aside->calls->under_way++ != 0;
    turn_leave(&turn);
    if (!take(aside->device, lacks, call))
        return false;
    turn_take(&turn);
    struct entry entry = entry_of(aside);
    entry.bytes += lacks;
    ledger_put(entry);
    turn_leave(&turn);
    return true;
}

/* Makes the charge what the driver has set aside: `otherwise` where it does not tell. False where
   it made more of it than fits: the call is still under way then, unless `all` is set, which takes
   all that is left. */
static bool aside_end(struct aside *aside, uint64_t otherwise, bool all, const char *call)
{
    struct calls *calls = aside->calls;
    for (;;) {
        turn_take(&turn);
        uint32_t ended_then = calls->ended;
        turn_leave(&turn);
        size_t now;
        bool told = HAVE(cuCtxGetLimit) && limit_now(aside->limit, &now) == CUDA_SUCCESS;
        uint64_t made = told ? above(set_aside(aside, now), aside->base) : otherwise;
        turn_take(&turn);
        bool last = calls->under_way == 1;
        if (last && told && calls->ended != ended_then) {
            turn_leave(&turn);
            continue; /* another call ended after the driver was asked */
        }
        struct entry entry = entry_of(aside);
        uint64_t stacks = set_aside(aside, entry.count);
        made = larger(made, above(stacks, aside->base));
        bool alone = last && !aside->overlapped && calls->ended == aside->ended_before;
        if (told ? !last : !alone)
            made = larger(made, entry.bytes);
        if (made <= entry.bytes) {
            uint64_t back = entry.bytes - made;
            entry.bytes = made;
            ledger_put(entry);
            calls->under_way--;
            calls->ended++;
            turn_leave(&turn);
            give(aside->device, back);
            return true;
        }
        uint64_t lacks = made - entry.bytes;
        turn_leave(&turn);
        if (!all && !take(aside->device, lacks, call))
            return false;
        if (all)
            lacks = region_take_some(&aside->device->region, lacks);
        turn_take(&turn);
        entry = entry_of(aside);
        entry.bytes += lacks;
        ledger_put(entry);
        if (all) {
            calls->under_way--;
            calls->ended++;
        }
        turn_leave(&turn);
        if (all)
            return true;
    }
}

/* The driver was not asked. Others that overlapped it are settled with it, where the driver tells.
 */
static void aside_refused(struct aside *aside, const char *call)
{
    if (HAVE(cuCtxGetLimit)) {
        turn_take(&turn);
        uint64_t charged = entry_of(aside).bytes;
        turn_leave(&turn);
        (void)aside_end(aside, charged, true, call);
        return;
    }
    turn_take(&turn);
    aside->calls->under_way--;
    aside->calls->ended++;
    turn_leave(&turn);
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
    static const char call[] = "cuCtxSetLimit";
    struct aside aside = { .limit = limit };
    aside.device = limit >= CU_LIMIT_STACK && limit <= CU_LIMIT_HEAP ? device_current() : NULL;
    if (aside.device == NULL)
        return REAL(cuCtxSetLimit)(limit, value);
    if (HAVE(cuCtxGetCurrent))
        real.cuCtxGetCurrent(&aside.context); /* all contexts count as one where it does not tell */
    size_t before;
    CUresult result = limit_now(limit, &before);
    if (result != CUDA_SUCCESS)
        return result;
    aside.threads = threads_of(aside.device, limit);
    aside.base = set_aside(&aside, begun_with(limit, before));
    uint64_t wanted = above(set_aside(&aside, value), aside.base),
             had = above(set_aside(&aside, before), aside.base);
    if (!aside_begin(&aside, wanted, call)) {
        aside_refused(&aside, call);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = REAL(cuCtxSetLimit)(limit, value);
    if (aside_end(&aside, result == CUDA_SUCCESS ? wanted : had, false, call))
        return result;
    (void)REAL(cuCtxSetLimit)(limit, before);
    (void)aside_end(&aside, had, true, call);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The driver makes the stack of every thread as large as a function needs when it is first
   launched, and never smaller again while its context lives. */
bool stack_grows(struct device *device, CUfunction function, const char *call)
{
    struct aside aside = { .device = device, .limit = CU_LIMIT_STACK };
    int local_bytes = 0;
    size_t now;
    if (!HAVE(cuFuncGetAttribute) ||
        real.cuFuncGetAttribute(&local_bytes, CU_FUNCTION_LOCAL_BYTES, function) != CUDA_SUCCESS ||
        local_bytes <= 0)
        return true;
    if (HAVE(cuCtxGetCurrent))
        real.cuCtxGetCurrent(&aside.context);
    turn_take(&turn);
    bool counted = entry_of(&aside).count >= (uint32_t)local_bytes;
    turn_leave(&turn);
    if (counted || limit_now(CU_LIMIT_STACK, &now) != CUDA_SUCCESS)
        return true;
    aside.threads = threads_of(device, CU_LIMIT_STACK);
    aside.base = set_aside(&aside, begun_with(CU_LIMIT_STACK, now));
    uint64_t need = above(set_aside(&aside, (uint64_t)local_bytes), aside.base);
    if (!aside_begin(&aside, need, call)) {
        aside_refused(&aside, call);
        return false;
    }
    turn_take(&turn);
    struct entry entry = entry_of(&aside);
    entry.count = (uint32_t)larger(entry.count, (uint64_t)local_bytes);
    ledger_put(entry);
    turn_leave(&turn);
    return aside_end(&aside, need, true, call);
}

static void aside_forget(void)
{
    atomic_store(&turn.word, 0);
    memset(places, 0, sizeof places);
}

PART(.forget = aside_forget);

/* What a context sets aside for its kernels: heap, buffer of printf, and the stack of every thread
   that can run at once. What is above the value that the context began with counts from the moment
   that it is set, though the driver may take it only when a kernel needs it.

   The driver is called without a lock, so two threads may set one limit at once. Each first charges
   all that its own call may add. The charge is lowered to what the driver then says only by a call
   that no other of this limit and context overlaps; where calls overlap, that is the last of them
   to end. So the charge is never below what the driver has, and equal to it when no call is under
   way. */
#define _GNU_SOURCE
#include "context_limits.h"
#include "ledger.h"
#include "parts.h"

#include <string.h>

/* One limit of one context. Its entry in the ledger holds the bytes that are charged, and in
   `count` the largest stack that any function needed: the driver makes no stack smaller again. */
struct limit_charge {
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

static uint64_t limit_bytes(const struct limit_charge *charge, uint64_t value)
{
    uint64_t bytes;
    return __builtin_mul_overflow(value, charge->threads, &bytes) ? UINT64_MAX >> 2 : bytes;
}

/* A driver that cannot tell at all: what is set counts whole. */
static CUresult limit_now(int limit, size_t *value)
{
    *value = 0;
    return HAVE(cuCtxGetLimit) ? real.cuCtxGetLimit(value, limit) : CUDA_SUCCESS;
}

static uint64_t limit_key(CUcontext context, int limit)
{
    return (uintptr_t)context * 4 + (unsigned)limit;
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

/* With the turn. */
static struct entry charged_now(const struct limit_charge *charge)
{
    struct entry entry = entry_of(CONTEXT_LIMIT, limit_key(charge->context, charge->limit), 0,
                                  charge->context, charge->device->ordinal);
    (void)ledger_get(CONTEXT_LIMIT, entry.key, &entry);
    return entry;
}

/* With the turn. */
static void charge_more(const struct limit_charge *charge, uint64_t bytes)
{
    struct entry entry = charged_now(charge);
    entry.bytes += bytes;
    ledger_put(entry);
}

/* With the turn: one call less is under way. */
static void call_ends(struct calls *calls)
{
    calls->under_way--;
    calls->ended++;
}

/* Charges what `wanted` bytes lack, before the driver is asked. The call is under way also where
   that does not fit, until charge_end or charge_refused. */
static bool charge_begin(struct limit_charge *charge, uint64_t wanted, const char *call)
{
    turn_take(&turn);
    uint64_t lacks = above(wanted, charged_now(charge).bytes);
    charge->calls = calls_of(limit_key(charge->context, charge->limit));
    charge->ended_before = charge->calls->ended;
    charge->overlapped = charge->calls->under_way++ != 0;
    turn_leave(&turn);
    if (!obtain(charge->device, lacks, call))
        return false;
    WITHIN(&turn, charge_more(charge, lacks));
    return true;
}

/* Makes the charge what the driver has set aside: `otherwise` where it does not tell. False where
   it made more of it than fits: the call is still under way then, unless `all` is set, which takes
   all that is left. */
static bool charge_end(struct limit_charge *charge, uint64_t otherwise, bool all, const char *call)
{
    struct calls *calls = charge->calls;
    for (;;) {
        uint32_t ended_then = WITHIN(&turn, calls->ended);
        size_t now;
        bool reported = HAVE(cuCtxGetLimit) && limit_now(charge->limit, &now) == CUDA_SUCCESS;
        uint64_t made = reported ? above(limit_bytes(charge, now), charge->base) : otherwise;
        turn_take(&turn);
        bool last = calls->under_way == 1;
        if (last && reported && calls->ended != ended_then) {
            turn_leave(&turn);
            continue; /* another call ended after the driver was asked */
        }
        struct entry entry = charged_now(charge);
        uint64_t stacks = limit_bytes(charge, entry.count);
        made = larger(made, above(stacks, charge->base));
        bool alone = last && !charge->overlapped && calls->ended == charge->ended_before;
        if (reported ? !last : !alone)
            made = larger(made, entry.bytes);
        if (made <= entry.bytes) {
            uint64_t back = entry.bytes - made;
            entry.bytes = made;
            ledger_put(entry);
            call_ends(calls);
            turn_leave(&turn);
            give(charge->device, back);
            return true;
        }
        uint64_t lacks = made - entry.bytes;
        turn_leave(&turn);
        if (!all && !obtain(charge->device, lacks, call))
            return false;
        if (all)
            lacks = region_take_some(&charge->device->region, lacks);
        turn_take(&turn);
        charge_more(charge, lacks);
        if (all)
            call_ends(calls);
        turn_leave(&turn);
        if (all)
            return true;
    }
}

/* The driver was not asked. Others that overlapped it are settled with it, if the driver tells. */
static void charge_refused(struct limit_charge *charge, const char *call)
{
    if (HAVE(cuCtxGetLimit)) {
        uint64_t charged = WITHIN(&turn, charged_now(charge).bytes);
        (void)charge_end(charge, charged, true, call);
        return;
    }
    WITHIN(&turn, call_ends(charge->calls));
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
    static const char call[] = "cuCtxSetLimit";
    struct limit_charge charge = { .limit = limit };
    charge.device = limit >= CU_LIMIT_STACK && limit <= CU_LIMIT_HEAP ? device_current() : NULL;
    if (charge.device == NULL)
        return REAL(cuCtxSetLimit)(limit, value);
    charge.context = context_current(); /* all count as one where the driver does not tell */
    size_t before;
    CUresult result = limit_now(limit, &before);
    if (result != CUDA_SUCCESS)
        return result;
    charge.threads = threads_of(charge.device, limit);
    charge.base = limit_bytes(&charge, begun_with(limit, before));
    uint64_t wanted = above(limit_bytes(&charge, value), charge.base),
             had = above(limit_bytes(&charge, before), charge.base);
    if (!charge_begin(&charge, wanted, call)) {
        charge_refused(&charge, call);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = REAL(cuCtxSetLimit)(limit, value);
    if (charge_end(&charge, result == CUDA_SUCCESS ? wanted : had, false, call))
        return result;
    (void)REAL(cuCtxSetLimit)(limit, before);
    (void)charge_end(&charge, had, true, call);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The driver makes the stack of every thread as large as a function needs when it is first
   launched, and never smaller again while its context lives. */
bool stack_grows(struct device *device, CUfunction function, const char *call)
{
    struct limit_charge charge = { .device = device, .limit = CU_LIMIT_STACK };
    int local_bytes = 0;
    size_t now;
    if (!HAVE(cuFuncGetAttribute) ||
        real.cuFuncGetAttribute(&local_bytes, CU_FUNCTION_LOCAL_BYTES, function) != CUDA_SUCCESS ||
        local_bytes <= 0)
        return true;
    charge.context = context_current();
    bool counted = WITHIN(&turn, charged_now(&charge).count >= (uint32_t)local_bytes);
    if (counted || limit_now(CU_LIMIT_STACK, &now) != CUDA_SUCCESS)
        return true;
    charge.threads = threads_of(device, CU_LIMIT_STACK);
    charge.base = limit_bytes(&charge, begun_with(CU_LIMIT_STACK, now));
    uint64_t need = above(limit_bytes(&charge, (uint64_t)local_bytes), charge.base);
    if (!charge_begin(&charge, need, call)) {
        charge_refused(&charge, call);
        return false;
    }
    turn_take(&turn);
    struct entry entry = charged_now(&charge);
    entry.count = (uint32_t)larger(entry.count, (uint64_t)local_bytes);
    ledger_put(entry);
    turn_leave(&turn);
    return charge_end(&charge, need, true, call);
}

static void charge_forget(void)
{
    memset(places, 0, sizeof places);
}

PART(.turn = &turn, .forget = charge_forget);

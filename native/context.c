/* Contexts, and what they set aside for their kernels. */
#define _GNU_SOURCE
#include "context.h"
#include "measure.h"
#include "overhead.h"
#include "parts.h"

#include <stdlib.h>

enum { FIRST_CONTEXT_BYTES = 512 << 20 };

static _Atomic(CUcontext) primary[MAX_DEVICES];

/* Around the making of a context: nothing is counted where `overhead.device` is NULL. */
static CUresult create_begin(struct overhead *overhead, const CUcontext *ctx, CUdevice dev)
{
    struct device *device = ctx != NULL ? device_of(dev) : NULL;
    *overhead = (struct overhead){ .device = NULL };
    if (UNLIKELY(devices_none()))
        return CUDA_ERROR_NO_DEVICE;
    if (device != NULL && !overhead_begin(overhead, device, &device->region.use->context_bytes,
                                          FIRST_CONTEXT_BYTES, "cuCtxCreate"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static CUresult create_end(struct overhead *overhead, CUcontext *ctx, CUresult result)
{
    uint64_t bytes;
    if (overhead->device == NULL)
        return result;
    if (result == CUDA_SUCCESS && overhead_end(overhead, *ctx, &bytes)) {
        overhead_note(CONTEXT, *ctx, *ctx, overhead->device, bytes);
        return result;
    }
    if (result == CUDA_SUCCESS) {
        REAL(cuCtxDestroy_v2)(*ctx);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    overhead_cancel(overhead);
    return result;
}

CUresult cuCtxCreate(CUcontext *ctx, unsigned flags, CUdevice dev)
{
    struct overhead overhead;
    CUresult begun = create_begin(&overhead, ctx, dev);
    return begun != CUDA_SUCCESS ? begun
                                 : create_end(&overhead, ctx, REAL(cuCtxCreate)(ctx, flags, dev));
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev)
{
    struct overhead overhead;
    CUresult begun = create_begin(&overhead, ctx, dev);
    return begun != CUDA_SUCCESS
               ? begun
               : create_end(&overhead, ctx, REAL(cuCtxCreate_v2)(ctx, flags, dev));
}

CUresult cuCtxCreate_v3(CUcontext *ctx, void *affinity, int count, unsigned flags, CUdevice dev)
{
    struct overhead overhead;
    CUresult begun = create_begin(&overhead, ctx, dev);
    return begun != CUDA_SUCCESS
               ? begun
               : create_end(&overhead, ctx, REAL(cuCtxCreate_v3)(ctx, affinity, count, flags, dev));
}

CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned flags, CUdevice dev)
{
    struct overhead overhead;
    CUresult begun = create_begin(&overhead, ctx, dev);
    return begun != CUDA_SUCCESS
               ? begun
               : create_end(&overhead, ctx, REAL(cuCtxCreate_v4)(ctx, params, flags, dev));
}

/* All that was allocated in a context goes with it. */
static CUresult destroy(CUcontext ctx, CUresult (*call)(CUcontext))
{
    size_t count = 0;
    struct entry *list = atomic_load_explicit(&limiting, memory_order_relaxed) && ctx != NULL
                             ? ledger_take_owned(ctx, &count)
                             : NULL;
    if (ctx != NULL)
        measure_context_ends(ctx, false);
    CUresult result = call(ctx);
    for (size_t i = 0; i < count; i++) {
        if (result == CUDA_SUCCESS)
            overhead_give(&list[i]);
        else
            ledger_put(list[i]);
    }
    free(list);
    devices_changed();
    return result;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    return destroy(ctx, REAL(cuCtxDestroy));
}
CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    return destroy(ctx, REAL(cuCtxDestroy_v2));
}

static bool attached(CUcontext ctx, int by)
{
    return atomic_load_explicit(&limiting, memory_order_relaxed) && ctx != NULL &&
           ledger_count(CONTEXT, (uint64_t)(uintptr_t)ctx, by);
}

/* An attachment is counted before the driver makes it, so that no other thread's detaching is taken
   for the last. */
CUresult cuCtxAttach(CUcontext *ctx, unsigned flags)
{
    CUcontext current = NULL;
    bool counted = HAVE(cuCtxGetCurrent) && real.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
                   attached(current, 1);
    CUresult result = REAL(cuCtxAttach)(ctx, flags);
    if (result != CUDA_SUCCESS && counted)
        attached(current, -1);
    return result;
}

/* Ends the context where it was the last that held it. */
CUresult cuCtxDetach(CUcontext ctx)
{
    if (!attached(ctx, -1))
        return destroy(ctx, REAL(cuCtxDetach));
    CUresult result = REAL(cuCtxDetach)(ctx);
    if (result != CUDA_SUCCESS)
        attached(ctx, 1);
    return result;
}

static bool primary_active(CUdevice dev)
{
    unsigned flags = 0;
    int active = 0;
    return HAVE(cuDevicePrimaryCtxGetState) &&
           real.cuDevicePrimaryCtxGetState(dev, &flags, &active) == CUDA_SUCCESS && active;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    struct device *device = device_of(dev);
    struct overhead overhead;
    uint64_t bytes;
    if (UNLIKELY(devices_none()))
        return CUDA_ERROR_NO_DEVICE;
    if (device == NULL || ctx == NULL || primary_active(dev)) {
        CUresult result = REAL(cuDevicePrimaryCtxRetain)(ctx, dev);
        if (result == CUDA_SUCCESS && device != NULL && ctx != NULL)
            primary[device->ordinal] = *ctx;
        return result;
    }
    if (!overhead_begin(&overhead, device, &device->region.use->context_bytes, FIRST_CONTEXT_BYTES,
                        "cuDevicePrimaryCtxRetain"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuDevicePrimaryCtxRetain)(ctx, dev);
    if (result == CUDA_SUCCESS && overhead_end(&overhead, *ctx, &bytes)) {
        primary[device->ordinal] = *ctx;
        overhead_note(CONTEXT, *ctx, *ctx, device, bytes);
        return result;
    }
    if (result == CUDA_SUCCESS) {
        HAVE(cuDevicePrimaryCtxRelease_v2) ? real.cuDevicePrimaryCtxRelease_v2(dev)
                                           : REAL(cuDevicePrimaryCtxRelease)(dev);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    overhead_cancel(&overhead);
    return result;
}

/* Releasing the last reference, or a reset, ends the primary context. */
static CUresult end_primary(CUdevice dev, CUresult (*call)(CUdevice))
{
    struct device *device = device_of(dev);
    CUcontext context = device != NULL ? primary[device->ordinal] : NULL;
    if (context != NULL)
        measure_read(context);
    CUresult result = call(dev);
    if (result == CUDA_SUCCESS && context != NULL && !primary_active(dev)) {
        size_t count = 0;
        measure_context_ends(context, true);
        struct entry *list = ledger_take_owned(context, &count);
        for (size_t i = 0; i < count; i++)
            overhead_give(&list[i]);
        free(list);
        devices_changed();
    }
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return end_primary(dev, REAL(cuDevicePrimaryCtxRelease));
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    return end_primary(dev, REAL(cuDevicePrimaryCtxRelease_v2));
}
CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    return end_primary(dev, REAL(cuDevicePrimaryCtxReset));
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    return end_primary(dev, REAL(cuDevicePrimaryCtxReset_v2));
}

/* ---- green contexts ----

   Each holds the primary context, which the first of them may make, and a part of its own. */

CUresult cuGreenCtxCreate(CUgreen *ctx, void *desc, CUdevice dev, unsigned flags)
{
    static shared64 learned; /* what a green context takes beside the primary one, plus one */
    struct device *device = ctx != NULL ? device_of(dev) : NULL;
    struct overhead overhead;
    CUcontext context;
    uint64_t bytes;
    if (UNLIKELY(devices_none()))
        return CUDA_ERROR_NO_DEVICE;
    if (device == NULL)
        return REAL(cuGreenCtxCreate)(ctx, desc, dev, flags);
    /* The primary context is made by a call that counts it, and held until the green one holds it.
     */
    CUresult result = cuDevicePrimaryCtxRetain(&context, dev);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t first = atomic_load(&device->region.use->context_bytes);
    if (!overhead_begin(&overhead, device, &learned,
                        first != 0 ? overhead_lesson_bytes(first) : FIRST_CONTEXT_BYTES,
                        "cuGreenCtxCreate")) {
        cuDevicePrimaryCtxRelease_v2(dev);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = REAL(cuGreenCtxCreate)(ctx, desc, dev, flags);
    if (result == CUDA_SUCCESS && overhead_end(&overhead, NULL, &bytes)) {
        struct entry entry = { .key = (uint64_t)(uintptr_t)*ctx,
                               .bytes = bytes,
                               .owner = context,
                               .kind = GREEN,
                               .device = (uint16_t)device->ordinal };
        ledger_put(entry);
    } else {
        if (result == CUDA_SUCCESS) {
            REAL(cuGreenCtxDestroy)(*ctx);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        overhead_cancel(&overhead);
    }
    cuDevicePrimaryCtxRelease_v2(dev);
    return result;
}

static CUresult destroy_green(CUdevice dev)
{
    (void)dev;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreen ctx)
{
    struct entry entry;
    bool known = atomic_load_explicit(&limiting, memory_order_relaxed) &&
                 ledger_take(GREEN, (uint64_t)(uintptr_t)ctx, &entry);
    CUresult result = REAL(cuGreenCtxDestroy)(ctx);
    if (known && result != CUDA_SUCCESS) {
        ledger_put(entry);
    } else if (known) {
        overhead_give(&entry);
        end_primary(device_at(entry.device)->handle,
                    destroy_green); /* it may have been the last to hold it */
        devices_changed();
    }
    return result;
}

/* ---- what a context sets aside for its kernels ---- */

static uint64_t set_aside(const struct device *device, int limit, uint64_t value)
{
    int sms = 0, threads = 0;
    uint64_t bytes;
    if (limit != CU_LIMIT_STACK)
        return value;
    /* A stack for every thread that can run at once. */
    if (!HAVE(cuDeviceGetAttribute) ||
        real.cuDeviceGetAttribute(&sms, CU_ATTRIBUTE_SMS, device->handle) != CUDA_SUCCESS ||
        real.cuDeviceGetAttribute(&threads, CU_ATTRIBUTE_SM_THREADS, device->handle) !=
            CUDA_SUCCESS ||
        sms <= 0 || threads <= 0)
        return value;
    return __builtin_mul_overflow(value, (uint64_t)sms * (uint64_t)threads, &bytes)
               ? UINT64_MAX >> 2
               : bytes;
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

/* What is above the value that the context began with counts from now on, though the driver may
   take it only when a kernel needs it. */
CUresult cuCtxSetLimit(int limit, size_t value)
{
    struct device *device =
        limit >= CU_LIMIT_STACK && limit <= CU_LIMIT_HEAP ? device_current() : NULL;
    CUcontext context = NULL;
    if (device == NULL)
        return REAL(cuCtxSetLimit)(limit, value);
    if (HAVE(cuCtxGetCurrent))
        real.cuCtxGetCurrent(&context); /* all contexts count as one where it does not tell */
    size_t now;
    CUresult result = limit_now(limit, &now);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t key = set_aside_key(context, limit), first = begun_with(limit, now);
    uint64_t base = set_aside(device, limit, first), wanted = set_aside(device, limit, value);
    uint64_t need = wanted > base ? wanted - base : 0;
    struct entry entry = {
        .key = key, .owner = context, .kind = SET_ASIDE, .device = (uint16_t)device->ordinal
    };
    ledger_take(SET_ASIDE, key, &entry);
    uint64_t before = entry.bytes, grown = set_aside(device, limit, entry.count);
    grown = entry.count != 0 && grown > base ? grown - base : 0; /* which is never given back */
    need = need > grown ? need : grown;
    if (need > before && !take(device, need - before, "cuCtxSetLimit")) {
        ledger_put(entry);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = REAL(cuCtxSetLimit)(limit, value);
    entry.bytes = need > before ? need : before;
    if (result == CUDA_SUCCESS && HAVE(cuCtxGetLimit) && limit_now(limit, &now) == CUDA_SUCCESS) {
        uint64_t made =
            set_aside(device, limit, now); /* the driver may have made more or less of it */
        made = made > base ? made - base : 0;
        made = made > grown ? made : grown;
        if (made <= entry.bytes || take(device, made - entry.bytes, "cuCtxSetLimit")) {
            give(device, made < entry.bytes ? entry.bytes - made : 0);
            entry.bytes = made;
        } else {
            REAL(cuCtxSetLimit)(limit, first);
            result = CUDA_ERROR_OUT_OF_MEMORY;
            give(device, entry.bytes - grown);
            entry.bytes = grown;
        }
    } else if (result != CUDA_SUCCESS) {
        give(device, entry.bytes - before);
        entry.bytes = before;
    }
    ledger_put(entry);
    return result;
}

/* The driver makes the stack of every thread as large as a function needs when it is first
   launched, and never smaller again while its context lives. */
bool stack_grows(struct device *device, CUfunction function, const char *call)
{
    int local_bytes = 0;
    size_t now;
    CUcontext context = NULL;
    if (!HAVE(cuFuncGetAttribute) ||
        real.cuFuncGetAttribute(&local_bytes, CU_FUNCTION_LOCAL_BYTES, function) != CUDA_SUCCESS ||
        local_bytes <= 0)
        return true;
    if (HAVE(cuCtxGetCurrent))
        real.cuCtxGetCurrent(&context);
    uint64_t key = set_aside_key(context, CU_LIMIT_STACK);
    struct entry entry = {
        .key = key, .owner = context, .kind = SET_ASIDE, .device = (uint16_t)device->ordinal
    };
    if ((ledger_get(SET_ASIDE, key, &entry) && entry.count >= (uint32_t)local_bytes) ||
        limit_now(CU_LIMIT_STACK, &now) != CUDA_SUCCESS)
        return true;
    uint64_t base = set_aside(device, CU_LIMIT_STACK, begun_with(CU_LIMIT_STACK, now)),
             wanted = set_aside(device, CU_LIMIT_STACK, (uint64_t)local_bytes),
             need = wanted > base ? wanted - base : 0;
    /* Of two threads that are here at once, each charges: too much rather than too little. */
    ledger_take(SET_ASIDE, key, &entry);
    bool fits = need <= entry.bytes || take(device, need - entry.bytes, call);
    if (fits) {
        entry.bytes = need > entry.bytes ? need : entry.bytes;
        entry.count = entry.count > (uint32_t)local_bytes ? entry.count : (uint32_t)local_bytes;
    }
    ledger_put(entry);
    return fits;
}

static void context_forget(void)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        primary[i] = NULL;
}

PART(.forget = context_forget);

/* Contexts: primary, of the program's own, and green. */
#define _GNU_SOURCE
#include "bindings.h"
#include "devices.h"
#include "measure.h"
#include "overhead.h"
#include "parts.h"
#include "steps.h"

#include <stdlib.h>

enum { FIRST_CONTEXT_BYTES = 512 << 20 };

static _Atomic(CUcontext) primary[MAX_DEVICES];

static CUresult release_primary(CUdevice dev)
{
    return HAVE(cuDevicePrimaryCtxRelease_v2) ? real.cuDevicePrimaryCtxRelease_v2(dev)
                                              : REAL(cuDevicePrimaryCtxRelease)(dev);
}

/* Around the making of a context: nothing is counted where `overhead.device` is NULL. */
static CUresult create_begin(struct overhead *overhead, const CUcontext *ctx, CUdevice dev,
                             const char *call)
{
    struct device *device = ctx != NULL ? device_of(dev) : NULL;
    *overhead = (struct overhead){ .device = NULL };
    if (UNLIKELY(devices_none()))
        return CUDA_ERROR_NO_DEVICE;
    if (device != NULL && !overhead_begin(overhead, device, &device->region.use->context_bytes,
                                          FIRST_CONTEXT_BYTES, call))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static CUresult create_end(struct overhead *overhead, CUcontext *ctx, bool is_primary,
                           CUresult result)
{
    uint64_t bytes;
    if (overhead->device == NULL)
        return result;
    if (result == CUDA_SUCCESS && overhead_end(overhead, *ctx, &bytes)) {
        overhead_note(CONTEXT, *ctx, *ctx, overhead->device, bytes);
        return result;
    }
    if (result == CUDA_SUCCESS) {
        (void)(is_primary ? release_primary(overhead->device->handle)
                          : REAL(cuCtxDestroy_v2)(*ctx));
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    overhead_cancel(overhead);
    return result;
}

#define CREATES(name, params, args)                                                                \
    CUresult name params                                                                           \
    {                                                                                              \
        struct overhead overhead;                                                                  \
        CUresult begun = create_begin(&overhead, ctx, dev, "cuCtxCreate");                         \
        return begun != CUDA_SUCCESS ? begun : create_end(&overhead, ctx, false, REAL(name) args); \
    }
#include "hooks.h"

/* A context that ended took it along; with a sparse array, what was mapped into that. */
static void gone_with_context(const struct entry *entry)
{
    if (entry->kind == ARRAY || entry->kind == MIPMAP)
        bindings_drop_all((const void *)(uintptr_t)entry->key);
    steps_give(entry);
}

/* All that a context owns goes with it, and all that its green contexts own. */
static void all_gone(CUcontext owner)
{
    size_t count = 0;
    struct entry *list = ledger_take_owned(owner, &count);
    for (size_t i = 0; i < count; i++) {
        if (list[i].kind == GREEN)
            all_gone((CUcontext)(uintptr_t)list[i].key);
        gone_with_context(&list[i]);
    }
    free(list);
}

/* All that was allocated in a context goes with it. */
static CUresult destroy(CUcontext ctx, CUresult (*call)(CUcontext))
{
    size_t count = 0;
    struct entry *list = limits_any() && ctx != NULL ? ledger_take_owned(ctx, &count) : NULL;
    if (ctx != NULL)
        measure_context_ends(ctx, false);
    CUresult result = call(ctx);
    for (size_t i = 0; i < count; i++) {
        if (result == CUDA_SUCCESS)
            gone_with_context(&list[i]);
        else
            ledger_put(list[i]);
    }
    free(list);
    devices_changed();
    return result;
}

#define DESTROYS(name)                   \
    CUresult name(CUcontext ctx)         \
    {                                    \
        return destroy(ctx, REAL(name)); \
    }
DESTROYS(cuCtxDestroy)
DESTROYS(cuCtxDestroy_v2)

static bool attached(CUcontext ctx, int by)
{
    return limits_any() && ctx != NULL && ledger_count(CONTEXT, (uintptr_t)ctx, by);
}

/* An attachment is counted before the driver makes it, so that no other thread's detaching is taken
   for the last. */
CUresult cuCtxAttach(CUcontext *ctx, unsigned flags)
{
    CUcontext current = context_current();
    bool counted = attached(current, 1);
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
    return REAL(cuDevicePrimaryCtxGetState)(dev, &flags, &active) == CUDA_SUCCESS && active;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    struct device *device = ctx != NULL ? device_of(dev) : NULL;
    bool is_new = device != NULL && !primary_active(dev);
    struct overhead overhead;
    CUresult result = create_begin(&overhead, is_new ? ctx : NULL, dev, "cuDevicePrimaryCtxRetain");
    if (result == CUDA_SUCCESS)
        result = create_end(&overhead, ctx, true, REAL(cuDevicePrimaryCtxRetain)(ctx, dev));
    if (result == CUDA_SUCCESS && device != NULL)
        primary[device->ordinal] = *ctx;
    return result;
}

/* The last release, or a reset, ends the primary context. `call` is NULL if that was made. */
static CUresult end_primary(CUdevice dev, CUresult (*call)(CUdevice))
{
    struct device *device = device_of(dev);
    CUcontext context = device != NULL ? primary[device->ordinal] : NULL;
    if (context != NULL)
        measure_read(context);
    CUresult result = call != NULL ? call(dev) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && context != NULL && !primary_active(dev)) {
        measure_context_ends(context, true);
        all_gone(context);
        devices_changed();
    }
    return result;
}

#define ENDS_PRIMARY(name)                   \
    CUresult name(CUdevice dev)              \
    {                                        \
        return end_primary(dev, REAL(name)); \
    }
ENDS_PRIMARY(cuDevicePrimaryCtxRelease)
ENDS_PRIMARY(cuDevicePrimaryCtxRelease_v2)
ENDS_PRIMARY(cuDevicePrimaryCtxReset)
ENDS_PRIMARY(cuDevicePrimaryCtxReset_v2)

/* ---- green contexts ----

   Each holds the primary context, which the first of them may make, and a part of its own. */

static CUcontext green_as_context(CUgreen green)
{
    CUcontext context = NULL;
    return REAL(cuCtxFromGreenCtx)(&context, green) == CUDA_SUCCESS ? context : NULL;
}

CUresult cuGreenCtxCreate(CUgreen *ctx, void *desc, CUdevice dev, unsigned flags)
{
    /* By GPU: what a green context takes beside the primary one, plus one. */
    static shared64 learned[MAX_DEVICES];
    struct device *device = ctx != NULL ? device_of(dev) : NULL;
    struct overhead overhead;
    CUcontext context;
    uint64_t bytes;
    if (UNLIKELY(devices_none()))
        return CUDA_ERROR_NO_DEVICE;
    if (device == NULL)
        return REAL(cuGreenCtxCreate)(ctx, desc, dev, flags);
    /* The primary context is made by a call that counts it, and held until the green one does. */
    CUresult result = cuDevicePrimaryCtxRetain(&context, dev);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t first = atomic_load(&device->region.use->context_bytes);
    bool entered = context_enter(context); /* for the driver to tell of this GPU's memory */
    bool begun = overhead_begin(&overhead, device, &learned[device->ordinal],
                                first != 0 ? overhead_lesson_bytes(first) : FIRST_CONTEXT_BYTES,
                                "cuGreenCtxCreate");
    context_leave(entered);
    if (!begun) {
        cuDevicePrimaryCtxRelease_v2(dev);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = REAL(cuGreenCtxCreate)(ctx, desc, dev, flags);
    entered = context_enter(context);
    bool fits = result == CUDA_SUCCESS && overhead_end(&overhead, NULL, &bytes);
    context_leave(entered);
    if (fits) {
        ledger_put(entry_of(GREEN, (uintptr_t)*ctx, bytes, context, device->ordinal));
        CUcontext as_context = green_as_context(*ctx);
        if (as_context != NULL && (uintptr_t)as_context != (uintptr_t)*ctx) /* for `all_gone` */
            ledger_put(entry_of(GREEN, (uintptr_t)as_context, 0, context, device->ordinal));
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

/* Whether the driver knows a pointer no more. */
static bool is_freed(const struct entry *entry)
{
    unsigned type;
    return (entry->kind == LINEAR || entry->kind == POOLED) &&
           REAL(cuPointerGetAttribute)(&type, CU_POINTER_MEMORY_TYPE, entry->key) ==
               CUDA_ERROR_INVALID_VALUE;
}

/* What was made while a green context was current belongs to the primary context, and goes with
   that; what a driver frees earlier is given back now. */
static void pass_to_primary(CUcontext green, CUcontext owner)
{
    size_t count = 0;
    struct entry *list = green != NULL ? ledger_take_owned(green, &count) : NULL;
    for (size_t i = 0; i < count; i++) {
        if (is_freed(&list[i])) {
            gone_with_context(&list[i]);
        } else {
            list[i].owner = owner;
            ledger_put(list[i]);
        }
    }
    free(list);
}

CUresult cuGreenCtxDestroy(CUgreen ctx)
{
    struct entry entry, second;
    bool known = limits_any() && ledger_take(GREEN, (uintptr_t)ctx, &entry);
    CUcontext as_context = known ? green_as_context(ctx) : NULL;
    CUresult result = REAL(cuGreenCtxDestroy)(ctx);
    if (known && result != CUDA_SUCCESS) {
        ledger_put(entry);
    } else if (known) {
        steps_give(&entry);
        (void)ledger_take(GREEN, (uintptr_t)as_context, &second);
        pass_to_primary(as_context, entry.owner);
        end_primary(device_at(entry.device)->handle, NULL); /* it may have been the last of it */
        devices_changed();
    }
    return result;
}

static void context_forget(void)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        primary[i] = NULL;
}

PART(.forget = context_forget);

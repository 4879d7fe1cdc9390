/* What the driver takes for itself, for a context or a module: an estimate is taken first, then corrected by measuring.

   The first process of a region measures and the region remembers, so that the next takes the right amount. */
#define _GNU_SOURCE
#include "processes.h"

#include <stdlib.h>

enum { FIRST_CONTEXT_BYTES = 512 << 20, FIRST_MODULE_BYTES = 64 << 20 };
#define SANE_BYTES (2ull << 30)

static _Atomic(CUcontext) primary[MAX_DEVICES];

struct overhead { struct device *device; shared64 *learned; uint64_t reserved; struct look *before; const char *call; bool known; };

static bool overhead_begin(struct overhead *overhead, struct device *device, shared64 *learned, uint64_t first, const char *call)
{
    uint64_t known = atomic_load(learned);
    *overhead = (struct overhead){ .device = device, .learned = learned, .call = call, .known = known != 0 };
    if (known == 0) {
        region_reap(&device->region);
        overhead->reserved = region_take_some(&device->region, first);
    } else if (take(device, known - 1, call)) { /* what is learned is kept plus one, so that 0 means not yet */
        overhead->reserved = known - 1;
    } else {
        return false;
    }
    bool context = learned == &device->region.use->context_bytes;
    if (!context || !overhead->known || processes_wanted(device))
        overhead->before = processes_look(device);
    return true;
}

static void overhead_cancel(struct overhead *overhead)
{
    processes_end(overhead->device, overhead->before);
    give(overhead->device, overhead->reserved);
}

/* False where the driver took more than may be had: the caller undoes what it did and cancels. `made` is NULL for a module. */
static bool overhead_end(struct overhead *overhead, CUcontext made, uint64_t *bytes)
{
    struct device *device = overhead->device;
    uint64_t left;
    *bytes = processes_taken(device, overhead->before, overhead->reserved, made);
    overhead->before = NULL;
    if (made != NULL && overhead->known)
        *bytes = overhead->reserved; /* one context is like another: the region's first process has measured it */
    if (*bytes > SANE_BYTES)
        *bytes = overhead->reserved; /* somebody else's allocation got in between */
    if (*bytes > overhead->reserved) {
        if (!take_quietly(device, *bytes - overhead->reserved, &left)) {
            region_refuse(&device->region, overhead->call, *bytes, left + overhead->reserved);
            return false;
        }
    } else {
        give(device, overhead->reserved - *bytes);
    }
    atomic_fetch_add(&device->overhead, *bytes);
    uint64_t seen = atomic_load(overhead->learned);
    while (seen < *bytes + 1 && !atomic_compare_exchange_weak(overhead->learned, &seen, *bytes + 1)) { }
    return true;
}

static void give_entry(const struct entry *entry)
{
    struct device *device = device_at(entry->device);
    give(device, entry->bytes);
    if (entry->kind == CONTEXT || entry->kind == MODULE || entry->kind == LIBRARY)
        atomic_fetch_sub(&device->overhead, entry->bytes);
}

/* Of two threads that made the same primary context at once, the second's part is given back: it is one context. */
static void note(enum kind kind, void *key, void *owner, struct device *device, uint64_t bytes)
{
    struct entry entry = { .key = (uint64_t)(uintptr_t)key, .bytes = bytes, .owner = owner, .kind = (uint16_t)kind, .device = (uint16_t)device->ordinal };
    if (!ledger_add(entry))
        give_entry(&entry);
}

/* ---- contexts ---- */

#define CREATE(destroy, call)                                                     \
    do {                                                                          \
        struct device *device = device_of(dev);                                   \
        struct overhead overhead;                                                 \
        uint64_t bytes;                                                           \
        if (UNLIKELY(devices_none()))                                             \
            return CUDA_ERROR_NO_DEVICE;                                          \
        if (device == NULL || ctx == NULL)                                        \
            return call;                                                          \
        if (!overhead_begin(&overhead, device, &device->region.use->context_bytes, FIRST_CONTEXT_BYTES, "cuCtxCreate")) \
            return CUDA_ERROR_OUT_OF_MEMORY;                                      \
        CUresult result = call;                                                   \
        if (result == CUDA_SUCCESS && overhead_end(&overhead, *ctx, &bytes)) {    \
            note(CONTEXT, *ctx, *ctx, device, bytes);                             \
            return result;                                                        \
        }                                                                         \
        if (result == CUDA_SUCCESS) {                                             \
            destroy;                                                              \
            result = CUDA_ERROR_OUT_OF_MEMORY;                                    \
        }                                                                         \
        overhead_cancel(&overhead);                                               \
        return result;                                                            \
    } while (0)

CUresult cuCtxCreate(CUcontext *ctx, unsigned flags, CUdevice dev) { CREATE(REAL(cuCtxDestroy_v2)(*ctx), REAL(cuCtxCreate)(ctx, flags, dev)); }
CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev) { CREATE(REAL(cuCtxDestroy_v2)(*ctx), REAL(cuCtxCreate_v2)(ctx, flags, dev)); }
CUresult cuCtxCreate_v3(CUcontext *ctx, void *affinity, int count, unsigned flags, CUdevice dev)
{
    CREATE(REAL(cuCtxDestroy_v2)(*ctx), REAL(cuCtxCreate_v3)(ctx, affinity, count, flags, dev));
}
CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned flags, CUdevice dev)
{
    CREATE(REAL(cuCtxDestroy_v2)(*ctx), REAL(cuCtxCreate_v4)(ctx, params, flags, dev));
}

/* All that was allocated in a context goes with it. */
static CUresult destroy(CUcontext ctx, CUresult (*call)(CUcontext))
{
    size_t count = 0;
    struct entry *list = atomic_load_explicit(&limiting, memory_order_relaxed) && ctx != NULL ? ledger_take_owned(ctx, &count) : NULL;
    if (ctx != NULL)
        pace_context_ends(ctx, false);
    CUresult result = call(ctx);
    for (size_t i = 0; i < count; i++) {
        if (result == CUDA_SUCCESS)
            give_entry(&list[i]);
        else
            ledger_put(list[i]);
    }
    free(list);
    devices_changed();
    return result;
}

CUresult cuCtxDestroy(CUcontext ctx) { return destroy(ctx, REAL(cuCtxDestroy)); }
CUresult cuCtxDestroy_v2(CUcontext ctx) { return destroy(ctx, REAL(cuCtxDestroy_v2)); }

static bool attached(CUcontext ctx, int by)
{
    return atomic_load_explicit(&limiting, memory_order_relaxed) && ctx != NULL && ledger_count(CONTEXT, (uint64_t)(uintptr_t)ctx, by);
}

/* An attachment is counted before the driver makes it, so that no other thread's detaching is taken for the last. */
CUresult cuCtxAttach(CUcontext *ctx, unsigned flags)
{
    CUcontext current = NULL;
    bool counted = HAVE(cuCtxGetCurrent) && real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && attached(current, 1);
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
    return HAVE(cuDevicePrimaryCtxGetState) && real.cuDevicePrimaryCtxGetState(dev, &flags, &active) == CUDA_SUCCESS && active;
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
    if (!overhead_begin(&overhead, device, &device->region.use->context_bytes, FIRST_CONTEXT_BYTES, "cuDevicePrimaryCtxRetain"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuDevicePrimaryCtxRetain)(ctx, dev);
    if (result == CUDA_SUCCESS && overhead_end(&overhead, *ctx, &bytes)) {
        primary[device->ordinal] = *ctx;
        note(CONTEXT, *ctx, *ctx, device, bytes);
        return result;
    }
    if (result == CUDA_SUCCESS) {
        HAVE(cuDevicePrimaryCtxRelease_v2) ? real.cuDevicePrimaryCtxRelease_v2(dev) : REAL(cuDevicePrimaryCtxRelease)(dev);
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
    CUresult result = call(dev);
    if (result == CUDA_SUCCESS && context != NULL && !primary_active(dev)) {
        size_t count = 0;
        pace_context_ends(context, true);
        struct entry *list = ledger_take_owned(context, &count);
        for (size_t i = 0; i < count; i++)
            give_entry(&list[i]);
        free(list);
        devices_changed();
    }
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return end_primary(dev, REAL(cuDevicePrimaryCtxRelease)); }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) { return end_primary(dev, REAL(cuDevicePrimaryCtxRelease_v2)); }
CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return end_primary(dev, REAL(cuDevicePrimaryCtxReset)); }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) { return end_primary(dev, REAL(cuDevicePrimaryCtxReset_v2)); }

/* ---- modules ---- */

#define LOADS(kind, name, key, unload, call)                                      \
    do {                                                                          \
        struct device *device = device_current();                                 \
        struct overhead overhead;                                                 \
        uint64_t bytes;                                                           \
        CUcontext context = NULL;                                                 \
        if (device == NULL || key == NULL)                                        \
            return call;                                                          \
        if (!overhead_begin(&overhead, device, &device->region.use->module_bytes, FIRST_MODULE_BYTES, name)) \
            return CUDA_ERROR_OUT_OF_MEMORY;                                      \
        CUresult result = call;                                                   \
        if (result == CUDA_SUCCESS && overhead_end(&overhead, NULL, &bytes)) {    \
            REAL(cuCtxGetCurrent)(&context);                                      \
            note(kind, *key, context, device, bytes);                             \
            return result;                                                        \
        }                                                                         \
        if (result == CUDA_SUCCESS) {                                             \
            unload;                                                               \
            result = CUDA_ERROR_OUT_OF_MEMORY;                                    \
        }                                                                         \
        overhead_cancel(&overhead);                                               \
        return result;                                                            \
    } while (0)

#define UNLOADS(kind, key, call)                                                  \
    do {                                                                          \
        struct entry entry;                                                       \
        bool known = atomic_load_explicit(&limiting, memory_order_relaxed) && ledger_take(kind, (uint64_t)(uintptr_t)key, &entry); \
        CUresult result = call;                                                   \
        if (known && result == CUDA_SUCCESS)                                      \
            give_entry(&entry);                                                   \
        else if (known)                                                           \
            ledger_put(entry);                                                    \
        return result;                                                            \
    } while (0)

CUresult cuModuleLoad(CUmodule *module, const char *path) { LOADS(MODULE, "cuModuleLoad", module, REAL(cuModuleUnload)(*module), REAL(cuModuleLoad)(module, path)); }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { LOADS(MODULE, "cuModuleLoadData", module, REAL(cuModuleUnload)(*module), REAL(cuModuleLoadData)(module, image)); }
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    LOADS(MODULE, "cuModuleLoadFatBinary", module, REAL(cuModuleUnload)(*module), REAL(cuModuleLoadFatBinary)(module, image));
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, void *options, void **values)
{
    LOADS(MODULE, "cuModuleLoadDataEx", module, REAL(cuModuleUnload)(*module), REAL(cuModuleLoadDataEx)(module, image, count, options, values));
}
CUresult cuModuleUnload(CUmodule module) { UNLOADS(MODULE, module, REAL(cuModuleUnload)(module)); }

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, void *jit, void **jit_values, unsigned jit_count, void *options, void **values, unsigned count)
{
    LOADS(LIBRARY, "cuLibraryLoadData", library, REAL(cuLibraryUnload)(*library),
          REAL(cuLibraryLoadData)(library, code, jit, jit_values, jit_count, options, values, count));
}
CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, void *jit, void **jit_values, unsigned jit_count, void *options, void **values, unsigned count)
{
    LOADS(LIBRARY, "cuLibraryLoadFromFile", library, REAL(cuLibraryUnload)(*library),
          REAL(cuLibraryLoadFromFile)(library, path, jit, jit_values, jit_count, options, values, count));
}
CUresult cuLibraryUnload(CUlibrary library) { UNLOADS(LIBRARY, library, REAL(cuLibraryUnload)(library)); }

void context_forget(void)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        primary[i] = NULL;
}

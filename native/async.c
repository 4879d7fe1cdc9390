/* Stream-ordered memory: its calls go through the states of a pool (pool.c). */
#define _GNU_SOURCE
#include "capture.h"
#include "measure.h"
#include "parts.h"
#include "pool.h"
#include "settings.h"
#include "steps.h"
#include "vmm.h"

/* NULL where that cannot be told, or nothing is limited. */
static struct pool *pool_of_stream(CUstream stream)
{
    CUpool handle = NULL;
    bool known;
    struct device *device = device_of_stream(stream, &known);
    if (device == NULL)
        return NULL;
    if (!HAVE(cuDeviceGetMemPool))
        return pool_unnamed(device);
    if (real.cuDeviceGetMemPool(&handle, device->handle) != CUDA_SUCCESS)
        return NULL;
    return pool_find(handle, device);
}

/* A pool that was not made before our eyes, a default one above all: by what the driver says of it.
   It is not put down where it cannot be told whose it is: what a call that fails leaves behind must
   not make it the host's for ever. */
static struct pool *pool_named(CUpool handle, CUstream stream)
{
    struct pool *pool = pool_known(handle);
    int type = 0, id = 0, kind = CU_ALLOCATION_MANAGED;
    if (pool != NULL)
        return pool;
    bool reported =
        REAL(cuMemPoolGetAttribute)(handle, CU_POOL_LOCATION_TYPE, &type) == CUDA_SUCCESS &&
        real.cuMemPoolGetAttribute(handle, CU_POOL_LOCATION_ID, &id) == CUDA_SUCCESS;
    if (reported)
        (void)real.cuMemPoolGetAttribute(handle, CU_POOL_ALLOCATION_TYPE, &kind);
    /* Managed memory moves to the card when it is used, wherever it prefers to be. */
    if (reported && type >= CU_LOCATION_HOST && type <= CU_LOCATION_HOST_LAST &&
        kind != CU_ALLOCATION_MANAGED)
        return pool_find(handle, NULL);
    struct device *device =
        reported && type != 0 ? device_at_location(&(CUlocation){ type, id }, kind) : NULL;
    bool known;
    if (device == NULL)
        device = device_of_stream(stream, &known);
    return device != NULL ? pool_find(handle, device) : NULL;
}

static CUresult ask(CUdeviceptr *ptr, size_t bytes, CUpool from, CUstream stream, bool per_thread)
{
    return from != NULL ? REAL_TWIN(cuMemAllocFromPoolAsync)(ptr, bytes, from, stream)
                        : REAL_TWIN(cuMemAllocAsync)(ptr, bytes, stream);
}

/* Without a pool to count in, a call passes only where nothing is limited, as in a child that was
   forked, to which the driver answers nothing. */
static bool may_not_pass(CUstream stream)
{
    bool known;
    return device_of_stream(stream, &known) != NULL || !known;
}

/* Not in the order of the stream, of which a capture may have begun meanwhile. */
static bool free_at_once(CUdeviceptr ptr)
{
    int mode = capture_relax();
    bool freed = REAL(cuMemFree_v2)(ptr) == CUDA_SUCCESS;
    capture_restore(mode);
    return freed;
}

/* On a stream that is captured: a node of a graph, which counts when that is launched. True where
   it was: if a capture ended meanwhile, what may be memory by now is freed and asked for anew. */
static bool is_node(CUdeviceptr *ptr, size_t bytes, CUpool from, CUstream stream, bool per_thread,
                    CUresult *result)
{
    uint32_t watched = capture_watch();
    if (!capturing(stream, per_thread))
        return false;
    *result = ask(ptr, bytes, from, stream, per_thread);
    if (*result != CUDA_SUCCESS || capture_held(watched))
        return true;
    return !free_at_once(*ptr);
}

static CUresult allocate(CUdeviceptr *ptr, size_t bytes, CUpool from, CUstream stream,
                         bool per_thread)
{
    struct pool *pool = NULL;
    CUresult result;
    bool counting = limits_any() && ptr != NULL;
    while (counting && capturing(stream, per_thread))
        if (is_node(ptr, bytes, from, stream, per_thread, &result))
            return result;
    const char *call = from != NULL ? "cuMemAllocFromPoolAsync" : "cuMemAllocAsync";
    if (counting)
        pool = from != NULL ? pool_named(from, stream) : pool_of_stream(stream);
    if (pool == NULL && counting && HAVE(cuMemAllocAsync) && may_not_pass(stream)) {
        static shared32 logged;
        if (atomic_exchange(&logged, 1) == 0)
            log_line("refused %s of %llu bytes: the driver does not name the pool or the stream's "
                     "GPU, or there are more than %d pools",
                     call, (unsigned long long)bytes, (int)MAX_POOLS);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (pool == NULL || pool_device(pool) == NULL)
        return ask(ptr, bytes, from, stream, per_thread);
    uint64_t taken = 0, left = 0;
    bool debtor = false;
    if (UNLIKELY(!pool_can_ever_fit(pool_device(pool), bytes, &left))) {
        refuse(pool_device(pool), bytes, left, call);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool_begin(pool, bytes);
    if (UNLIKELY(!pool_take_for(pool, bytes, &taken, &debtor, call))) {
        pool_end(pool, bytes, false);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = ask(ptr, bytes, from, stream, per_thread);
    driver_answered(pool_device(pool), bytes, call, result);
    if (result != CUDA_SUCCESS) {
        pool_settle(pool, taken, debtor, NULL);
        pool_end(pool, bytes, debtor);
        return result;
    }
    pool_called(pool, bytes);
    if (!pool_settle(pool, taken, debtor, call)) {
        (void)free_at_once(*ptr);
        pool_emptied(pool, bytes);
        pool_trim(pool, debtor);
        pool_end(pool, 0, debtor);
        *ptr = 0;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    ledger_put(entry_of(POOLED, *ptr, bytes, pool, pool_device(pool)->ordinal));
    pool_end(pool, 0, debtor);
    return CUDA_SUCCESS;
}

DEFINE_TWINS(cuMemAllocAsync, (CUdeviceptr * ptr, size_t bytes, CUstream stream),
             allocate(ptr, bytes, NULL, stream, per_thread))
DEFINE_TWINS(cuMemAllocFromPoolAsync,
             (CUdeviceptr * ptr, size_t bytes, CUpool pool, CUstream stream),
             allocate(ptr, bytes, pool, stream, per_thread))

static CUresult release(CUdeviceptr ptr, CUstream stream, bool per_thread)
{
    struct entry entry;
    bool known = limits_any() && !capturing(stream, per_thread);
    known = known && ledger_take(LINEAR, ptr, &entry);
    CUresult result = REAL_TWIN(cuMemFreeAsync)(ptr, stream);
    if (!known)
        return result;
    if (result == CUDA_SUCCESS && entry.kind == POOLED &&
        pool_is_unreported(entry.owner)) /* the driver cannot be asked when it is free */
        (void)REAL_TWIN(cuStreamSynchronize)(stream);
    if (result != CUDA_SUCCESS) {
        ledger_put(entry);
    } else if (entry.kind == POOLED) {
        pools_free(&entry);
    } else { /* freed when the stream gets there */
        (void)REAL_TWIN(cuStreamSynchronize)(stream);
        steps_give(&entry);
    }
    return result;
}

DEFINE_TWINS(cuMemFreeAsync, (CUdeviceptr ptr, CUstream stream), release(ptr, stream, per_thread))

CUresult cuMemPoolCreate(CUpool *handle, const CUpool_props *props)
{
    CUresult result = REAL(cuMemPoolCreate)(handle, props);
    if (result == CUDA_SUCCESS && limits_any()) {
        struct device *device = device_at_location(&props->location, props->type);
        pool_made(pool_find(*handle, device), device);
    }
    return result;
}

CUresult cuMemPoolDestroy(CUpool handle)
{
    struct pool *pool = limits_any() && handle != NULL ? pool_known(handle) : NULL;
    if (pool == NULL)
        return REAL(cuMemPoolDestroy)(handle);
    bool counted = pool_device(pool) != NULL;
    pool_begin(pool, 0);
    if (counted) /* what is not in use goes now, while the driver can still be asked */
        pool_trim(pool, false);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    if (result == CUDA_SUCCESS)
        pool_gone(pool);
    if (result == CUDA_SUCCESS && counted)
        pool_settle(pool, 0, false, NULL);
    pool_end(pool, 0, false);
    return result;
}

CUresult cuMemPoolTrimTo(CUpool handle, size_t keep)
{
    CUresult result = REAL(cuMemPoolTrimTo)(handle, keep);
    if (limits_any())
        parts_reclaim(NULL);
    return result;
}

/* A stream that has come to its end may have let a pool shrink, and what was measured is done. */
static inline CUresult synchronized(CUresult result)
{
    if (UNLIKELY(LOAD(measure_open)))
        measure_settle();
    if (UNLIKELY(LOAD(parts_dirty)))
        parts_reclaim(NULL);
    return result;
}

DEFINE_TWINS(cuStreamSynchronize, (CUstream stream),
             synchronized(REAL_TWIN(cuStreamSynchronize)(stream)))

#define SYNCHRONIZES(name, params, args)      \
    CUresult name params                      \
    {                                         \
        return synchronized(REAL(name) args); \
    }
SYNCHRONIZES(cuEventSynchronize, (CUevent event), (event))
SYNCHRONIZES(cuCtxSynchronize, (void), ())
SYNCHRONIZES(cuCtxSynchronize_v2, (CUcontext context), (context))

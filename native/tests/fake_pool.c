/* Stream-ordered memory. */
#include "fake_inside.h"

static struct CUpool_st default_pools[FAKE_GPUS], *pool_list, *current_pool[FAKE_GPUS];

uint64_t fake_steps(uint64_t bytes)
{
    uint64_t step = fake_card->pool_step_bytes ? fake_card->pool_step_bytes : 1;
    return (bytes + step - 1) / step * step;
}

static void shrink(struct CUpool_st *pool, uint64_t keep)
{
    if (keep >= pool->reserved)
        return;
    fake_books();
    uint64_t floor = fake_steps(pool->used > keep ? pool->used : keep),
             gone = pool->reserved > floor ? pool->reserved - floor : 0;
    if (gone != 0 && pool->device)
        fake_refund(pool->gpu, gone); /* before a process can be told that it is free */
    pool->reserved -= gone;
    fake_books_done();
}

DO cuDeviceGetDefaultMemPool(CUpool *pool, CUdevice dev)
{
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *pool = &default_pools[fake_gpu_at(dev)];
    return CUDA_SUCCESS;
}
DO cuDeviceGetMemPool(CUpool *pool, CUdevice dev)
{
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *pool = current_pool[fake_gpu_at(dev)];
    return CUDA_SUCCESS;
}
DO cuDeviceSetMemPool(CUdevice dev, CUpool pool)
{
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    current_pool[fake_gpu_at(dev)] = pool;
    return CUDA_SUCCESS;
}

/* Of the pools by location only those of managed memory, which no device's default pool is. */
DO cuMemGetDefaultMemPool(CUpool *pool, CUlocation *location, int type)
{
    static struct CUpool_st managed;
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), pool), location);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (type != CU_ALLOCATION_MANAGED)
        return cuDeviceGetDefaultMemPool(pool, location->id);
    fake_books();
    if (!managed.device) {
        managed = (struct CUpool_st){ .device = true, .type = type, .location = *location };
        managed.next = pool_list;
        pool_list = &managed;
    }
    fake_books_done();
    *pool = &managed;
    return CUDA_SUCCESS;
}

DO cuMemPoolCreate(CUpool *pool, const CUpool_props *props)
{
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), pool), props);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    bool placed = props->location.type == CU_LOCATION_DEVICE ||
                  props->location.type == CU_LOCATION_DEVICE_PART;
    bool device = placed || props->type == CU_ALLOCATION_MANAGED;
    wrong = fake_on_gpu(__func__, placed ? props->location.id & 0xff : 0);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *pool = calloc(1, sizeof **pool);
    **pool = (struct CUpool_st){ .gpu = fake_gpu_at(placed ? props->location.id & 0xff : 0),
                                 .device = device,
                                 .type = props->type,
                                 .location = props->location };
    fake_books();
    (*pool)->next = pool_list;
    pool_list = *pool;
    fake_books_done();
    return CUDA_SUCCESS;
}

/* Another process's: nothing can be had of it, and what it gives to that process can be reached. */
DO cuMemPoolImportFromShareableHandle(CUpool *pool, void *handle, int type,
                                      unsigned long long flags)
{
    CUresult wrong = fake_given(fake_ready(__func__), pool);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)handle, (void)flags;
    if (type != CU_SHARE_FD)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = calloc(1, sizeof **pool);
    (*pool)->imported = true;
    return CUDA_SUCCESS;
}

DO cuMemPoolDestroy(CUpool pool)
{
    CUresult wrong = fake_given(fake_ready(__func__), pool);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    shrink(pool, 0);
    pool->gone = true;
    return CUDA_SUCCESS;
}

DO cuMemPoolTrimTo(CUpool pool, size_t keep)
{
    CUresult wrong = fake_given(fake_ready(__func__), pool);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    shrink(pool, keep);
    return CUDA_SUCCESS;
}

DO cuMemPoolSetAttribute(CUpool pool, int attribute, void *value)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (attribute == CU_POOL_RELEASE_THRESHOLD)
        pool->threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}

DO cuMemPoolGetAttribute(CUpool pool, int attribute, void *value)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (pool->gone)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POOL_ALLOCATION_TYPE)
        return *(int *)value = pool->type != 0 ? pool->type : 1, CUDA_SUCCESS;
    if (attribute == CU_POOL_LOCATION_TYPE)
        return *(int *)value = pool->location.type, CUDA_SUCCESS;
    if (attribute == CU_POOL_LOCATION_ID)
        return *(int *)value = pool->location.id, CUDA_SUCCESS;
    *(uint64_t *)value = attribute == CU_POOL_RESERVED_CURRENT    ? pool->reserved
                         : attribute == CU_POOL_RESERVED_HIGH     ? pool->most_reserved
                         : attribute == CU_POOL_USED_CURRENT      ? pool->used
                         : attribute == CU_POOL_RELEASE_THRESHOLD ? pool->threshold
                                                                  : 0;
    return CUDA_SUCCESS;
}

static CUresult pool_alloc(CUdeviceptr *ptr, size_t bytes, CUpool pool, CUstream stream)
{
    struct CUctx_st *context;
    CUresult wrong = fake_on_stream(__func__, stream, &context);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (ptr == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *queue = fake_stream(stream);
    if (queue->capture != NULL)
        return fake_graph_alloc(queue->capture, context->gpu, bytes, ptr, NULL);
    if (pool == NULL)
        pool = current_pool[context->gpu];
    if (pool->imported || pool->gone)
        return CUDA_ERROR_INVALID_VALUE;
    /* A pool grows for one call at a time, and by no more than that call lacks. */
    fake_books();
    uint64_t room = pool->reserved - pool->used, grow = room < bytes ? fake_steps(bytes - room) : 0,
             at = 0;
    bool had = grow == 0 || !pool->device || fake_charge(pool->gpu, grow);
    if (had) {
        pool->reserved += grow;
        pool->most_reserved =
            pool->reserved > pool->most_reserved ? pool->reserved : pool->most_reserved;
        pool->used += bytes;
        at = fake_address(bytes);
        fake_node_put((struct node){
            .va = at, .bytes = bytes, .what = ASYNC, .gpu = pool->gpu, .pool = pool });
    }
    fake_books_done();
    if (!had)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *ptr = at;
    return CUDA_SUCCESS;
}

DO cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return pool_alloc(ptr, bytes, NULL, stream);
}
DO cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return pool_alloc(ptr, bytes, NULL, stream);
}
DO cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t bytes, CUpool pool, CUstream stream)
{
    CUresult wrong = fake_given(fake_ready(__func__), pool);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return pool_alloc(ptr, bytes, pool, stream);
}
DO cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUpool pool, CUstream stream)
{
    CUresult wrong = fake_given(fake_ready(__func__), pool);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return pool_alloc(ptr, bytes, pool, stream);
}
DO cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
    struct CUctx_st *context;
    CUresult wrong = fake_on_stream(__func__, stream, &context);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (fake_stream(stream)->capture != NULL)
        return CUDA_SUCCESS;
    return fake_release(ptr);
}
DO cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return cuMemFreeAsync(ptr, stream);
}

void fake_pools_settle(uint32_t gpu)
{
    shrink(&default_pools[gpu], default_pools[gpu].threshold);
    for (struct CUpool_st *pool = pool_list; pool != NULL; pool = pool->next)
        if (pool->gpu == gpu)
            shrink(pool, pool->gone ? 0 : pool->threshold);
}

void fake_pools_start(uint32_t gpu)
{
    default_pools[gpu] = (struct CUpool_st){ .gpu = gpu, .device = true };
    current_pool[gpu] = &default_pools[gpu];
}

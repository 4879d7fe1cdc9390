/* Linear memory, arrays, and what passes between processes by address. */
#include "fake_inside.h"

static _Atomic uint64_t unplaced; /* managed memory that no kernel has used yet */

void fake_populate(void)
{
    if (__builtin_expect(atomic_load_explicit(&unplaced, memory_order_relaxed) == 0, 1))
        return;
    if (fake_like("untouched"))
        return;
    fake_books();
    struct node *found = fake_node_at(atomic_exchange(&unplaced, 0));
    if (found != NULL && found->unplaced) {
        uint64_t need = fake_blocks(found->va, found->bytes, 1);
        found->unplaced = !fake_charge(found->gpu, need);
        if (found->unplaced) /* where it does not fit it stays with the host */
            fake_blocks(found->va, found->bytes, -1);
    }
    fake_books_done();
}

static CUresult allocate(uint64_t *va, uint64_t bytes)
{
    CUresult wrong = fake_in_context(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_populate();
    fake_drop_unmapped();
    if (va == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    fake_books();
    uint64_t at = fake_address(bytes), need = fake_blocks(at, bytes, 1);
    fake_books_done();
    if (!fake_charge(fake_context->gpu, need)) {
        fake_books();
        fake_blocks(at, bytes, -1);
        if (at != 0)
            fake_address_back(at, bytes);
        fake_books_done();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fake_books();
    if (at != 0)
        fake_node_put((struct node){ .va = at,
                                     .bytes = bytes,
                                     .what = BLOCK,
                                     .gpu = fake_context->gpu,
                                     .context = fake_owner() });
    fake_books_done();
    if (at == 0) {
        fake_refund(fake_context->gpu, need);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *va = at;
    return CUDA_SUCCESS;
}

CUresult fake_release(uint64_t va)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_populate();
    if (va == 0)
        return CUDA_SUCCESS;
    fake_books();
    struct node *found = fake_node_at(va);
    if (found == NULL || found->what == VIRTUAL) {
        fake_books_done();
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct node node = *found;
    fake_node_drop(found);
    if (node.what == ASYNC)
        node.pool->used -= node.bytes;
    fake_books_done();
    if (node.what == BLOCK && !node.unplaced) {
        fake_books();
        uint64_t gone = fake_blocks(node.va, node.bytes, -1);
        fake_books_done();
        fake_refund(node.gpu, gone);
    }
    fake_books(); /* the address comes back only after the bytes */
    fake_address_back(node.va, node.bytes);
    fake_books_done();
    return CUDA_SUCCESS;
}

DO cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return allocate(ptr, bytes);
}

/* The calls of CUDA 2 have addresses of 32 bits: the lower half of what the fake_card's addresses
   are here. */
DO cuMemAlloc(unsigned *ptr, unsigned bytes)
{
    uint64_t va;
    CUresult wrong = fake_given(CUDA_SUCCESS, ptr);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    CUresult result = allocate(&va, bytes);
    if (result == CUDA_SUCCESS)
        *ptr = (unsigned)va;
    return result;
}
DO cuMemFree_v2(CUdeviceptr ptr)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return fake_release(ptr);
}
DO cuMemFree(unsigned ptr)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    uint64_t whole = ptr;
    fake_books();
    for (size_t i = 0; i < fake_node_space && ptr != 0; i++)
        if (fake_nodes[i].what != FREE && (unsigned)fake_nodes[i].va == ptr)
            whole = fake_nodes[i].va;
    fake_books_done();
    return fake_release(whole);
}
/* Managed memory is the fake_card's from its first use on, which is taken to be any later call of
   its maker's. */
DO cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned flags)
{
    (void)flags;
    CUresult wrong = fake_in_context(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_shares_memory();
    if (ptr == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    fake_populate();
    fake_books();
    uint64_t at = fake_address(bytes);
    if (at != 0)
        fake_node_put((struct node){ .va = at,
                                     .bytes = bytes,
                                     .what = BLOCK,
                                     .gpu = fake_context->gpu,
                                     .context = fake_owner(),
                                     .managed = true,
                                     .unplaced = true });
    atomic_store(&unplaced, at);
    fake_books_done();
    *ptr = at;
    return at != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
DO cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height,
                      unsigned element)
{
    (void)element;
    CUresult wrong = fake_given(fake_given(CUDA_SUCCESS, ptr), pitch);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *pitch = (width + 511) / 512 * 512;
    return allocate(ptr, *pitch * height);
}
DO cuMemAllocPitch(unsigned *ptr, unsigned *pitch, unsigned width, unsigned height,
                   unsigned element)
{
    uint64_t va;
    size_t wide;
    CUresult wrong = fake_given(fake_given(CUDA_SUCCESS, ptr), pitch);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    CUresult result = cuMemAllocPitch_v2(&va, &wide, width, height, element);
    if (result == CUDA_SUCCESS) {
        *ptr = (unsigned)va;
        *pitch = (unsigned)wide;
    }
    return result;
}
DO cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)flags;
    *ptr = malloc(bytes);
    return *ptr != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
DO cuMemAllocHost_v2(void **ptr, size_t bytes)
{
    return cuMemHostAlloc(ptr, bytes, 0);
}
DO cuMemFreeHost(void *ptr)
{
    free(ptr);
    return CUDA_SUCCESS;
}
static void fill(uint32_t *to, uint32_t value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = value;
}

/* Each is done when it returns, on whatever stream. */
#define COPY(name, params, does)                 \
    DO name params                               \
    {                                            \
        CUresult wrong = fake_in_context(#name); \
        if (wrong == CUDA_SUCCESS && count != 0) \
            does;                                \
        return wrong;                            \
    }
#define ON_STREAM(name, params, does) COPY(name, params, ((void)stream, does))
#define COPIES(name, version, to, from, does)                  \
    COPY(name##version, (to, from, size_t count), does)        \
    COPY(name##version##_ptds, (to, from, size_t count), does)
#define COPIES_ASYNC(name, to, from, does)                                  \
    ON_STREAM(name, (to, from, size_t count, CUstream stream), does)        \
    ON_STREAM(name##_ptsz, (to, from, size_t count, CUstream stream), does)
COPIES(cuMemcpy, , CUdeviceptr to, CUdeviceptr from,
       memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, count))
COPIES(cuMemcpyHtoD, _v2, CUdeviceptr to, const void *from,
       memcpy((void *)(uintptr_t)to, from, count))
COPIES(cuMemcpyDtoH, _v2, void *to, CUdeviceptr from, memcpy(to, (void *)(uintptr_t)from, count))
COPIES(cuMemcpyDtoD, _v2, CUdeviceptr to, CUdeviceptr from,
       memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, count))
COPIES(cuMemsetD8, _v2, CUdeviceptr to, unsigned char value,
       memset((void *)(uintptr_t)to, value, count))
COPIES(cuMemsetD32, _v2, CUdeviceptr to, unsigned value,
       fill((uint32_t *)(uintptr_t)to, value, count))
COPIES_ASYNC(cuMemcpyAsync, CUdeviceptr to, CUdeviceptr from,
             memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, count))
COPIES_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr to, const void *from,
             memcpy((void *)(uintptr_t)to, from, count))
COPIES_ASYNC(cuMemcpyDtoHAsync_v2, void *to, CUdeviceptr from,
             memcpy(to, (void *)(uintptr_t)from, count))
COPIES_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr to, CUdeviceptr from,
             memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, count))
COPIES_ASYNC(cuMemsetD8Async, CUdeviceptr to, unsigned char value,
             memset((void *)(uintptr_t)to, value, count))
COPIES_ASYNC(cuMemsetD32Async, CUdeviceptr to, unsigned value,
             fill((uint32_t *)(uintptr_t)to, value, count))

static uint64_t pixels(size_t width, size_t height, size_t depth, int format, unsigned channels)
{
    uint64_t bytes = format == 1 || format == 8                   ? 1
                     : format == 2 || format == 9 || format == 16 ? 2
                                                                  : 4;
    return (uint64_t)width * (height ? height : 1) * (depth ? depth : 1) * bytes * channels;
}

/* The extents that cards of compute capability 9.0 take. */
static bool within(size_t width, size_t height, size_t depth, unsigned flags, bool mipmapped)
{
    bool layered = (flags & (CU_ARRAY_LAYERED | CU_ARRAY_CUBEMAP)) != 0;
    if (depth != 0 && !layered)
        return width <= 16384 && height <= 16384 && depth <= 16384;
    if (layered || mipmapped)
        return width <= 32768 && height <= 32768 && depth <= 2048;
    return width <= 131072 && height <= 65536;
}

static CUresult make_array(CUarray *array, uint64_t bytes, unsigned flags)
{
    struct CUarray_st *made = calloc(1, sizeof *made);
    bool sparse =
        (flags & (CU_ARRAY_SPARSE | CU_ARRAY_DEFERRED)) != 0; /* its memory is mapped later */
    CUresult wrong = fake_in_context(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    CUresult result = sparse ? CUDA_SUCCESS : allocate(&made->va, bytes);
    if (result == CUDA_SUCCESS)
        *array = made;
    else
        free(made);
    return result;
}

/* Each call has an older version, whose descriptor has narrower fields of the same names. */
#define MAKES_ARRAY(name, type, depth, flags)                                                \
    DO name(CUarray *array, const type *d)                                                   \
    {                                                                                        \
        CUresult wrong = fake_given(fake_given(fake_ready(__func__), array), d);             \
        if (wrong != CUDA_SUCCESS)                                                           \
            return wrong;                                                                    \
        if (!within(d->width, d->height, depth, flags, false))                               \
            return CUDA_ERROR_INVALID_VALUE;                                                 \
        return make_array(array, pixels(d->width, d->height, depth, d->format, d->channels), \
                          flags);                                                            \
    }
MAKES_ARRAY(cuArrayCreate, CUarray_desc_v1, 0, 0)
MAKES_ARRAY(cuArrayCreate_v2, CUarray_desc, 0, 0)
MAKES_ARRAY(cuArray3DCreate, CUarray3d_desc_v1, d->depth, d->flags)
MAKES_ARRAY(cuArray3DCreate_v2, CUarray3d_desc, d->depth, d->flags)
#undef MAKES_ARRAY

DO cuArrayDestroy(CUarray array)
{
    CUresult wrong = fake_given(fake_ready(__func__), array);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    CUresult result = fake_release(array->va);
    fake_parts_of(array);
    free(array);
    return result;
}
DO cuMipmappedArrayCreate(CUmipmap *mipmap, const CUarray3d_desc *d, unsigned levels)
{
    uint64_t bytes = 0;
    CUresult wrong = fake_given(fake_given(CUDA_SUCCESS, mipmap), d);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (!within(d->width, d->height, d->depth, d->flags, true))
        return CUDA_ERROR_INVALID_VALUE;
    bool flat = (d->flags & (CU_ARRAY_LAYERED | CU_ARRAY_CUBEMAP)) != 0;
    for (unsigned level = 0; level < levels; level++) {
        size_t w = d->width >> level, h = d->height >> level,
               z = flat ? d->depth : d->depth >> level;
        bytes += pixels(w ? w : 1, d->height ? (h ? h : 1) : 0, d->depth ? (z ? z : 1) : 0,
                        d->format, d->channels);
        if (w <= 1 && h <= 1 && (flat || z <= 1))
            break;
    }
    return make_array((CUarray *)(void *)mipmap, bytes, d->flags);
}
DO cuMipmappedArrayDestroy(CUmipmap mipmap)
{
    return cuArrayDestroy((CUarray)(void *)mipmap);
}

DO cuPointerGetAttribute(void *value, int attribute, CUdeviceptr ptr)
{
    CUresult wrong = fake_given(fake_ready(__func__), value);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    struct node *found = fake_node_holding(ptr);
    bool known = found != NULL, managed = known && found->managed;
    fake_books_done();
    if (attribute == CU_POINTER_IS_MANAGED)
        return *(unsigned *)value = managed, CUDA_SUCCESS;
    if (attribute != CU_POINTER_MEMORY_TYPE)
        return CUDA_ERROR_NOT_SUPPORTED;
    *(unsigned *)value = 2; /* the device's */
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Memory of another process: an address here, bytes there. */
DO cuIpcGetMemHandle(CUipc *handle, CUdeviceptr ptr)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_shares_memory();
    memset(handle, 0, sizeof *handle);
    memcpy(handle->bytes, &ptr, sizeof ptr);
    return CUDA_SUCCESS;
}
DO cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipc handle, unsigned flags)
{
    CUresult wrong = fake_in_context(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_shares_memory();
    (void)handle, (void)flags;
    fake_books();
    *ptr = fake_address(4096);
    fake_node_put((struct node){ .va = *ptr, .bytes = 4096, .what = VIRTUAL });
    fake_books_done();
    return CUDA_SUCCESS;
}
DO cuIpcCloseMemHandle(CUdeviceptr ptr)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    struct node *found = fake_node_at(ptr);
    if (found != NULL)
        fake_node_drop(found);
    fake_books_done();
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A context is gone, and all that was allocated in it. */
void fake_memory_gone(struct CUctx_st *context)
{
    fake_books();
    for (size_t i = 0; i < fake_node_space; i++)
        while (fake_nodes[i].what == BLOCK && fake_nodes[i].context == context) {
            if (!fake_nodes[i].unplaced)
                fake_refund(fake_nodes[i].gpu,
                            fake_blocks(fake_nodes[i].va, fake_nodes[i].bytes, -1));
            fake_address_back(fake_nodes[i].va, fake_nodes[i].bytes);
            fake_node_drop(&fake_nodes[i]);
        }
    fake_books_done();
}

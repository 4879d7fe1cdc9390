/* Hooks of memory that is allocated at once. */
#include "snippets.h"

#include <sys/mman.h>

/* ---- linear memory and arrays ---- */

SNIPPET(cuMemAlloc)
{
    ALLOCATES(unsigned, 20 * MIB, cuMemAlloc(at, 20 * MIB), cuMemFree);
}
SNIPPET(cuMemAlloc_v2)
{
    ALLOCATES(CUdeviceptr, 20 * MIB + 1, cuMemAlloc_v2(at, 20 * MIB + 1), cuMemFree_v2);
}
SNIPPET(cuMemAllocPitch)
{
    unsigned pitch;
    ALLOCATES(unsigned, 20 * MIB, cuMemAllocPitch(at, &pitch, 513, 20480, 4), cuMemFree);
}
SNIPPET(cuMemAllocPitch_v2)
{
    size_t pitch;
    ALLOCATES(CUdeviceptr, 20 * MIB, cuMemAllocPitch_v2(at, &pitch, 513, 20480, 4), cuMemFree_v2);
}
SNIPPET(cuMemAllocManaged)
{
    ALLOCATES(CUdeviceptr, 20 * MIB, cuMemAllocManaged(at, 20 * MIB, 1), cuMemFree_v2);
}
SNIPPET(cuMemFree)
{
    unsigned a;
    start();
    OK(cuMemAlloc(&a, 5));
    OK(cuMemFree(a));
    HELD(0);
    CHECK(cuMemFree(a) != CUDA_SUCCESS);
    HELD(0);
}
SNIPPET(cuMemFree_v2)
{
    CUdeviceptr a;
    start();
    OK(cuMemAlloc_v2(&a, 5));
    OK(cuMemFree_v2(a));
    HELD(0);
    CHECK(cuMemFree_v2(a) != CUDA_SUCCESS);
    HELD(0);
}

static const CUarray_desc plane = { 2048, 2048, 0x20, 1 };
static const CUarray_desc_v1 plane_v1 = { 2048, 2048, 0x20, 1 };
static const CUarray3d_desc cube = { 256, 256, 64, 0x20, 1, 0 };
static const CUarray3d_desc_v1 cube_v1 = { 256, 256, 64, 0x20, 1, 0 };
static const CUarray3d_desc square = { 2048, 1024, 0, 0x20, 2, 0 };

SNIPPET(cuArrayCreate)
{
    ALLOCATES(CUarray, 16 * MIB, cuArrayCreate(at, &plane_v1), cuArrayDestroy);
}
SNIPPET(cuArrayCreate_v2)
{
    ALLOCATES(CUarray, 16 * MIB, cuArrayCreate_v2(at, &plane), cuArrayDestroy);
}
SNIPPET(cuArray3DCreate)
{
    ALLOCATES(CUarray, 16 * MIB, cuArray3DCreate(at, &cube_v1), cuArrayDestroy);
}
SNIPPET(cuArray3DCreate_v2)
{
    ALLOCATES(CUarray, 16 * MIB, cuArray3DCreate_v2(at, &cube), cuArrayDestroy);
}
SNIPPET(cuArrayDestroy)
{
    CUarray array;
    start();
    OK(cuArrayCreate_v2(&array, &plane));
    OK(cuArrayDestroy(array));
    HELD(0);
    CHECK(cuArrayDestroy(NULL) != CUDA_SUCCESS);
    HELD(0);
}
SNIPPET(cuMipmappedArrayCreate)
{
    ALLOCATES(CUmipmap, 20 * MIB, cuMipmappedArrayCreate(at, &square, 2), cuMipmappedArrayDestroy);
}
SNIPPET(cuMipmappedArrayDestroy)
{
    CUmipmap mipmap;
    start();
    OK(cuMipmappedArrayCreate(&mipmap, &square, 1));
    HELD(16 * MIB);
    OK(cuMipmappedArrayDestroy(mipmap));
    HELD(0);
    CHECK(cuMipmappedArrayDestroy(NULL) != CUDA_SUCCESS);
    HELD(0);
}

/* ---- physical memory ---- */

static const CUalloc_prop on_device = { .type = 1, .location = { CU_LOCATION_DEVICE, 0 } };

SNIPPET(cuMemCreate)
{
    ALLOCATES(CUhandle, 20 * MIB, cuMemCreate(at, 20 * MIB, &on_device, 0), cuMemRelease);
}

SNIPPET(cuMemRelease)
{
    CUhandle handle;
    start();
    OK(cuMemCreate(&handle, 20 * MIB, &on_device, 0));
    OK(cuMemRelease(handle));
    HELD(0);
    CHECK(cuMemRelease(handle) != CUDA_SUCCESS);
    HELD(0);
}

/* A mapping keeps memory whose handle is released; a handle fetched from a mapping keeps it too. */
static void keeps(bool by_handle)
{
    CUhandle handle, again;
    CUdeviceptr at;
    start();
    OK(cuMemAddressReserve(&at, 20 * MIB, 0, 0, 0));
    OK(cuMemCreate(&handle, 20 * MIB, &on_device, 0));
    OK(cuMemMap(at, 20 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    HELD(20 * MIB);
    if (by_handle)
        OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + MIB)));
    OK(cuMemUnmap(at, 20 * MIB));
    HELD(by_handle ? 20 * MIB : 0);
    if (by_handle)
        OK(cuMemRelease(again));
    HELD(0);
    CHECK(cuMemMap(at, 20 * MIB, 0, handle, 0) != CUDA_SUCCESS &&
          cuMemUnmap(at, 20 * MIB) != CUDA_SUCCESS);
    HELD(0);
}

SNIPPET(cuMemExportToShareableHandle) /* the file that it was exported to holds it too */
{
    CUhandle handle;
    CUdeviceptr a;
    int fd = -1;
    start();
    OK(cuMemCreate(&handle, 40 * MIB, &(CUalloc_prop){ .type = 1, .location = { 1, 0 } }, 0));
    CHECK(cuMemExportToShareableHandle(&fd, handle, 77, 0) != CUDA_SUCCESS);
    OK(cuMemExportToShareableHandle(&fd, handle, CU_SHARE_FD, 0));
    OK(cuMemRelease(handle));
    HELD(40 * MIB);
    OOM(cuMemAlloc_v2(&a, 30 * MIB));
    close(fd);
    HELD(0);
    OK(cuMemAlloc_v2(&a, LIMIT));
    HELD(LIMIT);
}

SNIPPET(cuMemImportFromShareableHandle) /* after the original's release: it is one memory, held by
                                           what was imported */
{
    CUhandle handle, again, twice;
    CUdeviceptr a, at;
    char fabric[CU_FABRIC_BYTES];
    int fd = -1;
    start();
    for (int by_fabric = 0; by_fabric < 2; by_fabric++) {
        OK(cuMemCreate(&handle, 40 * MIB, &(CUalloc_prop){ .type = 1, .location = { 1, 0 } }, 0));
        OK(cuMemExportToShareableHandle(by_fabric ? (void *)fabric : &fd, handle,
                                        by_fabric ? CU_SHARE_FABRIC : CU_SHARE_FD, 0));
        void *from = by_fabric ? (void *)fabric : (void *)(intptr_t)dup(fd);
        OK(cuMemImportFromShareableHandle(&again, from, by_fabric ? CU_SHARE_FABRIC : CU_SHARE_FD));
        HELD(40 * MIB);
        OK(cuMemImportFromShareableHandle(&twice, from, by_fabric ? CU_SHARE_FABRIC : CU_SHARE_FD));
        HELD(40 * MIB);
        OK(cuMemRelease(handle));
        if (!by_fabric) {
            close((int)(intptr_t)from);
            close(fd);
        }
        HELD(40 * MIB);
        OOM(cuMemAlloc_v2(&a, 30 * MIB));
        OK(cuMemAddressReserve(&at, 40 * MIB, 0, 0, 0));
        OK(cuMemMap(at, 40 * MIB, 0, again, 0));
        OK(cuMemRelease(again));
        OK(cuMemRelease(twice));
        HELD(40 * MIB);
        OK(cuMemUnmap(at, 40 * MIB));
        HELD(0);
    }
}

/* What is mapped into a sparse array is held by it, whatever becomes of the handle. */
static void maps_parts(CUresult (*map)(CUmap_info *, unsigned, CUstream))
{
    CUarray array;
    CUhandle handle, other, plain;
    CUdeviceptr a;
    CUarray3d_desc desc = { 8192, 8192, 0, 0x20, 4, CU_ARRAY_SPARSE };
    CUalloc_prop for_tiles = on_device;
    for_tiles.usage = CU_FOR_TILES;
    start();
    OK(cuArray3DCreate_v2(&array, &desc));
    HELD(0);
    OK(cuMemCreate(&plain, 2 * MIB, &on_device, 0));
    OK(cuMemCreate(&handle, 40 * MIB, &for_tiles, 0));
    CUmap_info part = {
        .resource = array, .operation = CU_OPERATION_MAP, .handle = handle, .device_mask = 1
    };
    part.part.level.width = 256;
    part.part.level.depth = 1;
    part.part.level.height = 32; /* half a tile */
    CHECK(map(&part, 1, NULL) != CUDA_SUCCESS);
    part.part.level.height = 64;
    part.handle = plain; /* not made for tiles */
    CHECK(map(&part, 1, NULL) != CUDA_SUCCESS);
    OK(cuMemRelease(plain));
    part.handle = handle;
    OK(map(&part, 1, NULL));
    OK(cuMemRelease(handle));
    HELD(40 * MIB);
    OOM(cuMemAlloc_v2(&a, 30 * MIB));
    OK(cuMemCreate(&other, 20 * MIB, &for_tiles, 0));
    part.handle = other;
    OK(map(&part, 1, NULL)); /* in the place of the first */
    OK(cuMemRelease(other));
    HELD(20 * MIB);
    part.operation = CU_OPERATION_UNMAP;
    OK(map(&part, 1, NULL));
    HELD(0);
    OK(cuMemCreate(&handle, 40 * MIB, &for_tiles, 0));
    part.operation = CU_OPERATION_MAP;
    part.handle = handle;
    OK(map(&part, 1, NULL));
    OK(cuMemRelease(handle));
    CHECK(map(&part, 1, NULL) != CUDA_SUCCESS); /* the handle is gone */
    HELD(40 * MIB);
    OK(cuArrayDestroy(array));
    HELD(0);
}
SNIPPET(cuMemMapArrayAsync)
{
    maps_parts(cuMemMapArrayAsync);
}
SNIPPET(cuMemMapArrayAsync_ptsz)
{
    maps_parts(cuMemMapArrayAsync_ptsz);
}

/* What is bound to a multicast object is held by it. */
enum binding { BY_HANDLE, BY_HANDLE_V2, BY_ADDRESS, BY_ADDRESS_V2 };
static void binds(enum binding how, bool unbind)
{
    CUhandle object, handle;
    CUdeviceptr at, a;
    CUmulticast_prop prop = { 1, 64 * MIB, 1, 0 };
    start();
    OK(cuMulticastCreate(&object, &prop));
    OK(cuMulticastAddDevice(object, 0));
    HELD(0);
    OK(cuMemCreate(&handle, 40 * MIB, &(CUalloc_prop){ .type = 1, .location = { 1, 0 } }, 0));
    OK(cuMemAddressReserve(&at, 40 * MIB, 0, 0, 0));
    OK(cuMemMap(at, 40 * MIB, 0, handle, 0));
    OK(how == BY_HANDLE      ? cuMulticastBindMem(object, 0, handle, 0, 40 * MIB, 0)
       : how == BY_HANDLE_V2 ? cuMulticastBindMem_v2(object, 0, 0, handle, 0, 40 * MIB, 0)
       : how == BY_ADDRESS   ? cuMulticastBindAddr(object, 0, at, 40 * MIB, 0)
                             : cuMulticastBindAddr_v2(object, 0, 0, at, 40 * MIB, 0));
    OK(cuMemRelease(handle));
    OK(cuMemUnmap(at, 40 * MIB));
    HELD(40 * MIB);
    OOM(cuMemAlloc_v2(&a, 30 * MIB));
    if (unbind)
        OK(cuMulticastUnbind(object, 0, 0, 40 * MIB));
    else
        OK(cuMemRelease(object));
    HELD(0);
}
SNIPPET(cuMulticastCreate)
{
    binds(BY_HANDLE, false);
}
SNIPPET(cuMulticastBindMem)
{
    binds(BY_HANDLE, true);
}
SNIPPET(cuMulticastBindMem_v2)
{
    binds(BY_HANDLE_V2, true);
}
SNIPPET(cuMulticastBindAddr)
{
    binds(BY_ADDRESS, true);
}
SNIPPET(cuMulticastBindAddr_v2)
{
    binds(BY_ADDRESS_V2, false);
}
SNIPPET(cuMulticastUnbind)
{
    binds(BY_HANDLE, true);
}

SNIPPET(cuMemMap)
{
    keeps(false);
}
SNIPPET(cuMemUnmap)
{
    keeps(false);
}
SNIPPET(cuMemRetainAllocationHandle)
{
    keeps(true);
}

static const CUext_desc twenty = { .type = 1, .size = 20 * MIB };
SNIPPET(cuImportExternalMemory)
{
    ALLOCATES(CUext, 20 * MIB, cuImportExternalMemory(at, &twenty), cuDestroyExternalMemory);
}
SNIPPET(cuDestroyExternalMemory)
{
    CUext memory;
    start();
    OK(cuImportExternalMemory(&memory, &twenty));
    HELD(20 * MIB);
    OK(cuDestroyExternalMemory(memory));
    HELD(0);
}

/* ---- memory of the system that is prefetched (BERTH_FAKE_LIKE=hmm) ---- */

static void *map_aligned(size_t bytes)
{
    char *at =
        mmap(NULL, bytes + 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    char *aligned = (char *)(((uintptr_t)at + 2 * MIB - 1) & ~(uintptr_t)(2 * MIB - 1));
    munmap(at, (size_t)(aligned - at));
    munmap(aligned + bytes, (size_t)(at + 2 * MIB - aligned));
    return aligned;
}

static void prefetches(CUresult (*prefetch)(CUdeviceptr at, size_t bytes, bool to_card))
{
    CUdeviceptr a, managed;
    start();
    char *block = map_aligned(40 * MIB);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)block;
    OK(prefetch(at, 40 * MIB, true));
    HELD(40 * MIB);
    OK(prefetch(at + 20 * MIB, 20 * MIB, true)); /* is there already */
    HELD(40 * MIB);
    OOM(cuMemAlloc_v2(&a, 30 * MIB));
    OK(prefetch(at + 10 * MIB, 20 * MIB, false));
    HELD(20 * MIB);
    munmap(block, 10 * MIB);
    OK(cuMemAlloc_v2(&a, 54 * MIB)); /* what was unmapped is given back before it is refused */
    HELD(LIMIT);
    OOM(prefetch(at + 10 * MIB, 2 * MIB, true));
    OK(cuMemFree_v2(a));
    OK(prefetch(at + 30 * MIB, 10 * MIB, false));
    HELD(0);
    OK(cuMemAllocManaged(&managed, 40 * MIB, 1)); /* counts since it was allocated */
    OK(prefetch(managed, 40 * MIB, true));
    HELD(40 * MIB);
    CHECK(fake_violations(0) == 0);
}

static CUlocation place(bool on_card)
{
    return (CUlocation){ on_card ? CU_LOCATION_DEVICE : CU_LOCATION_HOST, 0 };
}

/* Each snippet with its call as `prefetches` makes it. */
#define PREFETCHES(name, call)                                            \
    static CUresult by_##name(CUdeviceptr at, size_t bytes, bool on_card) \
    {                                                                     \
        CUlocation to[1] = { place(on_card) };                            \
        size_t first[1] = { 0 };                                          \
        (void)to, (void)first;                                            \
        return call;                                                      \
    }                                                                     \
    SNIPPET(name)                                                         \
    {                                                                     \
        prefetches(by_##name);                                            \
    }
PREFETCHES(cuMemPrefetchAsync, cuMemPrefetchAsync(at, bytes, on_card ? 0 : -1, NULL))
PREFETCHES(cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync_ptsz(at, bytes, on_card ? 0 : -1, NULL))
PREFETCHES(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2(at, bytes, to[0], 0, NULL))
PREFETCHES(cuMemPrefetchAsync_v2_ptsz, cuMemPrefetchAsync_v2_ptsz(at, bytes, to[0], 0, NULL))
PREFETCHES(cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync(&at, &bytes, 1, to, first, 1, 0, NULL))
PREFETCHES(cuMemPrefetchBatchAsync_ptsz,
           cuMemPrefetchBatchAsync_ptsz(&at, &bytes, 1, to, first, 1, 0, NULL))
PREFETCHES(cuMemDiscardAndPrefetchBatchAsync,
           cuMemDiscardAndPrefetchBatchAsync(&at, &bytes, 1, to, first, 1, 0, NULL))
PREFETCHES(cuMemDiscardAndPrefetchBatchAsync_ptsz,
           cuMemDiscardAndPrefetchBatchAsync_ptsz(&at, &bytes, 1, to, first, 1, 0, NULL))

/* ---- copies: what is copied arrives, and nothing more is counted ---- */

#define COPIED(copy, expected)                      \
    do {                                            \
        CUdeviceptr a, b;                           \
        uint32_t from = 0x01020304, to = 0;         \
        start();                                    \
        OK(cuMemAlloc_v2(&a, sizeof from));         \
        OK(cuMemAlloc_v2(&b, sizeof from));         \
        OK(cuMemcpyHtoD_v2(a, &from, sizeof from)); \
        OK(copy);                                   \
        if (to == 0)                                \
            OK(cuMemcpyDtoH_v2(&to, b, sizeof to)); \
        CHECK(to == (expected));                    \
        HELD(2 * sizeof from);                      \
    } while (0)

#define COPIES(name, thread, args, expected)    \
    SNIPPET(name)                               \
    {                                           \
        COPIED(name args, expected);            \
    }                                           \
    SNIPPET(name##_##thread)                    \
    {                                           \
        COPIED(name##_##thread args, expected); \
    }
COPIES(cuMemcpy, ptds, (b, a, 4), from)
COPIES(cuMemcpyAsync, ptsz, (b, a, 4, NULL), from)
COPIES(cuMemcpyHtoD_v2, ptds, (b, &from, 4), from)
COPIES(cuMemcpyHtoDAsync_v2, ptsz, (b, &from, 4, NULL), from)
COPIES(cuMemcpyDtoH_v2, ptds, (&to, a, 4), from)
COPIES(cuMemcpyDtoHAsync_v2, ptsz, (&to, a, 4, NULL), from)
COPIES(cuMemcpyDtoD_v2, ptds, (b, a, 4), from)
COPIES(cuMemcpyDtoDAsync_v2, ptsz, (b, a, 4, NULL), from)
COPIES(cuMemsetD8_v2, ptds, (b, 7, 4), 0x07070707)
COPIES(cuMemsetD8Async, ptsz, (b, 7, 4, NULL), 0x07070707)
COPIES(cuMemsetD32_v2, ptds, (b, 7, 1), 7)
COPIES(cuMemsetD32Async, ptsz, (b, 7, 1, NULL), 7)

/* The fake driver makes none of these copies: that it says so comes through. */
#define ANSWERED(name, thread, args)                             \
    SNIPPET(name)                                                \
    {                                                            \
        start();                                                 \
        CHECK(name args == CUDA_ERROR_NOT_SUPPORTED);            \
        HELD(0);                                                 \
    }                                                            \
    SNIPPET(name##_##thread)                                     \
    {                                                            \
        start();                                                 \
        CHECK(name##_##thread args == CUDA_ERROR_NOT_SUPPORTED); \
        HELD(0);                                                 \
    }
ANSWERED(cuMemsetD16_v2, ptds, (0, 0, 0))
ANSWERED(cuMemsetD16Async, ptsz, (0, 0, 0, 0))
ANSWERED(cuMemsetD2D8_v2, ptds, (0, 0, 0, 0, 0))
ANSWERED(cuMemsetD2D8Async, ptsz, (0, 0, 0, 0, 0, 0))
ANSWERED(cuMemsetD2D16_v2, ptds, (0, 0, 0, 0, 0))
ANSWERED(cuMemsetD2D16Async, ptsz, (0, 0, 0, 0, 0, 0))
ANSWERED(cuMemsetD2D32_v2, ptds, (0, 0, 0, 0, 0))
ANSWERED(cuMemsetD2D32Async, ptsz, (0, 0, 0, 0, 0, 0))
ANSWERED(cuMemcpy2D_v2, ptds, (0))
ANSWERED(cuMemcpy2DUnaligned_v2, ptds, (0))
ANSWERED(cuMemcpy3D_v2, ptds, (0))
ANSWERED(cuMemcpy3DPeer, ptds, (0))
ANSWERED(cuMemcpy2DAsync_v2, ptsz, (0, 0))
ANSWERED(cuMemcpy3DAsync_v2, ptsz, (0, 0))
ANSWERED(cuMemcpy3DPeerAsync, ptsz, (0, 0))
ANSWERED(cuMemcpyPeer, ptds, (0, 0, 0, 0, 0))
ANSWERED(cuMemcpyPeerAsync, ptsz, (0, 0, 0, 0, 0, 0))
ANSWERED(cuMemcpyAtoA_v2, ptds, (0, 0, 0, 0, 0))
ANSWERED(cuMemcpyAtoD_v2, ptds, (0, 0, 0, 0))
ANSWERED(cuMemcpyAtoH_v2, ptds, (0, 0, 0, 0))
ANSWERED(cuMemcpyDtoA_v2, ptds, (0, 0, 0, 0))
ANSWERED(cuMemcpyHtoA_v2, ptds, (0, 0, 0, 0))
ANSWERED(cuMemcpyAtoHAsync_v2, ptsz, (0, 0, 0, 0, 0))
ANSWERED(cuMemcpyHtoAAsync_v2, ptsz, (0, 0, 0, 0, 0))
ANSWERED(cuMemcpyBatchAsync, ptsz, (0, 0, 0, 0, 0, 0, 0, 0, 0))
ANSWERED(cuMemcpyBatchAsync_v2, ptsz, (0, 0, 0, 0, 0, 0, 0, 0))
ANSWERED(cuMemcpy3DBatchAsync, ptsz, (0, 0, 0, 0, 0))
ANSWERED(cuMemcpy3DBatchAsync_v2, ptsz, (0, 0, 0, 0))
ANSWERED(cuMemcpyWithAttributesAsync, ptsz, (0, 0, 0, 0, 0))
ANSWERED(cuMemcpy3DWithAttributesAsync, ptsz, (0, 0, 0))

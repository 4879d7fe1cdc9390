/* One snippet a hook: `hooks NAME` runs it, `hooks --null NAME` calls the hook with nothing but
   zeros, `hooks --list` names them.

   The table is made of the list of hooks itself, so that a hook without a snippet does not compile.
   Each is run under a limit of 64 MiB on a card of its own whose contexts and modules take nothing
   (tests/partition says so): what takes memory is refused above the limit and counted to the byte
   below it, what frees gives back, what tells of the card tells of the limit, and what runs kernels
   runs them. */
#include "claims.h"

#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HOOK(name, params)
#define NVHOOK(name, params) int name params;
#define NEED(name, params)
#define NVNEED(name, params) int name params;
#include "../hooks.h"
#undef HOOK
#undef NVHOOK
#undef NEED
#undef NVNEED
int nvmlDeviceGetHandleByIndex_v2(unsigned index, NVdevice *device);

#define SNIPPET(name) static int snippet_##name(void)

/* ---- the device and lookups ---- */

SNIPPET(cuInit)
{
    CHECK(cuInit(1) == CUDA_ERROR_INVALID_VALUE);
    OK(cuInit(0));
    OK(cuInit(0));
    START();
    HELD(0);
    return 0;
}

SNIPPET(cuDeviceGetCount)
{
    int count = 7;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK(count == 1);
    return 0;
}

static int looks_up(CUresult (*found)(CUdeviceptr *, size_t))
{
    CUdeviceptr a;
    START();
    CHECK(found == cuMemAlloc_v2);
    OOM(found(&a, LIMIT + 1));
    OK(found(&a, LIMIT));
    HELD(LIMIT);
    return 0;
}

SNIPPET(cuGetProcAddress)
{
    void *found = NULL, *itself = NULL;
    OK(cuGetProcAddress("cuMemAlloc", &found, 12000, 0));
    OK(cuGetProcAddress("cuGetProcAddress", &itself, 11030, 0));
    CHECK(itself == (void *)cuGetProcAddress &&
          cuGetProcAddress("cuNoSuchThing", &itself, 12000, 0) == CUDA_ERROR_NOT_FOUND);
    return looks_up((CUresult (*)(CUdeviceptr *, size_t))found);
}

SNIPPET(cuGetProcAddress_v2)
{
    void *found = NULL, *itself = NULL;
    int status = 7;
    OK(cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, &status));
    OK(cuGetProcAddress_v2("cuGetProcAddress", &itself, 12000, 0, NULL));
    CHECK(status == CU_LOOKUP_FOUND && itself == (void *)cuGetProcAddress_v2);
    return looks_up((CUresult (*)(CUdeviceptr *, size_t))found);
}

/* ---- what a process is told ---- */

SNIPPET(cuDeviceTotalMem)
{
    unsigned total = 7;
    START();
    OK(cuDeviceTotalMem(&total, 0));
    CHECK(total == LIMIT);
    return 0;
}

SNIPPET(cuDeviceTotalMem_v2)
{
    size_t total = 7;
    START();
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(total == LIMIT);
    return 0;
}

SNIPPET(cuMemGetInfo)
{
    unsigned free_bytes = 7, total = 7;
    CUdeviceptr a;
    START();
    OK(cuMemAlloc_v2(&a, 5));
    OK(cuMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == LIMIT - 5 && total == LIMIT);
    return 0;
}

SNIPPET(cuMemGetInfo_v2)
{
    size_t free_bytes = 7, total = 7;
    CUdeviceptr a;
    START();
    OK(cuMemAlloc_v2(&a, 5));
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(free_bytes == LIMIT - 5 && total == LIMIT);
    return 0;
}

/* ---- contexts and modules; tests/partition gives a context 10 MiB and a module 1 MiB ---- */

#define CONTEXT (10 * MIB)
#define MODULE (1 * MIB)

/* Six contexts fill the limit; the seventh is refused. */
#define CREATES(create)                        \
    do {                                       \
        CUcontext made[7];                     \
        CUdeviceptr a;                         \
        OK(cuInit(0));                         \
        for (int i = 0; i < 6; i++) {          \
            CUcontext *ctx = &made[i];         \
            OK(create);                        \
            HELD((unsigned)(i + 1) * CONTEXT); \
        }                                      \
        CUcontext *ctx = &made[6];             \
        OOM(create);                           \
        OK(cuMemAlloc_v2(&a, 4 * MIB));        \
        HELD(LIMIT);                           \
        return 0;                              \
    } while (0)

SNIPPET(cuCtxCreate)
{
    CREATES(cuCtxCreate(ctx, 0, 0));
}
SNIPPET(cuCtxCreate_v2)
{
    CREATES(cuCtxCreate_v2(ctx, 0, 0));
}
SNIPPET(cuCtxCreate_v3)
{
    CREATES(cuCtxCreate_v3(ctx, NULL, 0, 0, 0));
}
SNIPPET(cuCtxCreate_v4)
{
    CREATES(cuCtxCreate_v4(ctx, NULL, 0, 0));
}

/* A context takes all along that was allocated in it. */
static int destroys(CUresult (*destroy)(CUcontext))
{
    CUcontext context;
    CUmodule module;
    CUdeviceptr a;
    START();
    HELD(CONTEXT);
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&a, 20 * MIB));
    OK(cuModuleLoadData(&module, ""));
    HELD(2 * CONTEXT + 20 * MIB + MODULE);
    OK(destroy(context));
    HELD(CONTEXT);
    CHECK(destroy(NULL) != CUDA_SUCCESS);
    HELD(CONTEXT);
    return 0;
}

SNIPPET(cuCtxDestroy)
{
    return destroys(cuCtxDestroy);
}
SNIPPET(cuCtxDestroy_v2)
{
    return destroys(cuCtxDestroy_v2);
}
SNIPPET(cuCtxDetach)
{
    return destroys(cuCtxDetach);
}

/* A context lives until all who attached to it have detached. */
SNIPPET(cuCtxAttach)
{
    CUcontext context, same = NULL;
    CUdeviceptr a;
    START();
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&a, 20 * MIB));
    OK(cuCtxAttach(&same, 0));
    CHECK(same == context && cuCtxAttach(&same, 7) == CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxDetach(context));
    HELD(2 * CONTEXT + 20 * MIB);
    OOM(cuMemAlloc_v2(&a, LIMIT - 2 * CONTEXT - 20 * MIB + 1));
    OK(cuCtxDetach(context));
    HELD(CONTEXT);
    return 0;
}

SNIPPET(cuDevicePrimaryCtxRetain)
{
    CUcontext first, second;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&second, 0));
    OK(cuCtxSetCurrent(first));
    CHECK(first == second);
    HELD(CONTEXT);
    return 0;
}

static int ends_primary(CUresult (*end)(CUdevice))
{
    CUdeviceptr a;
    START();
    OK(cuMemAlloc_v2(&a, 20 * MIB));
    HELD(CONTEXT + 20 * MIB);
    OK(end(0));
    CHECK(fake_own_bytes(0) == 0);
    START();
    HELD(CONTEXT);
    return 0;
}

SNIPPET(cuDevicePrimaryCtxRelease)
{
    return ends_primary(cuDevicePrimaryCtxRelease);
}
SNIPPET(cuDevicePrimaryCtxRelease_v2)
{
    return ends_primary(cuDevicePrimaryCtxRelease_v2);
}
SNIPPET(cuDevicePrimaryCtxReset)
{
    return ends_primary(cuDevicePrimaryCtxReset);
}
SNIPPET(cuDevicePrimaryCtxReset_v2)
{
    return ends_primary(cuDevicePrimaryCtxReset_v2);
}

#define LOADS(type, load, unload)                        \
    do {                                                 \
        type first, second, *at = &first;                \
        CUdeviceptr a;                                   \
        START();                                         \
        OK(load);                                        \
        HELD(CONTEXT + MODULE);                          \
        OK(cuMemAlloc_v2(&a, LIMIT - CONTEXT - MODULE)); \
        at = &second;                                    \
        OOM(load);                                       \
        OK(unload(first));                               \
        HELD(LIMIT - MODULE);                            \
        OK(load);                                        \
        HELD(LIMIT);                                     \
        return 0;                                        \
    } while (0)

SNIPPET(cuModuleLoad)
{
    LOADS(CUmodule, cuModuleLoad(at, "file"), cuModuleUnload);
}
SNIPPET(cuModuleLoadData)
{
    LOADS(CUmodule, cuModuleLoadData(at, ""), cuModuleUnload);
}
SNIPPET(cuModuleLoadDataEx)
{
    LOADS(CUmodule, cuModuleLoadDataEx(at, "", 0, NULL, NULL), cuModuleUnload);
}
SNIPPET(cuModuleLoadFatBinary)
{
    LOADS(CUmodule, cuModuleLoadFatBinary(at, ""), cuModuleUnload);
}
SNIPPET(cuModuleUnload)
{
    CUmodule module;
    START();
    OK(cuModuleLoadData(&module, ""));
    HELD(CONTEXT + MODULE);
    OK(cuModuleUnload(module));
    HELD(CONTEXT);
    CHECK(cuModuleUnload(module) != CUDA_SUCCESS);
    HELD(CONTEXT);
    return 0;
}
SNIPPET(cuLibraryLoadData)
{
    LOADS(CUlibrary, cuLibraryLoadData(at, "", NULL, NULL, 0, NULL, NULL, 0), cuLibraryUnload);
}
SNIPPET(cuLibraryLoadFromFile)
{
    LOADS(CUlibrary, cuLibraryLoadFromFile(at, "file", NULL, NULL, 0, NULL, NULL, 0),
          cuLibraryUnload);
}
SNIPPET(cuLibraryUnload)
{
    CUlibrary library;
    START();
    OK(cuLibraryLoadData(&library, "", NULL, NULL, 0, NULL, NULL, 0));
    HELD(CONTEXT + MODULE);
    OK(cuLibraryUnload(library));
    HELD(CONTEXT);
    CHECK(cuLibraryUnload(library) != CUDA_SUCCESS);
    HELD(CONTEXT);
    return 0;
}

/* A function that is loaded when it is first used; tests/partition makes the card lazy. A second
   module's is refused. */
#define LOADS_LATER(type, load, get, unload)                                 \
    do {                                                                     \
        type first, second, module;                                          \
        CUfunction function;                                                 \
        CUdeviceptr a;                                                       \
        START();                                                             \
        OK(load(&first));                                                    \
        HELD(CONTEXT);                                                       \
        module = first;                                                      \
        OK(get);                                                             \
        HELD(CONTEXT + MODULE);                                              \
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)); \
        HELD(CONTEXT + MODULE);                                              \
        OK(load(&second));                                                   \
        OK(cuMemAlloc_v2(&a, LIMIT - CONTEXT - MODULE));                     \
        module = second;                                                     \
        OOM(get);                                                            \
        HELD(LIMIT);                                                         \
        OK(unload(first));                                                   \
        HELD(LIMIT - MODULE);                                                \
        OK(get);                                                             \
        HELD(LIMIT);                                                         \
        return 0;                                                            \
    } while (0)

static CUresult load_module(CUmodule *module)
{
    return cuModuleLoadData(module, "");
}
static CUresult load_library(CUlibrary *library)
{
    return cuLibraryLoadData(library, "", NULL, NULL, 0, NULL, NULL, 0);
}
SNIPPET(cuModuleGetFunction)
{
    LOADS_LATER(CUmodule, load_module, cuModuleGetFunction(&function, module, "f"), cuModuleUnload);
}
SNIPPET(cuLibraryGetKernel)
{
    LOADS_LATER(CUlibrary, load_library,
                cuLibraryGetKernel((CUkernel *)(void *)&function, module, "f"), cuLibraryUnload);
}
SNIPPET(cuFuncLoad) /* of a function that was got round the wrapper */
{
    CUmodule module;
    CUfunction function;
    CUdeviceptr a;
    START();
    OK(cuModuleLoadData(&module, ""));
    OK(fake_get_function(&function, module));
    HELD(CONTEXT);
    OK(cuMemAlloc_v2(&a, LIMIT - CONTEXT - MODULE + 1));
    CHECK(cuFuncLoad(NULL) != CUDA_SUCCESS);
    OK(cuMemFree_v2(a));
    OK(cuFuncLoad(function));
    HELD(CONTEXT + MODULE);
    OK(cuFuncLoad(function));
    HELD(CONTEXT + MODULE);
    return 0;
}

SNIPPET(cuGreenCtxCreate)
{
    CUgreen green[8];
    CUdeviceptr a;
    OK(cuInit(0));
    for (int i = 0; i < 6;
         i++) { /* the first makes the primary context; each takes 9 MiB of its own */
        if (i == 5)
            break;
        OK(cuGreenCtxCreate(&green[i], NULL, 0, 0));
        CHECK(fake_own_bytes(0) == CONTEXT + (unsigned)(i + 1) * 9 * MIB);
    }
    CUcontext context;
    OK(cuCtxFromGreenCtx(&context, green[0]));
    OK(cuCtxSetCurrent(context));
    HELD(CONTEXT + 45 * MIB);
    OK(cuGreenCtxCreate(&green[5], NULL, 0, 0));
    HELD(LIMIT);
    OOM(cuGreenCtxCreate(&green[6], NULL, 0, 0));
    OOM(cuMemAlloc_v2(&a, 1));
    HELD(LIMIT);
    return 0;
}

SNIPPET(cuGreenCtxDestroy)
{
    CUgreen green;
    OK(cuInit(0));
    OK(cuGreenCtxCreate(&green, NULL, 0, 0));
    CHECK(fake_own_bytes(0) == CONTEXT + 9 * MIB);
    OK(cuGreenCtxDestroy(green)); /* and the primary context that it made */
    CHECK(fake_own_bytes(0) == 0);
    START();
    HELD(CONTEXT);
    OK(cuGreenCtxCreate(&green, NULL, 0, 0));
    HELD(CONTEXT + 9 * MIB);
    OK(cuGreenCtxDestroy(green));
    HELD(CONTEXT);
    return 0;
}

SNIPPET(cuCtxSetLimit)
{
    CUcontext context;
    CUdeviceptr a;
    size_t now;
    START();
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 28 * MIB)); /* 8 MiB of it are the context's from the start */
    HELD(CONTEXT + 20 * MIB);
    OOM(cuCtxSetLimit(CU_LIMIT_HEAP, LIMIT));
    HELD(CONTEXT + 20 * MIB);
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 18 * MIB + 1)); /* the driver makes 19 of it */
    HELD(CONTEXT + 11 * MIB);
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 4));
    HELD(CONTEXT);
    OK(cuCtxSetLimit(CU_LIMIT_PRINTF, 3 * MIB));
    HELD(CONTEXT + 2 * MIB);
    OK(cuCtxSetLimit(CU_LIMIT_STACK, 1024 + 16)); /* for 132 times 2048 threads */
    HELD(CONTEXT + 2 * MIB + 16 * 132 * 2048);
    OOM(cuCtxSetLimit(CU_LIMIT_STACK, 16 << 10));
    CHECK(cuCtxSetLimit(99, 1) != CUDA_SUCCESS);
    OK(cuCtxGetLimit(&now, CU_LIMIT_STACK));
    CHECK(now == 1024 + 16);
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 18 * MIB));
    HELD(2 * CONTEXT + 12 * MIB + 16 * 132 * 2048);
    OOM(cuMemAlloc_v2(&a, LIMIT - 2 * CONTEXT - 12 * MIB));
    OK(cuCtxDestroy_v2(context)); /* takes it along */
    HELD(CONTEXT + 2 * MIB + 16 * 132 * 2048);
    return 0;
}

/* ---- linear memory and arrays ---- */

/* `allocate` of `bytes` a time: as often as it fits, once more in vain, and once again after a
   free. */
#define ALLOCATES(type, bytes, allocate, release)    \
    do {                                             \
        type made[64], *at;                          \
        unsigned fits = (unsigned)(LIMIT / (bytes)); \
        START();                                     \
        for (unsigned i = 0; i < fits; i++) {        \
            at = &made[i];                           \
            OK(allocate);                            \
            HELD((i + 1) * (uint64_t)(bytes));       \
        }                                            \
        at = &made[63];                              \
        OOM(allocate);                               \
        HELD(fits * (uint64_t)(bytes));              \
        OK(release(made[0]));                        \
        HELD((fits - 1) * (uint64_t)(bytes));        \
        at = &made[0];                               \
        OK(allocate);                                \
        HELD(fits * (uint64_t)(bytes));              \
        for (unsigned i = 0; i < fits; i++)          \
            OK(release(made[i]));                    \
        HELD(0);                                     \
        return 0;                                    \
    } while (0)

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
    START();
    OK(cuMemAlloc(&a, 5));
    OK(cuMemFree(a));
    HELD(0);
    CHECK(cuMemFree(a) != CUDA_SUCCESS);
    HELD(0);
    return 0;
}
SNIPPET(cuMemFree_v2)
{
    CUdeviceptr a;
    START();
    OK(cuMemAlloc_v2(&a, 5));
    OK(cuMemFree_v2(a));
    HELD(0);
    CHECK(cuMemFree_v2(a) != CUDA_SUCCESS);
    HELD(0);
    return 0;
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
    START();
    OK(cuArrayCreate_v2(&array, &plane));
    OK(cuArrayDestroy(array));
    HELD(0);
    CHECK(cuArrayDestroy(NULL) != CUDA_SUCCESS);
    HELD(0);
    return 0;
}
SNIPPET(cuMipmappedArrayCreate)
{
    ALLOCATES(CUmipmap, 20 * MIB, cuMipmappedArrayCreate(at, &square, 2), cuMipmappedArrayDestroy);
}
SNIPPET(cuMipmappedArrayDestroy)
{
    CUmipmap mipmap;
    START();
    OK(cuMipmappedArrayCreate(&mipmap, &square, 1));
    HELD(16 * MIB);
    OK(cuMipmappedArrayDestroy(mipmap));
    HELD(0);
    CHECK(cuMipmappedArrayDestroy(NULL) != CUDA_SUCCESS);
    HELD(0);
    return 0;
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
    START();
    OK(cuMemCreate(&handle, 20 * MIB, &on_device, 0));
    OK(cuMemRelease(handle));
    HELD(0);
    CHECK(cuMemRelease(handle) != CUDA_SUCCESS);
    HELD(0);
    return 0;
}

/* A mapping keeps memory whose handle is released; a handle fetched from a mapping keeps it too. */
static int keeps(bool by_handle)
{
    CUhandle handle, again;
    CUdeviceptr at;
    START();
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
    return 0;
}

SNIPPET(cuMemExportToShareableHandle) /* the file that it was exported to holds it too */
{
    CUhandle handle;
    CUdeviceptr a;
    int fd = -1;
    START();
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
    return 0;
}

SNIPPET(cuMemImportFromShareableHandle) /* after the original's release: it is one memory, held by
                                           what was imported */
{
    CUhandle handle, again, twice;
    CUdeviceptr a, at;
    char fabric[CU_FABRIC_BYTES];
    int fd = -1;
    START();
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
    return 0;
}

/* What is mapped into a sparse array is held by it, whatever becomes of the handle. */
static int maps_parts(CUresult (*map)(CUmap_info *, unsigned, CUstream))
{
    CUarray array;
    CUhandle handle, other;
    CUdeviceptr a;
    CUarray3d_desc desc = { 8192, 8192, 0, 0x20, 4, CU_ARRAY_SPARSE };
    CUalloc_prop on_device = { .type = 1, .location = { 1, 0 } };
    START();
    OK(cuArray3DCreate_v2(&array, &desc));
    HELD(0);
    OK(cuMemCreate(&handle, 40 * MIB, &on_device, 0));
    CUmap_info part = { .resource = array, .operation = CU_OPERATION_MAP, .handle = handle };
    part.part.level.width = 256;
    OK(map(&part, 1, NULL));
    OK(cuMemRelease(handle));
    HELD(40 * MIB);
    OOM(cuMemAlloc_v2(&a, 30 * MIB));
    OK(cuMemCreate(&other, 20 * MIB, &on_device, 0));
    part.handle = other;
    OK(map(&part, 1, NULL)); /* in the place of the first */
    OK(cuMemRelease(other));
    HELD(20 * MIB);
    part.operation = CU_OPERATION_UNMAP;
    OK(map(&part, 1, NULL));
    HELD(0);
    OK(cuMemCreate(&handle, 40 * MIB, &on_device, 0));
    part = (CUmap_info){ .resource = array, .operation = CU_OPERATION_MAP, .handle = handle };
    OK(map(&part, 1, NULL));
    OK(cuMemRelease(handle));
    CHECK(map(&part, 1, NULL) != CUDA_SUCCESS); /* the handle is gone */
    HELD(40 * MIB);
    OK(cuArrayDestroy(array));
    HELD(0);
    return 0;
}
SNIPPET(cuMemMapArrayAsync)
{
    return maps_parts(cuMemMapArrayAsync);
}
SNIPPET(cuMemMapArrayAsync_ptsz)
{
    return maps_parts(cuMemMapArrayAsync_ptsz);
}

/* What is bound to a multicast object is held by it. */
enum binding { BY_HANDLE, BY_HANDLE_V2, BY_ADDRESS, BY_ADDRESS_V2 };
static int binds(enum binding how, bool unbind)
{
    CUhandle object, handle;
    CUdeviceptr at, a;
    CUmulticast_prop prop = { 1, 64 * MIB, 1, 0 };
    START();
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
    return 0;
}
SNIPPET(cuMulticastCreate)
{
    return binds(BY_HANDLE, false);
}
SNIPPET(cuMulticastBindMem)
{
    return binds(BY_HANDLE, true);
}
SNIPPET(cuMulticastBindMem_v2)
{
    return binds(BY_HANDLE_V2, true);
}
SNIPPET(cuMulticastBindAddr)
{
    return binds(BY_ADDRESS, true);
}
SNIPPET(cuMulticastBindAddr_v2)
{
    return binds(BY_ADDRESS_V2, false);
}
SNIPPET(cuMulticastUnbind)
{
    return binds(BY_HANDLE, true);
}

SNIPPET(cuMemMap)
{
    return keeps(false);
}
SNIPPET(cuMemUnmap)
{
    return keeps(false);
}
SNIPPET(cuMemRetainAllocationHandle)
{
    return keeps(true);
}

static const CUext_desc twenty = { .type = 1, .size = 20 * MIB };
SNIPPET(cuImportExternalMemory)
{
    ALLOCATES(CUext, 20 * MIB, cuImportExternalMemory(at, &twenty), cuDestroyExternalMemory);
}
SNIPPET(cuDestroyExternalMemory)
{
    CUext memory;
    START();
    OK(cuImportExternalMemory(&memory, &twenty));
    HELD(20 * MIB);
    OK(cuDestroyExternalMemory(memory));
    HELD(0);
    return 0;
}

/* ---- stream-ordered memory; tests/partition has pools grow by 1 MiB ---- */

static CUresult free_later(CUdeviceptr ptr)
{
    CUresult result = cuMemFreeAsync(ptr, NULL);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : result;
}

static CUpool own_pool(void)
{
    static CUpool pool;
    CUpool_props props = { .type = 1, .location = { CU_LOCATION_DEVICE, 0 } };
    if (pool == NULL)
        cuMemPoolCreate(&pool, &props);
    return pool;
}

SNIPPET(cuMemAllocAsync)
{
    ALLOCATES(CUdeviceptr, 20 * MIB, cuMemAllocAsync(at, 20 * MIB, NULL), free_later);
}
SNIPPET(cuMemAllocAsync_ptsz)
{
    ALLOCATES(CUdeviceptr, 20 * MIB, cuMemAllocAsync_ptsz(at, 20 * MIB, NULL), free_later);
}
SNIPPET(cuMemAllocFromPoolAsync)
{
    ALLOCATES(CUdeviceptr, 20 * MIB, cuMemAllocFromPoolAsync(at, 20 * MIB, own_pool(), NULL),
              free_later);
}
SNIPPET(cuMemAllocFromPoolAsync_ptsz)
{
    ALLOCATES(CUdeviceptr, 20 * MIB, cuMemAllocFromPoolAsync_ptsz(at, 20 * MIB, own_pool(), NULL),
              free_later);
}

/* What is freed is the driver's to keep until the stream gets there. */
static int frees_async(CUresult (*release)(CUdeviceptr, CUstream), CUresult (*wait)(void))
{
    CUdeviceptr a;
    START();
    OK(cuMemAllocAsync(&a, 20 * MIB, NULL));
    OK(release(a, NULL));
    HELD(20 * MIB);
    OK(wait());
    HELD(0);
    OK(cuMemAlloc_v2(&a, LIMIT));
    OK(release(a, NULL));
    OK(wait());
    HELD(0);
    return 0;
}

static CUresult wait_stream(void)
{
    return cuStreamSynchronize(NULL);
}
static CUresult wait_stream_ptsz(void)
{
    return cuStreamSynchronize_ptsz(NULL);
}
static CUresult wait_context(void)
{
    CUcontext ctx;
    return cuCtxGetCurrent(&ctx) == CUDA_SUCCESS ? cuCtxSynchronize_v2(ctx)
                                                 : CUDA_ERROR_INVALID_CONTEXT;
}
static CUresult wait_event(void)
{
    CUevent event;
    if (cuEventCreate(&event, 0) != CUDA_SUCCESS || cuEventRecord(event, NULL) != CUDA_SUCCESS ||
        cuEventSynchronize(event) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_HANDLE;
    return cuEventDestroy_v2(event);
}
SNIPPET(cuMemFreeAsync)
{
    return frees_async(cuMemFreeAsync, wait_stream);
}
SNIPPET(cuMemFreeAsync_ptsz)
{
    return frees_async(cuMemFreeAsync_ptsz, wait_stream);
}
SNIPPET(cuStreamSynchronize)
{
    return frees_async(cuMemFreeAsync, wait_stream);
}
SNIPPET(cuStreamSynchronize_ptsz)
{
    return frees_async(cuMemFreeAsync, wait_stream_ptsz);
}
SNIPPET(cuEventSynchronize)
{
    return frees_async(cuMemFreeAsync, wait_event);
}
SNIPPET(cuCtxSynchronize)
{
    return frees_async(cuMemFreeAsync, cuCtxSynchronize);
}
SNIPPET(cuCtxSynchronize_v2)
{
    return frees_async(cuMemFreeAsync, wait_context);
}

/* A pool of the program's own that keeps what is freed. */
static int keeps_in_pool(bool destroyed)
{
    CUdeviceptr a;
    uint64_t keep = UINT64_MAX;
    START();
    CUpool pool = own_pool();
    OK(cuMemPoolSetAttribute(pool, CU_POOL_RELEASE_THRESHOLD, &keep));
    OOM(cuMemAllocFromPoolAsync(&a, LIMIT + 1, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&a, 20 * MIB, pool, NULL));
    OK(cuMemFreeAsync(a, NULL));
    OK(cuStreamSynchronize(NULL));
    HELD(20 * MIB);
    OK(cuMemPoolTrimTo(pool, 10 * MIB));
    HELD(10 * MIB);
    OK(destroyed ? cuMemPoolDestroy(pool) : cuMemPoolTrimTo(pool, 0));
    HELD(0);
    return 0;
}

SNIPPET(cuMemPoolCreate)
{
    return keeps_in_pool(true);
}
SNIPPET(cuMemPoolDestroy)
{
    return keeps_in_pool(true);
}
SNIPPET(cuMemPoolTrimTo)
{
    return keeps_in_pool(false);
}

/* ---- graphs ---- */

/* A captured allocation is a node of the graph, not memory; the graph is refused when it is made
   ready. */
static int captures(CUresult begun, CUstream stream)
{
    CUgraph graph;
    CUexec exec;
    CUdeviceptr a;
    OK(begun);
    OK(cuMemAllocAsync(&a, LIMIT + MIB, stream));
    OK(cuMemFreeAsync(a, stream));
    HELD(0);
    OK(cuStreamEndCapture(stream, &graph));
    OOM(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OOM(cuMemAllocAsync(&a, LIMIT + MIB, stream));
    HELD(0);
    return 0;
}

#define CAPTURES(begin)                 \
    do {                                \
        CUstream stream;                \
        CUgraph graph;                  \
        START();                        \
        OK(cuStreamCreate(&stream, 0)); \
        OK(cuGraphCreate(&graph, 0));   \
        return captures(begin, stream); \
    } while (0)

SNIPPET(cuStreamBeginCapture)
{
    CAPTURES(cuStreamBeginCapture(stream));
}
SNIPPET(cuStreamBeginCapture_ptsz)
{
    CAPTURES(cuStreamBeginCapture_ptsz(stream));
}
SNIPPET(cuStreamBeginCapture_v2)
{
    CAPTURES(cuStreamBeginCapture_v2(stream, 0));
}
SNIPPET(cuStreamBeginCapture_v2_ptsz)
{
    CAPTURES(cuStreamBeginCapture_v2_ptsz(stream, 0));
}
SNIPPET(cuStreamBeginCaptureToGraph)
{
    CAPTURES(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, 0));
}
SNIPPET(cuStreamBeginRecaptureToGraph)
{
    CAPTURES(cuStreamBeginRecaptureToGraph(stream, 0, graph, NULL, NULL));
}
SNIPPET(cuStreamBeginRecaptureToGraph_ptsz)
{
    CAPTURES(cuStreamBeginRecaptureToGraph_ptsz(stream, 0, graph, NULL, NULL));
}
SNIPPET(cuStreamBeginCaptureToGraph_ptsz)
{
    CAPTURES(cuStreamBeginCaptureToGraph_ptsz(stream, graph, NULL, NULL, 0, 0));
}

/* A graph's memory is the driver's from its first launch until it is trimmed. */
#define RUNS_GRAPH(instantiate, launch)                                             \
    do {                                                                            \
        CUgraph graph, large;                                                       \
        CUexec made, *exec = &made;                                                 \
        CUnode node;                                                                \
        CUmem_node memory = { .bytes = 20 * MIB }, much = { .bytes = LIMIT + MIB }; \
        CUdeviceptr a;                                                              \
        START();                                                                    \
        OK(cuGraphCreate(&large, 0));                                               \
        OK(cuGraphAddMemAllocNode(&node, large, NULL, 0, &much));                   \
        graph = large;                                                              \
        OOM(instantiate);                                                           \
        OK(cuGraphCreate(&graph, 0));                                               \
        OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory));                 \
        OK(instantiate);                                                            \
        HELD(0);                                                                    \
        OK(cuMemAlloc_v2(&a, LIMIT - 19 * MIB));                                    \
        OOM(launch(made, NULL));                                                    \
        OK(cuMemFree_v2(a));                                                        \
        OK(launch(made, NULL));                                                     \
        HELD(20 * MIB);                                                             \
        OK(cuGraphExecDestroy(made));                                               \
        OK(cuDeviceGraphMemTrim(0));                                                \
        HELD(0);                                                                    \
        return 0;                                                                   \
    } while (0)

SNIPPET(cuGraphInstantiate)
{
    RUNS_GRAPH(cuGraphInstantiate(exec, graph, NULL, NULL, 0), cuGraphLaunch);
}
SNIPPET(cuGraphInstantiate_v2)
{
    RUNS_GRAPH(cuGraphInstantiate_v2(exec, graph, NULL, NULL, 0), cuGraphLaunch);
}
SNIPPET(cuGraphInstantiateWithFlags)
{
    RUNS_GRAPH(cuGraphInstantiateWithFlags(exec, graph, 0), cuGraphLaunch);
}
SNIPPET(cuGraphInstantiateWithParams)
{
    RUNS_GRAPH(cuGraphInstantiateWithParams(exec, graph, NULL), cuGraphLaunch);
}
SNIPPET(cuGraphInstantiateWithParams_ptsz)
{
    RUNS_GRAPH(cuGraphInstantiateWithParams_ptsz(exec, graph, NULL), cuGraphLaunch_ptsz);
}
SNIPPET(cuGraphExecDestroy)
{
    RUNS_GRAPH(cuGraphInstantiateWithFlags(exec, graph, 0), cuGraphLaunch);
}
SNIPPET(cuGraphLaunch)
{
    RUNS_GRAPH(cuGraphInstantiateWithFlags(exec, graph, 0), cuGraphLaunch);
}
SNIPPET(cuGraphLaunch_ptsz)
{
    RUNS_GRAPH(cuGraphInstantiateWithFlags(exec, graph, 0), cuGraphLaunch_ptsz);
}
SNIPPET(cuGraphUpload)
{
    RUNS_GRAPH(cuGraphInstantiateWithFlags(exec, graph, 0), cuGraphUpload);
}
SNIPPET(cuGraphUpload_ptsz)
{
    RUNS_GRAPH(cuGraphInstantiateWithFlags(exec, graph, 0), cuGraphUpload_ptsz);
}
SNIPPET(cuDeviceGraphMemTrim)
{
    RUNS_GRAPH(cuGraphInstantiateWithFlags(exec, graph, 0), cuGraphLaunch);
}

/* ---- compute ---- */

/* A hundred launches of 1 ms each run for 100 ms of the GPU, and under a share of 50 %
   (tests/partition sets it, and the simulated clock) for 200 ms by the clock, less what may be
   caught up. */
#define LAUNCHES(launch)                                                                           \
    do {                                                                                           \
        CUmodule module;                                                                           \
        CUfunction function;                                                                       \
        struct timespec from, to;                                                                  \
        START();                                                                                   \
        OK(cuModuleLoadData(&module, ""));                                                         \
        OK(cuModuleGetFunction(&function, module, "spin_1000"));                                   \
        clock_gettime(CLOCK_MONOTONIC, &from);                                                     \
        for (int i = 0; i < 100; i++)                                                              \
            OK(launch);                                                                            \
        clock_gettime(CLOCK_MONOTONIC, &to);                                                       \
        long passed_ms = (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000; \
        CHECK(fake_own_busy_ns(0) == 100000000);                                                   \
        CHECK(passed_ms >= 170 && passed_ms <= 220);                                               \
        return 0;                                                                                  \
    } while (0)

#define ONE_BLOCK 1, 1, 1, 1, 1, 1, 0, NULL
static CUlaunch one_block = { 1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0 };
SNIPPET(cuLaunch)
{
    LAUNCHES(cuLaunch(function));
}
SNIPPET(cuLaunchGrid)
{
    LAUNCHES(cuLaunchGrid(function, 1, 1));
}
SNIPPET(cuLaunchGridAsync)
{
    LAUNCHES(cuLaunchGridAsync(function, 1, 1, NULL));
}
SNIPPET(cuLaunchKernel)
{
    LAUNCHES(cuLaunchKernel(function, ONE_BLOCK, NULL, NULL));
}
SNIPPET(cuLaunchKernel_ptsz)
{
    LAUNCHES(cuLaunchKernel_ptsz(function, ONE_BLOCK, NULL, NULL));
}
SNIPPET(cuLaunchKernelEx)
{
    LAUNCHES(cuLaunchKernelEx(&one_block, function, NULL, NULL));
}
SNIPPET(cuLaunchKernelEx_ptsz)
{
    LAUNCHES(cuLaunchKernelEx_ptsz(&one_block, function, NULL, NULL));
}
SNIPPET(cuLaunchCooperativeKernel)
{
    LAUNCHES(cuLaunchCooperativeKernel(function, ONE_BLOCK, NULL));
}
SNIPPET(cuLaunchCooperativeKernel_ptsz)
{
    LAUNCHES(cuLaunchCooperativeKernel_ptsz(function, ONE_BLOCK, NULL));
}
SNIPPET(cuLaunchCooperativeKernelMultiDevice)
{
    LAUNCHES(cuLaunchCooperativeKernelMultiDevice(
        &(CUcooperative){ .function = function, .grid_x = 1, .grid_y = 1, .grid_z = 1 }, 1, 0));
}

/* ---- NVML; another process of the card, of another partition, holds 40 MiB meanwhile ---- */

static int nvml_device(NVdevice *device)
{
    CHECK(nvmlInit_v2() == NV_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, device) == NV_SUCCESS);
    return 0;
}

/* A fifth of a second's work, and what NVML takes to tell of it. */
static int busy(void)
{
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(&function, module, "spin_20000"));
    for (int i = 0; i < 10; i++)
        OK(cuLaunchKernel(function, ONE_BLOCK, NULL, NULL));
    OK(cuStreamSynchronize(NULL));
    usleep(200 * 1000);
    return 0;
}

/* The other partition's process: computes until it is told to end. */
static int neighbour(void)
{
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
    START();
    CHECK(busy() == 0);
    puts("busy");
    fflush(stdout);
    while (poll(&input, 1, 0) == 0)
        CHECK(busy() == 0);
    return 0;
}

SNIPPET(nvmlDeviceGetMemoryInfo)
{
    NVdevice device;
    NVmemory memory;
    CUdeviceptr a;
    START();
    OK(cuMemAlloc_v2(&a, 5));
    CHECK(nvml_device(&device) == 0 && nvmlDeviceGetMemoryInfo(device, &memory) == NV_SUCCESS);
    CHECK(memory.total == LIMIT && memory.used == 5 && memory.free == LIMIT - 5);
    return 0;
}

SNIPPET(nvmlDeviceGetMemoryInfo_v2)
{
    NVdevice device;
    NVmemory_v2 memory;
    CUdeviceptr a;
    START();
    OK(cuMemAlloc_v2(&a, 5));
    CHECK(nvml_device(&device) == 0 && nvmlDeviceGetMemoryInfo_v2(device, &memory) == NV_SUCCESS);
    CHECK(memory.total == LIMIT && memory.used == 5 && memory.free == LIMIT - 5 &&
          memory.reserved == 0);
    return 0;
}

/* Only this process is listed. */
#define LISTS(name, type)                                                             \
    SNIPPET(name)                                                                     \
    {                                                                                 \
        NVdevice device;                                                              \
        type list[64];                                                                \
        unsigned count = 64;                                                          \
        START();                                                                      \
        CHECK(nvml_device(&device) == 0 && name(device, &count, list) == NV_SUCCESS); \
        CHECK(count == 1 && list[0].pid == (unsigned)getpid() && list[0].bytes == 0); \
        return 0;                                                                     \
    }
LISTS(nvmlDeviceGetComputeRunningProcesses, NVprocess_v1)
LISTS(nvmlDeviceGetComputeRunningProcesses_v2, NVprocess)
LISTS(nvmlDeviceGetComputeRunningProcesses_v3, NVprocess)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, NVprocess_v1)
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v2, NVprocess)
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v3, NVprocess)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, NVprocess_v1)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v2, NVprocess)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v3, NVprocess)

/* Another partition's process computes too: one of the list is this process, where it did. */
SNIPPET(nvmlDeviceGetProcessUtilization)
{
    NVdevice device;
    NVutilization list[64];
    unsigned count = 64;
    START();
    CHECK(nvml_device(&device) == 0 &&
          nvmlDeviceGetProcessUtilization(device, list, &count, 0) == NV_NOT_FOUND);
    CHECK(busy() == 0);
    count = 64;
    CHECK(nvmlDeviceGetProcessUtilization(device, list, &count, 0) == NV_SUCCESS);
    CHECK(count == 1 && list[0].pid == (unsigned)getpid() && list[0].sm_pct != 0);
    return 0;
}

SNIPPET(nvmlDeviceGetProcessesUtilizationInfo)
{
    NVdevice device;
    NVutilization_v1 list[64];
    NVutilizations all = { NV_UTILIZATIONS_V1, 64, 0, list };
    START();
    CHECK(nvml_device(&device) == 0 &&
          nvmlDeviceGetProcessesUtilizationInfo(device, &all) == NV_NOT_FOUND);
    CHECK(busy() == 0);
    all.count = 64;
    CHECK(nvmlDeviceGetProcessesUtilizationInfo(device, &all) == NV_SUCCESS);
    CHECK(all.count == 1 && list[0].pid == (unsigned)getpid() && list[0].sm_pct != 0);
    return 0;
}

SNIPPET(nvmlDeviceGetRunningProcessDetailList)
{
    NVdevice device;
    NVdetail list[64];
    NVdetails all = { NV_DETAILS_V1, 0, 64, list };
    START();
    CHECK(nvml_device(&device) == 0 &&
          nvmlDeviceGetRunningProcessDetailList(device, &all) == NV_SUCCESS);
    CHECK(all.count == 1 && list[0].pid == (unsigned)getpid());
    return 0;
}

SNIPPET(nvmlDeviceGetAccountingPids)
{
    NVdevice device;
    unsigned list[64], count = 64;
    START();
    CHECK(nvml_device(&device) == 0 &&
          nvmlDeviceGetAccountingPids(device, &count, list) == NV_SUCCESS);
    CHECK(count == 1 && list[0] == (unsigned)getpid());
    return 0;
}

SNIPPET(nvmlDeviceGetAccountingStats)
{
    NVdevice device;
    NVaccount account;
    unsigned other = (unsigned)atoi(getenv("BERTH_TEST_OTHER"));
    START();
    CHECK(nvml_device(&device) == 0);
    CHECK(nvmlDeviceGetAccountingStats(device, (unsigned)getpid(), &account) == NV_SUCCESS);
    CHECK(nvmlDeviceGetAccountingStats(device, other, &account) == NV_NOT_FOUND);
    return 0;
}

typedef int any_call(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                     uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static const struct {
    const char *name;
    int (*run)(void);
    void *hook;
} table[] = {
#define HOOK(name, params) { #name, snippet_##name, (void *)name },
#define NVHOOK(name, params) { #name, snippet_##name, (void *)name },
#define NEED(name, params)
#define NVNEED(name, params)
#include "../hooks.h"
#undef HOOK
#undef NVHOOK
#undef NEED
#undef NVNEED
};

/* As a program that forgot its arguments: an answer, whatever it is, and the books in order. */
static int with_zeros(void *hook)
{
    NVdevice device;
    START();
    CHECK(nvml_device(&device) == 0);
    ((any_call *)hook)(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    START();
    HELD(0);
    return 0;
}

int main(int count, char **words)
{
    if (count == 2 && strcmp(words[1], "--neighbour") == 0)
        return neighbour();
    bool zeros = count == 3 && strcmp(words[1], "--null") == 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (count == 2 && strcmp(words[1], "--list") == 0)
            puts(table[i].name);
        else if (count >= 2 && strcmp(words[count - 1], table[i].name) == 0)
            return zeros ? with_zeros(table[i].hook) : table[i].run();
    }
    return count == 2 && strcmp(words[1], "--list") == 0 ? 0 : 2;
}

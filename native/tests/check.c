/* One snippet a family of calls: `check NAME` runs it in this process, `check --list` names them.

   Each is run under a limit of 64 MiB (tests/partition says so), on a card with contexts of 0 bytes
   unless told. The driver's ledger must agree with what berth accounts, to the byte, after every
   step. */
#include "claims.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The kernel may let go of a dead process a moment after it was waited for, as when somebody reads
   its /proc. */
static uint64_t room_in_the_end(uint64_t wanted)
{
    uint64_t seen = room();
    for (int tries = 0; tries < 60000 && seen != wanted; tries++) {
        usleep(2000);
        seen = room();
    }
    return seen;
}
#define HELD_IN_THE_END(bytes)                                                                 \
    CHECK(room_in_the_end(LIMIT - (bytes)) == LIMIT - (bytes) && fake_own_bytes(0) == (bytes))

static int test_linear(void)
{
    CUdeviceptr a, b;
    START();
    OK(cuMemAlloc_v2(&a, LIMIT - 1));
    HELD(LIMIT - 1);
    OOM(cuMemAlloc_v2(&b, 2));
    OK(cuMemAlloc_v2(&b, 1));
    HELD(LIMIT);
    OK(cuMemFree_v2(a));
    HELD(1);
    OK(cuMemFree_v2(b));
    HELD(0);
    CHECK(cuMemFree_v2(0x123456) != CUDA_SUCCESS);
    OOM(cuMemAlloc_v2(&a, SIZE_MAX));
    CHECK(cuMemAlloc_v2(&a, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAlloc_v2(NULL, 5) == CUDA_ERROR_INVALID_VALUE);
    HELD(0);
    return 0;
}

static int test_pitch(void)
{
    CUdeviceptr a;
    size_t pitch;
    START();
    OOM(cuMemAllocPitch_v2(&a, &pitch, 1, LIMIT / 512 + 1, 4)); /* a byte a row is 512 */
    OOM(cuMemAllocPitch_v2(&a, &pitch, SIZE_MAX, 2, 4));
    OOM(cuMemAllocPitch_v2(&a, &pitch, SIZE_MAX / 2, 4, 4));
    OK(cuMemAllocPitch_v2(&a, &pitch, 513, 1024, 4));
    CHECK(pitch == 1024);
    HELD(1 * MIB);
    OK(cuMemFree_v2(a));
    HELD(0);
    return 0;
}

static int test_managed(void)
{
    CUdeviceptr a, b;
    void *host;
    START();
    OK(cuMemAllocManaged(&a, LIMIT, 1));
    OOM(cuMemAllocManaged(&b, 1, 1));
    HELD(LIMIT);
    OK(cuMemHostAlloc(&host, 4096, 0)); /* the host's memory is not the GPU's */
    OK(cuMemFreeHost(host));
    OK(cuMemFree_v2(a));
    HELD(0);
    for (int i = 0; i < 1000; i++) {
        OK(cuMemAllocManaged(&a, LIMIT, 1));
        OK(cuMemFree_v2(a));
    }
    HELD(0);
    return 0;
}

static int test_array(void)
{
    CUarray a, b;
    CUarray_desc plane = { 4096, 4096, 0x20, 1 };
    CUarray3d_desc cube = { 256, 256, 64, 0x01, 4, 0 }, large = { 1024, 1024, 64, 0x01, 4, 0 };
    START();
    OK(cuArrayCreate_v2(&a, &plane));
    HELD(64 * MIB);
    OOM(cuArrayCreate_v2(&b, &plane));
    OOM(cuArray3DCreate_v2(&b, &cube));
    OK(cuArrayDestroy(a));
    HELD(0);
    OOM(cuArray3DCreate_v2(&a, &large));
    OK(cuArray3DCreate_v2(&a, &cube));
    HELD(16 * MIB);
    OK(cuArrayDestroy(a));
    HELD(0);
    return 0;
}

static int test_mipmap(void)
{
    CUmipmap a, b;
    CUarray3d_desc plane = { 2048, 2048, 0, 0x20, 2, 0 };
    START();
    OK(cuMipmappedArrayCreate(&a, &plane, 12));
    uint64_t bytes = 0;
    for (size_t side = 2048; side >= 1; side /= 2)
        bytes += side * side * 8;
    HELD(bytes);
    OOM(cuMipmappedArrayCreate(&b, &plane, 12));
    OK(cuMipmappedArrayDestroy(a));
    HELD(0);
    return 0;
}

static const CUalloc_prop on_device = { .type = 1, .location = { 1, 0 } };

static int test_vmm(void)
{
    CUhandle a, b, again;
    CUdeviceptr at;
    CUalloc_prop on_host = { .type = 1, .location = { 2, 0 } };
    START();
    OK(cuMemCreate(&a, 60 * MIB, &on_device, 0));
    OOM(cuMemCreate(&b, 6 * MIB, &on_device, 0));
    OK(cuMemCreate(&b, 6 * MIB, &on_host, 0));
    OK(cuMemRelease(b));
    HELD(60 * MIB);
    OK(cuMemAddressReserve(&at, 128 * MIB, 0, 0, 0));
    OK(cuMemMap(at, 60 * MIB, 0, a, 0));
    OK(cuMemRelease(a)); /* mapped: it lives on */
    HELD(60 * MIB);
    OOM(cuMemCreate(&b, 6 * MIB, &on_device, 0));
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 5 * MIB)));
    OK(cuMemUnmap(at, 60 * MIB));
    HELD(60 * MIB);
    OK(cuMemRelease(again));
    HELD(0);
    for (int i = 0; i < 4; i++) { /* expandable segments: many maps, one unmap */
        OK(cuMemCreate(&a, 8 * MIB, &on_device, 0));
        OK(cuMemMap(at + (unsigned)i * 8 * MIB, 8 * MIB, 0, a, 0));
        OK(cuMemRelease(a));
    }
    HELD(32 * MIB);
    OK(cuMemUnmap(at, 32 * MIB));
    HELD(0);
    CHECK(cuMemRelease(a) != CUDA_SUCCESS);
    HELD(0);
    return 0;
}

static int test_nccl(void)
{
    CUhandle a, kept[3];
    CUdeviceptr at;
    START();
    OK(cuMemAddressReserve(&at, 32 * MIB, 0, 0, 0));
    OK(cuMemCreate(&a, 32 * MIB, &on_device, 0));
    OK(cuMemMap(at, 32 * MIB, 0, a, 0));
    for (int i = 0; i < 3; i++)
        OK(cuMemRetainAllocationHandle(&kept[i], (void *)(uintptr_t)at));
    for (int i = 0; i < 3; i++) {
        OK(cuMemRelease(kept[i]));
        HELD(32 * MIB);
    }
    OK(cuMemRelease(a));
    HELD(32 * MIB);
    OK(cuMemUnmap(at, 32 * MIB));
    HELD(0);
    return 0;
}

static int async_family(CUresult (*allocate)(CUdeviceptr *, size_t, CUstream),
                        CUresult (*release)(CUdeviceptr, CUstream))
{
    CUdeviceptr a, b;
    START();
    OK(allocate(&a, 40 * MIB, NULL)); /* the pool grows by 32 MiB a step */
    HELD(64 * MIB);
    OK(allocate(&b, 24 * MIB, NULL));
    HELD(64 * MIB);
    CUdeviceptr c;
    OOM(allocate(&c, 1, NULL));
    OOM(cuMemAlloc_v2(&c, 1));
    HELD(64 * MIB);
    OK(release(a, NULL));
    OK(release(b, NULL));
    OK(cuStreamSynchronize(NULL));
    HELD(0);
    OK(allocate(&a, 1, NULL));
    HELD(32 * MIB);
    OK(cuMemFree_v2(a)); /* the plain free of a pooled pointer */
    OK(cuCtxSynchronize());
    HELD(0);
    return 0;
}

static int test_async(void)
{
    return async_family(cuMemAllocAsync, cuMemFreeAsync);
}
static int test_async_per_thread(void)
{
    return async_family(cuMemAllocAsync_ptsz, cuMemFreeAsync_ptsz);
}

static int test_pool(void)
{
    CUpool pool;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    CUdeviceptr a, b;
    uint64_t keep = UINT64_MAX;
    START();
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemPoolSetAttribute(pool, CU_POOL_RELEASE_THRESHOLD, &keep));
    OK(cuMemAllocFromPoolAsync(&a, 64 * MIB, pool, NULL));
    OOM(cuMemAllocFromPoolAsync_ptsz(&b, 1, pool, NULL));
    OK(cuMemFreeAsync(a, NULL));
    OK(cuStreamSynchronize(NULL));
    HELD(64 * MIB); /* kept for later, and still the driver's */
    OOM(cuMemAlloc_v2(&b, 1));
    OK(cuMemAllocFromPoolAsync(&a, 48 * MIB, pool, NULL)); /* from what is kept */
    OK(cuMemFreeAsync(a, NULL));
    OK(cuMemPoolTrimTo(pool, 32 * MIB));
    HELD(32 * MIB);
    OK(cuMemPoolTrimTo(pool, 0));
    HELD(0);
    OK(cuMemAllocFromPoolAsync(&a, 5 * MIB, pool, NULL));
    OK(cuMemFreeAsync(a, NULL));
    OK(cuMemPoolDestroy(pool));
    HELD(0);
    CUpool_props managed = { .type = CU_ALLOCATION_MANAGED },
                 host = { .type = 1, .location = { 2, 0 } };
    OK(cuMemPoolCreate(&pool, &managed));
    OOM(cuMemAllocFromPoolAsync(&a, LIMIT + 1, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&a, LIMIT, pool, NULL));
    HELD(LIMIT);
    OK(cuMemFreeAsync(a, NULL));
    OK(cuStreamSynchronize(NULL));
    HELD(0);
    OK(cuMemPoolDestroy(pool));
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&a, 5 * MIB, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&b, 40 * MIB, pool, NULL));
    OK(cuMemFreeAsync(b, NULL));
    HELD(LIMIT);
    OK(cuMemPoolDestroy(pool)); /* what is in use lives on, with the rest of its step */
    HELD(32 * MIB);
    OOM(cuMemAlloc_v2(&b, 32 * MIB + 1));
    OK(cuMemFreeAsync(a, NULL));
    OK(cuMemAlloc_v2(&b, LIMIT));
    HELD(LIMIT);
    OK(cuMemFree_v2(b));
    OK(cuMemPoolCreate(&pool, &host)); /* the host's memory is not the GPU's */
    OK(cuMemAllocFromPoolAsync(&a, 2 * LIMIT, pool, NULL));
    HELD(0);
    return 0;
}

static int test_graph(void)
{
    CUgraph graph, child;
    CUexec exec;
    CUnode node;
    CUmem_node memory = { .bytes = 40 * MIB }, small = { .bytes = 10 * MIB },
               large = { .bytes = 65 * MIB };
    CUdeviceptr a;
    START();
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory));
    OK(cuGraphAddMemAllocNode(&node, child, NULL, 0, &small));
    OK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    HELD(0);
    OK(cuGraphLaunch(exec, NULL));
    HELD(64 * MIB);
    OK(cuGraphLaunch(exec, NULL));
    HELD(64 * MIB);
    OOM(cuMemAlloc_v2(&a, 1));
    OK(cuDeviceGraphMemTrim(0));
    HELD(0);
    OK(cuMemAlloc_v2(&a, 30 * MIB));
    OOM(cuGraphLaunch(exec, NULL));
    HELD(30 * MIB);
    OK(cuMemFree_v2(a));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &large));
    OOM(cuGraphInstantiateWithFlags(&exec, graph, 0));
    HELD(0);
    return 0;
}

static int test_capture(void)
{
    CUstream stream;
    CUgraph graph;
    CUdeviceptr a;
    START();
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, 0));
    OK(cuMemAllocAsync(&a, 512 * MIB, stream)); /* a node, not memory */
    OK(cuMemFreeAsync(a, stream));
    OK(cuStreamEndCapture(stream, &graph));
    HELD(0);
    CUexec exec;
    OOM(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OOM(cuMemAllocAsync(&a, 512 * MIB, stream));
    HELD(0);
    return 0;
}

static void *launch_beside(void *context)
{
    CUmodule module;
    CUfunction function;
    CUstream stream;
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS || cuModuleLoadData(&module, "") != CUDA_SUCCESS ||
        cuStreamCreate(&stream, 0) != CUDA_SUCCESS ||
        cuModuleGetFunction(&function, module, "spin_100") != CUDA_SUCCESS)
        return (void *)1;
    for (int i = 0; i < 200; i++)
        if (cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) != CUDA_SUCCESS)
            return (void *)2;
    return NULL;
}

static int test_capture_beside(
    void) /* with a compute limit: another thread's launches are measured, and spoil no capture */
{
    CUstream stream;
    CUgraph graph;
    CUcontext context;
    pthread_t thread;
    void *failed;
    START();
    OK(cuCtxGetCurrent(&context));
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(pthread_create(&thread, NULL, launch_beside, context) == 0);
    pthread_join(thread, &failed);
    CHECK(failed == NULL);
    OK(cuStreamEndCapture(stream, &graph));
    return 0;
}

static int
test_became_other(void) /* takes 40 MiB and becomes another program, which is still there */
{
    CUdeviceptr a;
    START();
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    execlp("sh", "sh", "-c", "echo became; read line", (char *)NULL);
    return 9;
}

/* A call that fails for want of a context says nothing of a pool: later ones are counted all the
   same. */
static int test_no_context(void)
{
    CUcontext context;
    CUpool own, standard;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    CUdeviceptr a, b, c, d;
    CUstream stream;
    CUarray array;
    CUhandle handle;
    CUexec exec;
    CUarray_desc plane = { 1024, 1024, 0x20, 1 };
    OK(cuInit(0));
    OK(cuMemPoolCreate(&own, &props));
    OK(cuDeviceGetDefaultMemPool(&standard, 0));
    for (int i = 0; i < 3; i++) {
        CHECK(cuMemAllocFromPoolAsync(&a, MIB, own, NULL) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuMemAllocFromPoolAsync(&a, MIB, standard, NULL) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuMemAllocAsync(&a, MIB, NULL) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuMemAlloc_v2(&a, MIB) == CUDA_ERROR_INVALID_CONTEXT &&
              cuMemAllocManaged(&a, MIB, 1) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuArrayCreate_v2(&array, &plane) == CUDA_ERROR_INVALID_CONTEXT &&
              cuCtxSetLimit(CU_LIMIT_HEAP, MIB) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuGraphInstantiateWithFlags(&exec, NULL, 0) != CUDA_SUCCESS);
    }
    OK(cuMemCreate(&handle, 4 * MIB, &on_device, 0)); /* needs none */
    CHECK(fake_own_bytes(0) == 4 * MIB);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    HELD(4 * MIB);
    OK(cuMemRelease(handle));
    OOM(cuMemAllocFromPoolAsync(&a, LIMIT + 1, own, NULL));
    OOM(cuMemAllocFromPoolAsync(&a, LIMIT + 1, standard, NULL));
    OOM(cuMemAllocAsync(&a, LIMIT + 1, NULL));
    OK(cuStreamCreate(&stream, 0));
    OK(cuMemAllocFromPoolAsync(&a, 32 * MIB, standard, NULL));
    HELD(32 * MIB);
    OK(cuMemAllocFromPoolAsync(&b, 32 * MIB, own, stream));
    HELD(LIMIT);
    OOM(cuMemAllocAsync(&c, 1, stream));
    OOM(cuMemAllocFromPoolAsync(&d, 1, own, NULL));
    OK(cuMemFreeAsync(a, NULL));
    OK(cuMemFreeAsync(b, stream));
    OK(cuCtxSynchronize());
    HELD(0);
    return 0;
}

/* With errors injected (BERTH_FAKE_ERRORS): whatever fails, the books are those of the driver. */
static int test_failing(void)
{
    CUdeviceptr a, at;
    CUhandle handle, again;
    CUarray array;
    CUarray3d_desc cube = { 256, 256, 16, 0x01, 4, 0 },
                   sparse = { 8192, 8192, 0, 0x20, 4, CU_ARRAY_SPARSE };
    CUmodule module;
    CUstream stream;
    CUgraph graph;
    CUexec exec = NULL;
    CUnode node;
    CUpool pool;
    CUext memory;
    CUgreen green;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    CUmem_node ten = { .bytes = 10 * MIB };
    CUext_desc external = { .type = 1, .size = 8 * MIB };
    int fd = -1, failed = 0;
    START();
    for (int i = 0; i < 4; i++) {
#define TRY(call, ...)                              \
    do {                                            \
        if ((call) == CUDA_SUCCESS) {               \
            __VA_ARGS__;                            \
        } else {                                    \
            failed++;                               \
        }                                           \
        CHECK(room() <= LIMIT - fake_own_bytes(0)); \
    } while (0)
#define FREED(call) while ((call) != CUDA_SUCCESS)
        TRY(cuMemAlloc_v2(&a, 8 * MIB), FREED(cuMemFree_v2(a)));
        TRY(cuMemAllocManaged(&a, 8 * MIB, 1), FREED(cuMemFree_v2(a)));
        TRY(cuArray3DCreate_v2(&array, &cube), FREED(cuArrayDestroy(array)));
        TRY(cuMemCreate(&handle, 8 * MIB, &on_device, 0), FREED(cuMemRelease(handle)));
        TRY(cuMemCreate(&handle, 8 * MIB, &on_device, 0), {
            TRY(cuMemAddressReserve(&at, 8 * MIB, 0, 0, 0),
                { TRY(cuMemMap(at, 8 * MIB, 0, handle, 0), FREED(cuMemUnmap(at, 8 * MIB))); });
            TRY(cuMemExportToShareableHandle(&fd, handle, CU_SHARE_FD, 0), {
                TRY(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_SHARE_FD),
                    FREED(cuMemRelease(again)));
            });
            TRY(cuArray3DCreate_v2(&array, &sparse), {
                CUmap_info part = { .resource = array,
                                    .operation = CU_OPERATION_MAP,
                                    .handle = handle };
                TRY(cuMemMapArrayAsync(&part, 1, NULL), (void)0);
                FREED(cuArrayDestroy(array));
            });
            FREED(cuMemRelease(handle));
            close(fd);
        });
        TRY(cuMemAllocAsync(&a, 8 * MIB, NULL), FREED(cuMemFreeAsync(a, NULL)));
        TRY(cuMemPoolCreate(&pool, &props), {
            TRY(cuMemAllocFromPoolAsync(&a, 8 * MIB, pool, NULL), FREED(cuMemFreeAsync(a, NULL)));
            FREED(cuMemPoolDestroy(pool));
        });
        TRY(cuModuleLoadData(&module, "mib=4"), FREED(cuModuleUnload(module)));
        TRY(cuCtxSetLimit(CU_LIMIT_HEAP, 12 * MIB), FREED(cuCtxSetLimit(CU_LIMIT_HEAP, 8 * MIB)));
        TRY(cuImportExternalMemory(&memory, &external), FREED(cuDestroyExternalMemory(memory)));
        TRY(cuGreenCtxCreate(&green, NULL, 0, 0), FREED(cuGreenCtxDestroy(green)));
        TRY(cuStreamCreate(&stream, 0), (void)0);
        TRY(cuGraphCreate(&graph, 0), {
            TRY(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &ten), {
                TRY(cuGraphInstantiateWithFlags(&exec, graph, 0), {
                    TRY(cuGraphUpload(exec, NULL), (void)0);
                    TRY(cuGraphLaunch(exec, NULL), (void)0);
                    FREED(cuGraphExecDestroy(exec));
                });
            });
        });
        FREED(cuDeviceGraphMemTrim(0));
        FREED(cuCtxSynchronize());
        HELD(0);
    }
    CHECK(getenv("BERTH_FAKE_ERRORS") == NULL || failed != 0);
    CHECK(fake_violations(0) == 0);
    return 0;
}

/* A module is as large as it is, and refused where it does not fit, whatever its size. */
static int test_large_module(void)
{
    CUmodule first, second;
    CUdeviceptr a;
    START();
    for (int i = 0; i < 3; i++) {
        OOM(cuModuleLoadData(&first, "mib=12288"));
        OOM(cuModuleLoadData(&first, "mib=65"));
        HELD(0);
    }
    OK(cuModuleLoadData(&first, "mib=40"));
    HELD(40 * MIB);
    OOM(cuModuleLoadData(&second, "mib=3000"));
    HELD(40 * MIB);
    OOM(cuMemAlloc_v2(&a, 25 * MIB));
    OK(cuModuleUnload(first));
    HELD(0);
    return 0;
}

/* Under a limit of 16 GiB: one of many GiB is believed, and what is left is what is left. */
static int test_huge_module(void)
{
    CUmodule module;
    CUdeviceptr a;
    START();
    OK(cuModuleLoadData(&module, "mib=12288"));
    CHECK(fake_own_bytes(0) == 12288 * MIB && room() == 4096 * MIB);
    OOM(cuMemAlloc_v2(&a, 4097 * MIB));
    OK(cuMemAlloc_v2(&a, 4096 * MIB));
    OK(cuModuleUnload(module));
    CHECK(room() == 12288 * MIB);
    return 0;
}

/* Each graph holds its memory apart from others', and each node from the rest
   (BERTH_FAKE_LIKE=nodes). */
static int test_graphs_apart(void)
{
    CUgraph graph;
    CUexec exec[3];
    CUnode node;
    CUmem_node memory = { .bytes = 20 * MIB };
    CUdeviceptr a;
    CUstream stream;
    START();
    OK(cuStreamCreate(&stream, 0));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory));
    for (int i = 0; i < 3; i++)
        OK(cuGraphInstantiateWithFlags(&exec[i], graph, 0));
    OK(cuGraphLaunch(exec[0], NULL));
    HELD(32 * MIB);
    OK(cuGraphUpload(exec[1], stream));
    OK(cuGraphLaunch(exec[1], stream));
    HELD(LIMIT);
    OOM(cuGraphLaunch(exec[2], stream));
    OOM(cuGraphUpload(exec[2], stream));
    HELD(LIMIT);
    for (int i = 0; i < 5; i++) {
        OK(cuGraphLaunch(exec[0], NULL));
        OK(cuGraphLaunch(exec[1], stream));
    }
    HELD(LIMIT);
    OK(cuGraphExecDestroy(exec[0]));
    OK(cuGraphLaunch(exec[2], stream)); /* what the first kept is trimmed for it */
    HELD(LIMIT);
    OK(cuGraphExecDestroy(exec[1]));
    OK(cuGraphExecDestroy(exec[2]));
    OK(cuDeviceGraphMemTrim(0));
    HELD(0);
    OK(cuMemAlloc_v2(&a, LIMIT));
    CHECK(fake_violations(0) == 0);
    return 0;
}

/* The card may be divided into parts that have memory of their own: it is the card's all the same.
 */
static int test_parts(void)
{
    CUhandle handle;
    CUpool pool;
    CUdeviceptr a;
    CUalloc_prop prop = { .type = 1, .location = { CU_LOCATION_DEVICE_PART, 1 << 8 } };
    CUpool_props props = { .type = 1, .location = { CU_LOCATION_DEVICE_PART, 1 << 8 } };
    START();
    OOM(cuMemCreate(&handle, LIMIT + 2 * MIB, &prop, 0));
    OK(cuMemCreate(&handle, 40 * MIB, &prop, 0));
    HELD(40 * MIB);
    OK(cuMemRelease(handle));
    OK(cuMemPoolCreate(&pool, &props));
    OOM(cuMemAllocFromPoolAsync(&a, LIMIT + 1, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&a, LIMIT, pool, NULL));
    HELD(LIMIT);
    return 0;
}

/* Pools of other processes give nothing here, and what they are told of is counted there. */
static int test_imported_pool(void)
{
    CUpool own, imported;
    CUpool_props props = { .type = 1, .handle_types = 1, .location = { 1, 0 } };
    CUdeviceptr a;
    int fd;
    START();
    OK(cuMemPoolCreate(&own, &props));
    OK(cuMemPoolExportToShareableHandle(&fd, own, CU_SHARE_FD, 0));
    OK(cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_SHARE_FD, 0));
    CHECK(cuMemAllocFromPoolAsync(&a, MIB, imported, NULL) != CUDA_SUCCESS);
    HELD(0);
    OK(cuMemAllocFromPoolAsync(&a, LIMIT, own, NULL));
    HELD(LIMIT);
    return 0;
}

/* The first use of a function loads it: with the module loaded lazily (BERTH_FAKE_LIKE=lazy) as
   without. */
static int test_first_use(void)
{
    CUmodule module, other;
    CUfunction function;
    CUdeviceptr a;
    bool lazy = getenv("BERTH_FAKE_LIKE") != NULL;
    START();
    OK(cuModuleLoadData(&module, "mib=40"));
    HELD(lazy ? 0 : 40 * MIB);
    OK(cuModuleGetFunction(&function, module, "f"));
    HELD(40 * MIB);
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    HELD(40 * MIB);
    OK(cuModuleGetFunction(&function, module, "g"));
    HELD(40 * MIB);
    CHECK((cuModuleLoadData(&other, "mib=40") == CUDA_ERROR_OUT_OF_MEMORY) == !lazy);
    OK(cuModuleUnload(module));
    HELD(0);
    OK(cuMemAlloc_v2(&a, LIMIT));
    return 0;
}

/* The heap that a context is told to set aside is counted once, whether the driver takes it at once
   or with the next module (BERTH_FAKE_LIKE=heap). */
static int test_heap(void)
{
    CUmodule module;
    CUdeviceptr a;
    START();
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 28 * MIB));
    CHECK(room() == LIMIT - 20 * MIB);
    OK(cuModuleLoadData(&module, "mib=4"));
    HELD(24 * MIB);
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    HELD(LIMIT);
    OOM(cuCtxSetLimit(CU_LIMIT_HEAP, 29 * MIB));
    CHECK(fake_violations(0) == 0);
    return 0;
}

static void *grow_the_books(void *context)
{
    CUdeviceptr held[4096];
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return (void *)1;
    for (int i = 0; i < 4096; i++)
        if (cuMemAlloc_v2(&held[i], 1) != CUDA_SUCCESS)
            return (void *)2;
    for (int i = 0; i < 4096; i++)
        if (cuMemFree_v2(held[i]) != CUDA_SUCCESS)
            return (void *)3;
    return NULL;
}

/* A child that is forked while its parent's books grow keeps its hands off them. */
static int test_fork_while_growing(void)
{
    CUcontext context;
    pthread_t thread;
    void *failed;
    START();
    OK(cuCtxGetCurrent(&context));
    CHECK(pthread_create(&thread, NULL, grow_the_books, context) == 0);
    for (int i = 0; i < 200; i++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(cuInit(0) == CUDA_SUCCESS);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    pthread_join(thread, &failed);
    CHECK(failed == NULL);
    HELD(0);
    return 0;
}

/* Under a limit of 64 MiB of the card and 32 MiB of the host (BERTH_GPU_OVERSUBSCRIBE_MIB). */
static int test_swap(void)
{
    CUdeviceptr a, b, c, d;
    CUcontext own;
    size_t pitch, total;
    char word = 7, seen = 0;
    START();
    OK(cuMemAlloc_v2(&a, LIMIT));
    HELD(LIMIT);
    OK(cuMemAlloc_v2(&b, 20 * MIB)); /* beyond the limit, and of the host */
    HELD(LIMIT);
    CHECK(fake_swapped_bytes() == 20 * MIB);
    OK(cuMemcpyHtoD_v2(b, &word, 1));
    OK(cuMemcpyDtoH_v2(&seen, b, 1));
    CHECK(seen == word);
    OOM(cuMemAlloc_v2(&c, 13 * MIB));
    OK(cuMemAllocPitch_v2(&c, &pitch, 1000, 4096, 4));
    CHECK(pitch == 1024 && fake_swapped_bytes() == 24 * MIB && room() == 0);
    OK(cuMemAllocAsync(&d, 8 * MIB, NULL)); /* its pool's step would not fit */
    CHECK(fake_swapped_bytes() == 32 * MIB);
    OOM(cuMemAllocManaged(&d, 5 * MIB, 1));
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(total == LIMIT); /* who sizes himself by the card is told of the card */
    OK(cuMemFreeAsync(d, NULL));
    CHECK(fake_swapped_bytes() == 24 * MIB);
    OK(cuMemFree_v2(b));
    OK(cuMemFree_v2(c));
    OK(cuMemFree_v2(a));
    HELD(0);
    CHECK(fake_swapped_bytes() == 0);
    OK(cuCtxCreate_v2(&own, 0, 0));
    OK(cuMemAlloc_v2(&a, 60 * MIB));
    OK(cuMemAlloc_v2(&b, 30 * MIB));
    OK(cuCtxDestroy_v2(own)); /* takes both along */
    OK(cuMemAlloc_v2(&a, 60 * MIB));
    OK(cuMemAlloc_v2(&b, 32 * MIB));
    OOM(cuMemAlloc_v2(&c, 5 * MIB));
    CHECK(fake_violations(0) == 0);
    return 0;
}

static int test_hold_swapped(void) /* takes all and 20 MiB of the host, says so, and is killed */
{
    CUdeviceptr a, b;
    char line[8];
    START();
    OK(cuMemAlloc_v2(&a, LIMIT));
    OK(cuMemAlloc_v2(&b, 20 * MIB));
    printf("held\n");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    return 0;
}

static int test_errno(void) /* a call that has to look about leaves the host's errno as it was */
{
    CUdeviceptr a;
    START();
    errno = 4711;
    for (int i = 0; i < 3; i++)
        OOM(cuMemAlloc_v2(&a, LIMIT + 1));
    HELD(0);
    CHECK(errno == 4711);
    void *found = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    CHECK(found != NULL && errno == 4711);
    return 0;
}

static int test_ipc(void)
{
    CUdeviceptr a, b;
    CUipc handle;
    START();
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    OK(cuIpcGetMemHandle(&handle, a));
    OK(cuIpcOpenMemHandle_v2(&b, handle, 0));
    HELD(40 * MIB); /* counted once, where it was allocated */
    OK(cuIpcCloseMemHandle(b));
    HELD(40 * MIB);
    OK(cuMemFree_v2(a));
    HELD(0);
    return 0;
}

static int test_context(void) /* with contexts of 10 MiB */
{
    CUcontext own, context;
    CUdeviceptr a;
    CUmodule module;
    START();
    HELD(10 * MIB);
    OK(cuCtxCreate_v2(&own, 0, 0));
    HELD(20 * MIB);
    OK(cuMemAlloc_v2(&a, 20 * MIB));
    OK(cuModuleLoadData(&module, "image"));
    HELD(41 * MIB);
    OOM(cuMemAlloc_v2(&a, 24 * MIB));
    OK(cuCtxDestroy_v2(own)); /* takes its memory along */
    HELD(10 * MIB);
    OK(cuMemAlloc_v2(&a, 20 * MIB));
    OK(cuModuleLoadData(&module, "image"));
    HELD(31 * MIB);
    OK(cuModuleUnload(module));
    HELD(30 * MIB);
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK(fake_own_bytes(0) == 0);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    HELD(10 * MIB);
    OK(cuMemAlloc_v2(&a, 50 * MIB));
    OOM(cuCtxCreate_v2(&own, 0, 0)); /* known by now to need 10 MiB */
    HELD(60 * MIB);
    OK(cuMemFree_v2(a));
    CUcontext many[5];
    for (int i = 0; i < 5; i++)
        OK(cuCtxCreate_v2(&many[i], 0, 0));
    HELD(60 * MIB);
    OOM(cuCtxCreate_v2(&own, 0, 0));
    for (int i = 4; i >= 0; i--)
        OK(cuCtxDestroy_v2(many[i]));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(fake_own_bytes(0) == 0);
    return 0;
}

static int test_view(void)
{
    size_t free_bytes = 7, total = 7;
    START();
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(total == LIMIT);
    CHECK(cuMemGetInfo_v2(NULL, &total) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemGetInfo_v2(&free_bytes, NULL) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemGetInfo_v2(NULL, NULL) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(total == LIMIT && free_bytes == LIMIT);
    return 0;
}

static void *churn(void *data)
{
    unsigned seed = (unsigned)(uintptr_t)data;
    CUcontext context;
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return (void *)1;
    for (int i = 0; i < 3000; i++) {
        CUdeviceptr a;
        size_t bytes = (size_t)(rand_r(&seed) % (32 << 20)) + 1;
        bool pooled = getenv("NOPOOL") == NULL && i % 3 == 0;
        CUresult result = pooled ? cuMemAllocAsync(&a, bytes, NULL) : cuMemAlloc_v2(&a, bytes);
        if (result == CUDA_SUCCESS &&
            (pooled ? cuMemFreeAsync(a, NULL) : cuMemFree_v2(a)) != CUDA_SUCCESS)
            return (void *)2;
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
            return (void *)3;
    }
    return NULL;
}

static int test_threads(void)
{
    pthread_t threads[8];
    START();
    for (uintptr_t i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) == 0);
    for (int i = 0; i < 8; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    OK(cuCtxSynchronize());
    HELD(0);
    if (fake_violations(0) != 0)
        printf("%llu bytes at worst\n", (unsigned long long)fake_worst_bytes(0));
    CHECK(fake_violations(0) == 0);
    return 0;
}

static int test_fork(void)
{
    CUdeviceptr a, b;
    int status;
    /* Before anything: the child is a process of its own. */
    pid_t child = fork();
    if (child == 0)
        _exit(start() == 0 && cuMemAlloc_v2(&a, 40 * MIB) == CUDA_SUCCESS ? 0 : 1);
    waitpid(child, &status, 0);
    CHECK(status == 0);
    START();
    HELD_IN_THE_END(0); /* what the child held came back when it ended */
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    child = fork(); /* after: the driver does not work in the child, and the parent's memory stays
                       the parent's */
    if (child == 0)
        _exit(cuMemAlloc_v2(&b, 1) == CUDA_ERROR_NOT_INITIALIZED && cuInit(0) != CUDA_SUCCESS ? 0
                                                                                              : 1);
    waitpid(child, &status, 0);
    CHECK(status == 0);
    HELD(40 * MIB);
    child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "check", "half", (char *)NULL);
        _exit(9);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0);
    HELD_IN_THE_END(
        40 * MIB); /* cuMemGetInfo looks for the dead every 10 ms; a refusal would look at once */
    return 0;
}

static _Atomic int counting, second_is_through;

static void stay_in_the_driver(
    void) /* the first to get there, until the second is through or has waited in vain */
{
    if (counting++ == 0)
        for (int tries = 0; tries < 120000 && !second_is_through; tries++)
            usleep(1000);
}

static void *start_first(void *data)
{
    (void)data;
    return cuInit(0) == CUDA_SUCCESS ? NULL : (void *)1;
}

static int test_start_beside(void) /* no lock is held over a driver call: one that takes its time at
                                      the start keeps nobody waiting */
{
    pthread_t first;
    void *failed;
    CUdeviceptr a;
    fake_when_counting(stay_in_the_driver);
    CHECK(pthread_create(&first, NULL, start_first, NULL) == 0);
    while (counting == 0)
        usleep(1000);
    START();
    CHECK(counting == 2);
    OK(cuMemAlloc_v2(&a, LIMIT));
    second_is_through = 1;
    pthread_join(first, &failed);
    CHECK(failed == NULL);
    HELD(LIMIT);
    OK(cuMemFree_v2(a));
    HELD(0);
    return 0;
}

/* Run by others while they hold 40 MiB. */
static int test_half(void)
{
    CUdeviceptr a;
    OK(cuInit(0));
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    if (getenv("BERTH_TEST_HALF") != NULL || getppid() > 1)
        CHECK(room() <= LIMIT);
    uint64_t left = room();
    if (left < 40 * MIB)
        OOM(cuMemAlloc_v2(&a, left + 1));
    OK(cuMemAlloc_v2(&a, left));
    CHECK(room() == 0);
    return 0;
}

static int test_guest(void) /* what berth must leave alone in the host */
{
    mode_t mask = umask(022);
    struct sigaction one, two;
    umask(mask);
    START();
    CHECK(umask(mask) == mask);
    sigaction(SIGUSR1, NULL, &one);
    sigaction(SIGUSR2, NULL, &two);
    CHECK(one.sa_handler == SIG_DFL && two.sa_handler == SIG_DFL);
    for (int fd = 3; fd < 64; fd++) /* no descriptor is left open */
        CHECK(fcntl(fd, F_GETFD) == -1 || getenv("BERTH_TEST_FDS") != NULL);
    CUdeviceptr a;
    for (int fd = 3; fd < 1024; fd++)
        close(fd); /* and closing all of them changes nothing */
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "check", "half", (char *)NULL);
        _exit(9);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(status == 0); /* the other saw 24 MiB and no more */
    HELD_IN_THE_END(40 * MIB);
    return 0;
}

static int test_legacy(void) /* the entry points of CUDA 2 that linked programs may still have */
{
    unsigned a, free_bytes, total, pitch;
    START();
    OK(cuMemAlloc(&a, 1 << 20));
    HELD(1 * MIB);
    OK(cuMemGetInfo(&free_bytes, &total));
    CHECK(total == LIMIT && free_bytes == LIMIT - MIB);
    CHECK(cuMemGetInfo(NULL, &total) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAllocPitch(&a, &pitch, 1 << 30, 1 << 20, 4) != CUDA_SUCCESS);
    return 0;
}

static int test_launch(void)
{
    CUmodule module;
    CUfunction function;
    CUlaunch launch = { 1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0 };
    START();
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(&function, module, "spin_10"));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuLaunchKernelEx(&launch, function, NULL, NULL));
    OK(cuLaunchKernelEx_ptsz(&launch, function, NULL, NULL));
    OK(cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL));
    OK(cuLaunchCooperativeKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL));
    OK(cuLaunch(function));
    OK(cuLaunchGrid(function, 1, 1));
    OK(cuLaunchGridAsync(function, 1, 1, NULL));
    OK(cuCtxSynchronize());
    CHECK(fake_own_busy_ns(0) == 90000);
    CUcooperative list = { .function = function, .grid_x = 1, .grid_y = 1, .grid_z = 1 };
    OK(cuLaunchCooperativeKernelMultiDevice(&list, 1, 0));
    OK(cuCtxSynchronize());
    CHECK(fake_own_busy_ns(0) == 100000);
    return 0;
}

/* ---- with a compute limit, by a clock of the test's own: tests/partition reads what each GPU was
   charged ---- */

static int launch_of(CUfunction *function, const char *name)
{
    CUmodule module;
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(function, module, name));
    return 0;
}

static int two_contexts(CUcontext contexts[2], CUfunction functions[2], const char *first,
                        const char *second)
{
    OK(cuInit(0));
    for (int i = 0; i < 2; i++) {
        OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
        OK(cuCtxSetCurrent(contexts[i]));
        CHECK(launch_of(&functions[i], i == 0 ? first : second) == 0);
    }
    return 0;
}

static int launches(CUfunction function, unsigned blocks)
{
    OK(cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
    return 0;
}

static int
test_paced_in_turns(void) /* 2 ms on each of two GPUs, a launch here and a launch there */
{
    CUcontext contexts[2];
    CUfunction functions[2];
    CHECK(two_contexts(contexts, functions, "spin_10", "spin_10") == 0);
    for (int i = 0; i < 400; i++) {
        OK(cuCtxSetCurrent(contexts[i % 2]));
        CHECK(launches(functions[i % 2], 1) == 0);
    }
    return 0;
}

static int
test_paced_apart(void) /* 10 ms on one GPU, a launch on the other before they are measured */
{
    CUcontext contexts[2];
    CUfunction functions[2];
    CHECK(two_contexts(contexts, functions, "spin_5000", "spin_10") == 0);
    for (int i = 0; i < 3; i++) {
        OK(cuCtxSetCurrent(contexts[i % 2]));
        CHECK(launches(functions[i % 2], 1) == 0);
    }
    return 0;
}

static int test_paced_together(void) /* 40 ms on each of two GPUs, by launches that are one call */
{
    CUcontext contexts[2];
    CUfunction functions[2];
    CUstream streams[2];
    CHECK(two_contexts(contexts, functions, "spin_10000", "spin_10000") == 0);
    for (int i = 0; i < 2; i++) {
        OK(cuCtxSetCurrent(contexts[i]));
        OK(cuStreamCreate(&streams[i], 0));
    }
    for (int i = 0; i < 4; i++) {
        CUcooperative list[2];
        for (int gpu = 0; gpu < 2; gpu++)
            list[gpu] = (CUcooperative){ .function = functions[gpu],
                                         .grid_x = 1,
                                         .grid_y = 1,
                                         .grid_z = 1,
                                         .stream = streams[gpu] };
        OK(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
    }
    for (int i = 0; i < 2; i++) {
        OK(cuCtxSetCurrent(contexts[i]));
        OK(cuStreamSynchronize(streams[i]));
    }
    return 0;
}

static int test_paced_events(void) /* each probe has two events, whatever contexts it was used in */
{
    CUcontext contexts[2];
    CUfunction functions[2];
    CHECK(two_contexts(contexts, functions, "spin_10", "spin_10") == 0);
    for (unsigned i = 0; i < 400; i++) {
        OK(cuCtxSetCurrent(contexts[i % 2]));
        CHECK(launches(functions[i % 2], 1 + i) == 0);
    }
    CHECK(fake_own_events() >= 2 && fake_own_events() <= 2 * 64);
    return 0;
}

static int paced_after(CUresult (*end)(
    CUdevice)) /* 2 ms, then 40 ms in the context that comes after it, by the same address */
{
    CUcontext before, after;
    CUfunction function;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&before, 0));
    OK(cuCtxSetCurrent(before));
    CHECK(launch_of(&function, "spin_1000") == 0 && launches(function, 1) == 0 &&
          launches(function, 1) == 0);
    OK(end(0));
    CHECK(fake_own_events() == 0);
    OK(cuDevicePrimaryCtxRetain(&after, 0));
    CHECK(before == after);
    OK(cuCtxSetCurrent(after));
    CHECK(launch_of(&function, "spin_2000") == 0);
    for (int i = 0; i < 20; i++)
        CHECK(launches(function, 2) == 0);
    return 0;
}

static int test_paced_after_reset(void)
{
    return paced_after(cuDevicePrimaryCtxReset_v2);
}
static int test_paced_after_release(void)
{
    return paced_after(cuDevicePrimaryCtxRelease_v2);
}

static int test_none(void) /* limits that cannot be known: no GPU rather than all of it */
{
    int count = 7;
    CHECK(cuInit(0) == CUDA_ERROR_NO_DEVICE);
    CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NO_DEVICE && count == 0);
    CUdeviceptr a;
    CUcontext context; /* a program that does not listen gets nothing either */
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS &&
          cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS);
    CHECK(cuMemAlloc_v2(&a, 1) != CUDA_SUCCESS);
    CHECK(cuMemAllocManaged(&a, 1, 1) != CUDA_SUCCESS &&
          cuMemAllocAsync(&a, 1, NULL) != CUDA_SUCCESS);
    return 0;
}

static int test_data(void)
{
    CUdeviceptr a;
    char in[64] = "through the fake card", out[64] = "";
    START();
    OK(cuMemAlloc_v2(&a, sizeof in));
    OK(cuMemcpyHtoD_v2(a, in, sizeof in));
    OK(cuMemcpyDtoH_v2(out, a, sizeof out));
    CHECK(strcmp(in, out) == 0);
    return 0;
}

static int test_two_gpus(void) /* 0:64,1:32 */
{
    CUcontext first, second;
    CUdeviceptr a;
    size_t total;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuDeviceTotalMem_v2(&total, 1));
    CHECK(total == 32 * MIB);
    OK(cuCtxSetCurrent(second));
    OOM(cuMemAlloc_v2(&a, 33 * MIB));
    OK(cuMemAlloc_v2(&a, 32 * MIB));
    OK(cuCtxSetCurrent(first));
    OK(cuMemAlloc_v2(&a, 64 * MIB));
    OK(cuDeviceTotalMem_v2(&total, 2)); /* one that the list does not name */
    CHECK(total == 0);
    return 0;
}

static int test_total(void) /* the one visible device has as much as BERTH_TEST_TOTAL_MIB says */
{
    size_t total;
    OK(cuInit(0));
    OK(cuDeviceTotalMem_v2(&total, 0));
    printf("%zu\n", (size_t)(total >> 20));
    return 0;
}

static int test_over(void) /* asks for more than it is told there is, and goes on with half */
{
    CUdeviceptr a;
    size_t free_bytes = 0, total = 0;
    START();
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    OOM(cuMemAlloc_v2(&a, total + 1));
    OK(cuMemAlloc_v2(&a, total / 2));
    return 0;
}

static int say(const char *what)
{
    char line[8];
    printf("%s\n", what);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    return 0;
}

static int test_up(void) /* starts, takes a byte, says so, and waits for a line */
{
    CUdeviceptr a;
    START();
    OK(cuMemAlloc_v2(&a, 1));
    return say("up");
}

static int test_resized(void) /* from 64 MiB to 32, and to 128 */
{
    CUdeviceptr a, b;
    size_t total;
    START();
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    CHECK(say("held") == 0);
    OOM(cuMemAlloc_v2(&b, 1)); /* above the limit by now, and alive */
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(total == 32 * MIB && room() == 0 && fake_own_bytes(0) == 40 * MIB);
    CHECK(say("refused") == 0);
    OK(cuMemAlloc_v2(&b, 88 * MIB));
    OOM(cuMemAlloc_v2(&a, 1));
    return 0;
}

static int
test_hold(void) /* takes 40 MiB, says so, waits for a line, and is often killed meanwhile */
{
    CUdeviceptr a;
    char line[8];
    START();
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    printf("held\n");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    HELD(40 * MIB);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} tests[] = {
#define TEST(name) { #name, test_##name }
    TEST(linear),
    TEST(pitch),
    TEST(managed),
    TEST(array),
    TEST(mipmap),
    TEST(vmm),
    TEST(nccl),
    TEST(async),
    TEST(async_per_thread),
    TEST(pool),
    TEST(graph),
    TEST(capture),
    TEST(capture_beside),
    TEST(became_other),
    TEST(errno),
    TEST(ipc),
    TEST(context),
    TEST(view),
    TEST(threads),
    TEST(fork),
    TEST(start_beside),
    TEST(guest),
    TEST(launch),
    TEST(none),
    TEST(data),
    TEST(two_gpus),
    TEST(total),
    TEST(over),
    TEST(up),
    TEST(resized),
    TEST(hold),
    TEST(half),
    TEST(legacy),
    TEST(paced_in_turns),
    TEST(paced_apart),
    TEST(paced_together),
    TEST(paced_events),
    TEST(paced_after_reset),
    TEST(paced_after_release),
    TEST(no_context),
    TEST(failing),
    TEST(large_module),
    TEST(huge_module),
    TEST(graphs_apart),
    TEST(parts),
    TEST(imported_pool),
    TEST(first_use),
    TEST(heap),
    TEST(fork_while_growing),
    TEST(swap),
    TEST(hold_swapped),
};

int main(int count, char **words)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (count == 2 && strcmp(words[1], "--list") == 0)
            puts(tests[i].name);
        else if (count == 2 && strcmp(words[1], tests[i].name) == 0)
            return tests[i].run();
    }
    return count == 2 && strcmp(words[1], "--list") == 0 ? 0 : 2;
}

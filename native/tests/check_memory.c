/* Every path of memory, with a kind driver. */
#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void test_linear(void)
{
    CUdeviceptr a, b;
    start();
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
}

void test_pitch(void)
{
    CUdeviceptr a;
    size_t pitch;
    start();
    OOM(cuMemAllocPitch_v2(&a, &pitch, 1, LIMIT / 512 + 1, 4)); /* a byte a row is 512 */
    OOM(cuMemAllocPitch_v2(&a, &pitch, SIZE_MAX, 2, 4));
    OOM(cuMemAllocPitch_v2(&a, &pitch, SIZE_MAX / 2, 4, 4));
    OK(cuMemAllocPitch_v2(&a, &pitch, 513, 1024, 4));
    CHECK(pitch == 1024);
    HELD(1 * MIB);
    OK(cuMemFree_v2(a));
    HELD(0);
}

void test_managed(void)
{
    CUdeviceptr a, b;
    void *host;
    start();
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
}

void test_array(void)
{
    CUarray a, b;
    CUarray_desc plane = { 4096, 4096, 0x20, 1 };
    CUarray3d_desc cube = { 256, 256, 64, 0x01, 4, 0 }, large = { 1024, 1024, 64, 0x01, 4, 0 };
    start();
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
}

void test_mipmap(void)
{
    CUmipmap a, b;
    CUarray3d_desc plane = { 2048, 2048, 0, 0x20, 2, 0 };
    start();
    OK(cuMipmappedArrayCreate(&a, &plane, 12));
    uint64_t bytes = 0;
    for (size_t side = 2048; side >= 1; side /= 2)
        bytes += side * side * 8;
    HELD(bytes);
    OOM(cuMipmappedArrayCreate(&b, &plane, 12));
    OK(cuMipmappedArrayDestroy(a));
    HELD(0);
    /* A volume halves its depth from level to level; a cube keeps its faces, and layers stay. */
    const unsigned kinds[] = { 0, CU_ARRAY_LAYERED, CU_ARRAY_CUBEMAP,
                               CU_ARRAY_CUBEMAP | CU_ARRAY_LAYERED };
    for (int i = 0; i < 4; i++) {
        CUarray3d_desc cube = { 256, 256, 6, 0x20, 4, kinds[i] };
        OK(cuMipmappedArrayCreate(&a, &cube, 9));
        bytes = 0;
        for (size_t side = 256, depth = 6; side >= 1; side /= 2) {
            bytes += side * side * depth * 16;
            depth = kinds[i] == 0 && depth > 1 ? depth / 2 : depth;
        }
        HELD(bytes);
        OK(cuMipmappedArrayDestroy(a));
    }
    HELD(0);
}

void test_vmm(void)
{
    CUhandle a, b, again;
    CUdeviceptr at;
    CUalloc_prop on_host = { .type = 1, .location = { 2, 0 } };
    start();
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
}

void test_nccl(void)
{
    CUhandle a, kept[3];
    CUdeviceptr at;
    start();
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
}

static void async_family(CUresult (*allocate)(CUdeviceptr *, size_t, CUstream),
                         CUresult (*release)(CUdeviceptr, CUstream))
{
    CUdeviceptr a, b;
    start();
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
}

void test_async(void)
{
    async_family(cuMemAllocAsync, cuMemFreeAsync);
}
void test_async_per_thread(void)
{
    async_family(cuMemAllocAsync_ptsz, cuMemFreeAsync_ptsz);
}

void test_pool(void)
{
    CUpool pool;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    CUdeviceptr a, b;
    uint64_t keep = UINT64_MAX;
    start();
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
}

void test_graph(void)
{
    CUgraph graph, child;
    CUexec exec;
    CUnode node;
    CUmem_node memory = { .bytes = 40 * MIB }, small = { .bytes = 10 * MIB },
               large = { .bytes = 65 * MIB };
    CUdeviceptr a;
    start();
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory));
    OK(cuGraphAddMemAllocNode(&node, child, NULL, 0, &small));
    CHECK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child) == CUDA_ERROR_NOT_SUPPORTED);
    CUnode_params moved = { .type = CU_NODE_GRAPH, .as.child = { child, CU_CHILD_MOVES } };
    OK(cuGraphAddNode(&node, graph, NULL, 0, &moved));
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
}

void test_capture(void)
{
    CUstream stream;
    CUgraph graph;
    CUdeviceptr a;
    start();
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

void test_capture_beside(
    void) /* with a compute limit: another thread's launches are measured, and spoil no capture */
{
    CUstream stream;
    CUgraph graph;
    CUcontext context;
    pthread_t thread;
    void *failed;
    start();
    OK(cuCtxGetCurrent(&context));
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(pthread_create(&thread, NULL, launch_beside, context) == 0);
    pthread_join(thread, &failed);
    CHECK(failed == NULL);
    OK(cuStreamEndCapture(stream, &graph));
}

void test_became_other(void) /* takes 40 MiB and becomes another program, which is still there */
{
    CUdeviceptr a;
    start();
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    execlp("sh", "sh", "-c", "echo became; read line", (char *)NULL);
    _exit(9);
}

/* What a stricter driver does. */
#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* A call that fails for want of a context says nothing of a pool: later ones are counted all the
   same. */
void test_no_context(void)
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
}

/* With errors injected (BERTH_FAKE_ERRORS): whatever fails, the books are those of the driver. */
void test_failing(void)
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
    start();
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
                TRY(cuMemCreate(&again, 8 * MIB, &for_tiles, 0), {
                    CUmap_info part = { .resource = array,
                                        .part.level = { .width = 64, .height = 64, .depth = 1 },
                                        .operation = CU_OPERATION_MAP,
                                        .handle = again,
                                        .device_mask = 1 };
                    TRY(cuMemMapArrayAsync(&part, 1, NULL), (void)0);
                    FREED(cuMemRelease(again));
                });
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
}

/* Each graph holds its memory apart from others', and each node from the rest
   (BERTH_FAKE_LIKE=nodes). */
void test_graphs_apart(void)
{
    CUgraph graph;
    CUexec exec[3];
    CUnode node;
    CUmem_node memory = { .bytes = 20 * MIB };
    CUdeviceptr a;
    CUstream stream;
    start();
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
}

/* The card may be divided into parts that have memory of their own: it is the card's all the same.
 */
void test_parts(void)
{
    CUhandle handle;
    CUpool pool;
    CUdeviceptr a;
    CUalloc_prop prop = { .type = 1, .location = { CU_LOCATION_DEVICE_PART, 1 << 8 } };
    CUpool_props props = { .type = 1, .location = { CU_LOCATION_DEVICE_PART, 1 << 8 } };
    start();
    OOM(cuMemCreate(&handle, LIMIT + 2 * MIB, &prop, 0));
    OK(cuMemCreate(&handle, 40 * MIB, &prop, 0));
    HELD(40 * MIB);
    OK(cuMemRelease(handle));
    OK(cuMemPoolCreate(&pool, &props));
    OOM(cuMemAllocFromPoolAsync(&a, LIMIT + 1, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&a, LIMIT, pool, NULL));
    HELD(LIMIT);
}

/* Pools of other processes give nothing here, and what they are told of is counted there. */
void test_imported_pool(void)
{
    CUpool own, imported;
    CUpool_props props = { .type = 1, .handle_types = 1, .location = { 1, 0 } };
    CUdeviceptr a;
    int fd;
    start();
    OK(cuMemPoolCreate(&own, &props));
    OK(cuMemPoolExportToShareableHandle(&fd, own, CU_SHARE_FD, 0));
    OK(cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_SHARE_FD, 0));
    CHECK(cuMemAllocFromPoolAsync(&a, MIB, imported, NULL) != CUDA_SUCCESS);
    HELD(0);
    OK(cuMemAllocFromPoolAsync(&a, LIMIT, own, NULL));
    HELD(LIMIT);
}

/* The heap that a context is told to set aside is counted once, whether the driver takes it at once
   or with the next module (BERTH_FAKE_LIKE=heap). */
void test_heap(void)
{
    CUmodule module;
    CUdeviceptr a;
    start();
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 28 * MIB));
    CHECK(room() == LIMIT - 20 * MIB);
    OK(cuModuleLoadData(&module, "mib=4"));
    HELD(24 * MIB);
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    HELD(LIMIT);
    OOM(cuCtxSetLimit(CU_LIMIT_HEAP, 29 * MIB));
    CHECK(fake_violations(0) == 0);
}

/* A program that asks again and again fills no log, whichever way it asks. */
void test_refused_often(void)
{
    CUdeviceptr a;
    CUhandle handle;
    start();
    for (int i = 0; i < 100; i++) {
        OOM(cuMemAlloc_v2(&a, LIMIT + 1));
        OOM(cuMemAllocAsync(&a, LIMIT + 1, NULL));
        OOM(cuMemCreate(&handle, LIMIT + 2 * MIB, &on_device, 0));
    }
    OOM(cuMemAlloc_v2(&a, UINT64_MAX));
}

/* What another process made counts there, whoever it is passed on to. */
void test_passed_on(void)
{
    CUhandle theirs, own;
    uint64_t from[CU_FABRIC_BYTES / 8] = { 1, 1 }, out[CU_FABRIC_BYTES / 8]; /* of process 1 */
    start();
    for (int i = 0; i < 3; i++) {
        OK(cuMemImportFromShareableHandle(&theirs, from, CU_SHARE_FABRIC));
        OK(cuMemExportToShareableHandle(out, theirs, CU_SHARE_FABRIC, 0));
        OK(cuMemRelease(theirs));
        OK(cuMemCreate(&own, 40 * MIB, &on_device, 0));
        OK(cuMemExportToShareableHandle(out, own, CU_SHARE_FABRIC, 0));
        HELD(40 * MIB);
        OK(cuMemRelease(own));
        HELD(0);
    }
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
void test_fork_while_growing(void)
{
    CUcontext context;
    pthread_t thread;
    void *failed;
    start();
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
}

/* A sparse array ends with its context, and lets go what was mapped into it. */
void test_parts_and_context(void)
{
    CUcontext own;
    CUarray array;
    CUhandle handle;
    CUarray3d_desc desc = {
        .width = 1024, .height = 1024, .format = 0x20, .channels = 4, .flags = CU_ARRAY_SPARSE
    };
    start();
    OK(cuCtxCreate_v2(&own, 0, 0));
    OK(cuArray3DCreate_v2(&array, &desc));
    OK(cuMemCreate(&handle, 40 * MIB, &for_tiles, 0));
    CUmap_info part = {
        .resource = array, .operation = CU_OPERATION_MAP, .handle = handle, .device_mask = 1
    };
    part.part.level.width = part.part.level.height = 64;
    part.part.level.depth = 1;
    OK(cuMemMapArrayAsync(&part, 1, NULL));
    OK(cuMemRelease(handle));
    HELD(40 * MIB);
    OK(cuCtxDestroy_v2(own));
    HELD(0);
}

/* Under 0:64,1:32. What is unbound of one GPU leaves what the first version bound of another. */
void test_bound_on_two_gpus(void)
{
    CUcontext first, second;
    CUhandle object, handles[2];
    CUmulticast_prop prop = { 2, 64 * MIB, 1, 0 };
    CUalloc_prop on_second = on_device;
    on_second.location.id = 1;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuMulticastCreate(&object, &prop));
    OK(cuMulticastAddDevice(object, 0));
    OK(cuMulticastAddDevice(object, 1));
    OK(cuMemCreate(&handles[0], 20 * MIB, &on_device, 0));
    OK(cuMemCreate(&handles[1], 20 * MIB, &on_second, 0));
    for (int i = 0; i < 2; i++) {
        OK(cuMulticastBindMem(object, 0, handles[i], 0, 20 * MIB, 0));
        OK(cuMemRelease(handles[i]));
    }
    OK(cuMulticastUnbind(object, 0, 0, 20 * MIB));
    OK(cuCtxSetCurrent(first));
    CHECK(room() == 64 * MIB);
    OK(cuCtxSetCurrent(second));
    CHECK(room() == 12 * MIB);
    OK(cuMulticastUnbind(object, 1, 0, 20 * MIB));
    CHECK(room() == 32 * MIB);
}

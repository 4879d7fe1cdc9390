/* The ways past the limit that issue 36 of the project names, each as a program that tries it. */
#include "check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* ---- every current context with every kind of stream and every call ---- */

enum { GPUS = 2, CONTEXTS = 5, STREAMS = 4, CALLS = 6, TRIES = 16 };

static struct {
    CUcontext contexts[CONTEXTS]; /* none; the primary ones, an own one, a green one */
    CUstream streams[STREAMS];    /* the default, of an own context, of the other GPU, green */
    CUcontext primary[GPUS];
    CUpool own, standard;
    CUexec exec;
} world;

static void make_world(void)
{
    CUgreen green[GPUS];
    CUgraph graph;
    CUnode node;
    CUmem_node memory = { .pool = { .type = 1, .location = { 1, 0 } }, .bytes = 40 * MIB };
    CUpool_props on_second = { .type = 1, .location = { 1, 1 } };
    OK(cuInit(0));
    for (int gpu = 0; gpu < GPUS; gpu++) {
        OK(cuDevicePrimaryCtxRetain(&world.primary[gpu], gpu));
        OK(cuGreenCtxCreate(&green[gpu], NULL, gpu, 1));
    }
    OK(cuCtxCreate_v2(&world.contexts[3], 0, 0));
    world.contexts[1] = world.primary[0];
    world.contexts[2] = world.primary[1];
    OK(cuCtxFromGreenCtx(&world.contexts[4], green[0]));
    OK(cuStreamCreate(&world.streams[1], 0));
    OK(cuCtxSetCurrent(world.primary[1]));
    OK(cuStreamCreate(&world.streams[2], 0));
    OK(cuGreenCtxStreamCreate(&world.streams[3], green[1], 1, 0));
    OK(cuMemPoolCreate(&world.own, &on_second));
    OK(cuDeviceGetDefaultMemPool(&world.standard, 0));
    OK(cuCtxSetCurrent(world.primary[0]));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory));
    OK(cuGraphInstantiateWithFlags(&world.exec, graph, 0));
}

static CUresult call_once(int call, CUstream stream, CUdeviceptr *ptr)
{
    switch (call) {
    case 0:
        return cuMemAllocAsync(ptr, 10 * MIB, stream);
    case 1:
        return cuMemAllocAsync_ptsz(ptr, 10 * MIB, stream);
    case 2:
        return cuMemAllocFromPoolAsync(ptr, 10 * MIB, world.own, stream);
    case 3:
        return cuMemAllocFromPoolAsync_ptsz(ptr, 10 * MIB, world.standard, stream);
    case 4:
        return cuMemAlloc_v2(ptr, 10 * MIB);
    default:
        return cuGraphLaunch(world.exec, stream);
    }
}

/* On each GPU, what the driver holds and what berth says is left add up to the limit. */
static bool is_counted(void)
{
    CUcontext before;
    bool counted = true;
    OK(cuCtxGetCurrent(&before));
    for (int gpu = 0; gpu < GPUS; gpu++) {
        OK(cuCtxSetCurrent(world.primary[gpu]));
        counted = counted && fake_own_bytes(gpu) + room() == LIMIT;
    }
    OK(cuCtxSetCurrent(before));
    return counted;
}

static void give_back(CUdeviceptr *list, int count)
{
    for (int i = 0; i < count; i++)
        OK(cuMemFree_v2(list[i]));
    for (int gpu = 0; gpu < GPUS; gpu++) {
        OK(cuCtxSetCurrent(world.primary[gpu]));
        OK(cuCtxSynchronize());
        OK(cuDeviceGraphMemTrim(gpu));
        CHECK(fake_own_bytes(gpu) == 0 && room() == LIMIT);
    }
    for (int stream = 1; stream < STREAMS; stream++)
        OK(cuStreamSynchronize(world.streams[stream]));
}

/* Prints how many combinations the driver does for, how many of those passed uncounted, and how
   many were refused though there was room. Both GPUs have 64 MiB. */
void test_streams_and_contexts(void)
{
    int done = 0, uncounted = 0, refused = 0;
    make_world();
    for (int context = 0; context < CONTEXTS; context++)
        for (int stream = 0; stream < STREAMS; stream++)
            for (int call = 0; call < CALLS; call++) {
                CUdeviceptr list[TRIES];
                int made = 0;
                bool counted = true, is_graph = call == CALLS - 1;
                OK(cuCtxSetCurrent(world.contexts[context]));
                CUresult result = CUDA_SUCCESS;
                while (made < TRIES && result == CUDA_SUCCESS) {
                    result = call_once(call, world.streams[stream], &list[made]);
                    made += result == CUDA_SUCCESS;
                    counted = counted && is_counted();
                }
                /* Without a context, a call on no stream of its own is the driver's to refuse. */
                bool possible = context != 0 || (stream != 0 && call != 4);
                done += possible;
                uncounted += !counted || (!is_graph && made > 6);
                refused += possible && made < (is_graph ? TRIES : 6);
                CHECK(possible || result == CUDA_ERROR_INVALID_CONTEXT);
                give_back(list, is_graph ? 0 : made);
            }
    printf("%d possible, %d uncounted, %d falsely refused\n", done, uncounted, refused);
    CHECK(fake_violations(0) == 0 && fake_violations(1) == 0);
}

/* The first of the six: no current context, a green stream, and as much as the card has. */
void test_green_stream(void)
{
    CUgreen green;
    CUstream stream;
    CUdeviceptr ptr;
    CUpool pool;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    OK(cuInit(0));
    OK(cuGreenCtxCreate(&green, NULL, 0, 1));
    OK(cuGreenCtxStreamCreate(&stream, green, 1, 0));
    OK(cuMemAllocAsync(&ptr, LIMIT, stream));
    for (int i = 0; i < 8; i++)
        OOM(cuMemAllocAsync(&ptr, LIMIT / 2, stream));
    OK(cuMemPoolCreate(&pool, &props));
    for (int i = 0; i < 8; i++)
        OOM(cuMemAllocFromPoolAsync(&ptr, LIMIT / 2, pool, stream));
    CHECK(fake_own_bytes(0) == LIMIT && fake_violations(0) == 0);
}

/* ---- green contexts that have ended ---- */

void test_green_ended(void)
{
    CUgreen green;
    CUcontext context, primary;
    CUdeviceptr a, b;
    CUarray array;
    CUarray_desc plane = { 1024, 1024, 0x20, 1 };
    OK(cuInit(0));
    for (int i = 0; i < 3; i++) { /* alone: the primary context, and its memory, go with it */
        OK(cuGreenCtxCreate(&green, NULL, 0, 1));
        OK(cuCtxFromGreenCtx(&context, green));
        OK(cuCtxSetCurrent(context));
        OK(cuMemAlloc_v2(&a, 40 * MIB));
        OK(cuArrayCreate_v2(&array, &plane));
        CHECK(fake_own_bytes(0) == 44 * MIB && room() == 20 * MIB);
        OK(cuGreenCtxDestroy(green));
        CHECK(fake_own_bytes(0) == 0);
        OK(cuCtxSetCurrent(NULL));
    }
    start();
    HELD(0);
    OK(cuCtxGetCurrent(&primary));
    OK(cuGreenCtxCreate(&green, NULL, 0, 1));
    OK(cuCtxFromGreenCtx(&context, green));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    OK(cuCtxSetCurrent(primary));
    OK(cuGreenCtxDestroy(green)); /* what it allocated is the primary context's, which lives on */
    HELD(40 * MIB);
    OOM(cuMemAlloc_v2(&b, 30 * MIB));
    OK(cuMemFree_v2(a));
    HELD(0);
}

/* ---- tiles of sparse arrays ---- */

static CUmap_info tile(CUarray array, CUhandle handle, unsigned mask, unsigned x, unsigned width)
{
    CUmap_info info = { .resource = array,
                        .operation = handle != 0 ? CU_OPERATION_MAP : CU_OPERATION_UNMAP,
                        .handle = handle,
                        .device_mask = mask };
    info.part.level.x = x;
    info.part.level.width = width;
    info.part.level.height = 64;
    info.part.level.depth = 1;
    return info;
}

/* Maps memory of its own at a tile, which alone holds it then. */
static void map_new(CUarray array, unsigned mask, unsigned x, unsigned width)
{
    CUhandle handle;
    OK(cuMemCreate(&handle, 8 * MIB, &on_device, 0));
    CUmap_info info = tile(array, handle, mask, x, width);
    OK(cuMemMapArrayAsync(&info, 1, NULL));
    OK(cuMemRelease(handle));
}

void test_tiles(void)
{
    CUarray array;
    CUarray3d_desc desc = { 8192, 64, 0, 0x20, 4, CU_ARRAY_SPARSE };
    CUmap_info gone;
    start();
    OK(cuArray3DCreate_v2(&array, &desc));
    map_new(array, 1, 0, 256);
    map_new(array, 2, 0, 256); /* the same tile for another GPU: both are there */
    HELD(16 * MIB);
    map_new(array, 3, 0, 256); /* for both: it takes the place of both */
    HELD(8 * MIB);
    map_new(array, 1, 64, 64); /* in the middle: the rest keeps what it had */
    HELD(16 * MIB);
    map_new(array, 3, 0, 64);
    map_new(array, 1, 128, 128);
    HELD(32 * MIB); /* the first is still there for the second GPU */
    gone = tile(array, 0, 2, 0, 256);
    OK(cuMemMapArrayAsync(&gone, 1, NULL));
    HELD(24 * MIB);
    gone = tile(array, 0, 1, 0, 192);
    OK(cuMemMapArrayAsync(&gone, 1, NULL));
    HELD(8 * MIB);
    gone = tile(array, 0, 1, 0, 8192);
    OK(cuMemMapArrayAsync(&gone, 1, NULL));
    HELD(0);
    map_new(array, 1, 0, 64);
    OK(cuArrayDestroy(array));
    HELD(0);
}

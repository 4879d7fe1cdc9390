/* Hooks of what streams do: their memory, graphs, launches. */
#include "snippets.h"

#include <time.h>

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
static void frees_async(CUresult (*release)(CUdeviceptr, CUstream), CUresult (*wait)(void))
{
    CUdeviceptr a;
    start();
    OK(cuMemAllocAsync(&a, 20 * MIB, NULL));
    OK(release(a, NULL));
    HELD(20 * MIB);
    OK(wait());
    HELD(0);
    OK(cuMemAlloc_v2(&a, LIMIT));
    OK(release(a, NULL));
    OK(wait());
    HELD(0);
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
    frees_async(cuMemFreeAsync, wait_stream);
}
SNIPPET(cuMemFreeAsync_ptsz)
{
    frees_async(cuMemFreeAsync_ptsz, wait_stream);
}
SNIPPET(cuStreamSynchronize)
{
    frees_async(cuMemFreeAsync, wait_stream);
}
SNIPPET(cuStreamSynchronize_ptsz)
{
    frees_async(cuMemFreeAsync, wait_stream_ptsz);
}
SNIPPET(cuEventSynchronize)
{
    frees_async(cuMemFreeAsync, wait_event);
}
SNIPPET(cuCtxSynchronize)
{
    frees_async(cuMemFreeAsync, cuCtxSynchronize);
}
SNIPPET(cuCtxSynchronize_v2)
{
    frees_async(cuMemFreeAsync, wait_context);
}

/* A pool of the program's own that keeps what is freed. */
static void keeps_in_pool(bool destroyed)
{
    CUdeviceptr a;
    uint64_t keep = UINT64_MAX;
    start();
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
}

SNIPPET(cuMemPoolCreate)
{
    keeps_in_pool(true);
}
SNIPPET(cuMemPoolDestroy)
{
    keeps_in_pool(true);
}
SNIPPET(cuMemPoolTrimTo)
{
    keeps_in_pool(false);
}

/* ---- graphs ---- */

/* A captured allocation is a node of the graph, not memory; the graph is refused when it is made
   ready. */
static void captures(CUresult begun, CUstream stream)
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
}

#define CAPTURES(begin)                 \
    do {                                \
        CUstream stream;                \
        CUgraph graph;                  \
        start();                        \
        OK(cuStreamCreate(&stream, 0)); \
        OK(cuGraphCreate(&graph, 0));   \
        captures(begin, stream);        \
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

/* A capture that was not begun ends nothing. */
#define ENDS(end)                                  \
    do {                                           \
        CUstream stream;                           \
        CUgraph graph;                             \
        CUdeviceptr a;                             \
        start();                                   \
        OK(cuStreamCreate(&stream, 0));            \
        CHECK((end) != CUDA_SUCCESS);              \
        OK(cuStreamBeginCapture_v2(stream, 0));    \
        OK(end);                                   \
        OK(cuMemAllocAsync(&a, 20 * MIB, stream)); \
        HELD(20 * MIB);                            \
    } while (0)

SNIPPET(cuStreamEndCapture)
{
    ENDS(cuStreamEndCapture(stream, &graph));
}
SNIPPET(cuStreamEndCapture_ptsz)
{
    ENDS(cuStreamEndCapture_ptsz(stream, &graph));
}

/* A capture that its stream took along keeps nobody from asking. */
#define DESTROYED(destroy)                      \
    do {                                        \
        CUstream stream;                        \
        CUdeviceptr a;                          \
        start();                                \
        OK(cuStreamCreate(&stream, 0));         \
        OK(cuStreamBeginCapture_v2(stream, 0)); \
        OK(destroy);                            \
        CHECK((destroy) != CUDA_SUCCESS);       \
        OK(cuMemAlloc_v2(&a, 20 * MIB));        \
        HELD(20 * MIB);                         \
    } while (0)

SNIPPET(cuStreamDestroy)
{
    DESTROYED(cuStreamDestroy(stream));
}
SNIPPET(cuStreamDestroy_v2)
{
    DESTROYED(cuStreamDestroy_v2(stream));
}

/* A graph's memory is the driver's from its first launch until it is trimmed. */
#define RUNS_GRAPH(instantiate, launch)                                             \
    do {                                                                            \
        CUgraph graph, large;                                                       \
        CUexec made, *exec = &made;                                                 \
        CUnode node;                                                                \
        CUmem_node memory = { .bytes = 20 * MIB }, much = { .bytes = LIMIT + MIB }; \
        CUdeviceptr a;                                                              \
        start();                                                                    \
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
        start();                                                                                   \
        OK(cuModuleLoadData(&module, ""));                                                         \
        OK(cuModuleGetFunction(&function, module, "spin_1000"));                                   \
        clock_gettime(CLOCK_MONOTONIC, &from);                                                     \
        for (int i = 0; i < 100; i++)                                                              \
            OK(launch);                                                                            \
        clock_gettime(CLOCK_MONOTONIC, &to);                                                       \
        long passed_ms = (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000; \
        CHECK(fake_own_busy_ns(0) == 100000000);                                                   \
        CHECK(passed_ms >= 170 && passed_ms <= 220);                                               \
    } while (0)

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

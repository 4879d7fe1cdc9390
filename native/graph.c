/* Graphs, and streams that are being captured into one. What a graph's nodes allocate is the memory of its device's graphs. */
#define _GNU_SOURCE
#include "capture.h"
#include "devices.h"
#include "launch.h"
#include "ledger.h"
#include "pool.h"

#include <stdlib.h>

/* From the first capture on, a stream is asked before its allocations are counted: captured ones are graph nodes. */
#define CAPTURE(call)                                                             \
    do {                                                                          \
        atomic_store(&captured, 1);                                               \
        return call;                                                              \
    } while (0)

CUresult cuStreamBeginCapture(CUstream stream) { CAPTURE(REAL(cuStreamBeginCapture)(stream)); }
CUresult cuStreamBeginCapture_ptsz(CUstream stream) { CAPTURE(REAL(cuStreamBeginCapture_ptsz)(stream)); }
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) { CAPTURE(REAL(cuStreamBeginCapture_v2)(stream, mode)); }
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) { CAPTURE(REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode)); }
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUnode *needs, const void *edges, size_t count, int mode)
{
    CAPTURE(REAL(cuStreamBeginCaptureToGraph)(stream, graph, needs, edges, count, mode));
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUnode *needs, const void *edges, size_t count, int mode)
{
    CAPTURE(REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, needs, edges, count, mode));
}

/* What a graph's nodes allocate, its child graphs' too. */
static uint64_t graph_bytes(CUgraph graph, int depth)
{
    size_t count = 0;
    uint64_t bytes = 0;
    if (depth > 16 || !HAVE(cuGraphGetNodes) || !HAVE(cuGraphNodeGetType) || real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return 0;
    CUnode *nodes = malloc(count * sizeof *nodes);
    if (nodes == NULL || real.cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        CUmem_node memory;
        CUgraph child;
        int type = -1;
        if (real.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == CU_NODE_MEM_ALLOC && HAVE(cuGraphMemAllocNodeGetParams) && real.cuGraphMemAllocNodeGetParams(nodes[i], &memory) == CUDA_SUCCESS)
            bytes += memory.bytes;
        if (type == CU_NODE_GRAPH && HAVE(cuGraphChildGraphNodeGetGraph) && real.cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
            bytes += graph_bytes(child, depth + 1);
    }
    free(nodes);
    return bytes;
}

#define INSTANTIATE(call)                                                         \
    do {                                                                          \
        struct device *device = device_current();                                 \
        uint64_t bytes = device != NULL && exec != NULL ? graph_bytes(graph, 0) : 0; \
        struct growth growth;                                                  \
        if (bytes == 0)                                                           \
            return call;                                                          \
        CUresult result;                                                          \
        struct pool *pool = pools_begin_graph(device, bytes, "cuGraphInstantiate", &growth, &result); \
        if (result != CUDA_SUCCESS)                                               \
            return result;                                                        \
        result = call;                                                            \
        if (pool != NULL)                                                         \
            pools_end_graph(pool, &growth);                                       \
        if (result == CUDA_SUCCESS)                                               \
            ledger_put((struct entry){ .key = (uint64_t)(uintptr_t)*exec, .bytes = bytes, .kind = GRAPH, .device = (uint16_t)device->ordinal }); \
        return result;                                                            \
    } while (0)

CUresult cuGraphInstantiate(CUexec *exec, CUgraph graph, CUnode *node, char *log, size_t size) { INSTANTIATE(REAL(cuGraphInstantiate)(exec, graph, node, log, size)); }
CUresult cuGraphInstantiate_v2(CUexec *exec, CUgraph graph, CUnode *node, char *log, size_t size) { INSTANTIATE(REAL(cuGraphInstantiate_v2)(exec, graph, node, log, size)); }
CUresult cuGraphInstantiateWithFlags(CUexec *exec, CUgraph graph, unsigned long long flags) { INSTANTIATE(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags)); }
CUresult cuGraphInstantiateWithParams(CUexec *exec, CUgraph graph, void *params) { INSTANTIATE(REAL(cuGraphInstantiateWithParams)(exec, graph, params)); }
CUresult cuGraphInstantiateWithParams_ptsz(CUexec *exec, CUgraph graph, void *params) { INSTANTIATE(REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, params)); }

CUresult cuGraphExecDestroy(CUexec exec)
{
    struct entry entry;
    if (atomic_load_explicit(&limiting, memory_order_relaxed))
        ledger_take(GRAPH, (uint64_t)(uintptr_t)exec, &entry);
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (atomic_load_explicit(&limiting, memory_order_relaxed))
        pools_true_up(NULL);
    return result;
}

static CUresult launch_graph(CUexec exec, CUstream stream, bool per_thread)
{
    struct entry entry;
    struct growth growth;
    struct pool *pool = NULL;
    struct probe *probe = NULL;
    CUresult result = CUDA_SUCCESS;
    if (atomic_load_explicit(&limiting, memory_order_relaxed)) {
        if (ledger_get(GRAPH, (uint64_t)(uintptr_t)exec, &entry))
            pool = pools_begin_graph(device_at(entry.device), entry.bytes, "cuGraphLaunch", &growth, &result);
        if (result != CUDA_SUCCESS)
            return result;
        if (atomic_load_explicit(&pacing, memory_order_relaxed))
            probe = pace(exec, 0, stream, per_thread);
    }
    result = per_thread ? REAL(cuGraphLaunch_ptsz)(exec, stream) : REAL(cuGraphLaunch)(exec, stream);
    if (probe != NULL)
        pace_measured(probe, stream, per_thread, result);
    if (pool != NULL)
        pools_end_graph(pool, &growth);
    return result;
}

CUresult cuGraphLaunch(CUexec exec, CUstream stream) { return launch_graph(exec, stream, false); }
CUresult cuGraphLaunch_ptsz(CUexec exec, CUstream stream) { return launch_graph(exec, stream, true); }

/* Readies a graph for its launch, its memory too. */
static CUresult upload_graph(CUexec exec, CUstream stream, bool per_thread)
{
    struct entry entry;
    struct growth growth;
    struct pool *pool = NULL;
    CUresult result = CUDA_SUCCESS;
    if (atomic_load_explicit(&limiting, memory_order_relaxed) && ledger_get(GRAPH, (uint64_t)(uintptr_t)exec, &entry))
        pool = pools_begin_graph(device_at(entry.device), entry.bytes, "cuGraphUpload", &growth, &result);
    if (result != CUDA_SUCCESS)
        return result;
    result = per_thread ? REAL(cuGraphUpload_ptsz)(exec, stream) : REAL(cuGraphUpload)(exec, stream);
    if (pool != NULL)
        pools_end_graph(pool, &growth);
    return result;
}

CUresult cuGraphUpload(CUexec exec, CUstream stream) { return upload_graph(exec, stream, false); }
CUresult cuGraphUpload_ptsz(CUexec exec, CUstream stream) { return upload_graph(exec, stream, true); }

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (atomic_load_explicit(&limiting, memory_order_relaxed))
        pools_true_up(NULL);
    return result;
}

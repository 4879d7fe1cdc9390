/* Graphs, and streams that are being captured into one. What a graph's nodes allocate is the memory
   of its device's graphs. */
#define _GNU_SOURCE
#include "capture.h"
#include "devices.h"
#include "launch.h"
#include "ledger.h"
#include "measure.h"
#include "parts.h"
#include "pool.h"

#include <stdlib.h>

/* From the first capture on, a stream is asked before its allocations are counted: captured ones
   are graph nodes. */
static void captures(void)
{
    atomic_store(&captured, 1);
}

CUresult cuStreamBeginCapture(CUstream stream)
{
    captures();
    return REAL(cuStreamBeginCapture)(stream);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    captures();
    return REAL(cuStreamBeginCapture_ptsz)(stream);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    captures();
    return REAL(cuStreamBeginCapture_v2)(stream, mode);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
    captures();
    return REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode);
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *call,
                                       void *data)
{
    captures();
    return REAL(cuStreamBeginRecaptureToGraph)(stream, mode, graph, call, data);
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph, void *call,
                                            void *data)
{
    captures();
    return REAL(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, call, data);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUnode *needs,
                                     const void *edges, size_t count, int mode)
{
    captures();
    return REAL(cuStreamBeginCaptureToGraph)(stream, graph, needs, edges, count, mode);
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUnode *needs,
                                          const void *edges, size_t count, int mode)
{
    captures();
    return REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, needs, edges, count, mode);
}

/* What a graph's nodes allocate, its child graphs' too: `bytes` together, `apart` where each takes
   whole steps of its own. */
struct need {
    uint64_t bytes, apart;
};

/* Of an executable graph: where and when its memory was last made real. */
struct memory {
    struct need need;
    bool ready;
    CUstream stream;
    uint32_t trims;
};
static struct turn turn;

static void add_needs(struct need *need, const struct device *device, CUgraph graph, int depth)
{
    size_t count = 0;
    if (depth > 16 || !HAVE(cuGraphGetNodes) || !HAVE(cuGraphNodeGetType) ||
        real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    CUnode *nodes = malloc(count * sizeof *nodes);
    if (nodes == NULL || real.cuGraphGetNodes(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        CUmem_node memory;
        CUgraph child;
        int type = -1;
        if (real.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == CU_NODE_MEM_ALLOC && HAVE(cuGraphMemAllocNodeGetParams) &&
            real.cuGraphMemAllocNodeGetParams(nodes[i], &memory) == CUDA_SUCCESS) {
            need->bytes += memory.bytes;
            need->apart += pools_whole_steps(device, memory.bytes);
        }
        if (type == CU_NODE_GRAPH && HAVE(cuGraphChildGraphNodeGetGraph) &&
            real.cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
            add_needs(need, device, child, depth + 1);
    }
    free(nodes);
}

/* Around an instantiation: `device` is NULL where the graph has no memory. */
struct instantiation {
    struct device *device;
    struct pool *pool;
    struct growth growth;
    struct need need;
};

static CUresult instantiate_begin(struct instantiation *instantiation, const CUexec *exec,
                                  CUgraph graph)
{
    struct need need = { 0, 0 };
    struct device *device = exec != NULL && graph != NULL ? device_current() : NULL;
    CUresult refused = CUDA_SUCCESS;
    *instantiation = (struct instantiation){ .device = NULL };
    if (device != NULL)
        add_needs(&need, device, graph, 0);
    if (need.bytes == 0)
        return CUDA_SUCCESS;
    instantiation->device = device;
    instantiation->need = need;
    instantiation->pool = pools_begin_graph(device, need.bytes, need.apart, "cuGraphInstantiate",
                                            &instantiation->growth, &refused);
    return refused;
}

static CUresult instantiate_end(struct instantiation *instantiation, const CUexec *exec,
                                CUresult result)
{
    struct device *device = instantiation->device;
    if (device == NULL)
        return result;
    if (instantiation->pool != NULL)
        pools_end_graph(instantiation->pool, &instantiation->growth);
    struct memory *memory = result == CUDA_SUCCESS ? malloc(sizeof *memory) : NULL;
    if (result == CUDA_SUCCESS && memory == NULL) {
        REAL(cuGraphExecDestroy)(*exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (memory != NULL) {
        *memory = (struct memory){ .need = instantiation->need };
        ledger_put((struct entry){ .key = (uint64_t)(uintptr_t)*exec,
                                   .bytes = memory->need.bytes,
                                   .owner = memory,
                                   .kind = GRAPH,
                                   .device = (uint16_t)device->ordinal });
    }
    return result;
}

CUresult cuGraphInstantiate(CUexec *exec, CUgraph graph, CUnode *node, char *log, size_t size)
{
    struct instantiation made;
    CUresult refused = instantiate_begin(&made, exec, graph);
    return refused != CUDA_SUCCESS
               ? refused
               : instantiate_end(&made, exec,
                                 REAL(cuGraphInstantiate)(exec, graph, node, log, size));
}

CUresult cuGraphInstantiate_v2(CUexec *exec, CUgraph graph, CUnode *node, char *log, size_t size)
{
    struct instantiation made;
    CUresult refused = instantiate_begin(&made, exec, graph);
    return refused != CUDA_SUCCESS
               ? refused
               : instantiate_end(&made, exec,
                                 REAL(cuGraphInstantiate_v2)(exec, graph, node, log, size));
}

CUresult cuGraphInstantiateWithFlags(CUexec *exec, CUgraph graph, unsigned long long flags)
{
    struct instantiation made;
    CUresult refused = instantiate_begin(&made, exec, graph);
    return refused != CUDA_SUCCESS
               ? refused
               : instantiate_end(&made, exec,
                                 REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

CUresult cuGraphInstantiateWithParams(CUexec *exec, CUgraph graph, void *params)
{
    struct instantiation made;
    CUresult refused = instantiate_begin(&made, exec, graph);
    return refused != CUDA_SUCCESS
               ? refused
               : instantiate_end(&made, exec,
                                 REAL(cuGraphInstantiateWithParams)(exec, graph, params));
}

CUresult cuGraphInstantiateWithParams_ptsz(CUexec *exec, CUgraph graph, void *params)
{
    struct instantiation made;
    CUresult refused = instantiate_begin(&made, exec, graph);
    return refused != CUDA_SUCCESS
               ? refused
               : instantiate_end(&made, exec,
                                 REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, params));
}

CUresult cuGraphExecDestroy(CUexec exec)
{
    struct entry entry;
    bool known = atomic_load_explicit(&limiting, memory_order_relaxed) &&
                 ledger_take(GRAPH, (uint64_t)(uintptr_t)exec, &entry);
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (known && result == CUDA_SUCCESS)
        free(entry.owner);
    else if (known)
        ledger_put(entry);
    if (atomic_load_explicit(&limiting, memory_order_relaxed))
        parts_reclaim(NULL);
    return result;
}

/* A graph whose memory was made real stays so until the device's is trimmed: only then, or on
   another stream, where it may not share what it shared before, does it need anything. What another
   graph has is not there for this one. */
struct readying {
    struct pool *pool;
    struct memory *memory;
    struct growth growth;
    CUstream stream;
};

static CUresult ready_begin(struct readying *readying, CUexec exec, CUstream stream,
                            const char *call)
{
    struct entry entry;
    CUresult refused;
    *readying = (struct readying){ .stream = stream };
    if (!atomic_load_explicit(&limiting, memory_order_relaxed) ||
        !ledger_get(GRAPH, (uint64_t)(uintptr_t)exec, &entry))
        return CUDA_SUCCESS;
    struct device *device = device_at(entry.device);
    struct memory *memory = entry.owner;
    turn_take(&turn);
    bool ready =
        memory->ready && memory->stream == stream && memory->trims == pools_graph_trims(device);
    struct need need = memory->need;
    turn_leave(&turn);
    if (ready)
        return CUDA_SUCCESS;
    readying->memory = memory;
    readying->pool =
        pools_begin_graph(device, need.bytes, need.apart, call, &readying->growth, &refused);
    return refused;
}

static CUresult ready_end(struct readying *readying, CUresult result)
{
    if (readying->pool == NULL)
        return result;
    pools_end_graph(readying->pool, &readying->growth);
    turn_take(&turn);
    readying->memory->ready = result == CUDA_SUCCESS;
    readying->memory->stream = readying->stream;
    readying->memory->trims = readying->growth.trims;
    turn_leave(&turn);
    return result;
}

static CUresult launch_graph(CUexec exec, CUstream stream, bool per_thread)
{
    struct readying readying;
    struct probe *probe = NULL;
    CUresult result = ready_begin(&readying, exec, stream, "cuGraphLaunch");
    if (result != CUDA_SUCCESS)
        return result;
    if (atomic_load_explicit(&pacing, memory_order_relaxed))
        probe = pace(exec, 0, stream, per_thread);
    result =
        per_thread ? REAL(cuGraphLaunch_ptsz)(exec, stream) : REAL(cuGraphLaunch)(exec, stream);
    if (probe != NULL)
        measure_end(probe, stream, per_thread, result);
    return ready_end(&readying, result);
}

CUresult cuGraphLaunch(CUexec exec, CUstream stream)
{
    return launch_graph(exec, stream, false);
}

CUresult cuGraphLaunch_ptsz(CUexec exec, CUstream stream)
{
    return launch_graph(exec, stream, true);
}

/* Readies a graph for its launch, its memory too. */
CUresult cuGraphUpload(CUexec exec, CUstream stream)
{
    struct readying readying;
    CUresult refused = ready_begin(&readying, exec, stream, "cuGraphUpload");
    return refused != CUDA_SUCCESS ? refused
                                   : ready_end(&readying, REAL(cuGraphUpload)(exec, stream));
}

CUresult cuGraphUpload_ptsz(CUexec exec, CUstream stream)
{
    struct readying readying;
    CUresult refused = ready_begin(&readying, exec, stream, "cuGraphUpload");
    return refused != CUDA_SUCCESS ? refused
                                   : ready_end(&readying, REAL(cuGraphUpload_ptsz)(exec, stream));
}

CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
    CUresult result = REAL(cuDeviceGraphMemTrim)(dev);
    if (atomic_load_explicit(&limiting, memory_order_relaxed)) {
        pools_graph_trimmed(device_of(dev));
        parts_reclaim(NULL);
    }
    return result;
}

static void graph_forget(void)
{
    atomic_store(&turn.word, 0);
}

PART(.forget = graph_forget);

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
#include "settings.h"
#include "vmm.h"

#include <stdlib.h>

static CUresult began(CUresult result)
{
    if (result == CUDA_SUCCESS)
        capture_began();
    return result;
}
#define CAPTURES(name, params, args)                                            \
    DEFINE_TWINS(name, params, (capture_begins(), began(REAL_TWIN(name) args)))
#include "hooks.h"

/* A spoiled capture ends too, with an error; one that another thread is to end does not. */
static CUresult end_capture(CUstream stream, CUgraph *graph, bool per_thread)
{
    capture_ends();
    bool captured = capturing(stream, per_thread);
    CUresult result = REAL_TWIN(cuStreamEndCapture)(stream, graph);
    capture_ended(captured && !capturing(stream, per_thread));
    return result;
}
DEFINE_TWINS(cuStreamEndCapture, (CUstream stream, CUgraph *graph),
             end_capture(stream, graph, per_thread))

/* A capture ends with its stream. */
#define DESTROYS(name)                                     \
    CUresult name(CUstream stream)                         \
    {                                                      \
        capture_ends();                                    \
        bool captured = capturing(stream, false);          \
        CUresult result = REAL(name)(stream);              \
        capture_ended(captured && result == CUDA_SUCCESS); \
        return result;                                     \
    }
DESTROYS(cuStreamDestroy)
DESTROYS(cuStreamDestroy_v2)

/* What a graph's nodes allocate, its child graphs' too: `bytes` together, `apart` where each takes
   whole steps of its own. */
struct need {
    struct device *device;
    uint64_t bytes, apart;
};

enum { GRAPH_DEVICES = 16, GRAPH_DEPTH = 64 };

/* Of an executable graph: what it needs of each GPU, and where and when that was last made real. */
struct memory {
    unsigned count;
    struct need needs[GRAPH_DEVICES];
    bool ready;
    CUstream stream;
    uint32_t trims;
};
static struct turn turn;

static bool refuse_unreported(const char *call, CUresult result)
{
    static shared32 logged;
    if (atomic_fetch_add(&logged, 1) < 16)
        log_line("refused a graph: the driver does not tell what its nodes allocate (%s: error %d)",
                 call, result);
    return false;
}

static bool add_need(struct memory *memory, const CUmem_node *node)
{
    const CUlocation *location = &node->pool.location;
    struct device *device =
        location->type == 0 ? device_for_memory() : device_at_location(location, node->pool.type);
    unsigned at = 0;
    if (device == NULL)
        return true;
    while (at < memory->count && memory->needs[at].device != device)
        at++;
    if (at == GRAPH_DEVICES)
        return refuse_unreported("memory on too many GPUs", CUDA_ERROR_NOT_SUPPORTED);
    if (at == memory->count)
        memory->needs[memory->count++] = (struct need){ .device = device };
    memory->needs[at].bytes += node->bytes;
    memory->needs[at].apart += pools_whole_steps(device, node->bytes);
    return true;
}

/* False where the driver does not tell: such a graph is refused. */
static bool add_needs(struct memory *memory, CUgraph graph, int depth)
{
    size_t count = 0;
    if (depth > GRAPH_DEPTH)
        return refuse_unreported("graphs nested too deep", CUDA_ERROR_NOT_SUPPORTED);
    if (!HAVE(cuGraphMemAllocNodeGetParams) && !HAVE(cuDeviceGetGraphMemAttribute))
        return true; /* a driver from before graphs had memory */
    if (!HAVE(cuGraphGetNodes) || !HAVE(cuGraphNodeGetType))
        return refuse_unreported("cuGraphGetNodes", CUDA_ERROR_NOT_FOUND);
    CUresult result = real.cuGraphGetNodes(graph, NULL, &count);
    if (result != CUDA_SUCCESS)
        return refuse_unreported("cuGraphGetNodes", result);
    CUnode *nodes = count != 0 ? malloc(count * sizeof *nodes) : NULL;
    if (count != 0 && nodes == NULL)
        return false;
    if (count != 0 && (result = real.cuGraphGetNodes(graph, nodes, &count)) != CUDA_SUCCESS) {
        free(nodes);
        return refuse_unreported("cuGraphGetNodes", result);
    }
    bool reported = true;
    for (size_t i = 0; i < count && reported; i++) {
        CUmem_node node;
        CUgraph child;
        int type = -1;
        if ((result = real.cuGraphNodeGetType(nodes[i], &type)) != CUDA_SUCCESS) {
            reported = refuse_unreported("cuGraphNodeGetType", result);
        } else if (type == CU_NODE_MEM_ALLOC) {
            result = REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &node);
            reported = result == CUDA_SUCCESS
                           ? add_need(memory, &node)
                           : refuse_unreported("cuGraphMemAllocNodeGetParams", result);
        } else if (type == CU_NODE_GRAPH) {
            result = REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child);
            reported = result == CUDA_SUCCESS
                           ? add_needs(memory, child, depth + 1)
                           : refuse_unreported("cuGraphChildGraphNodeGetGraph", result);
        }
    }
    free(nodes);
    return reported;
}

/* What is taken of each GPU around a call that may make a graph's memory real. */
struct taking {
    unsigned count;
    struct pool *pools[GRAPH_DEVICES];
    struct growth growths[GRAPH_DEVICES];
};

static void taking_end(struct taking *taking)
{
    for (unsigned i = 0; i < taking->count; i++)
        pools_end_graph(taking->pools[i], &taking->growths[i]);
}

static CUresult taking_begin(struct taking *taking, const struct memory *memory, const char *call)
{
    CUresult refused = CUDA_SUCCESS;
    taking->count = 0;
    for (unsigned i = 0; i < memory->count && refused == CUDA_SUCCESS; i++) {
        const struct need *need = &memory->needs[i];
        struct pool *pool = pools_begin_graph(need->device, need->bytes, need->apart, call,
                                              &taking->growths[taking->count], &refused);
        if (pool != NULL)
            taking->pools[taking->count++] = pool;
    }
    if (refused != CUDA_SUCCESS)
        taking_end(taking);
    return refused;
}

/* Around an instantiation: `memory.count` is 0 where the graph has no memory. */
struct instantiation {
    struct memory memory;
    struct taking taking;
};

static CUresult instantiate_begin(struct instantiation *instantiation, const CUexec *exec,
                                  CUgraph graph)
{
    instantiation->memory.count = 0;
    if (!limits_any() || exec == NULL || graph == NULL)
        return CUDA_SUCCESS;
    instantiation->memory = (struct memory){ .count = 0 };
    if (!add_needs(&instantiation->memory, graph, 0))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return taking_begin(&instantiation->taking, &instantiation->memory, "cuGraphInstantiate");
}

static CUresult instantiate_end(struct instantiation *instantiation, const CUexec *exec,
                                CUresult result)
{
    if (instantiation->memory.count == 0)
        return result;
    taking_end(&instantiation->taking);
    struct memory *memory = result == CUDA_SUCCESS ? malloc(sizeof *memory) : NULL;
    if (result == CUDA_SUCCESS && memory == NULL) {
        REAL(cuGraphExecDestroy)(*exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (memory != NULL) {
        *memory = instantiation->memory;
        ledger_put(entry_of(GRAPH, (uintptr_t)*exec, memory->needs[0].bytes, memory,
                            memory->needs[0].device->ordinal));
    }
    return result;
}

#define INSTANTIATES(name, params, args)                                                          \
    CUresult name params                                                                          \
    {                                                                                             \
        struct instantiation made;                                                                \
        CUresult refused = instantiate_begin(&made, exec, graph);                                 \
        return refused != CUDA_SUCCESS ? refused : instantiate_end(&made, exec, REAL(name) args); \
    }
#include "hooks.h"

CUresult cuGraphExecDestroy(CUexec exec)
{
    struct entry entry;
    bool known = limits_any() && ledger_take(GRAPH, (uintptr_t)exec, &entry);
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    if (known && result == CUDA_SUCCESS)
        free(entry.owner);
    else if (known)
        ledger_put(entry);
    if (limits_any())
        parts_reclaim(NULL);
    return result;
}

/* A graph whose memory was made real stays so until the device's is trimmed: only then, or on
   another stream, where it may not share what it shared before, does it need anything. What another
   graph has is not there for this one. */
struct readying {
    struct memory *memory; /* NULL: nothing is taken for it */
    struct taking taking;
    CUstream stream;
};

static uint32_t trims_of(const struct memory *memory)
{
    uint32_t trims = 0;
    for (unsigned i = 0; i < memory->count; i++)
        trims += pools_graph_trims(memory->needs[i].device);
    return trims;
}

static CUresult ready_begin(struct readying *readying, CUexec exec, CUstream stream,
                            const char *call)
{
    struct entry entry;
    readying->memory = NULL;
    if (!limits_any() || !ledger_get(GRAPH, (uintptr_t)exec, &entry))
        return CUDA_SUCCESS;
    struct memory *memory = entry.owner;
    uint32_t trims = trims_of(memory);
    if (WITHIN(&turn, memory->ready && memory->stream == stream && memory->trims == trims))
        return CUDA_SUCCESS;
    CUresult refused = taking_begin(&readying->taking, memory, call);
    if (refused == CUDA_SUCCESS) {
        readying->memory = memory;
        readying->stream = stream;
    }
    return refused;
}

static CUresult ready_end(struct readying *readying, CUresult result)
{
    struct memory *memory = readying->memory;
    uint32_t trims = 0;
    if (memory == NULL)
        return result;
    for (unsigned i = 0; i < readying->taking.count; i++)
        trims += readying->taking.growths[i].trims;
    taking_end(&readying->taking);
    IN_TURN(&turn);
    memory->ready = result == CUDA_SUCCESS;
    memory->stream = readying->stream;
    memory->trims = trims;
    return result;
}

static CUresult launch_graph(CUexec exec, CUstream stream, bool per_thread)
{
    struct readying readying;
    struct probe *probe = NULL;
    CUresult result = ready_begin(&readying, exec, stream, "cuGraphLaunch");
    if (result != CUDA_SUCCESS)
        return result;
    if (LOAD(pacing))
        probe = pace(exec, 0, stream, per_thread);
    result = REAL_TWIN(cuGraphLaunch)(exec, stream);
    if (probe != NULL)
        measure_end(probe, stream, per_thread, result);
    return ready_end(&readying, result);
}

DEFINE_TWINS(cuGraphLaunch, (CUexec exec, CUstream stream), launch_graph(exec, stream, per_thread))

/* Readies a graph for its launch, its memory too. */
static CUresult upload(CUexec exec, CUstream stream, bool per_thread)
{
    struct readying readying;
    CUresult refused = ready_begin(&readying, exec, stream, "cuGraphUpload");
    return refused != CUDA_SUCCESS ? refused
                                   : ready_end(&readying, REAL_TWIN(cuGraphUpload)(exec, stream));
}
DEFINE_TWINS(cuGraphUpload, (CUexec exec, CUstream stream), upload(exec, stream, per_thread))

CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
    CUresult result = REAL(cuDeviceGraphMemTrim)(dev);
    if (limits_any()) {
        pools_graph_trimmed(device_of(dev));
        parts_reclaim(NULL);
    }
    return result;
}

PART(.turn = &turn);

/* The driver's graphs: each that is launched holds the memory of its nodes until it is destroyed. */
#include "driver.h"
#include <stdlib.h>

struct CUgraph_st { CUgraphNode nodes[8]; size_t count; };
struct CUgraphNode_st { CUDA_MEM_ALLOC_NODE_PARAMS params; };
struct CUgraphExec_st { uint64_t bytes; bool holds; };
static uint64_t graph_bytes;

CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    (void)flags;
    *graph = calloc(1, sizeof **graph);
    return CUDA_SUCCESS;
}
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    NEEDS_CONTEXT;
    (void)needs, (void)count;
    *node = graph->nodes[graph->count++] = malloc(sizeof **node);
    params->dptr = 0x900000000 + (uintptr_t)*node % 0x10000000;
    (*node)->params = *params;
    return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    for (size_t i = 0; nodes != NULL && i < graph->count && i < *count; i++)
        nodes[i] = graph->nodes[i];
    *count = graph->count;
    return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    (void)node;
    *type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    return CUDA_SUCCESS;
}
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    *params = node->params;
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    NEEDS_CONTEXT;
    (void)flags;
    *exec = calloc(1, sizeof **exec);
    for (size_t i = 0; i < graph->count; i++)
        (*exec)->bytes += (graph->nodes[i]->params.bytesize + 32 * MIB - 1) / (32 * MIB) * (32 * MIB);
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    NEEDS_CONTEXT;
    (void)stream;
    EXPECT(exec->holds || charge(exec->bytes), CUDA_ERROR_OUT_OF_MEMORY);
    graph_bytes += exec->holds ? 0 : exec->bytes;
    exec->holds = true;
    return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    if (exec->holds) {
        refund(exec->bytes);
        graph_bytes -= exec->bytes;
    }
    free(exec);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute what, void *value)
{
    (void)device, (void)what;
    *(uint64_t *)value = graph_bytes;
    return CUDA_SUCCESS;
}

/* Captures and graphs, and the memory of graphs. */
#include "fake_inside.h"

static uint64_t graph_reserved[FAKE_GPUS], graph_used[FAKE_GPUS], graph_idle[FAKE_GPUS];
static _Thread_local int capture_mode;
static _Atomic int global_captures;
static _Atomic bool capture_spoiled;

CUresult fake_graph_alloc(CUgraph graph, uint32_t gpu, uint64_t bytes, uint64_t *ptr, CUnode *out)
{
    struct CUnode_st *node = calloc(1, sizeof *node);
    fake_books();
    *node = (struct CUnode_st){ .type = CU_NODE_MEM_ALLOC,
                                .bytes = bytes,
                                .ptr = fake_address(bytes),
                                .gpu = gpu,
                                .next = graph->nodes };
    graph->nodes = node;
    graph->count++;
    fake_books_done();
    *ptr = node->ptr;
    if (out != NULL)
        *out = node;
    return CUDA_SUCCESS;
}

DO cuThreadExchangeStreamCaptureMode(int *mode)
{
    CUresult wrong = fake_given(CUDA_SUCCESS, mode);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* While a stream is captured for all to respect, calls that a capture cannot hold spoil it, of
   threads that do not say that they know what they do. */
CUresult fake_safe(CUresult before)
{
    if (before != CUDA_SUCCESS || atomic_load(&global_captures) == 0 ||
        capture_mode == CU_CAPTURE_RELAXED)
        return before;
    atomic_store(&capture_spoiled, true);
    return CUDA_ERROR_CAPTURE_UNSUPPORTED;
}

DO cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    struct CUctx_st *context;
    CUresult wrong = fake_on_stream(__func__, stream, &context);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if ((uintptr_t)stream <= 2)
        return CUDA_ERROR_CAPTURE_UNSUPPORTED;
    stream->capture_mode = mode;
    if (mode == 0)
        atomic_fetch_add(&global_captures, 1);
    fake_stream(stream)->capture = calloc(1, sizeof(struct CUgraph_st));
    return CUDA_SUCCESS;
}
DO cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
    return cuStreamBeginCapture_v2(stream, mode);
}
DO cuStreamBeginCapture(CUstream stream)
{
    return cuStreamBeginCapture_v2(stream, 0);
}
DO cuStreamBeginCapture_ptsz(CUstream stream)
{
    return cuStreamBeginCapture_v2(stream, 0);
}
DO cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUnode *needs,
                               const void *edges, size_t count, int mode)
{
    (void)needs, (void)edges, (void)count;
    struct CUctx_st *context;
    CUresult wrong = fake_given(fake_on_stream(__func__, stream, &context), graph);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if ((uintptr_t)stream <= 2)
        return CUDA_ERROR_CAPTURE_UNSUPPORTED;
    stream->capture_mode = mode;
    if (mode == 0)
        atomic_fetch_add(&global_captures, 1);
    fake_stream(stream)->capture = graph;
    return CUDA_SUCCESS;
}
DO cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUnode *needs,
                                    const void *edges, size_t count, int mode)
{
    return cuStreamBeginCaptureToGraph(stream, graph, needs, edges, count, mode);
}
DO cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *call, void *data)
{
    (void)call, (void)data;
    return cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, mode);
}
DO cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph, void *call,
                                      void *data)
{
    return cuStreamBeginRecaptureToGraph(stream, mode, graph, call, data);
}
void fake_capture_gone(CUstream stream)
{
    if (stream->capture != NULL && stream->capture_mode == 0 &&
        atomic_fetch_sub(&global_captures, 1) == 1)
        atomic_store(&capture_spoiled, false);
}
DO cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    struct CUctx_st *context;
    CUresult wrong = fake_given(fake_on_stream(__func__, stream, &context), graph);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *graph = fake_stream(stream)->capture;
    fake_stream(stream)->capture = NULL;
    if (*graph != NULL && fake_stream(stream)->capture_mode == 0 &&
        atomic_fetch_sub(&global_captures, 1) == 1 && atomic_exchange(&capture_spoiled, false))
        return CUDA_ERROR_CAPTURE_INVALIDATED;
    return *graph != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
DO cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return cuStreamEndCapture(stream, graph);
}
DO cuStreamIsCapturing(CUstream stream, int *status)
{
    struct CUctx_st *context;
    CUresult wrong = fake_on_stream(__func__, stream, &context);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *status = fake_stream(stream)->capture != NULL;
    return CUDA_SUCCESS;
}
DO cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
    return cuStreamIsCapturing(stream, status);
}
DO cuGraphCreate(CUgraph *graph, unsigned flags)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)flags;
    *graph = calloc(1, sizeof **graph);
    return CUDA_SUCCESS;
}
DO cuGraphDestroy(CUgraph graph)
{
    CUresult wrong = fake_given(fake_ready(__func__), graph);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    while (graph->nodes != NULL) {
        struct CUnode_st *next = graph->nodes->next;
        free(graph->nodes);
        graph->nodes = next;
    }
    free(graph);
    return CUDA_SUCCESS;
}
DO cuGraphAddMemAllocNode(CUnode *node, CUgraph graph, const CUnode *needs, size_t count,
                          CUmem_node *params)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)needs, (void)count;
    bool placed = params->pool.location.type == CU_LOCATION_DEVICE;
    wrong = fake_on_gpu(__func__, placed ? params->pool.location.id : 0);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    uint32_t gpu = placed                 ? fake_gpu_at(params->pool.location.id)
                   : fake_context != NULL ? fake_context->gpu
                                          : 0;
    return fake_graph_alloc(graph, gpu, params->bytes, &params->ptr, node);
}
static bool has_memory(CUgraph graph)
{
    for (struct CUnode_st *node = graph->nodes; node != NULL; node = node->next)
        if (node->type == CU_NODE_MEM_ALLOC || (node->child != NULL && has_memory(node->child)))
            return true;
    return false;
}
/* A graph with memory becomes a child only if it moves there: it cannot be cloned. */
static CUresult add_child(CUnode *out, CUgraph graph, CUgraph child, int ownership)
{
    if (ownership != CU_CHILD_MOVES && has_memory(child))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct CUnode_st *node = calloc(1, sizeof *node);
    *node = (struct CUnode_st){ .type = CU_NODE_GRAPH, .child = child, .next = graph->nodes };
    graph->nodes = *out = node;
    graph->count++;
    return CUDA_SUCCESS;
}
DO cuGraphAddChildGraphNode(CUnode *out, CUgraph graph, const CUnode *needs, size_t count,
                            CUgraph child)
{
    (void)needs, (void)count;
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), graph), child);
    return wrong != CUDA_SUCCESS ? wrong : add_child(out, graph, child, 0);
}
/* Of the kinds of nodes, a child graph alone is known here. */
DO cuGraphAddNode(CUnode *out, CUgraph graph, const CUnode *needs, size_t count,
                  CUnode_params *params)
{
    (void)needs, (void)count;
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), graph), params);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (params->type != CU_NODE_GRAPH)
        return CUDA_ERROR_NOT_SUPPORTED;
    return add_child(out, graph, params->as.child.graph, params->as.child.ownership);
}
DO cuGraphGetNodes(CUgraph graph, CUnode *list, size_t *count)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    size_t i = 0;
    if (list != NULL)
        for (struct CUnode_st *node = graph->nodes; node != NULL && i < *count; node = node->next)
            list[i++] = node;
    *count = list != NULL ? i : graph->count;
    return CUDA_SUCCESS;
}
DO cuGraphNodeGetType(CUnode node, int *type)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *type = node->type;
    return CUDA_SUCCESS;
}
DO cuGraphMemAllocNodeGetParams(CUnode node, CUmem_node *params)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    memset(params, 0, sizeof *params);
    params->pool.type = 1;
    params->pool.location = (CUlocation){ CU_LOCATION_DEVICE, fake_ordinal_of(node->gpu) };
    params->bytes = node->bytes;
    params->ptr = node->ptr;
    return CUDA_SUCCESS;
}
DO cuGraphChildGraphNodeGetGraph(CUnode node, CUgraph *graph)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *graph = node->child;
    return CUDA_SUCCESS;
}

static void sum(CUgraph graph, struct CUexec_st *exec)
{
    for (struct CUnode_st *node = graph->nodes; node != NULL; node = node->next) {
        exec->on[node->gpu].bytes += node->bytes;
        exec->on[node->gpu].apart_bytes += fake_steps(node->bytes);
        if (node->function != NULL)
            exec->kernel_ns += fake_length_ns(node->function, node->blocks);
        if (node->child != NULL)
            sum(node->child, exec);
    }
}

DO cuGraphInstantiateWithFlags(CUexec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    CUresult wrong = fake_given(fake_given(fake_in_context(__func__), exec), graph);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *exec = calloc(1, sizeof **exec);
    sum(graph, *exec);
    return CUDA_SUCCESS;
}
DO cuGraphInstantiate_v2(CUexec *exec, CUgraph graph, CUnode *node, char *log, size_t size)
{
    (void)node, (void)log, (void)size;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}
DO cuGraphInstantiateWithParams(CUexec *exec, CUgraph graph, void *params)
{
    (void)params;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}
DO cuGraphInstantiate(CUexec *exec, CUgraph graph, CUnode *node, char *log, size_t size)
{
    return cuGraphInstantiate_v2(exec, graph, node, log, size);
}
DO cuGraphInstantiateWithParams_ptsz(CUexec *exec, CUgraph graph, void *params)
{
    return cuGraphInstantiateWithParams(exec, graph, params);
}
DO cuGraphExecDestroy(CUexec exec)
{
    CUresult wrong = fake_given(fake_ready(__func__), exec);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    for (uint32_t gpu = 0; gpu < fake_card->gpu_count; gpu++)
        graph_idle[gpu] += exec->on[gpu].held_bytes;
    fake_books_done();
    free(exec);
    return CUDA_SUCCESS;
}
/* A graph's memory is there from its upload or its first launch on. */
static CUresult ready_graph(const char *call, CUexec exec, CUstream stream)
{
    struct CUctx_st *context;
    CUresult wrong = fake_given(fake_on_stream(call, stream, &context), exec);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    bool had = true;
    fake_books();
    for (uint32_t gpu = 0; gpu < fake_card->gpu_count && had; gpu++) {
        uint64_t need = fake_steps(exec->on[gpu].bytes);
        uint64_t grow = need > graph_reserved[gpu] ? need - graph_reserved[gpu] : 0;
        if (fake_like_nodes)
            grow = exec->on[gpu].apart_bytes - exec->on[gpu].held_bytes;
        had = grow == 0 || fake_charge(gpu, grow);
        if (fake_like_nodes && had)
            exec->on[gpu].held_bytes = exec->on[gpu].apart_bytes;
        graph_reserved[gpu] += had ? grow : 0;
    }
    fake_books_done();
    return had ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

DO cuGraphUpload(CUexec exec, CUstream stream)
{
    return ready_graph(__func__, exec, stream);
}
DO cuGraphUpload_ptsz(CUexec exec, CUstream stream)
{
    return cuGraphUpload(exec, stream);
}
DO cuGraphLaunch(CUexec exec, CUstream stream)
{
    CUresult result = ready_graph(__func__, exec, stream);
    if (result == CUDA_SUCCESS && exec->kernel_ns != 0)
        fake_work(fake_stream(stream), exec->kernel_ns);
    return result;
}
DO cuGraphLaunch_ptsz(CUexec exec, CUstream stream)
{
    return cuGraphLaunch(exec, stream);
}
DO cuDeviceGetGraphMemAttribute(CUdevice dev, int attribute, void *value)
{
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *(uint64_t *)value = attribute == CU_GRAPH_MEM_RESERVED_CURRENT
                             ? graph_reserved[fake_gpu_at(dev)]
                             : graph_used[fake_gpu_at(dev)];
    return CUDA_SUCCESS;
}
DO cuDeviceGraphMemTrim(CUdevice dev)
{
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    uint64_t gone =
        fake_like_nodes ? graph_idle[fake_gpu_at(dev)] : graph_reserved[fake_gpu_at(dev)];
    fake_refund(fake_gpu_at(dev), gone);
    graph_reserved[fake_gpu_at(dev)] -= gone;
    graph_idle[fake_gpu_at(dev)] = 0;
    fake_books_done();
    return CUDA_SUCCESS;
}

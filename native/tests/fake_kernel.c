/* Launches.

   Kernels are the functions named `spin_N` (N microseconds each), `wave_N` (N microseconds for
   every 132 blocks, begun or whole), `vary_A_B_K` (A microseconds, each K-th launch B: a persistent
   kernel, whose length its data make) and `even_N` (evenly spread from N/10 to 19N/10); any other
   runs no time at all. A GPU runs one kernel at a time, in the order of launch. A function named
   `deep_N` has N bytes of local memory a thread, which its first launch takes for all threads of
   the GPU. */
#include "fake_inside.h"

/* How long the next launch of a function takes. */
uint64_t fake_length_ns(struct CUfunc_st *function, uint64_t blocks)
{
    uint64_t ns = function->spin_ns +
                  function->wave_ns * ((blocks + FAKE_WAVE_BLOCKS - 1) / FAKE_WAVE_BLOCKS);
    if (function->every == 0 && function->even_ns == 0)
        return ns;
    uint64_t number = atomic_fetch_add(&function->launches, 1) + 1;
    if (function->every != 0)
        return number % function->every == 0 ? function->long_ns : ns;
    uint64_t mixed =
        number * 0x9e3779b97f4a7c15ull; /* of the golden ratio: spread evenly, without a pattern */
    return function->even_ns / 10 + (mixed >> 40) * (function->even_ns * 18 / 10) / (1 << 24);
}

void fake_work(struct CUstream_st *stream, uint64_t ns)
{
    uint32_t gpu = stream->gpu;
    struct fake_busy *shown = &fake_card->busy[fake_self - fake_card->processes];
    uint64_t now = fake_now(), tail = atomic_load(&stream->tail_ns),
             earliest = now > tail ? now : tail, busy, start;
    busy = atomic_load(&fake_card->gpus[gpu].busy_until_ns);
    do {
        start = busy > earliest ? busy : earliest;
    } while (!atomic_compare_exchange_weak(&fake_card->gpus[gpu].busy_until_ns, &busy, start + ns));
    atomic_store(&stream->tail_ns, start + ns);
    atomic_fetch_add(&fake_self->busy_ns[gpu], ns);
    for (uint64_t at = start; at < start + ns;) {
        uint64_t number = at / FAKE_BUCKET_NS, until = (number + 1) * FAKE_BUCKET_NS;
        uint64_t part = (until < start + ns ? until : start + ns) - at,
                 slot = number % FAKE_BUCKETS;
        if (atomic_exchange(&shown->bucket[gpu][slot].number, number) != number)
            atomic_store(&shown->bucket[gpu][slot].busy_ns, 0);
        atomic_fetch_add(&shown->bucket[gpu][slot].busy_ns, part);
        at += part;
    }
}

static inline CUresult launch(CUfunction function, uint64_t blocks, CUstream stream)
{
    CUresult wrong = fake_in_context(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (__builtin_expect(function->unloaded != NULL, 0) &&
        fake_load_function(function) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (__builtin_expect(function->local_bytes != 0, 0) &&
        fake_stack_grows(fake_context, function->local_bytes) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (__builtin_expect(function->spin_ns == 0 && function->wave_ns == 0 && function->even_ns == 0,
                         1))
        return CUDA_SUCCESS;
    struct CUstream_st *queue = fake_stream(stream);
    if (queue->capture != NULL) {
        struct CUnode_st *node = calloc(1, sizeof *node);
        *node = (struct CUnode_st){ .type = CU_NODE_KERNEL,
                                    .function = function,
                                    .blocks = (unsigned)blocks,
                                    .next = queue->capture->nodes };
        queue->capture->nodes = node;
        queue->capture->count++;
        return CUDA_SUCCESS;
    }
    fake_work(queue, fake_length_ns(function, blocks));
    return CUDA_SUCCESS;
}

#define GRID                                                                                    \
    CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
        unsigned shared, CUstream stream, void **params
#define UNUSED (void)bx, (void)by, (void)bz, (void)shared, (void)params
DO cuLaunchKernel(GRID, void **extra)
{
    UNUSED, (void)extra;
    return launch(f, (uint64_t)gx * gy * gz, stream);
}
DO cuLaunchKernel_ptsz(GRID, void **extra)
{
    UNUSED, (void)extra;
    return launch(f, (uint64_t)gx * gy * gz, stream);
}
DO cuLaunchCooperativeKernel(GRID)
{
    UNUSED;
    return launch(f, (uint64_t)gx * gy * gz, stream);
}
DO cuLaunchCooperativeKernel_ptsz(GRID)
{
    UNUSED;
    return launch(f, (uint64_t)gx * gy * gz, stream);
}
DO cuLaunchKernelEx(const CUlaunch *l, CUfunction f, void **params, void **extra)
{
    (void)params, (void)extra;
    CUresult wrong = fake_given(CUDA_SUCCESS, l);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return launch(f, (uint64_t)l->grid_x * l->grid_y * l->grid_z, l->stream);
}
DO cuLaunchKernelEx_ptsz(const CUlaunch *l, CUfunction f, void **params, void **extra)
{
    return cuLaunchKernelEx(l, f, params, extra);
}
DO cuLaunchCooperativeKernelMultiDevice(CUcooperative *list, unsigned count, unsigned flags)
{
    (void)flags;
    CUresult wrong = fake_given(CUDA_SUCCESS, list);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    for (unsigned i = 0; i < count; i++) {
        CUresult result =
            launch(list[i].function, (uint64_t)list[i].grid_x * list[i].grid_y * list[i].grid_z,
                   list[i].stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}
DO cuLaunch(CUfunction f)
{
    return launch(f, 1, NULL);
}
DO cuLaunchGrid(CUfunction f, int width, int height)
{
    return launch(f, (uint64_t)width * (uint64_t)height, NULL);
}
DO cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
    return launch(f, (uint64_t)width * (uint64_t)height, stream);
}

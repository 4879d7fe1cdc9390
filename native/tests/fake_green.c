/* Green contexts: each holds the primary context and a part of its own. What is allocated while one
   is current belongs to the primary context, and so outlives it. */
#include "fake_inside.h"

struct CUgreen_st {
    struct CUctx_st context;
    CUdevice dev;
    uint64_t bytes;
};
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev);

DO cuGreenCtxCreate(CUgreen *out, void *desc, CUdevice dev, unsigned flags)
{
    CUcontext primary;
    CUresult wrong = fake_given(fake_on_gpu(__func__, dev), out);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)desc, (void)flags;
    uint64_t bytes = fake_number("BERTH_FAKE_GREEN_KIB", 0) << 10;
    CUresult result = cuDevicePrimaryCtxRetain(&primary, dev);
    if (result != CUDA_SUCCESS)
        return result;
    if (!fake_charge(fake_gpu_at(dev), bytes)) {
        cuDevicePrimaryCtxRelease_v2(dev);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = calloc(1, sizeof **out);
    **out = (struct CUgreen_st){
        .context = { .gpu = fake_gpu_at(dev), .alive = true, .primary_of = primary },
        .dev = dev,
        .bytes = bytes
    };
    return CUDA_SUCCESS;
}

/* The structure is kept, so that a program that still uses the handle is told. */
DO cuGreenCtxDestroy(CUgreen green)
{
    CUresult wrong = fake_given(fake_ready(__func__), green);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (!green->context.alive)
        return CUDA_ERROR_INVALID_HANDLE;
    green->context.alive = false;
    fake_streams_gone(&green->context);
    fake_refund(green->context.gpu, green->bytes);
    return cuDevicePrimaryCtxRelease_v2(green->dev);
}

DO cuCtxFromGreenCtx(CUcontext *out, CUgreen green)
{
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), out), green);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (!green->context.alive)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = &green->context;
    return CUDA_SUCCESS;
}

DO cuGreenCtxStreamCreate(CUstream *stream, CUgreen green, unsigned flags, int priority)
{
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), stream), green);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)flags, (void)priority;
    if (!green->context.alive)
        return CUDA_ERROR_INVALID_HANDLE;
    *stream = fake_stream_new(&green->context);
    return CUDA_SUCCESS;
}

DO cuStreamGetGreenCtx(CUstream stream, CUgreen *green)
{
    struct CUctx_st *context;
    CUresult wrong = fake_given(fake_on_stream(__func__, stream, &context), green);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *green = context->primary_of != NULL
                 ? (CUgreen)((char *)context - offsetof(struct CUgreen_st, context))
                 : NULL;
    return CUDA_SUCCESS;
}

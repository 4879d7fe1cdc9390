/* Linked to entry points that its driver, an old one, does not have: they say so, and the limit
   holds. */
#include "../cu.h"

#include <stdio.h>

CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes);
CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream);
CUresult cuMemPoolTrimTo(CUpool pool, size_t keep);

int main(void)
{
    CUcontext context;
    CUdeviceptr a;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return puts("no context") < 0 ? 2 : 1;
    printf("%d %d %d ", cuMemAllocAsync(&a, 1, NULL), cuMemFreeAsync(0, NULL),
           cuMemPoolTrimTo(NULL, 0));
    printf("%d %d\n", cuMemAlloc_v2(&a, (64 << 20) + 1), cuMemAlloc_v2(&a, 64 << 20));
    return 0;
}

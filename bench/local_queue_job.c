/* An application of bench/local_queue_peers.py: `local_queue_job MIB KERNEL_MS THINK_MS STEPS`.

   It takes half of its memory at once and the rest after a third of its steps; a step is one kernel of KERNEL_MS, which
   takes turns with those of other processes on the card, and THINK_MS in which the card is free. Exits with 1 if it is
   refused memory. */
#include "../native/tests/driver.h"

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { BLOCKS_A_MS = 1320 };

int main(int count, char **words)
{
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUdeviceptr first, second;
    if (count < 5)
        return 2;
    size_t half = (size_t)atoi(words[1]) << 19;
    unsigned blocks = (unsigned)atoi(words[2]) * BLOCKS_A_MS;
    long think_ms = atol(words[3]);
    int steps = atoi(words[4]);
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS || cuModuleLoadData(&module, "") != CUDA_SUCCESS ||
        cuModuleGetFunction(&function, module, "wave_100") != CUDA_SUCCESS)
        return 3;
    if (cuMemAlloc_v2(&first, half) != CUDA_SUCCESS)
        return 1;
    for (int step = 0; step < steps; step++) {
        if (step == steps / 3 && cuMemAlloc_v2(&second, half) != CUDA_SUCCESS)
            return 1;
        if (cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS ||
            cuCtxSynchronize() != CUDA_SUCCESS)
            return 4;
        nanosleep(&(struct timespec){ think_ms / 1000, think_ms % 1000 * 1000000 }, NULL);
    }
    return 0;
}

/* What the snippets claim, and how they say where a claim failed. */
#ifndef BERTH_CLAIMS_H
#define BERTH_CLAIMS_H
#include "claim.h"
#include "driver.h"

#define MIB (1ull << 20)
#define LIMIT (64 * MIB)
#define OK(call) CHECK((call) == CUDA_SUCCESS)
#define OOM(call) CHECK((call) == CUDA_ERROR_OUT_OF_MEMORY)
/* What berth says is left, and what the driver holds, add up to the limit. */
#define HELD(bytes) CHECK(fake_own_bytes(0) == (bytes) && room() == LIMIT - (bytes))

static inline uint64_t room(void)
{
    size_t free_bytes = 0, total = 0;
    return cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS ? free_bytes : ~0ull;
}

static inline void start(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

#endif

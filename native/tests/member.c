/* A process of a partition that does what each line of its input says, and answers with a line.

   take N    allocates N MiB: yes or no
   room      MiB that are left, as the driver says through the library
   held      MiB that this process holds by the driver's own ledger
   call      a call of CUDA that takes nothing: done, once the driver has answered
   copy      the same by a copy in two dimensions, which the fake driver does not make
   card      MiB that NVML says the card has, for one that is started without CUDA (BERTH_TEST_NVML)
 */
#include "claims.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *taken(uint64_t mib)
{
    CUdeviceptr at;
    return cuMemAlloc_v2(&at, mib * MIB) == CUDA_SUCCESS ? "yes" : "no";
}

static bool started(void)
{
    CUcontext context;
    return cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
           cuCtxSetCurrent(context) == CUDA_SUCCESS;
}

/* What a program sees that uses NVML only; 0 where it fails. */
static unsigned long long card_bytes(void)
{
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void), (*device)(unsigned, NVdevice *), (*ask)(NVdevice, NVmemory *);
    *(void **)&init = dlsym(nvml, "nvmlInit_v2");
    *(void **)&device = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&ask = dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    NVdevice first;
    NVmemory memory;
    if (init == NULL || device == NULL || ask == NULL || init() != NV_SUCCESS ||
        device(0, &first) != NV_SUCCESS)
        return 0;
    return ask(first, &memory) == NV_SUCCESS ? memory.total : 0;
}

int main(void)
{
    char line[64];
    if (getenv("BERTH_TEST_UID") != NULL && setuid((uid_t)atoi(getenv("BERTH_TEST_UID"))) != 0)
        return 3;
    puts(getenv("BERTH_TEST_NVML") != NULL ? "nvml" : started() ? "started" : "none");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        const char *space = strchr(line, ' ');
        uint64_t mib = space != NULL ? strtoull(space, NULL, 10) : 0;
        if (strncmp(line, "take", 4) == 0)
            puts(taken(mib));
        else if (strncmp(line, "room", 4) == 0)
            printf("%llu\n", (unsigned long long)(room() / MIB));
        else if (strncmp(line, "held", 4) == 0)
            printf("%llu\n", (unsigned long long)(fake_own_bytes(0) / MIB));
        else if (strncmp(line, "call", 4) == 0)
            puts(cuCtxSynchronize() == CUDA_SUCCESS ? "done" : "failed");
        else if (strncmp(line, "copy", 4) == 0)
            puts(cuMemcpy2DAsync_v2(NULL, NULL) == CUDA_ERROR_NOT_SUPPORTED ? "done" : "failed");
        else if (strncmp(line, "card", 4) == 0)
            printf("%llu\n", card_bytes() / MIB);
        fflush(stdout);
    }
    return 0;
}

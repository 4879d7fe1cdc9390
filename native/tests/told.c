/* A process of a partition that does what each line of its input says, and answers with a line.

   take N    allocates N MiB: yes or no
   room      MiB that are left, as the driver says through the library
   held      MiB that this process holds by the driver's own ledger */
#include "claims.h"

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

int main(void)
{
    char line[64];
    if (getenv("BERTH_TEST_UID") != NULL && setuid((uid_t)atoi(getenv("BERTH_TEST_UID"))) != 0)
        return 3;
    puts(started() ? "started" : "none");
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
        fflush(stdout);
    }
    return 0;
}

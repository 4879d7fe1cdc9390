/* Takes memory piece by piece and holds it: `grow PIECES MIB HOLD_MS [PAUSE_MS]`.

   Prints how long each call took and how many were refused. */
#include "claims.h"
#include "stopwatch.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words)
{
    if (count < 4)
        return 2;
    int pieces = atoi(words[1]), pause_ms = count > 4 ? atoi(words[4]) : 0, refused = 0;
    uint64_t bytes = strtoull(words[2], NULL, 10) * MIB;
    start();
    printf("{\"ns\": [");
    for (int i = 0; i < pieces; i++) {
        CUdeviceptr at;
        uint64_t began = stopwatch_clock(CLOCK_MONOTONIC);
        refused += cuMemAlloc_v2(&at, bytes) != CUDA_SUCCESS;
        printf("%s%llu", i ? ", " : "",
               (unsigned long long)(stopwatch_clock(CLOCK_MONOTONIC) - began));
        usleep((useconds_t)pause_ms * 1000);
    }
    usleep((useconds_t)(atoi(words[3]) * 1000));
    printf("], \"refused\": %d}\n", refused);
    return 0;
}

/* What the driver takes for itself, and what is charged for it: `taken hold MIB | context |
   modules | primary | contexts`.

   `hold` allocates so much and waits for its input to end; `context` prints what a context was
   charged, in MiB, and what the driver's ledger says it took; `modules` loads modules until one is
   refused and prints how many were granted; `primary` and `contexts` print as `context` does after
   six threads at once retained the primary context, or each made one of its own. */
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned used_mib(void)
{
    size_t free_bytes = 0, total = 0;
    return cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS
               ? (unsigned)((total - free_bytes) >> 20)
               : 0;
}

enum { THREADS = 6 };
static pthread_barrier_t ready;

static void *retain(void *context)
{
    pthread_barrier_wait(&ready);
    return cuDevicePrimaryCtxRetain(context, 0) == CUDA_SUCCESS ? context : NULL;
}

static void *create(void *context)
{
    pthread_barrier_wait(&ready);
    return cuCtxCreate_v2(context, 0, 0) == CUDA_SUCCESS ? context : NULL;
}

static int at_once(void *(*make)(void *))
{
    pthread_t threads[THREADS];
    CUcontext contexts[THREADS];
    void *made[THREADS];
    pthread_barrier_init(&ready, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, make, &contexts[i]) != 0)
            return 5;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], &made[i]);
    for (int i = 0; i < THREADS; i++)
        if (made[i] == NULL || cuCtxSetCurrent(contexts[i]) != CUDA_SUCCESS)
            return 6;
    printf("%u %u\n", used_mib(), (unsigned)(fake_own_bytes(0) >> 20));
    return 0;
}

int main(int count, char **words)
{
    CUcontext context;
    CUmodule module;
    CUdeviceptr memory;
    if (count < 2 || cuInit(0) != CUDA_SUCCESS)
        return 3;
    if (strcmp(words[1], "primary") == 0)
        return at_once(retain);
    if (strcmp(words[1], "contexts") == 0)
        return at_once(create);
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        puts("refused");
        return 0;
    }
    if (strcmp(words[1], "hold") == 0 && count > 2) {
        if (cuMemAlloc_v2(&memory, (size_t)atoi(words[2]) << 20) != CUDA_SUCCESS)
            return 4;
        puts("held");
        fflush(stdout);
        return getchar() == EOF ? 0 : 0;
    }
    if (strcmp(words[1], "context") == 0)
        printf("%u %u\n", used_mib(), (unsigned)(fake_own_bytes(0) >> 20));
    if (strcmp(words[1], "modules") == 0) {
        unsigned granted = 0;
        while (granted < 100 && cuModuleLoadData(&module, "") == CUDA_SUCCESS)
            granted++;
        printf("%u %u\n", granted, used_mib());
    }
    return 0;
}

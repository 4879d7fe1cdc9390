/* Asks for more than the limit by one path after the other, on a driver that does not tell
   everything: `edges KIND LIMIT_MIB`.

   Prints each path by which the driver gave more than the limit, with what this process held then,
   in MiB. */
#include "driver.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1ull << 20)

static uint64_t limit_bytes;

static void judge(const char *path, int gpu, uint64_t limit)
{
    if (fake_own_bytes(gpu) > limit)
        printf("%s on GPU %d: %llu MiB\n", path, gpu,
               (unsigned long long)(fake_own_bytes(gpu) / MIB));
}

static void from_pool(const char *path, CUpool pool)
{
    CUdeviceptr ptr;
    for (int i = 0; i < 6; i++)
        (void)cuMemAllocFromPoolAsync(&ptr, limit_bytes / 3, pool, NULL);
    judge(path, 0, limit_bytes);
}

static void graph_of(uint64_t bytes, int location_type, int gpu)
{
    CUgraph graph;
    CUnode node;
    CUexec exec;
    CUmem_node memory = { .pool = { .type = 1, .location = { location_type, gpu } },
                          .bytes = bytes };
    cuGraphCreate(&graph, 0);
    cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory);
    if (cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS)
        (void)cuGraphLaunch(exec, NULL);
}

static void start(void)
{
    CUcontext context;
    if (cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS)
        cuCtxSetCurrent(context);
}

static void every_path(void)
{
    CUdeviceptr ptr;
    CUpool pool;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    CUalloc_prop physical = { .type = 1, .location = { 1, 0 } };
    CUhandle handle;
    CUcontext context;
    start();
    for (unsigned i = 1; i < 7; i++)
        graph_of(i * limit_bytes / 3, 1, 0);
    judge("graph", 0, limit_bytes);
    for (int i = 0; i < 6; i++)
        (void)cuMemAllocAsync(&ptr, limit_bytes / 4 - MIB, NULL);
    judge("async", 0, limit_bytes);
    if (cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS)
        from_pool("pool", pool);
    for (int i = 0; i < 6; i++)
        (void)cuMemCreate(&handle, limit_bytes / 3, &physical, 0);
    judge("physical", 0, limit_bytes);
    cuCtxSetLimit(CU_LIMIT_HEAP, 2 * limit_bytes);
    judge("heap", 0, limit_bytes);
    for (int i = 0; i < 12; i++)
        (void)cuMemAlloc_v2(&ptr, limit_bytes / 10);
    judge("linear", 0, limit_bytes);
    for (int i = 0; i < 12; i++)
        (void)cuCtxCreate_v2(&context, 0, 0);
    judge("context", 0, limit_bytes);
}

static void modules(void)
{
    CUmodule module;
    unsigned granted = 0;
    start();
    for (int i = 0; i < 20; i++)
        granted += cuModuleLoadData(&module, "") == CUDA_SUCCESS;
    judge("module", 0, limit_bytes);
    printf("%u modules\n", granted);
}

static void managed(void)
{
    CUpool pool, of_host, later;
    CUpool_props props = { .type = CU_ALLOCATION_MANAGED },
                 host = { .type = CU_ALLOCATION_MANAGED, .location = { CU_LOCATION_HOST, 0 } };
    CUalloc_prop physical = { .type = CU_ALLOCATION_MANAGED };
    CUhandle handle;
    bool made = cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS,
         made_of_host = cuMemPoolCreate(&of_host, &host) == CUDA_SUCCESS;
    for (int i = 0; i < 4; i++)
        (void)cuMemCreate(&handle, limit_bytes / 3, &physical, 0);
    judge("managed physical memory", 0, limit_bytes);
    start();
    if (made)
        from_pool("managed pool", pool);
    if (made_of_host)
        from_pool("managed pool of the host", of_host);
    if (cuMemGetDefaultMemPool(&later, &host.location, CU_ALLOCATION_MANAGED) == CUDA_SUCCESS)
        from_pool("default managed pool", later);
}

int main(int count, char **words)
{
    if (count < 3 || cuInit(0) != CUDA_SUCCESS) {
        puts("no GPU");
        return 0;
    }
    limit_bytes = strtoull(words[2], NULL, 10) * MIB;
    if (strcmp(words[1], "every_path") == 0)
        every_path();
    if (strcmp(words[1], "modules") == 0)
        modules();
    if (strcmp(words[1], "managed") == 0)
        managed();
    if (strcmp(words[1], "second_gpu") == 0) {
        start();
        graph_of(limit_bytes, 1, 1);
        judge("graph", 1, limit_bytes / 2);
    }
    puts("done");
    return 0;
}

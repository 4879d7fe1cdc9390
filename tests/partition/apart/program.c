/* Asks the fake driver of driver.c for memory by every path until it is refused, and compares what
   the partition is told with what the driver has: `program memory LIMIT_MIB`. `program hold MIB`
   holds so much until its input ends; `program launch KERNEL_US SECONDS` prints how many ms of
   the GPU's time it used, by the driver's count, and how many ms passed. */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define OK(call) expect(#call, __LINE__, call, CUDA_SUCCESS)
#define REFUSED(call) expect(#call, __LINE__, call, CUDA_ERROR_OUT_OF_MEMORY)
uint64_t apart_held(void), apart_most(void), apart_used_ns(void);
static uint64_t limit;
static int faults;

static void expect(const char *call, int line, CUresult result, CUresult wanted)
{
    if (result != wanted) {
        printf("line %d: %s: %d instead of %d\n", line, call, result, wanted);
        exit(1);
    }
}

/* What is told is never less than what the driver has, and at most `more` above it. */
static void same(const char *what, uint64_t more)
{
    size_t left, total;
    OK(cuMemGetInfo(&left, &total));
    uint64_t told = limit - left, has = apart_held();
    int wrong = told < has || told > has + more || apart_most() > limit;
    printf("%-34s told %5llu MiB, driver %5llu, most %5llu%s\n", what, (unsigned long long)(told / MIB),
           (unsigned long long)(has / MIB), (unsigned long long)(apart_most() / MIB), wrong ? "  WRONG" : "");
    faults += wrong;
}

static void memory(uint64_t more)
{
    enum { MOST = 200 };
    CUdeviceptr at[MOST];
    CUarray array;
    CUcontext context;
    CUmemoryPool own, usual;
    CUmodule module[8];
    CUfunction function;
    CUgraph graph;
    CUgraphExec exec[8];
    CUgraphNode node;
    CUmemGenericAllocationHandle handle;
    uint64_t keep = ~0ull;
    int count, first;
    CUmemLocation here = { CU_MEM_LOCATION_TYPE_DEVICE, { 0 } };
    CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here };
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here };

    OK(cuInit(0));
    OK(cuMemPoolCreate(&own, &props));
    OK(cuDeviceGetDefaultMemPool(&usual, 0));
    for (int i = 0; i < 3; i++) { /* without a context they fail, and count all the same afterwards */
        CUresult first = cuMemAllocFromPoolAsync(at, 64 * MIB, own, NULL);
        expect("own pool, no context", __LINE__, first, CUDA_ERROR_INVALID_CONTEXT);
        expect("pool, no context", __LINE__, cuMemAllocAsync(at, 64 * MIB, NULL),
               CUDA_ERROR_INVALID_CONTEXT);
    }
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    same("context", more);
    CUmemoryPool both[] = { own, usual };
    for (int p = 0; p < 2; p++) {
        OK(cuMemPoolSetAttribute(both[p], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
        for (count = 0; count < MOST; count++)
            if (cuMemAllocFromPoolAsync(&at[count], 48 * MIB, both[p], NULL) != CUDA_SUCCESS)
                break;
        same(p == 0 ? "own pool, to the end" : "default pool, to the end", more);
        while (count-- > 0)
            OK(cuMemFreeAsync(at[count], NULL));
        OK(cuCtxSynchronize());
        same("kept by the pool", more);
        OK(cuMemPoolTrimTo(both[p], 0));
        same("trimmed", more);
    }
    for (count = 0; count < MOST; count++)
        if ((count % 2 ? cuMemAllocManaged(&at[count], 100 * MIB, CU_MEM_ATTACH_GLOBAL)
                       : cuMemAlloc(&at[count], 100 * MIB)) != CUDA_SUCCESS)
            break;
    same("linear and managed, to the end", more);
    while (count-- > 0)
        OK(cuMemFree(at[count]));
    same("freed", more);

    CUDA_ARRAY3D_DESCRIPTOR plain = { 4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, 0 },
                            sparse = { 4096, 4096, 64, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE };
    OK(cuArray3DCreate(&array, &plain));
    same("array", more);
    OK(cuArrayDestroy(array));
    OK(cuArray3DCreate(&array, &sparse));
    same("sparse array, empty", more);
    CUarrayMapInfo part = { .resourceType = CU_RESOURCE_TYPE_ARRAY,
                            .resource.array = array,
                            .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
                            .deviceBitMask = 1 };
    for (count = 0; count < 60; count++) {
        if (cuMemCreate(&handle, 64 * MIB, &prop, 0) != CUDA_SUCCESS)
            break;
        part.memHandle.memHandle = handle;
        part.subresource.sparseLevel.offsetX = (unsigned)count * 64;
        part.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
        OK(cuMemMapArrayAsync(&part, 1, NULL));
        OK(cuMemRelease(handle));
    }
    same("sparse parts, handles released", more);
    part.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    while (count-- > 0) {
        part.subresource.sparseLevel.offsetX = (unsigned)count * 64;
        OK(cuMemMapArrayAsync(&part, 1, NULL));
    }
    same("sparse parts, unmapped", more);
    OK(cuArrayDestroy(array));

    for (count = 0; count < 8; count++) {
        OK(cuGraphCreate(&graph, 0));
        for (int i = 0; i < 2; i++) {
            CUDA_MEM_ALLOC_NODE_PARAMS params = { .poolProps = props, .bytesize = 200 * MIB };
            OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
        }
        if (cuGraphInstantiate(&exec[count], graph, 0) != CUDA_SUCCESS)
            break;
        OK(cuGraphLaunch(exec[count], NULL));
    }
    OK(cuCtxSynchronize());
    same("graphs, to the end", more);
    printf("%d graphs\n", count);
    for (int i = 0; i < count; i++)
        OK(cuGraphExecDestroy(exec[i]));
    OK(cuDeviceGraphMemTrim(0));
    same("graphs gone", more);

    for (int lazy = 0; lazy < 2; lazy++) {
        for (count = 0; count < 8; count++) {
            if (cuModuleLoadData(&module[count], lazy ? "lazy 500" : "eager 500") != CUDA_SUCCESS)
                break;
            if (cuModuleGetFunction(&function, module[count], "runs_1") != CUDA_SUCCESS)
                break;
        }
        same(lazy ? "modules that load later" : "modules", more);
        printf("%d modules\n", count);
        for (first = 0; first < count; first++)
            OK(cuModuleUnload(module[first]));
        same("unloaded", lazy ? 500 * MIB + more : more); /* one refused that cannot be unloaded is kept */
    }
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 300 * MIB));
    same("heap", 500 * MIB + more);
    REFUSED(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, limit));
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 0));
    same("heap gone", 500 * MIB + more);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int words, char **word)
{
    CUcontext context;
    CUdeviceptr at;
    CUmodule module;
    CUfunction function;
    char name[32];
    limit = words > 2 ? strtoull(word[2], NULL, 10) * MIB : 0;
    if (words > 3 && strcmp(word[1], "memory") == 0) {
        memory(strtoull(word[3], NULL, 10) * MIB);
        return faults != 0;
    }
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    if (strcmp(word[1], "hold") == 0) {
        OK(cuMemAlloc(&at, limit));
        puts("held");
        fflush(stdout);
        return getchar() != EOF;
    }
    OK(cuModuleLoadData(&module, "eager 1"));
    snprintf(name, sizeof name, "runs_%s", word[2]);
    OK(cuModuleGetFunction(&function, module, name));
    double from = now_s(), until = from + atof(word[3]);
    for (int i = 0; now_s() < until; i++) {
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        if (i % 16 == 15)
            OK(cuCtxSynchronize());
    }
    OK(cuCtxSynchronize());
    printf("%.3f %.3f\n", (double)apart_used_ns() / 1e6, (now_s() - from) * 1e3);
    return 0;
}

/* What bench/partition_real_gpu.py has a process do on a GPU: `partition_real_gpu WORD …`, which prints one line of JSON.

   path NAME MIB      allocates blocks by one way until it is refused, or has MIB; holds them until its input ends
   rate               microseconds that a million steps of the kernel take, alone
   share US EVERY LONG_US SECONDS RATE
                      launches a kernel of US microseconds, each EVERY-th (0: none) of LONG_US, as fast as it is let
   nvml               what NVML says of the card and of this process, which holds 64 MiB
   fact NAME          one thing that only a card can tell: what the driver answers, what was asked for, and by how much
                      less the card has free then; `facts` names them

   The kernel is PTX; the fake driver, which runs none, has kernels by their names (BERTH_BENCH_FAKE=1). */
#include "../native/tests/driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
enum { BLOCK_MIB = 64 };

static const char kernel[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry work(.param .u64 steps, .param .u64 out)\n{\n"
    ".reg .u64 %n, %i, %o;\n.reg .u32 %x;\n.reg .pred %p;\n"
    "ld.param.u64 %n, [steps];\nld.param.u64 %o, [out];\ncvta.to.global.u64 %o, %o;\n"
    "mov.u64 %i, 0;\nmov.u32 %x, 1;\n"
    "again:\nmad.lo.u32 %x, %x, 1664525, 1013904223;\nadd.u64 %i, %i, 1;\n"
    "setp.lt.u64 %p, %i, %n;\n@%p bra again;\nst.global.u32 [%o], %x;\nret;\n}\n";
static const char big_module[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                 ".visible .global .align 16 .b8 big[67108864];\n"
                                 ".visible .entry touch()\n{\nret;\n}\n";

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static CUcontext context;

static CUresult start(void)
{
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuDevicePrimaryCtxRetain(&context, 0);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(context) : result;
}

/* ---- ways to memory: each takes one block of BLOCK_MIB ---- */

static CUresult linear(void)
{
    CUdeviceptr at;
    return cuMemAlloc_v2(&at, BLOCK_MIB * MIB);
}

static CUresult pitched(void)
{
    CUdeviceptr at;
    size_t pitch;
    return cuMemAllocPitch_v2(&at, &pitch, 65536, BLOCK_MIB * MIB / 65536, 4);
}

static CUresult managed(void)
{
    CUdeviceptr at;
    return cuMemAllocManaged(&at, BLOCK_MIB * MIB, 1);
}

static CUresult array(void)
{
    CUarray made;
    CUarray_desc desc = { 2048, 2048, 0x20, 4 }; /* float4 */
    return cuArrayCreate_v2(&made, &desc);
}

static CUresult mipmapped(void)
{
    CUmipmap made;
    CUarray3d_desc desc = { 2048, 2048, 0, 0x20, 4, 0 };
    return cuMipmappedArrayCreate(&made, &desc, 1);
}

static CUresult physical(void)
{
    CUhandle handle;
    CUalloc_prop prop = { .type = 1, .location = { CU_LOCATION_DEVICE, 0 } };
    return cuMemCreate(&handle, BLOCK_MIB * MIB, &prop, 0);
}

static CUresult stream_ordered(void)
{
    CUdeviceptr at;
    CUresult result = cuMemAllocAsync(&at, BLOCK_MIB * MIB, NULL);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : result;
}

static CUpool pool_of_device(void)
{
    static CUpool pool;
    CUpool_props props = { .type = 1, .location = { CU_LOCATION_DEVICE, 0 } };
    if (pool == NULL && cuMemPoolCreate(&pool, &props) != CUDA_SUCCESS)
        pool = NULL;
    return pool;
}

static CUresult pool(void)
{
    CUdeviceptr at;
    if (pool_of_device() == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuMemAllocFromPoolAsync(&at, BLOCK_MIB * MIB, pool_of_device(), NULL);
}

static CUresult pool_after_a_failure(void) /* of the same pool, where no context was current */
{
    static bool failed;
    CUdeviceptr at;
    CUcontext was;
    if (!failed && pool_of_device() != NULL && cuCtxPopCurrent_v2(&was) == CUDA_SUCCESS) {
        failed = true;
        cuMemAllocFromPoolAsync(&at, BLOCK_MIB * MIB, pool_of_device(), NULL);
        cuCtxSetCurrent(context);
    }
    return pool();
}

static CUresult graph(void)
{
    CUgraph made;
    CUnode node;
    CUexec exec;
    CUstream stream;
    CUmem_node params = { .pool = { .type = 1, .location = { CU_LOCATION_DEVICE, 0 } },
                          .bytes = BLOCK_MIB * MIB };
    CUresult result = cuGraphCreate(&made, 0);
    if (result == CUDA_SUCCESS)
        result = cuStreamCreate(&stream, 0);
    if (result == CUDA_SUCCESS)
        result = cuGraphAddMemAllocNode(&node, made, NULL, 0, &params);
    if (result == CUDA_SUCCESS)
        result = cuGraphInstantiateWithFlags(&exec, made, 0);
    if (result == CUDA_SUCCESS)
        result = cuGraphLaunch(exec, stream);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(stream) : result;
}

static CUresult module(void)
{
    CUmodule made;
    return cuModuleLoadData(&made, big_module);
}

static const struct {
    const char *name;
    CUresult (*take)(void);
} paths[] = {
    { "linear", linear },       { "pitched", pitched },
    { "managed", managed },     { "array", array },
    { "mipmapped", mipmapped }, { "physical", physical },
    { "async", stream_ordered }, { "pool", pool },
    { "pool after a failure", pool_after_a_failure },
    { "graph", graph },         { "module", module },
};

static int path(const char *name, uint64_t most_mib)
{
    uint64_t mib = 0;
    CUresult result = start();
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (strcmp(paths[i].name, name) == 0)
            while (result == CUDA_SUCCESS && mib < most_mib)
                if ((result = paths[i].take()) == CUDA_SUCCESS)
                    mib += BLOCK_MIB;
    size_t free_bytes = 0, total = 0;
    cuCtxSetCurrent(context);
    cuMemGetInfo_v2(&free_bytes, &total);
    printf("{\"granted_mib\": %llu, \"result\": %d, \"free_mib\": %llu, \"total_mib\": %llu}\n",
           (unsigned long long)mib, result, (unsigned long long)(free_bytes / MIB),
           (unsigned long long)(total / MIB));
    fflush(stdout);
    getchar(); /* until it was looked at from outside what the card has given */
    return 0;
}

/* ---- time ---- */

static CUmodule code;
static CUdeviceptr out;

static CUfunction function_named(const char *fake_name)
{
    CUfunction found = NULL;
    const char *name = getenv("BERTH_BENCH_FAKE") != NULL ? fake_name : "work";
    if ((code == NULL && cuModuleLoadData(&code, kernel) != CUDA_SUCCESS) ||
        (out == 0 && cuMemAlloc_v2(&out, 256) != CUDA_SUCCESS) ||
        cuModuleGetFunction(&found, code, name) != CUDA_SUCCESS)
        return NULL;
    return found;
}

static CUresult launch(CUfunction function, uint64_t steps)
{
    void *params[] = { &steps, &out };
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
}

static int rate(void)
{
    CUfunction function = start() == CUDA_SUCCESS ? function_named("spin_10000") : NULL;
    double best = 0;
    for (int turn = 0; turn < 6 && function != NULL; turn++) { /* the first warms up */
        uint64_t begin = now_ns();
        if (launch(function, 4000000) != CUDA_SUCCESS || cuStreamSynchronize(NULL) != CUDA_SUCCESS)
            return 4;
        double us = (double)(now_ns() - begin) / 4e3;
        best = turn == 0 ? 0 : best == 0 || us < best ? us : best;
    }
    printf("{\"us_a_million_steps\": %.3f}\n", best);
    return function == NULL ? 3 : 0;
}

static int share(char **words)
{
    uint64_t us = strtoull(words[0], NULL, 10), every = strtoull(words[1], NULL, 10),
             long_us = strtoull(words[2], NULL, 10), launches = 0;
    double seconds = atof(words[3]), us_a_million = atof(words[4]), done_us = 0, longest_ms = 0;
    char name[64];
    snprintf(name, sizeof name, every != 0 ? "vary_%llu_%llu_%llu" : "spin_%llu",
             (unsigned long long)us, (unsigned long long)long_us, (unsigned long long)every);
    CUfunction function = start() == CUDA_SUCCESS ? function_named(name) : NULL;
    if (function == NULL)
        return 3;
    uint64_t begin = now_ns(), warm = begin + (uint64_t)(seconds * 1e9 / 5);
    uint64_t end = begin + (uint64_t)(seconds * 1e9), from = 0;
    for (uint64_t now = begin; now < end;) {
        if (from == 0 && now >= warm) {
            from = now;
            done_us = longest_ms = 0;
        }
        launches++;
        uint64_t length = every != 0 && launches % every == 0 ? long_us : us;
        if (launch(function, (uint64_t)((double)length * 1e6 / us_a_million)) != CUDA_SUCCESS)
            return 4;
        double ms = (double)(now_ns() - now) / 1e6;
        longest_ms = ms > longest_ms ? ms : longest_ms;
        if (cuStreamSynchronize(NULL) != CUDA_SUCCESS)
            return 5;
        done_us += (double)length;
        now = now_ns();
    }
    printf("{\"share_pct\": %.2f, \"longest_launch_ms\": %.3f, \"launches\": %llu}\n",
           from == 0 ? 0.0 : 100 * done_us * 1e3 / (double)(now_ns() - from), longest_ms,
           (unsigned long long)launches);
    return 0;
}

/* ---- NVML ---- */

static int nvml(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL || start() != CUDA_SUCCESS || linear() != CUDA_SUCCESS)
        return 3;
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    int (*by_index)(unsigned, NVdevice *) =
        (int (*)(unsigned, NVdevice *))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    int (*by_uuid)(const char *, NVdevice *) =
        (int (*)(const char *, NVdevice *))dlsym(library, "nvmlDeviceGetHandleByUUID");
    int (*memory_of)(NVdevice, NVmemory *) =
        (int (*)(NVdevice, NVmemory *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    int (*processes)(NVdevice, unsigned *, NVprocess *) = (int (*)(NVdevice, unsigned *, NVprocess *))dlsym(
        library, "nvmlDeviceGetComputeRunningProcesses_v3");
    NVdevice device;
    NVmemory memory;
    NVprocess list[512];
    unsigned count = 512, own = 0;
    const char *uuid = getenv("BERTH_BENCH_UUID");
    if (init == NULL || by_index == NULL || by_uuid == NULL || memory_of == NULL || processes == NULL ||
        init() != NV_SUCCESS || (uuid != NULL ? by_uuid(uuid, &device) : by_index(0, &device)) != NV_SUCCESS ||
        memory_of(device, &memory) != NV_SUCCESS || processes(device, &count, list) != NV_SUCCESS)
        return 4;
    unsigned long long bytes = 0;
    for (unsigned i = 0; i < count; i++)
        if (list[i].pid == (unsigned)getpid()) {
            own++;
            bytes = list[i].bytes;
        }
    printf("{\"total_mib\": %llu, \"used_mib\": %llu, \"processes\": %u, \"own_pid_listed\": %u, "
           "\"own_mib\": %lld}\n",
           memory.total / MIB, memory.used / MIB, count, own, bytes == ~0ull ? -1ll : (long long)(bytes / MIB));
    return 0;
}

/* ---- what only a card can tell: each asks for memory by one call, without a limit ---- */

static uint64_t asked_bytes;
static CUstream green_stream(void)
{
    CUgreen green;
    CUstream stream = NULL;
    char resource[256] = { 0 };
    void *desc = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_LAZY);
    CUresult (*resource_of)(CUdevice, void *, int) =
        (CUresult (*)(CUdevice, void *, int))dlsym(library, "cuDeviceGetDevResource");
    CUresult (*desc_of)(void **, void *, unsigned) =
        (CUresult (*)(void **, void *, unsigned))dlsym(library, "cuDevResourceGenerateDesc");
    if (resource_of != NULL && desc_of != NULL && resource_of(0, resource, 1) == CUDA_SUCCESS)
        desc_of(&desc, resource, 1);
    if (cuGreenCtxCreate(&green, desc, 0, 1) == CUDA_SUCCESS)
        cuGreenCtxStreamCreate(&stream, green, 1, 0);
    return stream;
}
static CUresult repeat_linear(uint64_t bytes, int times)
{
    CUdeviceptr at;
    CUresult result = CUDA_SUCCESS;
    asked_bytes = bytes * (uint64_t)times;
    for (int i = 0; i < times && result == CUDA_SUCCESS; i++)
        result = cuMemAlloc_v2(&at, bytes);
    return result;
}
static CUresult rounding(void)
{
    return repeat_linear(MIB + 1, 32);
}
static CUresult rounding_small(void)
{
    return repeat_linear(64 << 10, 64);
}
static CUresult rounding_arrays(void)
{
    CUarray plane;
    CUarray_desc desc = { 128, 128, 0x20, 1 };
    CUresult result = CUDA_SUCCESS;
    asked_bytes = 64 * (64 << 10);
    for (int i = 0; i < 64 && result == CUDA_SUCCESS; i++)
        result = cuArrayCreate_v2(&plane, &desc);
    return result;
}
static CUresult prefetched(char *at)
{
    asked_bytes = 64 * MIB;
    memset(at, 1, asked_bytes);
    CUresult result = cuMemPrefetchAsync((CUdeviceptr)(uintptr_t)at, asked_bytes, 0, NULL);
    return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}
static char *pages(void)
{
    void *at = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}
static CUresult hmm_prefetch(void)
{
    char *at = pages();
    return at != NULL ? prefetched(at) : CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult hmm_moved(void) /* pages that move after they were prefetched */
{
    char *at = pages(), *to = pages();
    CUresult result = at != NULL && to != NULL ? prefetched(at) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && mremap(at, 64 * MIB, 64 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}
static CUresult async_of(CUstream stream, bool bare)
{
    CUdeviceptr at;
    asked_bytes = MIB;
    if (bare)
        cuCtxSetCurrent(NULL);
    CUresult result = cuMemAllocAsync(&at, asked_bytes, stream);
    cuCtxSetCurrent(context);
    return result;
}
static CUresult pool_step(void)
{
    return async_of(NULL, false);
}
static CUresult pool_without_context(void)
{
    CUstream stream;
    CUresult result = cuStreamCreate(&stream, 1);
    return result == CUDA_SUCCESS ? async_of(stream, true) : result;
}
static CUresult green_alloc(void)
{
    CUstream stream = green_stream();
    return stream != NULL ? async_of(stream, true) : CUDA_ERROR_NOT_SUPPORTED;
}
static CUresult green_names_its_context(void) /* which libberth asks for, without a current context */
{
    CUcontext of_stream;
    CUstream stream = green_stream();
    cuCtxSetCurrent(NULL);
    CUresult result = stream != NULL ? cuStreamGetCtx(stream, &of_stream) : CUDA_ERROR_NOT_SUPPORTED;
    cuCtxSetCurrent(context);
    return result;
}
static CUresult graph_steps(void) /* two nodes of 1 MiB: one step for both, or one each */
{
    CUgraph graph;
    CUexec exec;
    CUnode first, second;
    CUmem_node node = { .pool = { .type = 1, .location = { 1, 0 } }, .bytes = MIB };
    asked_bytes = 2 * MIB;
    CUresult result = cuGraphCreate(&graph, 0);
    if (result == CUDA_SUCCESS)
        result = cuGraphAddMemAllocNode(&first, graph, NULL, 0, &node);
    if (result == CUDA_SUCCESS)
        result = cuGraphAddMemAllocNode(&second, graph, NULL, 0, &node);
    if (result == CUDA_SUCCESS)
        result = cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (result == CUDA_SUCCESS)
        result = cuGraphLaunch(exec, NULL);
    return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
}
static CUresult pending_launches(void) /* limits of the device's runtime, which are not counted */
{
    asked_bytes = 0;
    return cuCtxSetLimit(4, 1 << 16);
}
static CUresult sync_depth(void)
{
    return cuCtxSetLimit(3, 16);
}
static const struct {
    const char *name;
    CUresult (*ask)(void);
} facts[] = {
    { "rounding", rounding },
    { "rounding-small", rounding_small },
    { "rounding-arrays", rounding_arrays },
    { "pool-step", pool_step },
    { "pool-without-context", pool_without_context },
    { "green-alloc", green_alloc },
    { "green-names-its-context", green_names_its_context },
    { "graph-steps", graph_steps },
    { "hmm-prefetch", hmm_prefetch },
    { "hmm-moved", hmm_moved },
    { "pending-launches", pending_launches },
    { "sync-depth", sync_depth },
};

static int fact(const char *name)
{
    size_t before = 0, after = 0, total;
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        if (strcmp(facts[i].name, name) != 0)
            continue;
        CUresult result = start();
        if (result == CUDA_SUCCESS)
            result = cuMemGetInfo_v2(&before, &total);
        if (result != CUDA_SUCCESS)
            return 3;
        result = facts[i].ask();
        cuMemGetInfo_v2(&after, &total);
        printf("{\"result\": %d, \"asked_bytes\": %llu, \"taken_bytes\": %lld}\n", result,
               (unsigned long long)asked_bytes, (long long)before - (long long)after);
        return 0;
    }
    return 2;
}

int main(int count, char **words)
{
    if (count == 2 && strcmp(words[1], "paths") == 0) {
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
            puts(paths[i].name);
        return 0;
    }
    if (count == 4 && strcmp(words[1], "path") == 0)
        return path(words[2], strtoull(words[3], NULL, 10));
    if (count == 2 && strcmp(words[1], "facts") == 0) {
        for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
            puts(facts[i].name);
        return 0;
    }
    if (count == 3 && strcmp(words[1], "fact") == 0)
        return fact(words[2]);
    if (count == 2 && strcmp(words[1], "rate") == 0)
        return rate();
    if (count == 7 && strcmp(words[1], "share") == 0)
        return share(words + 2);
    if (count == 2 && strcmp(words[1], "nvml") == 0)
        return nvml();
    return 2;
}

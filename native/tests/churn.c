/* Many processes take and free memory by every path there is under one limit, while some are
   killed: `churn PROCESSES OPERATIONS KILL_EVERY`, the last two in operations of all processes
   together, so that a busy machine takes longer and does as much. As storm.c, which knows linear
   memory alone. Prints what the driver saw, and how often a process held more than it was charged;
   exit status 5 where the operations are not done after two minutes. */
#include "driver.h"
#include "../region.h"
#include "stopwatch.h"

#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)
struct seen {
    _Atomic uint64_t operations, refused, uncounted;
};
static struct seen *seen;
static const shared64 *charged[2]; /* to this process, by GPU */
static const CUalloc_prop on_device = { .type = 1, .location = { 1, 0 } },
                          for_tiles = { .type = 1, .location = { 1, 0 }, .usage = CU_FOR_TILES };

/* Finds where the library puts down what this process is charged. */
static void find_charged(void)
{
    char pattern[300];
    glob_t files;
    snprintf(pattern, sizeof pattern, "%s/*.use", getenv("BERTH_REGION"));
    if (glob(pattern, 0, NULL, &files) != 0)
        return; /* nothing counts */
    for (size_t i = 0; i < files.gl_pathc && i < 2; i++) {
        int fd = open(files.gl_pathv[i], O_RDONLY | O_CLOEXEC);
        struct berth_use_file *use = mmap(NULL, sizeof *use, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        for (int at = 0; use != MAP_FAILED && at < BERTH_SLOTS; at++)
            if (use->slots[at].state == BERTH_MEMBER && use->slots[at].pid == (uint32_t)getpid())
                charged[i] = &use->slots[at].held;
    }
    globfree(&files);
}

/* Between two calls: only the first GPU is used. */
static void compare(void)
{
    uint64_t held = fake_own_bytes(0);
    if (charged[0] != NULL)
        seen->uncounted += held > *charged[0] && (charged[1] == NULL || held > *charged[1]);
}

/* Whether it was had; whatever else than want of memory it failed of is the switches' doing. */
static bool had(CUresult result)
{
    seen->operations++;
    seen->refused += result == CUDA_ERROR_OUT_OF_MEMORY;
    compare();
    return result == CUDA_SUCCESS;
}

static void linear(size_t bytes, unsigned kind)
{
    CUdeviceptr a;
    size_t pitch;
    CUresult result = kind == 0   ? cuMemAlloc_v2(&a, bytes)
                      : kind == 1 ? cuMemAllocManaged(&a, bytes, 1)
                                  : cuMemAllocPitch_v2(&a, &pitch, 4096, bytes / 4096 + 1, 4);
    if (had(result)) {
        usleep(100);
        cuMemFree_v2(a);
    }
}

static void pooled(size_t bytes, bool own)
{
    static CUpool pool;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    CUdeviceptr a;
    if (own && pool == NULL && cuMemPoolCreate(&pool, &props) != CUDA_SUCCESS)
        return;
    if (had(own ? cuMemAllocFromPoolAsync(&a, bytes, pool, NULL)
                : cuMemAllocAsync(&a, bytes, NULL)))
        cuMemFreeAsync(a, NULL);
    cuStreamSynchronize(NULL);
}

static void physical(size_t bytes, bool shared)
{
    CUhandle handle, again = 0;
    CUdeviceptr at;
    int fd = -1;
    bytes = (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    if (!had(cuMemCreate(&handle, bytes, &on_device, 0)))
        return;
    if (shared && cuMemExportToShareableHandle(&fd, handle, CU_SHARE_FD, 0) == CUDA_SUCCESS &&
        cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_SHARE_FD) == CUDA_SUCCESS) {
        cuMemRelease(handle);
        handle = again;
    }
    if (fd >= 0)
        close(fd);
    if (cuMemAddressReserve(&at, bytes, 0, 0, 0) == CUDA_SUCCESS &&
        cuMemMap(at, bytes, 0, handle, 0) == CUDA_SUCCESS) {
        cuMemRelease(handle);
        usleep(100);
        cuMemUnmap(at, bytes);
        cuMemAddressFree(at, bytes);
    } else {
        cuMemRelease(handle);
    }
}

static void sparse(size_t bytes)
{
    CUarray3d_desc desc = { 8192, 8192, 0, 0x20, 4, CU_ARRAY_SPARSE };
    CUarray array;
    CUhandle handle;
    bytes = (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    if (cuArray3DCreate_v2(&array, &desc) != CUDA_SUCCESS)
        return;
    if (had(cuMemCreate(&handle, bytes, &for_tiles, 0))) {
        CUmap_info part = {
            .resource = array, .operation = CU_OPERATION_MAP, .handle = handle, .device_mask = 1
        };
        part.part.level.width = part.part.level.height = 64;
        part.part.level.depth = 1;
        cuMemMapArrayAsync(&part, 1, NULL);
        cuMemRelease(handle);
    }
    cuArrayDestroy(array);
}

static void graph(size_t bytes)
{
    CUgraph graph;
    CUexec exec;
    CUnode node;
    CUmem_node memory = { .bytes = bytes };
    if (cuGraphCreate(&graph, 0) != CUDA_SUCCESS)
        return;
    cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory);
    if (had(cuGraphInstantiateWithFlags(&exec, graph, 0))) {
        for (int i = 0; i < 3; i++)
            had(cuGraphLaunch(exec, NULL));
        cuGraphExecDestroy(exec);
    }
    cuDeviceGraphMemTrim(0);
    cuGraphDestroy(graph);
}

static void module(size_t bytes)
{
    char image[32];
    CUmodule module;
    CUfunction function;
    snprintf(image, sizeof image, "mib=%u", (unsigned)(bytes / MIB));
    if (!had(cuModuleLoadData(&module, image)))
        return;
    if (had(cuModuleGetFunction(&function, module, "f")))
        cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    cuModuleUnload(module);
}

static void heap(size_t bytes)
{
    had(cuCtxSetLimit(CU_LIMIT_HEAP, 8 * MIB + bytes));
    cuCtxSetLimit(CU_LIMIT_HEAP, 8 * MIB);
}

static void work(unsigned seed)
{
    CUcontext context;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpriority(PRIO_PROCESS, 0, 15); /* so that the killer gets its turn */
    CUresult made = cuInit(0);
    while (made == CUDA_SUCCESS && !had(made = cuDevicePrimaryCtxRetain(&context, 0))) {
        made = made == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : made;
        usleep(1000); /* the others leave no room for a context */
    }
    if (made != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
        _exit(3);
    find_charged();
    for (;;) {
        size_t bytes = (size_t)(rand_r(&seed) % 24 + 1) * MIB;
        unsigned kind = rand_r(&seed) % 10;
        if (kind < 3)
            linear(bytes, kind);
        else if (kind < 5)
            pooled(bytes, kind == 3);
        else if (kind < 7)
            physical(bytes, kind == 5);
        else if (kind == 7)
            sparse(bytes);
        else if (kind == 8)
            graph(bytes);
        else if (rand_r(&seed) % 2)
            module(bytes / 8 + MIB); /* no larger than the first, which is loaded before all else */
        else
            heap(bytes);
    }
}

int main(int count, char **words)
{
    int processes = count > 1 ? atoi(words[1]) : 8;
    uint64_t operations = count > 2 ? strtoull(words[2], NULL, 10) : 300,
             kill_every = count > 3 ? strtoull(words[3], NULL, 10) : 15, killed = 0, failed = 0,
             born = 0;
    unsigned seed = 20261122;
    pid_t *children = calloc((size_t)processes, sizeof *children);
    int status;
    seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fork() == 0) { /* how large a module is, is known from the first one on */
        CUcontext context;
        if (cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
            cuCtxSetCurrent(context) == CUDA_SUCCESS)
            module(4 * MIB);
        _exit(0);
    }
    wait(&status);
    for (int i = 0; i < processes; i++)
        if ((children[i] = fork()) == 0)
            work((unsigned)++born * 7919u + (unsigned)i);
    uint64_t end = stopwatch_clock(CLOCK_MONOTONIC) + 120000000000u, next = kill_every;
    bool late = false;
    while (!late && killed < operations / kill_every) {
        if (seen->operations < next) {
            usleep(500);
            late = stopwatch_clock(CLOCK_MONOTONIC) > end;
            continue;
        }
        next = seen->operations + kill_every;
        int i = (int)(rand_r(&seed) % (unsigned)processes);
        kill(children[i], SIGKILL);
        killed++;
        born++;
        if ((children[i] = fork()) == 0)
            work((unsigned)born * 7919u);
        while (waitpid(-1, &status, WNOHANG) > 0)
            failed += WIFEXITED(status) || WTERMSIG(status) != SIGKILL;
    }
    for (int i = 0; i < processes; i++)
        kill(children[i], SIGKILL);
    while (waitpid(-1, &status, 0) > 0)
        failed += WIFEXITED(status) || WTERMSIG(status) != SIGKILL;
    CUcontext context;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS)
        return 3;
    uint64_t own = fake_own_bytes(0);
    printf("{\"operations\": %llu, \"refused\": %llu, \"killed\": %llu, \"failed\": %llu, "
           "\"violations\": %llu, \"worst_bytes\": %llu, \"uncounted\": %llu, \"driver_bytes\": "
           "%llu}\n",
           (unsigned long long)seen->operations, (unsigned long long)seen->refused,
           (unsigned long long)killed, (unsigned long long)failed,
           (unsigned long long)fake_violations(0), (unsigned long long)fake_worst_bytes(0),
           (unsigned long long)seen->uncounted, (unsigned long long)(fake_used_bytes(0) - own));
    return late ? 5 : 0;
}

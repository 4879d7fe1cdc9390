/* Many processes allocate and free at random under one limit while some are killed: `storm PROCESSES SECONDS KILL_MS`.

   Prints what the driver saw. The parent only looks: it has no context. Exit status 0 where nothing was ever over,
   nobody waited long, and nothing is left. */
#include "driver.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct seen { _Atomic uint64_t operations, refused, worst_wait_ns; };

static uint64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void work(struct seen *seen, unsigned seed, uint64_t largest)
{
    CUcontext context;
    CUdeviceptr held[32] = { 0 };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpriority(PRIO_PROCESS, 0, 15); /* so that the killer gets its turn */
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
        _exit(3);
    for (;;) {
        unsigned at = rand_r(&seed) % 32;
        /* The wait that counts is one that the library makes: time asleep or spinning, not time without a CPU,
           which two cores for 64 processes bring along. Both are looked at: CPU time in the call, and voluntary sleep. */
        uint64_t cpu = now_ns(CLOCK_THREAD_CPUTIME_ID);
        CUresult result = CUDA_SUCCESS;
        if (held[at] != 0) {
            result = cuMemFree_v2(held[at]);
            held[at] = 0;
        } else {
            result = cuMemAlloc_v2(&held[at], ((uint64_t)rand_r(&seed) << 12 ^ (uint64_t)rand_r(&seed)) % largest + 1);
            if (result != CUDA_SUCCESS)
                held[at] = 0;
        }
        cpu = now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            seen->refused++;
        else if (result != CUDA_SUCCESS)
            _exit(4);
        if (cpu > seen->worst_wait_ns)
            seen->worst_wait_ns = cpu;
        seen->operations++;
    }
}

int main(int count, char **words)
{
    int processes = count > 1 ? atoi(words[1]) : 64, seconds = count > 2 ? atoi(words[2]) : 60, kill_ms = count > 3 ? atoi(words[3]) : 50;
    uint64_t largest = (uint64_t)(count > 4 ? atoi(words[4]) : 64) << 20, killed = 0, born = 0, failed = 0;
    struct seen *seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t *children = calloc((size_t)processes, sizeof *children);
    unsigned seed = 20261121;
    for (int i = 0; i < processes; i++)
        if ((children[i] = fork()) == 0)
            work(seen, (unsigned)++born * 7919u + (unsigned)i, largest);
    uint64_t end = now_ns(CLOCK_MONOTONIC) + (uint64_t)seconds * 1000000000u;
    while (now_ns(CLOCK_MONOTONIC) < end) {
        usleep((unsigned)kill_ms * 1000);
        int i = (int)(rand_r(&seed) % (unsigned)processes), status;
        kill(children[i], SIGKILL);
        waitpid(children[i], &status, 0);
        if (WIFEXITED(status))
            failed++;
        killed++;
        born++;
        if ((children[i] = fork()) == 0)
            work(seen, (unsigned)born * 7919u, largest);
    }
    for (int i = 0; i < processes; i++)
        kill(children[i], SIGKILL);
    for (int i = 0; i < processes; i++)
        waitpid(children[i], NULL, 0);

    /* The next to look: a process that starts finds nothing of the dead. */
    CUcontext context;
    size_t free_bytes = 0, total = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return 3;
    cuMemGetInfo_v2(&free_bytes, &total);
    printf("{\"operations\": %llu, \"refused\": %llu, \"killed\": %llu, \"failed\": %llu, \"violations\": %llu, \"worst_call_cpu_ms\": %.3f, "
           "\"left_bytes\": %llu, \"driver_bytes\": %llu}\n",
           (unsigned long long)seen->operations, (unsigned long long)seen->refused, (unsigned long long)killed, (unsigned long long)failed,
           (unsigned long long)fake_violations(0), (double)seen->worst_wait_ns / 1e6, (unsigned long long)(total - free_bytes),
           (unsigned long long)fake_used_bytes(0));
    return fake_violations(0) != 0 || failed != 0 || free_bytes != total || fake_used_bytes(0) != 0 || seen->worst_wait_ns > 100000000u;
}

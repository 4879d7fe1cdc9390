/* Many processes allocate and free at random under one limit while some are killed: `storm
   PROCESSES SECONDS KILL_MS [MIB]`.

   Kills come by the clock, each at a process drawn at random, and another takes its place at once,
   forked from this one, which has everything loaded and no context of its own. Prints what the
   driver saw; what is left is told without its own context. Exit status 0 if the limit was never
   passed and nothing is left. It ends only if each process that lives at last has come through one
   call more: one that waits for the dead never does. */
#include "driver.h"
#include "stopwatch.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

struct seen {
    _Atomic uint64_t operations, refused, longest_ns;
    _Atomic uint64_t calls[]; /* of each process at once, whoever has its place */
};

static void work(struct seen *seen, int place, unsigned seed, uint64_t largest)
{
    CUcontext context;
    CUdeviceptr held[32] = { 0 };
    struct stopwatch watch;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpriority(PRIO_PROCESS, 0, 15); /* so that the killer gets its turn */
    uint64_t at_ledger = fake_waited_ns();
    stopwatch_start(&watch);
    CUresult made = cuInit(0);
    while (made == CUDA_SUCCESS &&
           (made = cuDevicePrimaryCtxRetain(&context, 0)) == CUDA_ERROR_OUT_OF_MEMORY) {
        seen->calls[place]++;
        seen->refused++; /* the others leave no room for a context */
        made = CUDA_SUCCESS;
        usleep(1000);
        at_ledger = fake_waited_ns();
        stopwatch_start(&watch);
    }
    if (made != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
        _exit(3);
    for (bool starting = true;; starting = false) {
        unsigned at = rand_r(&seed) % 32;
        if (!starting) {
            at_ledger = fake_waited_ns();
            stopwatch_start(&watch);
        }
        CUresult result = CUDA_SUCCESS;
        if (held[at] != 0) {
            result = cuMemFree_v2(held[at]);
            held[at] = 0;
        } else {
            result = cuMemAlloc_v2(
                &held[at], ((uint64_t)rand_r(&seed) << 12 ^ (uint64_t)rand_r(&seed)) % largest + 1);
            if (result != CUDA_SUCCESS)
                held[at] = 0;
        }
        uint64_t waited = stopwatch_kept_ns(&watch), others = fake_waited_ns() - at_ledger;
        waited = waited > others ? waited - others : 0;
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            seen->refused++;
        else if (result != CUDA_SUCCESS)
            _exit(4);
        uint64_t longest = seen->longest_ns;
        while (waited > longest &&
               !atomic_compare_exchange_weak(&seen->longest_ns, &longest, waited)) { }
        seen->operations++;
        seen->calls[place]++;
    }
}

/* Takes note of those that have ended; returns how many ended by themselves, which none should. */
static uint64_t bury(bool all)
{
    uint64_t failed = 0;
    int status;
    while (waitpid(-1, &status, all ? 0 : WNOHANG) > 0)
        failed += WIFEXITED(status) || WTERMSIG(status) != SIGKILL;
    return failed;
}

int main(int count, char **words)
{
    int processes = count > 1 ? atoi(words[1]) : 64, seconds = count > 2 ? atoi(words[2]) : 60,
        kill_ms = count > 3 ? atoi(words[3]) : 50;
    uint64_t largest = (uint64_t)(count > 4 ? atoi(words[4]) : 64) << 20, killed = 0, born = 0,
             failed = 0;
    struct seen *seen = mmap(NULL, sizeof *seen + (size_t)processes * sizeof *seen->calls,
                             PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t *children = calloc((size_t)processes, sizeof *children);
    unsigned seed = 20261121;
    for (int i = 0; i < processes; i++)
        if ((children[i] = fork()) == 0)
            work(seen, i, (unsigned)++born * 7919u + (unsigned)i, largest);
    uint64_t next = stopwatch_clock(CLOCK_MONOTONIC), end = next + (uint64_t)seconds * 1000000000u;
    while ((next += (uint64_t)kill_ms * 1000000u) < end) {
        struct timespec at = { (time_t)(next / 1000000000u), (long)(next % 1000000000u) };
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) { }
        int i = (int)(rand_r(&seed) % (unsigned)processes);
        kill(children[i], SIGKILL);
        killed++;
        born++;
        if ((children[i] = fork()) == 0)
            work(seen, i, (unsigned)born * 7919u, largest);
        failed += bury(false);
    }
    for (int i = 0; i < processes; i++)
        for (uint64_t before = seen->calls[i]; seen->calls[i] == before && failed == 0;) {
            usleep(1000);
            failed += bury(false);
        }
    for (int i = 0; i < processes; i++)
        kill(children[i], SIGKILL);
    failed += bury(true);

    /* The next to look: a process that starts finds nothing of the dead. */
    CUcontext context;
    size_t free_bytes = 0, total = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return 3;
    cuMemGetInfo_v2(&free_bytes, &total);
    uint64_t own = fake_own_bytes(0), left = total - free_bytes - own,
             driver = fake_used_bytes(0) - own;
    printf("{\"operations\": %llu, \"refused\": %llu, \"killed\": %llu, \"failed\": %llu, "
           "\"violations\": %llu, \"longest_wait_ms\": %.3f, "
           "\"left_bytes\": %llu, \"driver_bytes\": %llu}\n",
           (unsigned long long)seen->operations, (unsigned long long)seen->refused,
           (unsigned long long)killed, (unsigned long long)failed,
           (unsigned long long)fake_violations(0), (double)seen->longest_ns / 1e6,
           (unsigned long long)left, (unsigned long long)driver);
    return fake_violations(0) != 0 || failed != 0 || left != 0 || driver != 0;
}

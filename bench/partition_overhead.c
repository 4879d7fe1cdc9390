/* Times one operation of the driver, as a program linked to it sees it: `partition_overhead OPERATION`.

   Prints ns of processor time per operation: the median of many rounds. Run bare and with the library preloaded.

   A thread that waits for its share wakes on a core that has slept, which is slower for a while, with or without the library.
   So `launch` prints besides after how many launches it rested and for how many µs, and `launch LAUNCHES US` rests as often. */
#include "../native/tests/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double clock_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void start(void)
{
    CUcontext context;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
        exit(3);
}

static CUfunction function;
static void alloc(void) { CUdeviceptr a; if (cuMemAlloc_v2(&a, 4096) != CUDA_SUCCESS || cuMemFree_v2(a) != CUDA_SUCCESS) exit(4); }
static void async(void) { CUdeviceptr a; if (cuMemAllocAsync(&a, 4096, NULL) != CUDA_SUCCESS || cuMemFreeAsync(a, NULL) != CUDA_SUCCESS) exit(4); }
static void launch(void) { if (cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS) exit(4); }
static long rest_after, rest_us, launches_left;
static void launch_and_rest(void)
{
    launch();
    if (--launches_left <= 0) {
        launches_left = rest_after;
        usleep((useconds_t)rest_us);
    }
}
static void info(void) { size_t f, t; if (cuMemGetInfo_v2(&f, &t) != CUDA_SUCCESS) exit(4); }
static void lookup(void) { static void *volatile sink; sink = dlsym(RTLD_DEFAULT, "malloc"); }

/* A round takes at most 5 ms: calls of a real driver are up to a thousand times slower than the fake one's. */
static double median(void (*operation)(void), int rounds, int each, clockid_t clock)
{
    enum { TRIED = 20, ROUND_NS = 5000000 };
    double *times = malloc((size_t)rounds * sizeof *times), begun = clock_of(CLOCK_MONOTONIC);
    for (int i = 0; i < TRIED; i++)
        operation();
    double most = ROUND_NS / ((clock_of(CLOCK_MONOTONIC) - begun) / TRIED);
    each = most < 1 ? 1 : most < each ? (int)most : each;
    for (int r = 0; r < rounds; r++) {
        double from = clock_of(clock);
        for (int i = 0; i < each; i++)
            operation();
        times[r] = (clock_of(clock) - from) / each;
    }
    qsort(times, (size_t)rounds, sizeof *times, compare);
    return times[rounds / 2];
}

/* As `launch`, with the rests that it had. */
static int launches(int count, char **words)
{
    enum { ROUNDS = 200, EACH = 2000, WARM = 2000 };
    struct rusage before, after;
    int rests_too = count > 3 && atol(words[2]) > 0; /* 0 where the limited run never rested */
    if (rests_too) {
        rest_after = launches_left = atol(words[2]);
        rest_us = atol(words[3]);
    }
    void (*operation)(void) = rests_too ? launch_and_rest : launch;
    for (int i = 0; i < WARM; i++)
        operation();
    getrusage(RUSAGE_THREAD, &before);
    double wall = clock_of(CLOCK_MONOTONIC), cpu = clock_of(CLOCK_THREAD_CPUTIME_ID);
    double ns = median(operation, ROUNDS, EACH, CLOCK_THREAD_CPUTIME_ID);
    getrusage(RUSAGE_THREAD, &after);
    cpu = clock_of(CLOCK_THREAD_CPUTIME_ID) - cpu;
    wall = clock_of(CLOCK_MONOTONIC) - wall;
    long rests = after.ru_nvcsw - before.ru_nvcsw;
    if (rests <= 0)
        return printf("%.2f 0 0\n", ns) < 0;
    return printf("%.2f %ld %.0f\n", ns, (long)ROUNDS * EACH / rests, (wall - cpu) / 1e3 / (double)rests) < 0;
}

/* From exec to the first allocation, in each of `count` processes begun together; prints the slowest. */
static int begin_together(int count)
{
    int gate[2], results[2];
    double worst = 0, one;
    if (pipe(gate) != 0 || pipe(results) != 0)
        return 3;
    for (int i = 0; i < count; i++)
        if (fork() == 0) {
            char byte;
            close(gate[1]);
            while (read(gate[0], &byte, 1) > 0) { }
            double from = clock_of(CLOCK_MONOTONIC);
            CUdeviceptr a;
            start();
            if (cuMemAlloc_v2(&a, 4096) != CUDA_SUCCESS)
                _exit(4);
            one = (clock_of(CLOCK_MONOTONIC) - from) / 1e6;
            _exit(write(results[1], &one, sizeof one) != sizeof one);
        }
    usleep(200000);
    close(gate[0]);
    close(gate[1]);
    close(results[1]);
    while (read(results[0], &one, sizeof one) == sizeof one)
        worst = one > worst ? one : worst;
    while (wait(NULL) > 0) { }
    printf("%.3f\n", worst);
    return 0;
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "alloc";
    CUmodule module;
    if (strcmp(what, "dlsym") == 0)
        return printf("%.2f\n", median(lookup, 200, 2000, CLOCK_THREAD_CPUTIME_ID)) < 0;
    if (strncmp(what, "start", 5) == 0)
        return begin_together(atoi(what + 5));
    if (strcmp(what, "eight") == 0) { /* CPU time of an operation with eight processes on the machine's cores */
        int results[2];
        double sum = 0, one;
        if (pipe(results) != 0)
            return 3;
        for (int i = 0; i < 8; i++)
            if (fork() == 0) {
                start();
                one = median(alloc, 60, 2000, CLOCK_PROCESS_CPUTIME_ID);
                _exit(write(results[1], &one, sizeof one) != sizeof one);
            }
        for (int i = 0; i < 8 && read(results[0], &one, sizeof one) == sizeof one; i++)
            sum += one;
        while (wait(NULL) > 0) { }
        return printf("%.1f\n", sum / 8) < 0;
    }
    start();
    /* The fake driver takes any image; a real one compiles this. */
    cuModuleLoadData(&module, ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n");
    cuModuleGetFunction(&function, module, "nothing");
    if (strstr(what, "live") != NULL)
        for (int i = 0; i < 20000; i++) {
            CUdeviceptr a;
            if (cuMemAlloc_v2(&a, 512) != CUDA_SUCCESS)
                return 4;
        }
    if (strcmp(what, "launch") == 0)
        return launches(count, words);
    void (*operation)(void) = strcmp(what, "async") == 0 ? async : strncmp(what, "info", 4) == 0 ? info : alloc;
    return printf("%.2f\n", median(operation, 200, 2000, CLOCK_THREAD_CPUTIME_ID)) < 0;
}

/* What a process does: contexts, threads, forks, limits that change or cannot be known. */
#include "check.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* The kernel may let go of a dead process a moment after it was waited for, as when another process
   reads its /proc. */
static uint64_t room_in_the_end(uint64_t wanted)
{
    uint64_t seen = room();
    for (int tries = 0; tries < 60000 && seen != wanted; tries++) {
        usleep(2000);
        seen = room();
    }
    return seen;
}
#define HELD_IN_THE_END(bytes)                                                                 \
    CHECK(room_in_the_end(LIMIT - (bytes)) == LIMIT - (bytes) && fake_own_bytes(0) == (bytes))

void test_errno(void) /* a call that has to look about leaves the host's errno as it was */
{
    CUdeviceptr a;
    start();
    errno = 4711;
    for (int i = 0; i < 3; i++)
        OOM(cuMemAlloc_v2(&a, LIMIT + 1));
    HELD(0);
    CHECK(errno == 4711);
    void *found = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    CHECK(found != NULL && errno == 4711);
}

void test_ipc(void)
{
    CUdeviceptr a, b;
    CUipc handle;
    start();
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    OK(cuIpcGetMemHandle(&handle, a));
    OK(cuIpcOpenMemHandle_v2(&b, handle, 0));
    HELD(40 * MIB); /* counted once, where it was allocated */
    OK(cuIpcCloseMemHandle(b));
    HELD(40 * MIB);
    OK(cuMemFree_v2(a));
    HELD(0);
}

void test_context(void) /* with contexts of 10 MiB */
{
    CUcontext own, context;
    CUdeviceptr a;
    CUmodule module;
    start();
    HELD(10 * MIB);
    OK(cuCtxCreate_v2(&own, 0, 0));
    HELD(20 * MIB);
    OK(cuMemAlloc_v2(&a, 20 * MIB));
    OK(cuModuleLoadData(&module, "image"));
    HELD(41 * MIB);
    OOM(cuMemAlloc_v2(&a, 24 * MIB));
    OK(cuCtxDestroy_v2(own)); /* takes its memory along */
    HELD(10 * MIB);
    OK(cuMemAlloc_v2(&a, 20 * MIB));
    OK(cuModuleLoadData(&module, "image"));
    HELD(31 * MIB);
    OK(cuModuleUnload(module));
    HELD(30 * MIB);
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK(fake_own_bytes(0) == 0);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    HELD(10 * MIB);
    OK(cuMemAlloc_v2(&a, 50 * MIB));
    OOM(cuCtxCreate_v2(&own, 0, 0)); /* known by now to need 10 MiB */
    HELD(60 * MIB);
    OK(cuMemFree_v2(a));
    CUcontext many[5];
    for (int i = 0; i < 5; i++)
        OK(cuCtxCreate_v2(&many[i], 0, 0));
    HELD(60 * MIB);
    OOM(cuCtxCreate_v2(&own, 0, 0));
    for (int i = 4; i >= 0; i--)
        OK(cuCtxDestroy_v2(many[i]));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(fake_own_bytes(0) == 0);
}

void test_view(void)
{
    size_t free_bytes = 7, total = 7;
    start();
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(total == LIMIT);
    CHECK(cuMemGetInfo_v2(NULL, &total) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemGetInfo_v2(&free_bytes, NULL) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemGetInfo_v2(NULL, NULL) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(total == LIMIT && free_bytes == LIMIT);
}

static void *churn(void *data)
{
    unsigned seed = (unsigned)(uintptr_t)data;
    CUcontext context;
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return (void *)1;
    for (int i = 0; i < 300; i++) {
        CUdeviceptr a;
        size_t bytes = (size_t)(rand_r(&seed) % (32 << 20)) + 1;
        bool pooled = getenv("NOPOOL") == NULL && i % 3 == 0;
        CUresult result = pooled ? cuMemAllocAsync(&a, bytes, NULL) : cuMemAlloc_v2(&a, bytes);
        if (result == CUDA_SUCCESS &&
            (pooled ? cuMemFreeAsync(a, NULL) : cuMemFree_v2(a)) != CUDA_SUCCESS)
            return (void *)2;
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
            return (void *)3;
    }
    return NULL;
}

void test_threads(void)
{
    pthread_t threads[8];
    start();
    for (uintptr_t i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) == 0);
    for (int i = 0; i < 8; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    OK(cuCtxSynchronize());
    HELD(0);
    if (fake_violations(0) != 0)
        printf("%llu bytes at worst\n", (unsigned long long)fake_worst_bytes(0));
    CHECK(fake_violations(0) == 0);
}

void test_fork(void)
{
    CUdeviceptr a, b;
    int status;
    /* Before anything: the child is a process of its own. */
    pid_t child = fork();
    if (child == 0) {
        start();
        _exit(cuMemAlloc_v2(&a, 40 * MIB) == CUDA_SUCCESS ? 0 : 1);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0);
    start();
    HELD_IN_THE_END(0); /* what the child held came back when it ended */
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    child = fork(); /* after: the driver does not work in the child, and the parent's memory stays
                       the parent's */
    if (child == 0)
        _exit(cuMemAlloc_v2(&b, 1) == CUDA_ERROR_NOT_INITIALIZED && cuInit(0) != CUDA_SUCCESS ? 0
                                                                                              : 1);
    waitpid(child, &status, 0);
    CHECK(status == 0);
    HELD(40 * MIB);
    child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "check", "half", (char *)NULL);
        _exit(9);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0);
    HELD_IN_THE_END(
        40 * MIB); /* cuMemGetInfo looks for the dead every 10 ms; a refusal would look at once */
}

static _Atomic int counting, second_is_through;

static void stay_in_the_driver(
    void) /* the first to get there, until the second is through or has waited in vain */
{
    if (counting++ == 0)
        for (int tries = 0; tries < 120000 && !second_is_through; tries++)
            usleep(1000);
}

static void *start_first(void *data)
{
    (void)data;
    return cuInit(0) == CUDA_SUCCESS ? NULL : (void *)1;
}

void test_start_beside(void) /* no lock is held over a driver call: one that takes long
                                      at the start delays no other thread */
{
    pthread_t first;
    void *failed;
    CUdeviceptr a;
    fake_when_counting(stay_in_the_driver);
    CHECK(pthread_create(&first, NULL, start_first, NULL) == 0);
    while (counting == 0)
        usleep(1000);
    start();
    CHECK(counting == 2);
    OK(cuMemAlloc_v2(&a, LIMIT));
    second_is_through = 1;
    pthread_join(first, &failed);
    CHECK(failed == NULL);
    HELD(LIMIT);
    OK(cuMemFree_v2(a));
    HELD(0);
}

/* Run by others while they hold 40 MiB. */
void test_half(void)
{
    CUdeviceptr a;
    OK(cuInit(0));
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    if (getenv("BERTH_TEST_HALF") != NULL || getppid() > 1)
        CHECK(room() <= LIMIT);
    uint64_t left = room();
    if (left < 40 * MIB)
        OOM(cuMemAlloc_v2(&a, left + 1));
    OK(cuMemAlloc_v2(&a, left));
    CHECK(room() == 0);
}

void test_guest(void) /* what berth must leave alone in the host */
{
    mode_t mask = umask(022);
    struct sigaction one, two;
    umask(mask);
    start();
    CHECK(umask(mask) == mask);
    sigaction(SIGUSR1, NULL, &one);
    sigaction(SIGUSR2, NULL, &two);
    CHECK(one.sa_handler == SIG_DFL && two.sa_handler == SIG_DFL);
    for (int fd = 3; fd < 64; fd++) /* no descriptor is left open */
        CHECK(fcntl(fd, F_GETFD) == -1 || getenv("BERTH_TEST_FDS") != NULL);
    CUdeviceptr a;
    for (int fd = 3; fd < 1024; fd++)
        close(fd); /* and closing all of them changes nothing */
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "check", "half", (char *)NULL);
        _exit(9);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK(status == 0); /* the other saw 24 MiB and no more */
    HELD_IN_THE_END(40 * MIB);
}

void test_legacy(void) /* the entry points of CUDA 2 that linked programs may still have */
{
    unsigned a, free_bytes, total, pitch;
    start();
    OK(cuMemAlloc(&a, 1 << 20));
    HELD(1 * MIB);
    OK(cuMemGetInfo(&free_bytes, &total));
    CHECK(total == LIMIT && free_bytes == LIMIT - MIB);
    CHECK(cuMemGetInfo(NULL, &total) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAllocPitch(&a, &pitch, 1 << 30, 1 << 20, 4) != CUDA_SUCCESS);
}

void test_none(void) /* limits that cannot be known: no GPU rather than all of it */
{
    int count = 7;
    CHECK(cuInit(0) == CUDA_ERROR_NO_DEVICE);
    CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NO_DEVICE && count == 0);
    CUdeviceptr a;
    CUcontext context; /* a program that does not listen gets nothing either */
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS &&
          cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS);
    CHECK(cuMemAlloc_v2(&a, 1) != CUDA_SUCCESS);
    CHECK(cuMemAllocManaged(&a, 1, 1) != CUDA_SUCCESS &&
          cuMemAllocAsync(&a, 1, NULL) != CUDA_SUCCESS);
}

static void *start_there(void *unused)
{
    (void)unused;
    start();
    return NULL;
}

/* A child that is forked while another thread joins the region inherits nothing of its lock:
   libslow.so keeps the join at its longest (tests/partition says so). */
void test_fork_amid_join(void)
{
    pthread_t thread;
    int status = 0;
    atomic_int *reached = dlsym(RTLD_DEFAULT, "slow_reached");
    CHECK(reached != NULL && pthread_create(&thread, NULL, start_there, NULL) == 0);
    while (atomic_load(reached) == 0)
        usleep(1000);
    pid_t child = fork();
    if (child == 0) {
        char path[64], to[300];
        for (int fd = 3; fd < 64; fd++) {
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            ssize_t size = readlink(path, to, sizeof to - 1);
            to[size > 0 ? size : 0] = 0;
            if (strstr(to, ".use") != NULL)
                _exit(1);
        }
        unsigned long from, end;
        char line[400];
        FILE *maps = fopen("/proc/self/maps", "re");
        while (fgets(line, sizeof line, maps) != NULL)
            if (strstr(line, ".use") != NULL && sscanf(line, "%lx-%lx", &from, &end) == 2 &&
                end - from == 4096)
                _exit(2);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void *set_limits(void *context)
{
    unsigned seed = (unsigned)(uintptr_t)&seed;
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 300; i++)
        (void)cuCtxSetLimit(CU_LIMIT_HEAP, (9 + rand_r(&seed) % 40) * MIB);
    return NULL;
}

/* Two threads set one limit: what is charged in the end is what the driver has in the end. */
void test_limits_at_once(void)
{
    pthread_t threads[2];
    CUcontext context;
    CUdeviceptr a;
    start();
    OK(cuCtxGetCurrent(&context));
    OK(cuMemAlloc_v2(&a, 20 * MIB)); /* so that some of them are refused */
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, set_limits, context) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    HELD(fake_own_bytes(0));
    CHECK(fake_violations(0) == 0);
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 8 * MIB));
    HELD(20 * MIB);
}

/* The same of two contexts, of which each is settled for itself. */
void test_limits_of_two_contexts(void)
{
    pthread_t threads[2];
    CUcontext contexts[2];
    start();
    OK(cuCtxGetCurrent(&contexts[0]));
    OK(cuCtxCreate_v2(&contexts[1], 0, 0));
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, set_limits, contexts[i]) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    HELD(fake_own_bytes(0));
    CHECK(fake_violations(0) == 0);
}

void test_data(void)
{
    CUdeviceptr a;
    char in[64] = "through the fake card", out[64] = "";
    start();
    OK(cuMemAlloc_v2(&a, sizeof in));
    OK(cuMemcpyHtoD_v2(a, in, sizeof in));
    OK(cuMemcpyDtoH_v2(out, a, sizeof out));
    CHECK(strcmp(in, out) == 0);
}

void test_two_gpus(void) /* 0:64,1:32 */
{
    CUcontext first, second;
    CUdeviceptr a;
    size_t total;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuDeviceTotalMem_v2(&total, 1));
    CHECK(total == 32 * MIB);
    OK(cuCtxSetCurrent(second));
    OOM(cuMemAlloc_v2(&a, 33 * MIB));
    OK(cuMemAlloc_v2(&a, 32 * MIB));
    OK(cuCtxSetCurrent(first));
    OK(cuMemAlloc_v2(&a, 64 * MIB));
    OK(cuDeviceTotalMem_v2(&total, 2)); /* one that the list does not name */
    CHECK(total == 0);
}

void test_total(void) /* the one visible device has as much as BERTH_TEST_TOTAL_MIB says */
{
    size_t total;
    OK(cuInit(0));
    OK(cuDeviceTotalMem_v2(&total, 0));
    printf("%zu\n", (size_t)(total >> 20));
}

void test_over(void) /* asks for more than it is told there is, and goes on with half */
{
    CUdeviceptr a;
    size_t free_bytes = 0, total = 0;
    start();
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    OOM(cuMemAlloc_v2(&a, total + 1));
    OK(cuMemAlloc_v2(&a, total / 2));
}

static void say(const char *what)
{
    char line[8];
    printf("%s\n", what);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

void test_up(void) /* starts, takes a byte, says so, and waits for a line */
{
    CUdeviceptr a;
    start();
    OK(cuMemAlloc_v2(&a, 1));
    say("up");
}

void test_resized(void) /* from 64 MiB to 32, and to 128 */
{
    CUdeviceptr a, b;
    size_t total;
    start();
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    say("held");
    OOM(cuMemAlloc_v2(&b, 1)); /* above the limit by now, and alive */
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(total == 32 * MIB && room() == 0 && fake_own_bytes(0) == 40 * MIB);
    say("refused");
    OK(cuMemAlloc_v2(&b, 88 * MIB));
    OOM(cuMemAlloc_v2(&a, 1));
}

void test_hold(void) /* takes 40 MiB, says so, waits for a line, and is often killed meanwhile */
{
    CUdeviceptr a;
    char line[8];
    start();
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    printf("held\n");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    HELD(40 * MIB);
}

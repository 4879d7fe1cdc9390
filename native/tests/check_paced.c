/* With a compute limit, by a clock of the test's own: tests/partition reads what each GPU was used
   for. */
#include "check.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

void test_launch(void)
{
    CUmodule module;
    CUfunction function;
    CUlaunch launch = { 1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0 };
    start();
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(&function, module, "spin_10"));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuLaunchKernelEx(&launch, function, NULL, NULL));
    OK(cuLaunchKernelEx_ptsz(&launch, function, NULL, NULL));
    OK(cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL));
    OK(cuLaunchCooperativeKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL));
    OK(cuLaunch(function));
    OK(cuLaunchGrid(function, 1, 1));
    OK(cuLaunchGridAsync(function, 1, 1, NULL));
    OK(cuCtxSynchronize());
    CHECK(fake_own_busy_ns(0) == 90000);
    CUcooperative list = { .function = function, .grid_x = 1, .grid_y = 1, .grid_z = 1 };
    OK(cuLaunchCooperativeKernelMultiDevice(&list, 1, 0));
    OK(cuCtxSynchronize());
    CHECK(fake_own_busy_ns(0) == 100000);
}

/* ---- with a compute limit, by a clock of the test's own: tests/partition reads what each GPU was
   charged ---- */

static void launch_of(CUfunction *function, const char *name)
{
    CUmodule module;
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(function, module, name));
}

static void two_contexts(CUcontext contexts[2], CUfunction functions[2], const char *first,
                         const char *second)
{
    OK(cuInit(0));
    for (int i = 0; i < 2; i++) {
        OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
        OK(cuCtxSetCurrent(contexts[i]));
        launch_of(&functions[i], i == 0 ? first : second);
    }
}

static void launches(CUfunction function, unsigned blocks)
{
    OK(cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
}

void test_paced_in_turns(void) /* 2 ms on each of two GPUs, a launch here and a launch there */
{
    CUcontext contexts[2];
    CUfunction functions[2];
    two_contexts(contexts, functions, "spin_10", "spin_10");
    for (int i = 0; i < 400; i++) {
        OK(cuCtxSetCurrent(contexts[i % 2]));
        launches(functions[i % 2], 1);
    }
}

void test_paced_apart(void) /* 10 ms on one GPU, a launch on the other before they are measured */
{
    CUcontext contexts[2];
    CUfunction functions[2];
    two_contexts(contexts, functions, "spin_5000", "spin_10");
    for (int i = 0; i < 3; i++) {
        OK(cuCtxSetCurrent(contexts[i % 2]));
        launches(functions[i % 2], 1);
    }
}

void test_paced_together(void) /* 40 ms on each of two GPUs, by launches that are one call */
{
    CUcontext contexts[2];
    CUfunction functions[2];
    CUstream streams[2];
    two_contexts(contexts, functions, "spin_10000", "spin_10000");
    for (int i = 0; i < 2; i++) {
        OK(cuCtxSetCurrent(contexts[i]));
        OK(cuStreamCreate(&streams[i], 0));
    }
    for (int i = 0; i < 4; i++) {
        CUcooperative list[2];
        for (int gpu = 0; gpu < 2; gpu++)
            list[gpu] = (CUcooperative){ .function = functions[gpu],
                                         .grid_x = 1,
                                         .grid_y = 1,
                                         .grid_z = 1,
                                         .stream = streams[gpu] };
        OK(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
    }
    for (int i = 0; i < 2; i++) {
        OK(cuCtxSetCurrent(contexts[i]));
        OK(cuStreamSynchronize(streams[i]));
    }
}

void test_paced_events(void) /* each probe has two events, whatever contexts it was used in */
{
    CUcontext contexts[2];
    CUfunction functions[2];
    two_contexts(contexts, functions, "spin_10", "spin_10");
    for (unsigned i = 0; i < 400; i++) {
        OK(cuCtxSetCurrent(contexts[i % 2]));
        launches(functions[i % 2], 1 + i);
    }
    CHECK(fake_own_events() >= 2 && fake_own_events() <= 2 * 64);
}

static void paced_after(CUresult (*end)(
    CUdevice)) /* 2 ms, then 40 ms in the context that comes after it, by the same address */
{
    CUcontext before, after;
    CUfunction function;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&before, 0));
    OK(cuCtxSetCurrent(before));
    launch_of(&function, "spin_1000");
    launches(function, 1);
    launches(function, 1);
    OK(end(0));
    CHECK(fake_own_events() == 0);
    OK(cuDevicePrimaryCtxRetain(&after, 0));
    CHECK(before == after);
    OK(cuCtxSetCurrent(after));
    launch_of(&function, "spin_2000");
    for (int i = 0; i < 20; i++)
        launches(function, 2);
}

void test_paced_after_reset(void)
{
    paced_after(cuDevicePrimaryCtxReset_v2);
}
void test_paced_after_release(void)
{
    paced_after(cuDevicePrimaryCtxRelease_v2);
}

/* ---- threads: `paced_threads` ends those that launched, `paced_exit` itself while they are ----
 */

enum { CROWD = 40 };
static CUcontext crowds_context;
static CUfunction crowds_function;
static pthread_barrier_t crowd;

static void *launch_once(void *stays)
{
    OK(cuCtxSetCurrent(crowds_context));
    launches(crowds_function, 1);
    if (stays != NULL) {
        pthread_barrier_wait(&crowd);
        pause();
    }
    return NULL;
}

static void begin_crowd(void) /* whose kernel is known */
{
    start();
    OK(cuCtxGetCurrent(&crowds_context));
    launch_of(&crowds_function, "spin_10");
    for (int i = 0; i < 8; i++)
        launches(crowds_function, 1);
}

void test_paced_threads(void)
{
    begin_crowd();
    for (int i = 0; i < CROWD; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, launch_once, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

void test_paced_exit(void)
{
    begin_crowd();
    CHECK(pthread_barrier_init(&crowd, NULL, CROWD + 1) == 0);
    for (int i = 0; i < CROWD; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, launch_once, &crowd) == 0);
    }
    pthread_barrier_wait(&crowd);
}

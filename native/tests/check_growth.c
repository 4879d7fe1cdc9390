/* A limit that grows when a call does not fit: tests/partition/test_growth.py answers. */
#include "check.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>

/* Each path asks for 80 MiB where the limit is 64 MiB. */
void test_grows(void)
{
    CUdeviceptr a, at;
    size_t pitch;
    CUarray array;
    CUarray_desc desc = { .width = 2048, .height = 40 << 10, .format = 0x01, .channels = 1 };
    CUarray3d_desc desc3d = {
        .width = 1024, .height = 1024, .depth = 80, .format = 0x01, .channels = 1
    };
    CUmipmap mipmap;
    CUhandle handle;
    CUgraph graph;
    CUnode node;
    CUexec exec;
    CUmem_node memory = { .pool = { .type = 1, .location = { 1, 0 } }, .bytes = 80 * MIB };
    size_t limit;
    start();
    OK(cuMemAlloc_v2(&a, 80 * MIB));
    OK(cuMemFree_v2(a));
    OK(cuMemAllocPitch_v2(&a, &pitch, 1024, 80 << 10, 4));
    OK(cuMemFree_v2(a));
    OK(cuMemAllocManaged(&a, 80 * MIB, 1));
    OK(cuMemFree_v2(a));
    OK(cuArrayCreate_v2(&array, &desc));
    OK(cuArrayDestroy(array));
    OK(cuMipmappedArrayCreate(&mipmap, &desc3d, 1));
    OK(cuMipmappedArrayDestroy(mipmap));
    OK(cuMemCreate(&handle, 80 * MIB, &on_device, 0));
    OK(cuMemRelease(handle));
    OK(cuMemAllocAsync(&at, 80 * MIB, NULL));
    OK(cuMemFreeAsync(at, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuGraphExecDestroy(exec));
    OK(cuDeviceGraphMemTrim(0));
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 80 * MIB));
    OK(cuCtxGetLimit(&limit, CU_LIMIT_HEAP));
    CHECK(limit == 80 * MIB);
}

void test_asks_in_no_capture(void)
{
    CUstream stream;
    CUgraph graph;
    CUdeviceptr a;
    start();
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    OOM(cuMemAlloc_v2(&a, LIMIT + 1));
    OK(cuStreamEndCapture(stream, &graph));
    puts("captured");
    OK(cuMemAlloc_v2(&a, LIMIT + 1));
    CHECK(fake_own_bytes(0) == LIMIT + 1);
}

/* However often: a count that was given back twice would let captures ask. */
void test_asks_when_a_captured_stream_is_gone(void)
{
    CUstream stream, other;
    CUdeviceptr a;
    start();
    OK(cuStreamCreate(&other, 0));
    for (int i = 0; i < 3; i++) {
        OK(cuStreamCreate(&stream, 0));
        OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
        OK(cuStreamDestroy_v2(stream));
    }
    OK(cuStreamBeginCapture_v2(other, CU_CAPTURE_RELAXED));
    OOM(cuMemAlloc_v2(&a, LIMIT + 1));
    OK(cuStreamDestroy_v2(other));
    puts("gone");
    OK(cuMemAlloc_v2(&a, LIMIT + 1));
    CHECK(fake_own_bytes(0) == LIMIT + 1);
}

static void *ask_for_more(void *context)
{
    CUdeviceptr a;
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&a, LIMIT));
    return NULL;
}

static void wait_for_line(void)
{
    char line[8];
    puts("ready");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

/* One thread waits for an answer, which comes once this one has allocated by every path. */
void test_asks_beside_others(void)
{
    CUcontext context;
    CUdeviceptr a;
    CUhandle handle;
    CUgraph graph;
    CUstream stream;
    pthread_t thread;
    start();
    OK(cuCtxGetCurrent(&context));
    OK(cuMemAlloc_v2(&a, 1));
    CHECK(pthread_create(&thread, NULL, ask_for_more, context) == 0);
    wait_for_line();
    for (int i = 0; i < 100; i++) {
        CUdeviceptr b;
        OK(cuMemAlloc_v2(&b, MIB));
        OK(cuMemFree_v2(b));
        OK(cuMemAllocAsync(&b, MIB, NULL));
        OK(cuMemFreeAsync(b, NULL));
        OK(cuMemCreate(&handle, 2 * MIB, &on_device, 0));
        OK(cuMemRelease(handle));
    }
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED));
    OK(cuStreamEndCapture(stream, &graph));
    wait_for_line();
    pthread_join(thread, NULL);
}

/* The child holds nothing and asks for nothing; the parent's wish is not the child's. */
void test_forks_while_it_asks(void)
{
    CUcontext context;
    CUdeviceptr a;
    pthread_t thread;
    int status;
    start();
    OK(cuCtxGetCurrent(&context));
    OK(cuMemAlloc_v2(&a, 1));
    CHECK(pthread_create(&thread, NULL, ask_for_more, context) == 0);
    wait_for_line();
    pid_t child = fork();
    if (child == 0)
        _exit(cuMemAlloc_v2(&a, LIMIT) != CUDA_SUCCESS ? 0 : 1);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    wait_for_line();
    pthread_join(thread, NULL);
}

/* Ways past the limit that were found open once, each as a program that tries it. */
#include "check.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* ---- every current context with every kind of stream and every call ---- */

enum { GPUS = 2, CONTEXTS = 5, STREAMS = 4, CALLS = 6, TRIES = 16 };

static struct {
    CUcontext contexts[CONTEXTS]; /* none; the primary ones, an own one, a green one */
    CUstream streams[STREAMS];    /* the default, of an own context, of the other GPU, green */
    CUcontext primary[GPUS];
    CUpool own, standard;
    CUexec exec;
} world;

static void make_world(void)
{
    CUgreen green[GPUS];
    CUgraph graph;
    CUnode node;
    CUmem_node memory = { .pool = { .type = 1, .location = { 1, 0 } }, .bytes = 40 * MIB };
    CUpool_props on_second = { .type = 1, .location = { 1, 1 } };
    OK(cuInit(0));
    for (int gpu = 0; gpu < GPUS; gpu++) {
        OK(cuDevicePrimaryCtxRetain(&world.primary[gpu], gpu));
        OK(cuGreenCtxCreate(&green[gpu], NULL, gpu, 1));
    }
    OK(cuCtxCreate_v2(&world.contexts[3], 0, 0));
    world.contexts[1] = world.primary[0];
    world.contexts[2] = world.primary[1];
    OK(cuCtxFromGreenCtx(&world.contexts[4], green[0]));
    OK(cuStreamCreate(&world.streams[1], 0));
    OK(cuCtxSetCurrent(world.primary[1]));
    OK(cuStreamCreate(&world.streams[2], 0));
    OK(cuGreenCtxStreamCreate(&world.streams[3], green[1], 1, 0));
    OK(cuMemPoolCreate(&world.own, &on_second));
    OK(cuDeviceGetDefaultMemPool(&world.standard, 0));
    OK(cuCtxSetCurrent(world.primary[0]));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory));
    OK(cuGraphInstantiateWithFlags(&world.exec, graph, 0));
}

static CUresult call_once(int call, CUstream stream, CUdeviceptr *ptr)
{
    switch (call) {
    case 0:
        return cuMemAllocAsync(ptr, 10 * MIB, stream);
    case 1:
        return cuMemAllocAsync_ptsz(ptr, 10 * MIB, stream);
    case 2:
        return cuMemAllocFromPoolAsync(ptr, 10 * MIB, world.own, stream);
    case 3:
        return cuMemAllocFromPoolAsync_ptsz(ptr, 10 * MIB, world.standard, stream);
    case 4:
        return cuMemAlloc_v2(ptr, 10 * MIB);
    default:
        return cuGraphLaunch(world.exec, stream);
    }
}

/* On each GPU, what the driver holds and what berth says is left add up to the limit. */
static bool is_counted(void)
{
    CUcontext before;
    bool counted = true;
    OK(cuCtxGetCurrent(&before));
    for (int gpu = 0; gpu < GPUS; gpu++) {
        OK(cuCtxSetCurrent(world.primary[gpu]));
        counted = counted && fake_own_bytes(gpu) + room() == LIMIT;
    }
    OK(cuCtxSetCurrent(before));
    return counted;
}

static void give_back(CUdeviceptr *list, int count)
{
    for (int i = 0; i < count; i++)
        OK(cuMemFree_v2(list[i]));
    for (int gpu = 0; gpu < GPUS; gpu++) {
        OK(cuCtxSetCurrent(world.primary[gpu]));
        OK(cuCtxSynchronize());
        OK(cuDeviceGraphMemTrim(gpu));
        CHECK(fake_own_bytes(gpu) == 0 && room() == LIMIT);
    }
    for (int stream = 1; stream < STREAMS; stream++)
        OK(cuStreamSynchronize(world.streams[stream]));
}

/* Prints how many combinations the driver does for, how many of those passed uncounted, and how
   many were refused though there was room. Both GPUs have 64 MiB. */
void test_streams_and_contexts(void)
{
    int done = 0, uncounted = 0, refused = 0;
    make_world();
    for (int context = 0; context < CONTEXTS; context++)
        for (int stream = 0; stream < STREAMS; stream++)
            for (int call = 0; call < CALLS; call++) {
                CUdeviceptr list[TRIES];
                int made = 0;
                bool counted = true, is_graph = call == CALLS - 1;
                OK(cuCtxSetCurrent(world.contexts[context]));
                CUresult result = CUDA_SUCCESS;
                while (made < TRIES && result == CUDA_SUCCESS) {
                    result = call_once(call, world.streams[stream], &list[made]);
                    made += result == CUDA_SUCCESS;
                    counted = counted && is_counted();
                }
                /* Without a context, a call on no stream of its own is the driver's to refuse. */
                bool possible = context != 0 || (stream != 0 && call != 4);
                done += possible;
                uncounted += !counted || (!is_graph && made > 6);
                refused += possible && made < (is_graph ? TRIES : 6);
                CHECK(possible || result == CUDA_ERROR_INVALID_CONTEXT);
                give_back(list, is_graph ? 0 : made);
            }
    printf("%d possible, %d uncounted, %d falsely refused\n", done, uncounted, refused);
    CHECK(fake_violations(0) == 0 && fake_violations(1) == 0);
}

/* The first of the six: no current context, a green stream, and as much as the card has. */
void test_green_stream(void)
{
    CUgreen green;
    CUstream stream;
    CUdeviceptr ptr;
    CUpool pool;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    OK(cuInit(0));
    OK(cuGreenCtxCreate(&green, NULL, 0, 1));
    OK(cuGreenCtxStreamCreate(&stream, green, 1, 0));
    OK(cuMemAllocAsync(&ptr, LIMIT, stream));
    for (int i = 0; i < 8; i++)
        OOM(cuMemAllocAsync(&ptr, LIMIT / 2, stream));
    OK(cuMemPoolCreate(&pool, &props));
    for (int i = 0; i < 8; i++)
        OOM(cuMemAllocFromPoolAsync(&ptr, LIMIT / 2, pool, stream));
    CHECK(fake_own_bytes(0) == LIMIT && fake_violations(0) == 0);
}

/* ---- green contexts that have ended ---- */

void test_green_ended(void)
{
    CUgreen green;
    CUcontext context, primary;
    CUdeviceptr a, b;
    CUarray array;
    CUarray_desc plane = { 1024, 1024, 0x20, 1 };
    OK(cuInit(0));
    for (int i = 0; i < 3; i++) { /* alone: the primary context, and its memory, go with it */
        OK(cuGreenCtxCreate(&green, NULL, 0, 1));
        OK(cuCtxFromGreenCtx(&context, green));
        OK(cuCtxSetCurrent(context));
        OK(cuMemAlloc_v2(&a, 40 * MIB));
        OK(cuArrayCreate_v2(&array, &plane));
        CHECK(fake_own_bytes(0) == 44 * MIB && room() == 20 * MIB);
        OK(cuGreenCtxDestroy(green));
        CHECK(fake_own_bytes(0) == 0);
        OK(cuCtxSetCurrent(NULL));
    }
    for (int i = 0; i < 3; i++) { /* a reset ends what was made under it, before it ends itself */
        OK(cuDevicePrimaryCtxRetain(&primary, 0));
        OK(cuGreenCtxCreate(&green, NULL, 0, 1));
        OK(cuCtxFromGreenCtx(&context, green));
        OK(cuCtxSetCurrent(context));
        OK(cuMemAlloc_v2(&a, 40 * MIB));
        OK(cuDevicePrimaryCtxReset_v2(0));
        (void)cuGreenCtxDestroy(green);
        OK(cuCtxSetCurrent(NULL));
        OK(cuDevicePrimaryCtxRetain(&primary, 0));
        OK(cuCtxSetCurrent(primary));
        CHECK(fake_own_bytes(0) == 0 && room() == 64 * MIB);
        OK(cuDevicePrimaryCtxRelease_v2(0));
        OK(cuCtxSetCurrent(NULL));
    }
    start();
    HELD(0);
    OK(cuCtxGetCurrent(&primary));
    OK(cuGreenCtxCreate(&green, NULL, 0, 1));
    OK(cuCtxFromGreenCtx(&context, green));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    OK(cuCtxSetCurrent(primary));
    OK(cuGreenCtxDestroy(green)); /* what it allocated is the primary context's, which lives on */
    HELD(40 * MIB);
    OOM(cuMemAlloc_v2(&b, 30 * MIB));
    OK(cuMemFree_v2(a));
    HELD(0);
}

/* ---- tiles of sparse arrays ---- */

static CUmap_info tile(CUarray array, CUhandle handle, unsigned mask, unsigned x, unsigned width)
{
    CUmap_info info = { .resource = array,
                        .operation = handle != 0 ? CU_OPERATION_MAP : CU_OPERATION_UNMAP,
                        .handle = handle,
                        .device_mask = mask };
    info.part.level.x = x;
    info.part.level.width = width;
    info.part.level.height = 64;
    info.part.level.depth = 1;
    return info;
}

/* Maps memory of its own at a tile, which alone holds it then. */
static void map_new(CUarray array, unsigned mask, unsigned x, unsigned width)
{
    CUhandle handle;
    OK(cuMemCreate(&handle, 8 * MIB, &for_tiles, 0));
    CUmap_info info = tile(array, handle, mask, x, width);
    OK(cuMemMapArrayAsync(&info, 1, NULL));
    OK(cuMemRelease(handle));
}

void test_tiles(void)
{
    CUarray array;
    CUarray3d_desc desc = { 8192, 64, 0, 0x20, 4, CU_ARRAY_SPARSE };
    CUmap_info gone;
    start();
    OK(cuArray3DCreate_v2(&array, &desc));
    map_new(array, 1, 0, 256);
    map_new(array, 2, 0, 256); /* the same tile for another GPU: both are there */
    HELD(16 * MIB);
    map_new(array, 3, 0, 256); /* for both: it takes the place of both */
    HELD(8 * MIB);
    map_new(array, 1, 64, 64); /* in the middle: the rest keeps what it had */
    HELD(16 * MIB);
    map_new(array, 3, 0, 64);
    map_new(array, 1, 128, 128);
    HELD(32 * MIB); /* the first is still there for the second GPU */
    gone = tile(array, 0, 2, 0, 256);
    OK(cuMemMapArrayAsync(&gone, 1, NULL));
    HELD(24 * MIB);
    gone = tile(array, 0, 1, 0, 192);
    OK(cuMemMapArrayAsync(&gone, 1, NULL));
    HELD(8 * MIB);
    gone = tile(array, 0, 1, 0, 8192);
    OK(cuMemMapArrayAsync(&gone, 1, NULL));
    HELD(0);
    map_new(array, 1, 0, 64);
    OK(cuArrayDestroy(array));
    HELD(0);
}

/* ---- memory that passes from process to process ---- */

/* One byte of news, with a file or without. */
static void tell(int to, char news, int fd)
{
    char space[CMSG_SPACE(sizeof fd)] = { 0 };
    struct iovec bytes = { &news, 1 };
    struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1 };
    if (fd >= 0) {
        message.msg_control = space;
        message.msg_controllen = sizeof space;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    CHECK(sendmsg(to, &message, 0) == 1);
}

static int hear(int from, char news)
{
    int fd = -1;
    char heard = 0, space[CMSG_SPACE(sizeof fd)] = { 0 };
    struct iovec bytes = { &heard, 1 };
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space
    };
    CHECK(recvmsg(from, &message, 0) == 1 && heard == news);
    if (CMSG_FIRSTHDR(&message) != NULL)
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static CUhandle make_and_send(int to, uint64_t bytes, bool released)
{
    CUhandle handle;
    int fd;
    OK(cuMemCreate(&handle, bytes, &on_device, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_SHARE_FD, 0));
    if (released)
        OK(cuMemRelease(handle));
    tell(to, 'f', fd);
    close(fd);
    return handle;
}

static CUdeviceptr map_whole(CUhandle handle, uint64_t bytes)
{
    CUdeviceptr at;
    OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    OK(cuMemMap(at, bytes, 0, handle, 0));
    return at;
}

static CUresult import(int fd, CUhandle *handle)
{
    return cuMemImportFromShareableHandle(handle, (void *)(intptr_t)fd, CU_SHARE_FD);
}

/* Imports what the other makes: charged here as soon as the other is not. */
static void be_importer(int other)
{
    CUhandle handle;
    CUdeviceptr at, a;
    start();
    for (int i = 0; i < 5; i++) {
        int fd = hear(other, 'f');
        OK(import(fd, &handle));
        close(fd);
        at = map_whole(handle, 40 * MIB);
        CHECK(room() == 24 * MIB); /* one memory of two processes */
        tell(other, 'm', -1);
        hear(other, 'r');
        OK(cuMemRelease(handle));
        OOM(cuMemAlloc_v2(&a, 30 * MIB));
        OK(cuMemUnmap(at, 40 * MIB));
        OK(cuMemAlloc_v2(&a, 30 * MIB));
        OK(cuMemFree_v2(a));
        tell(other, 'u', -1);
    }
    /* What nobody but the file has held meanwhile. */
    int fd = hear(other, 'f');
    hear(other, 'c');
    OOM(import(fd, &handle));
    tell(other, 'o', -1);
    hear(other, 'g');
    OK(import(fd, &handle));
    close(fd);
    HELD(40 * MIB);
    tell(other, 'm', -1);
    hear(other, 'r');
    OK(cuMemRelease(handle));
    HELD(0);
    tell(other, 'u', -1);
    /* What one had that is killed. */
    fd = hear(other, 'f');
    OK(import(fd, &handle));
    close(fd);
    tell(other, 'm', -1);
    hear(other, 'k');
    CHECK(fake_used_bytes(0) == 40 * MIB);
    OOM(cuMemAlloc_v2(&a, 30 * MIB));
    OK(cuMemRelease(handle));
    OK(cuMemAlloc_v2(&a, LIMIT));
    OK(cuMemFree_v2(a));
    HELD(0);
}

static void be_exporter(int other)
{
    CUhandle handle, again;
    start();
    for (int i = 0; i < 5; i++) {
        handle = make_and_send(other, 40 * MIB, false);
        hear(other, 'm');
        OK(cuMemRelease(handle));
        OOM(cuMemCreate(&again, 40 * MIB, &on_device, 0));
        tell(other, 'r', -1);
        hear(other, 'u');
        HELD(0);
    }
    make_and_send(other, 40 * MIB, true);
    OK(cuMemCreate(&again, 40 * MIB, &on_device, 0));
    tell(other, 'c', -1);
    hear(other, 'o');
    OK(cuMemRelease(again));
    tell(other, 'g', -1);
    hear(other, 'm');
    OOM(cuMemCreate(&again, 40 * MIB, &on_device, 0));
    tell(other, 'r', -1);
    hear(other, 'u');
    HELD(0);
    make_and_send(other, 40 * MIB, false);
    hear(other, 'm');
    raise(SIGKILL);
}

void test_export_and_release(void)
{
    int ends[2], first, second, status;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    if ((first = fork()) == 0) {
        be_exporter(ends[0]);
        _exit(0);
    }
    if ((second = fork()) == 0) {
        be_importer(ends[1]);
        CHECK(fake_violations(0) == 0);
        _exit(0);
    }
    CHECK(waitpid(first, &status, 0) == first && WIFSIGNALED(status));
    tell(ends[0], 'k', -1);
    CHECK(waitpid(second, &status, 0) == second && status == 0);
}

/* In another partition: what is imported there counts there too, from its import on. */
void test_import_elsewhere(void)
{
    CUhandle handle, second;
    CUdeviceptr a;
    int other = atoi(getenv("BERTH_TEST_SOCKET"));
    start();
    tell(other, 's', -1);
    int fd = hear(other, 'f');
    OK(import(fd, &handle));
    close(fd);
    CHECK(room() == 4 * MIB);
    OOM(cuMemAlloc_v2(&a, 10 * MIB));
    tell(other, 'm', -1);
    fd = hear(other, 'f');
    OOM(import(fd, &second));
    close(fd);
    tell(other, 'o', -1);
    OK(cuMemRelease(handle));
    CHECK(room() == LIMIT);
    CHECK(fake_violations(0) == 0);
}

void test_export_elsewhere(void)
{
    int ends[2], child, status;
    char folder[300], number[16];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    if ((child = fork()) == 0) {
        snprintf(folder, sizeof folder, "%s-other", getenv("BERTH_REGION"));
        snprintf(number, sizeof number, "%d", ends[1]);
        setenv("BERTH_REGION", folder, 1);
        setenv("BERTH_TEST_SOCKET", number, 1);
        setenv("BERTH_FAKE_WATCH", "2:67108864", 1);
        execl("/proc/self/exe", "check", "import_elsewhere", (char *)NULL);
        _exit(9);
    }
    start();
    hear(ends[0], 's'); /* so that its context is not measured amid others' allocations */
    CUhandle handle = make_and_send(ends[0], 60 * MIB, false);
    hear(ends[0], 'm');
    OK(cuMemRelease(handle));
    handle = make_and_send(ends[0], 60 * MIB, false);
    hear(ends[0], 'o');
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(cuMemRelease(handle));
    HELD(0);
}

/* ---- rounding: the card takes 2 MiB for 1 MiB and a byte (BERTH_FAKE_STEP_KIB=2048) ---- */

void test_rounding(void)
{
    CUdeviceptr list[64], a;
    CUarray array;
    CUarray_desc plane = { 1024, 257, 0x20, 1 };
    size_t pitch;
    int count = 0;
    start();
    while (count < 64 && cuMemAlloc_v2(&list[count], MIB + 1) == CUDA_SUCCESS)
        count++;
    CHECK(count == 32);
    HELD(LIMIT);
    OOM(cuMemAlloc_v2(&a, 1));
    OOM(cuMemAllocManaged(&a, 1, 1));
    OOM(cuArrayCreate_v2(&array, &plane));
    for (int i = 0; i < count; i++)
        OK(cuMemFree_v2(list[i]));
    HELD(0);
    for (int i = 0; i < 64; i++) { /* small ones share steps */
        OK(cuMemAlloc_v2(&list[i], 64 << 10));
        HELD((uint64_t)(i / 32 + 1) * 2 * MIB);
    }
    for (int i = 0; i < 63; i++)
        OK(cuMemFree_v2(list[i]));
    HELD(2 * MIB);
    OK(cuMemFree_v2(list[63]));
    HELD(0);
    OK(cuMemAllocManaged(&a, 3 * MIB, 1));
    HELD(4 * MIB);
    OK(cuMemFree_v2(a));
    OK(cuMemAllocPitch_v2(&a, &pitch, 513, 2049, 4));
    HELD(4 * MIB);
    OK(cuMemFree_v2(a));
    OK(cuArrayCreate_v2(&array, &plane));
    HELD(2 * MIB);
    OK(cuArrayDestroy(array));
    CUext external;
    OK(cuImportExternalMemory(&external, &(CUext_desc){ .type = 1, .size = MIB + 1 }));
    HELD(2 * MIB);
    CHECK(fake_own_bytes(0) == 2 * MIB);
    OK(cuDestroyExternalMemory(external));
    HELD(0);
    CHECK(fake_own_bytes(0) == 0 && fake_violations(0) == 0);
}

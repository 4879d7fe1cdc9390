/* berth-prove: ways past a limit of GPU memory, each tried by a process of its own.

   berth-prove                 names the ways, a line each
   berth-prove WAY LIMIT_MIB   tries one: says `holds BYTES`, `refused WHY` or `cannot WHY`, and
   keeps what it has until it reads a line or the end of its standard input

   It takes no more than twice the limit, of one GPU, and touches nothing but its own memory. It
   knows nothing of berth but where a partition's counters are: any other limit is tried alike. */
#define _GNU_SOURCE
#include "cu.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)

/* ---- the driver, looked up by name ---- */

#define EXTRAS                                                                                     \
    HOOK(cuCtxSetCurrent, (CUcontext ctx))                                                         \
    HOOK(cuMemAddressReserve, (CUdeviceptr * ptr, size_t bytes, size_t align, CUdeviceptr at,      \
                               unsigned long long flags))                                          \
    HOOK(cuDeviceGetDefaultMemPool, (CUpool * pool, CUdevice dev))                                 \
    HOOK(cuDeviceGetDevResource, (CUdevice dev, void *resource, int type))                         \
    HOOK(cuDevResourceGenerateDesc, (void **desc, void *resources, unsigned count))                \
    HOOK(cuStreamCreate, (CUstream * stream, unsigned flags))                                      \
    HOOK(cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                   \
    HOOK(cuGraphCreate, (CUgraph * graph, unsigned flags))                                         \
    HOOK(cuGraphAddMemAllocNode,                                                                   \
         (CUnode * node, CUgraph graph, const CUnode *needs, size_t count, CUmem_node *params))    \
    HOOK(cuIpcGetMemHandle, (CUipc * handle, CUdeviceptr ptr))                                     \
    HOOK(cuIpcOpenMemHandle_v2, (CUdeviceptr * ptr, CUipc handle, unsigned flags))                 \
    HOOK(cuGreenCtxStreamCreate, (CUstream * stream, CUgreen green, unsigned flags, int priority))

#define HOOK(name, params) static CUresult(*name) params __attribute__((unused));
#define NEED HOOK
EXTRAS
#include "hooks.h"

#define HOOK(name, params) { #name, (void **)&name },
#define NEED HOOK
static const struct {
    const char *name;
    void **found;
} calls[] = { EXTRAS
#include "hooks.h"
};

static uint64_t limit_bytes, step_bytes, most_bytes;
static _Atomic uint64_t held_bytes;
static CUcontext primary;
static CUstream stream; /* the default one until a way makes another */

static void cannot(const char *why)
{
    printf("cannot %s\n", why);
    fflush(stdout);
    _exit(3);
}

/* The driver has no such call: that the way cannot be tried is no proof of the limit. */
#define WITH(name)                              \
    do {                                        \
        if ((name) == NULL)                     \
            cannot("the driver has no " #name); \
    } while (0)
#define MUST(name, ...)                                           \
    do {                                                          \
        WITH(name);                                               \
        CUresult must = name(__VA_ARGS__);                        \
        if (must != CUDA_SUCCESS) {                               \
            char why[80];                                         \
            snprintf(why, sizeof why, #name " answers %d", must); \
            cannot(why);                                          \
        }                                                         \
    } while (0)
/* Again and again, until it is refused or twice the limit is held. */
#define FILL(bytes, call)                                                              \
    while (atomic_load(&held_bytes) + (bytes) <= most_bytes && (call) == CUDA_SUCCESS) \
    atomic_fetch_add(&held_bytes, (bytes))

static void look_up(void *library)
{
    if (library == NULL)
        cannot(dlerror());
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        *calls[i].found = dlsym(library, calls[i].name);
}

static void *driver_named(int flags)
{
    return dlopen("libcuda.so.1", flags);
}

static void begin(void)
{
    if (cuInit == NULL)
        look_up(driver_named(RTLD_NOW | RTLD_GLOBAL));
    MUST(cuInit, 0);
    MUST(cuDevicePrimaryCtxRetain, &primary, 0);
    MUST(cuCtxSetCurrent, primary);
}

/* Says what is held, and holds it until it has been looked at. */
static void show(void)
{
    char line[8];
    if (cuCtxSynchronize != NULL)
        (void)cuCtxSynchronize();
    printf("holds %llu\n", (unsigned long long)atomic_load(&held_bytes));
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        return;
}

/* ---- memory at once ---- */

static void fill_linear(void)
{
    CUdeviceptr at;
    FILL(step_bytes, cuMemAlloc_v2(&at, step_bytes));
}

static void way_nothing(void) /* no way: what a context takes */
{
    begin();
}
static void way_linear(void)
{
    begin();
    fill_linear();
}
static void way_linear_v1(void)
{
    unsigned at;
    begin();
    WITH(cuMemAlloc);
    FILL(step_bytes, cuMemAlloc(&at, (unsigned)step_bytes));
}
static void way_pitch(void)
{
    CUdeviceptr at;
    size_t pitch;
    begin();
    FILL(step_bytes, cuMemAllocPitch_v2(&at, &pitch, 4096, step_bytes / 4096, 4));
}
static void way_managed(void)
{
    CUdeviceptr at;
    begin();
    FILL(step_bytes, cuMemAllocManaged(&at, step_bytes, 1));
}
static void way_array(void)
{
    CUarray array;
    CUarray_desc plane = { 1024, step_bytes / 4096, 0x20, 1 };
    begin();
    FILL(step_bytes, cuArrayCreate_v2(&array, &plane));
}
static void way_array_v1(void)
{
    CUarray array;
    CUarray_desc_v1 plane = { 1024, (unsigned)(step_bytes / 4096), 0x20, 1 };
    begin();
    WITH(cuArrayCreate);
    FILL(step_bytes, cuArrayCreate(&array, &plane));
}
static void way_cube(void)
{
    CUarray array;
    CUarray3d_desc cube = { 256, 256, step_bytes >> 18, 0x20, 1, 0 };
    begin();
    FILL(step_bytes, cuArray3DCreate_v2(&array, &cube));
}
static void way_mipmap(void)
{
    CUmipmap mipmap;
    CUarray3d_desc plane = { 1024, step_bytes / 4096, 0, 0x20, 1, 0 };
    begin();
    FILL(step_bytes, cuMipmappedArrayCreate(&mipmap, &plane, 1));
}
static void way_small(void)
{
    CUdeviceptr at;
    begin();
    FILL(64u << 10, cuMemAlloc_v2(&at, 64u << 10));
}
static void way_rounding(void) /* the driver may take 2 MiB for each: only NVML sees that */
{
    CUdeviceptr at;
    begin();
    FILL(MIB + 1, cuMemAlloc_v2(&at, MIB + 1));
}
static void way_rounding_managed(void)
{
    CUdeviceptr at;
    begin();
    FILL(MIB + 1, cuMemAllocManaged(&at, MIB + 1, 1));
}

/* ---- physical memory ---- */

static const CUalloc_prop on_device = { .type = 1,
                                        .handle_types = CU_SHARE_FD,
                                        .location = { 1, 0 } };

static void way_physical(void)
{
    CUhandle handle;
    begin();
    WITH(cuMemCreate);
    FILL(step_bytes, cuMemCreate(&handle, step_bytes, &on_device, 0));
}
static CUresult map_new(bool retained)
{
    CUhandle handle, again;
    CUdeviceptr at;
    CUresult made = cuMemCreate(&handle, step_bytes, &on_device, 0);
    if (made != CUDA_SUCCESS)
        return made;
    MUST(cuMemAddressReserve, &at, step_bytes, 0, 0, 0);
    MUST(cuMemMap, at, step_bytes, 0, handle, 0);
    MUST(cuMemRelease, handle);
    if (retained) {
        MUST(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)at);
        MUST(cuMemUnmap, at, step_bytes);
    }
    return CUDA_SUCCESS;
}
static void way_mapped(void) /* only the mapping keeps it */
{
    begin();
    WITH(cuMemCreate);
    FILL(step_bytes, map_new(false));
}
static void way_retained(void) /* only a handle that was fetched from a mapping keeps it */
{
    begin();
    WITH(cuMemCreate);
    FILL(step_bytes, map_new(true));
}

/* ---- streams, pools, graphs ---- */

static CUgreen green(void)
{
    CUgreen made;
    char resource[256] = { 0 };
    void *desc = NULL;
    WITH(cuGreenCtxCreate);
    if (cuDeviceGetDevResource != NULL && cuDevResourceGenerateDesc != NULL &&
        cuDeviceGetDevResource(0, resource, 1) == CUDA_SUCCESS)
        MUST(cuDevResourceGenerateDesc, &desc, resource, 1);
    MUST(cuGreenCtxCreate, &made, desc, 0, 1);
    return made;
}
static void of_green_context(void)
{
    MUST(cuGreenCtxStreamCreate, &stream, green(), 1, 0);
    MUST(cuCtxSetCurrent, NULL);
}
static void of_other_context(void)
{
    CUcontext other;
    MUST(cuCtxCreate_v2, &other, 0, 0);
    MUST(cuStreamCreate, &stream, 1);
    MUST(cuCtxSetCurrent, primary);
}
static void fill_async(void)
{
    CUdeviceptr at;
    WITH(cuMemAllocAsync);
    FILL(step_bytes, cuMemAllocAsync(&at, step_bytes, stream));
}
static void way_async(void)
{
    begin();
    fill_async();
}
static void way_async_per_thread(void)
{
    CUdeviceptr at;
    begin();
    WITH(cuMemAllocAsync_ptsz);
    FILL(step_bytes, cuMemAllocAsync_ptsz(&at, step_bytes, stream));
}
static void way_async_green(void)
{
    begin();
    of_green_context();
    fill_async();
}
static void way_async_other(void)
{
    begin();
    of_other_context();
    fill_async();
}
static void way_async_none(void) /* a stream, and no current context */
{
    begin();
    of_other_context();
    MUST(cuCtxSetCurrent, NULL);
    fill_async();
}
static void fill_pool(bool own)
{
    CUdeviceptr at;
    CUpool pool;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    WITH(cuMemAllocFromPoolAsync);
    if (own)
        MUST(cuMemPoolCreate, &pool, &props);
    else
        MUST(cuDeviceGetDefaultMemPool, &pool, 0);
    FILL(step_bytes, cuMemAllocFromPoolAsync(&at, step_bytes, pool, stream));
}
static void way_pool(void)
{
    begin();
    fill_pool(true);
}
static void way_pool_default(void)
{
    begin();
    fill_pool(false);
}
static void way_pool_green(void)
{
    begin();
    of_green_context();
    fill_pool(true);
}
static CUresult launch_new(bool captured)
{
    CUgraph graph;
    CUexec exec;
    CUnode node;
    CUdeviceptr at;
    CUmem_node memory = { .pool = { .type = 1, .location = { 1, 0 } }, .bytes = step_bytes };
    if (captured) {
        MUST(cuStreamBeginCapture_v2, stream, CU_CAPTURE_RELAXED);
        CUresult asked = cuMemAllocAsync(&at, step_bytes, stream);
        CUresult ended = cuStreamEndCapture(stream, &graph);
        if (asked != CUDA_SUCCESS || ended != CUDA_SUCCESS)
            return asked != CUDA_SUCCESS ? asked : ended;
    } else {
        MUST(cuGraphCreate, &graph, 0);
        MUST(cuGraphAddMemAllocNode, &node, graph, NULL, 0, &memory);
    }
    CUresult made = cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (made == CUDA_SUCCESS)
        made = cuGraphLaunch(exec, stream);
    return made != CUDA_SUCCESS ? made : cuStreamSynchronize(stream);
}
static void way_graph(void)
{
    begin();
    WITH(cuGraphInstantiateWithFlags);
    FILL(step_bytes, launch_new(false));
}
static void way_graph_green(void)
{
    begin();
    WITH(cuGraphInstantiateWithFlags);
    of_green_context();
    MUST(cuCtxSetCurrent, primary);
    FILL(step_bytes, launch_new(false));
}
static void way_capture(void)
{
    begin();
    WITH(cuGraphInstantiateWithFlags);
    MUST(cuStreamCreate, &stream, 1);
    FILL(step_bytes, launch_new(true));
}

/* ---- contexts ---- */

static void way_green(void)
{
    CUcontext context;
    begin();
    MUST(cuCtxFromGreenCtx, &context, green());
    MUST(cuCtxSetCurrent, context);
    fill_linear();
}
static void way_green_ended(void) /* no way past: what had it is gone, and all is free again */
{
    CUcontext context;
    CUdeviceptr at;
    begin();
    MUST(cuDevicePrimaryCtxRelease_v2, 0);
    CUgreen gone = green();
    MUST(cuCtxFromGreenCtx, &context, gone);
    MUST(cuCtxSetCurrent, context);
    MUST(cuMemAlloc_v2, &at, 3 * step_bytes);
    MUST(cuGreenCtxDestroy, gone);
    begin();
    fill_linear();
    if (atomic_load(&held_bytes) < 2 * step_bytes) {
        printf("refused what fits, after a green context has ended\n");
        fflush(stdout);
        _exit(4);
    }
}
static void way_second_context(void)
{
    CUcontext other;
    begin();
    fill_linear();
    MUST(cuCtxCreate_v2, &other, 0, 0);
    fill_linear();
}
static void fill_limit(int which)
{
    size_t before = 0, value = 0;
    begin();
    MUST(cuCtxGetLimit, &before, which);
    if (cuCtxSetLimit(which, most_bytes) == CUDA_SUCCESS ||
        cuCtxSetLimit(which, limit_bytes) == CUDA_SUCCESS)
        MUST(cuCtxGetLimit, &value, which);
    atomic_fetch_add(&held_bytes, value > before ? value - before : 0);
    fill_linear();
}
static void way_heap(void)
{
    fill_limit(CU_LIMIT_HEAP);
}
static void way_printf(void)
{
    fill_limit(CU_LIMIT_PRINTF);
}

/* ---- memory of the system that the card reaches by itself ---- */

static void way_prefetch(void)
{
    int reaches = 0;
    begin();
    MUST(cuDeviceGetAttribute, &reaches, CU_ATTRIBUTE_PAGEABLE, 0);
    if (!reaches)
        cannot("the GPU does not reach the memory of the system");
    WITH(cuMemPrefetchAsync);
    char *at = mmap(NULL, most_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        cannot("no address space");
    for (uint64_t from = 0; from + step_bytes <= most_bytes; from += step_bytes) {
        memset(at + from, 1, step_bytes);
        if (cuMemPrefetchAsync((CUdeviceptr)(uintptr_t)(at + from), step_bytes, 0, stream) !=
            CUDA_SUCCESS)
            break;
        atomic_fetch_add(&held_bytes, step_bytes);
    }
}

/* ---- several threads and processes ---- */

static void *fill_thread(void *nothing)
{
    (void)nothing;
    (void)cuCtxSetCurrent(primary);
    fill_linear();
    return NULL;
}
static void way_threads(void)
{
    pthread_t list[8];
    int count = 0;
    begin();
    while (count < 8 && pthread_create(&list[count], NULL, fill_thread, NULL) == 0)
        count++;
    while (count > 0)
        pthread_join(list[--count], NULL);
}

/* A child that fills what it can, once it is told to if `when` is a pipe, says how much, and keeps
   it until it is killed. A child that ends sooner has nothing. */
static pid_t fill_child(int *answers, int when)
{
    int ends[2];
    char now;
    if (pipe(ends) != 0)
        cannot("no pipe");
    pid_t child = fork();
    if (child == 0) {
        if (when >= 0 && read(when, &now, 1) != 1)
            _exit(0);
        begin();
        fill_linear();
        uint64_t held = atomic_load(&held_bytes);
        if (write(ends[1], &held, sizeof held) == sizeof held)
            pause();
        _exit(0);
    }
    close(ends[1]);
    *answers = ends[0];
    return child;
}
static uint64_t answer(int from)
{
    uint64_t held = 0;
    return read(from, &held, sizeof held) == sizeof held ? held : 0;
}
static pid_t children[8];

static void way_processes(void)
{
    int answers[4];
    for (int i = 0; i < 4; i++)
        children[i] = fill_child(&answers[i], -1);
    for (int i = 0; i < 4; i++)
        atomic_fetch_add(&held_bytes, answer(answers[i]));
}
static void way_killed(void) /* what a killed process had is there again, once */
{
    int answers;
    pid_t child = fill_child(&answers, -1);
    (void)answer(answers);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    begin();
    fill_linear();
}

/* ---- memory that passes from process to process ---- */

static void send_file(int to, int fd)
{
    char news = 'f', space[CMSG_SPACE(sizeof fd)] = { 0 };
    struct iovec bytes = { &news, 1 };
    struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1 };
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(to, &message, MSG_NOSIGNAL) != 1)
        cannot("a child of its own ended");
}
static int received_file(int from)
{
    int fd = -1;
    char news, space[CMSG_SPACE(sizeof fd)] = { 0 };
    struct iovec bytes = { &news, 1 };
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space
    };
    if (recvmsg(from, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != NULL)
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}
static bool agreed(int from)
{
    char yes = 0;
    return recv(from, &yes, 1, 0) == 1 && yes == 'y';
}
/* A child with a socket to it, whose context is there before this process takes memory: a context
   that begins while the first one is measured may be refused. */
static int talk(void (*be)(int))
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        cannot("no socket");
    if ((children[0] = fork()) == 0) {
        close(ends[0]);
        begin();
        if (send(ends[1], "y", 1, MSG_NOSIGNAL) == 1)
            be(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    if (!agreed(ends[0]))
        cannot("a child of its own does not start");
    return ends[0];
}
static void import_all(int other)
{
    CUhandle handle;
    int fd;
    while ((fd = received_file(other)) >= 0) {
        CUresult made = cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_SHARE_FD);
        close(fd);
        if (send(other, made == CUDA_SUCCESS ? "y" : "n", 1, MSG_NOSIGNAL) != 1)
            return;
    }
    pause();
}
static void way_export(void) /* the maker releases what another of the same limit has imported */
{
    uint64_t bytes = limit_bytes / 4 * 3;
    CUhandle handle;
    int fd, other = talk(import_all);
    begin();
    WITH(cuMemExportToShareableHandle);
    while (atomic_load(&held_bytes) + bytes <= most_bytes &&
           cuMemCreate(&handle, bytes, &on_device, 0) == CUDA_SUCCESS) {
        if (cuMemExportToShareableHandle(&fd, handle, CU_SHARE_FD, 0) != CUDA_SUCCESS)
            cannot("the driver does not export memory by a file");
        send_file(other, fd);
        close(fd);
        bool taken = agreed(other);
        (void)cuMemRelease(handle);
        if (!taken)
            break;
        atomic_fetch_add(&held_bytes, bytes);
    }
}
static void open_all(int other)
{
    CUipc handle;
    CUdeviceptr at;
    while (recv(other, &handle, sizeof handle, 0) == sizeof handle) {
        CUresult made = cuIpcOpenMemHandle_v2(&at, handle, 1);
        if (send(other, made == CUDA_SUCCESS ? "y" : "n", 1, MSG_NOSIGNAL) != 1)
            return;
    }
    pause();
}
static void way_ipc(void) /* as above, by CUDA's IPC */
{
    uint64_t bytes = limit_bytes / 4 * 3;
    CUdeviceptr at;
    CUipc handle;
    int other = talk(open_all);
    begin();
    WITH(cuIpcGetMemHandle);
    while (atomic_load(&held_bytes) + bytes <= most_bytes &&
           cuMemAlloc_v2(&at, bytes) == CUDA_SUCCESS) {
        if (cuIpcGetMemHandle(&handle, at) != CUDA_SUCCESS)
            cannot("the driver has no IPC here");
        if (send(other, &handle, sizeof handle, MSG_NOSIGNAL) != sizeof handle || !agreed(other))
            cannot("the driver does not open its own IPC handle");
        if (cuMemFree_v2(at) != CUDA_SUCCESS)
            break;
        atomic_fetch_add(&held_bytes, bytes);
    }
}

/* ---- another way to the driver ---- */

static void way_deepbind(void)
{
    look_up(driver_named(RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND));
    begin();
    fill_linear();
}
static void way_namespace(void)
{
    look_up(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW));
    begin();
    fill_linear();
}
static void way_lookup(void)
{
    void *found = NULL;
    int status;
    begin();
    WITH(cuGetProcAddress_v2);
    MUST(cuGetProcAddress_v2, "cuMemAlloc", &found, 12000, 0, &status);
    CUresult (*allocate)(CUdeviceptr *, size_t) = (CUresult (*)(CUdeviceptr *, size_t))found;
    CUdeviceptr at;
    if (allocate == NULL)
        cannot("the driver does not find cuMemAlloc");
    FILL(step_bytes, allocate(&at, step_bytes));
}

/* ---- a program that has lost its environment, and counters that it may write ---- */

static void again_as_linear(char **environment)
{
    char number[32], *words[] = { "berth-prove", "linear", number, NULL };
    snprintf(number, sizeof number, "%llu", (unsigned long long)(limit_bytes / MIB));
    execve("/proc/self/exe", words, environment);
    cannot("it cannot execute itself");
}
static void way_no_environment(void)
{
    /* Where the driver is, and which: no more. */
    char *kept[8];
    int count = 0;
    extern char **environ;
    for (char **at = environ; *at != NULL && count < 7; at++)
        if (strncmp(*at, "LD_LIBRARY_PATH=", 16) == 0 || strncmp(*at, "BERTH_FAKE_", 11) == 0 ||
            strncmp(*at, "CUDA_VISIBLE_DEVICES=", 21) == 0)
            kept[count++] = *at;
    kept[count] = NULL;
    again_as_linear(kept);
}
/* Calls for each file of berth's counters that this process may write; false where there is none.
 */
static bool each_counter(bool (*call)(const char *path))
{
    const char *region = getenv("BERTH_REGION");
    bool any = false;
    DIR *folder = region != NULL ? opendir(region) : opendir("/run/berth/region");
    struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        char path[600];
        size_t size = strlen(entry->d_name);
        snprintf(path, sizeof path, "%s/%s", region != NULL ? region : "/run/berth/region",
                 entry->d_name);
        if (size > 4 && strcmp(entry->d_name + size - 4, ".use") == 0)
            any = call(path) || any;
    }
    if (folder != NULL)
        closedir(folder);
    return any;
}
static bool zero_total(const char *path)
{
    uint64_t nothing = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool written = fd >= 0 && pwrite(fd, &nothing, sizeof nothing, 64) == sizeof nothing;
    if (fd >= 0)
        close(fd);
    return written;
}
static void way_counters(void) /* one store that says that nothing is used */
{
    begin();
    fill_linear();
    if (!each_counter(zero_total))
        cannot("there are no counters of berth that it may write");
    fill_linear();
}
static bool unlinked(const char *path)
{
    return unlink(path) == 0;
}
static void way_counters_removed(void) /* then another process, which finds none */
{
    int answers, now[2];
    if (pipe(now) != 0)
        cannot("no pipe");
    children[0] = fill_child(&answers, now[0]);
    begin();
    fill_linear();
    if (!each_counter(unlinked))
        cannot("there are no counters of berth that it may remove");
    if (write(now[1], "n", 1) == 1)
        atomic_fetch_add(&held_bytes, answer(answers));
}

/* ---- which there are ---- */

static const struct way {
    const char *name, *what;
    void (*run)(void);
} ways[] = {
    { "nothing", "", way_nothing },
    { "linear", "cuMemAlloc", way_linear },
    { "linear-v1", "cuMemAlloc of 32 bits", way_linear_v1 },
    { "pitch", "cuMemAllocPitch", way_pitch },
    { "managed", "cuMemAllocManaged", way_managed },
    { "array", "cuArrayCreate", way_array },
    { "array-v1", "cuArrayCreate of 32 bits", way_array_v1 },
    { "array-3d", "cuArray3DCreate", way_cube },
    { "mipmap", "cuMipmappedArrayCreate", way_mipmap },
    { "small", "64 KiB, again and again", way_small },
    { "rounding", "1 MiB and a byte, again and again, in steps of the card", way_rounding },
    { "rounding-managed", "the same of managed memory", way_rounding_managed },
    { "physical", "cuMemCreate", way_physical },
    { "physical-mapped", "cuMemCreate, kept by its mapping alone", way_mapped },
    { "physical-retained", "cuMemCreate, kept by a handle of cuMemRetainAllocationHandle alone",
      way_retained },
    { "async", "cuMemAllocAsync", way_async },
    { "async-per-thread", "cuMemAllocAsync on the stream of a thread", way_async_per_thread },
    { "async-other-context", "cuMemAllocAsync on a stream of another context", way_async_other },
    { "async-no-context", "cuMemAllocAsync without a current context", way_async_none },
    { "async-green", "cuMemAllocAsync on a stream of a green context, without a current one",
      way_async_green },
    { "pool", "cuMemAllocFromPoolAsync from a pool of its own", way_pool },
    { "pool-default", "cuMemAllocFromPoolAsync from the default pool", way_pool_default },
    { "pool-green", "cuMemAllocFromPoolAsync on a stream of a green context", way_pool_green },
    { "graph", "memory nodes of graphs", way_graph },
    { "graph-green", "memory nodes of graphs on a stream of a green context", way_graph_green },
    { "capture", "cuMemAllocAsync in a captured graph", way_capture },
    { "green", "cuMemAlloc under a green context", way_green },
    { "green-ended", "cuMemAlloc after a green context that held nearly all has ended",
      way_green_ended },
    { "second-context", "cuMemAlloc under a second context", way_second_context },
    { "heap", "the heap of kernels, by cuCtxSetLimit", way_heap },
    { "printf", "the buffer of printf, by cuCtxSetLimit", way_printf },
    { "prefetch", "memory of the system, prefetched to the GPU", way_prefetch },
    { "threads", "eight threads at once", way_threads },
    { "processes", "four processes at once", way_processes },
    { "killed", "a process after one that was killed", way_killed },
    { "export-release", "memory that another process imports before its maker releases it",
      way_export },
    { "ipc-free", "memory that another process opens by IPC before its maker frees it", way_ipc },
    { "deepbind", "the driver by dlopen with RTLD_DEEPBIND", way_deepbind },
    { "dlmopen", "the driver in a namespace of the loader", way_namespace },
    { "lookup", "cuMemAlloc by cuGetProcAddress", way_lookup },
    { "no-environment", "a program without its environment", way_no_environment },
    { "counters", "a store into the counters that says that nothing is used", way_counters },
    { "counters-removed", "counters that are removed, then another process", way_counters_removed },
};
enum { WAYS = sizeof ways / sizeof *ways };

int main(int count, char **words)
{
    if (count == 1) {
        for (int i = 1; i < WAYS; i++)
            printf("%s\t%s\n", ways[i].name, ways[i].what);
        return 0;
    }
    char *end = NULL;
    uint64_t limit_mib = count == 3 ? strtoull(words[2], &end, 10) : 0;
    if (limit_mib < 64 || limit_mib > 1 << 20 || *end != 0) {
        fprintf(stderr, "usage: berth-prove [WAY LIMIT_MIB], with a limit of 64 MiB or more\n");
        return 2;
    }
    limit_bytes = limit_mib * MIB;
    step_bytes = limit_bytes / 4 / (2 * MIB) * (2 * MIB);
    most_bytes = 2 * limit_bytes;
    for (int i = 0; i < WAYS; i++)
        if (strcmp(ways[i].name, words[1]) == 0) {
            ways[i].run();
            show();
            for (int child = 0; child < 8; child++)
                if (children[child] > 0)
                    kill(children[child], SIGKILL);
            while (wait(NULL) > 0)
                continue;
            return 0;
        }
    fprintf(stderr, "berth-prove: no way '%s'; without words it names them all\n", words[1]);
    return 2;
}

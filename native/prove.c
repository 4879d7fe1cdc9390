/* berth-prove: ways past a limit of GPU memory, each tried by a process of its own.

   berth-prove                          names the ways, a line each
   berth-prove WAY LIMIT_MIB [REGION]   tries one: says `holds BYTES CONTEXTS ERROR`, `refused WHY`
   or `cannot WHY`, and keeps what it has until it reads a line or the end of its standard input

   ERROR is the driver's answer to the first request that it refused; 0 if it refused none.

   It takes no more than twice the limit, of one GPU. It writes to the counters of a region of berth
   only if it is given that region, which nobody else may use. */
#define _GNU_SOURCE
#include "cu.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
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
    HOOK(cuGraphAddNode,                                                                           \
         (CUnode * node, CUgraph graph, const CUnode *needs, size_t count, CUnode_params *params)) \
    HOOK(cuDeviceSetMemPool, (CUdevice dev, CUpool pool))                                          \
    HOOK(cuMemPoolSetAttribute, (CUpool pool, int attribute, void *value))                         \
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
static uint64_t piece_bytes; /* a step that fits in 32 bits and in one array */
enum { STEPS = 8 };          /* twice the limit in this number of steps */
static _Atomic uint64_t held_bytes;
static _Atomic CUresult first_error;
static int contexts = 1; /* of this process, while it holds what it has */
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
static bool given(CUresult answer)
{
    if (answer != CUDA_SUCCESS && atomic_load(&first_error) == CUDA_SUCCESS)
        atomic_store(&first_error, answer);
    return answer == CUDA_SUCCESS;
}
/* Again and again, until it is refused or twice the limit is held. */
#define FILL(bytes, call)                                                     \
    while (atomic_load(&held_bytes) + (bytes) <= most_bytes && given((call))) \
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

/* A way that is one call. */
#define DOES(name, call)   \
    static void name(void) \
    {                      \
        call;              \
    }

/* Says what is held, and holds it until it has been looked at. */
static void show(void)
{
    char line[8];
    if (cuCtxSynchronize != NULL)
        (void)cuCtxSynchronize();
    printf("holds %llu %d %d\n", (unsigned long long)atomic_load(&held_bytes), contexts,
           atomic_load(&first_error));
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

static CUcontext another_context(void)
{
    CUcontext made;
    MUST(cuCtxCreate_v2, &made, 0, 0);
    contexts++;
    return made;
}
static void way_nothing(void) /* a baseline: what a context takes */
{
    begin();
}
static void way_contexts(void) /* a baseline: what a second context takes */
{
    begin();
    (void)another_context();
}
static void way_linear(void)
{
    begin();
    fill_linear();
}
/* The calls of CUDA 2, of 32 bits, need a context that was made by one of them. */
static void begin_old(void)
{
    CUcontext made;
    begin();
    MUST(cuCtxCreate, &made, 0, 0);
    contexts++;
}
static void end_old(void)
{
    char why[80];
    CUresult error = atomic_load(&first_error);
    snprintf(why, sizeof why, "a driver of 64 bits refuses calls of 32 bits with error %d", error);
    if (atomic_load(&held_bytes) == 0 && error != CUDA_ERROR_OUT_OF_MEMORY)
        cannot(why);
}
/* A way that makes one call again and again, of so many bytes each. */
#define FILLS_IN(begins, name, bytes, needs, call, ...) \
    static void name(void)                              \
    {                                                   \
        __VA_ARGS__;                                    \
        begins();                                       \
        WITH(needs);                                    \
        FILL(bytes, call);                              \
        if (begins == begin_old)                        \
            end_old();                                  \
    }
#define FILLS(...) FILLS_IN(begin, __VA_ARGS__)
FILLS_IN(begin_old, way_linear_v1, piece_bytes, cuMemAlloc, cuMemAlloc(&at, (unsigned)piece_bytes),
         unsigned at)
FILLS(way_pitch, step_bytes, cuMemAllocPitch_v2,
      cuMemAllocPitch_v2(&at, &pitch, 4096, step_bytes / 4096, 4), CUdeviceptr at;
      size_t pitch)
/* A row of a byte takes as much as one of a pitch. */
FILLS(way_pitch_narrow, step_bytes, cuMemAllocPitch_v2,
      cuMemAllocPitch_v2(&at, &pitch, 1, step_bytes / 512, 4), CUdeviceptr at;
      size_t pitch)
FILLS(way_managed, step_bytes, cuMemAllocManaged, cuMemAllocManaged(&at, step_bytes, 1),
      CUdeviceptr at)
FILLS(way_managed_host, step_bytes, cuMemAllocManaged, cuMemAllocManaged(&at, step_bytes, 2),
      CUdeviceptr at)
/* As wide as a card's mipmapped arrays can be, of texels of 16 bytes: none is too high. */
enum { WIDE = 32768, ROW_BYTES = 16 * WIDE };
FILLS(way_array, piece_bytes, cuArrayCreate_v2, cuArrayCreate_v2(&array, &plane), CUarray array;
      CUarray_desc plane = { WIDE, piece_bytes / ROW_BYTES, 0x20, 4 })
FILLS_IN(begin_old, way_array_v1, piece_bytes, cuArrayCreate, cuArrayCreate(&array, &plane),
         CUarray array;
         CUarray_desc_v1 plane = { WIDE, (unsigned)(piece_bytes / ROW_BYTES), 0x20, 4 })
FILLS(way_array_small, 64u << 10, cuArrayCreate_v2, cuArrayCreate_v2(&array, &plane), CUarray array;
      CUarray_desc plane = { 128, 128, 0x20, 1 })
FILLS(way_cube, piece_bytes, cuArray3DCreate_v2, cuArray3DCreate_v2(&array, &cube), CUarray array;
      CUarray3d_desc cube = { 256, 256, piece_bytes >> 20, 0x20, 4, 0 })
FILLS(way_mipmap, piece_bytes, cuMipmappedArrayCreate, cuMipmappedArrayCreate(&mipmap, &plane, 1),
      CUmipmap mipmap;
      CUarray3d_desc plane = { WIDE, piece_bytes / ROW_BYTES, 0, 0x20, 4, 0 })
FILLS(way_small, 64u << 10, cuMemAlloc_v2, cuMemAlloc_v2(&at, 64u << 10), CUdeviceptr at)
static void way_rounding(void) /* the driver may take 2 MiB for each: only NVML sees that */
{
    CUdeviceptr at;
    begin();
    most_bytes = limit_bytes + 2 * MIB; /* of which it may take twice as much */
    FILL(MIB + 1, cuMemAlloc_v2(&at, MIB + 1));
}
static void way_rounding_managed(void)
{
    CUdeviceptr at;
    begin();
    most_bytes = limit_bytes + 2 * MIB; /* of which it may take twice as much */
    FILL(MIB + 1, cuMemAllocManaged(&at, MIB + 1, 1));
}
static void way_mipmap_levels(void)
{
    CUmipmap mipmap;
    CUarray3d_desc plane = { 1024, 1024, 0, 0x20, 1, 0 };
    begin();
    /* Each takes 4 MiB at least, and up to 6 MiB in whole steps of the card. */
    for (uint64_t left = most_bytes / (6 * MIB);
         left != 0 && given(cuMipmappedArrayCreate(&mipmap, &plane, 11)); left--)
        atomic_fetch_add(&held_bytes, 4 * MIB);
}

/* ---- physical memory ---- */

static const CUalloc_prop on_device = { .type = 1,
                                        .handle_types = CU_SHARE_FD,
                                        .location = { 1, 0 } };

FILLS(way_physical, step_bytes, cuMemCreate, cuMemCreate(&handle, step_bytes, &on_device, 0),
      CUhandle handle)
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
/* Only the mapping keeps it; or only a handle that was fetched from a mapping. */
FILLS(way_mapped, step_bytes, cuMemCreate, map_new(false), )
FILLS(way_retained, step_bytes, cuMemCreate, map_new(true), )

static CUresult map_twice(void)
{
    CUhandle handle;
    CUdeviceptr at[2];
    CUresult made = cuMemCreate(&handle, step_bytes, &on_device, 0);
    if (made != CUDA_SUCCESS)
        return made;
    for (int i = 0; i < 2; i++) {
        MUST(cuMemAddressReserve, &at[i], step_bytes, 0, 0, 0);
        MUST(cuMemMap, at[i], step_bytes, 0, handle, 0);
    }
    MUST(cuMemRelease, handle);
    MUST(cuMemUnmap, at[0], step_bytes);
    return CUDA_SUCCESS;
}
FILLS(way_mapped_twice, step_bytes, cuMemCreate, map_twice(), )
/* Two pieces one after another in one range, of which the first and half of the second are
 * unmapped. */
static CUresult unmap_half(void)
{
    CUhandle handle[2];
    CUdeviceptr at;
    uint64_t half = step_bytes / 4 / (2 * MIB) * (2 * MIB);
    MUST(cuMemAddressReserve, &at, step_bytes, 0, 0, 0);
    CUresult made = cuMemCreate(&handle[0], half, &on_device, 0);
    if (made == CUDA_SUCCESS)
        made = cuMemCreate(&handle[1], step_bytes - half, &on_device, 0);
    if (made != CUDA_SUCCESS)
        return made;
    MUST(cuMemMap, at, half, 0, handle[0], 0);
    MUST(cuMemMap, at + half, step_bytes - half, 0, handle[1], 0);
    (void)cuMemUnmap(at, half + 2 * MIB);
    MUST(cuMemRelease, handle[0]);
    MUST(cuMemRelease, handle[1]);
    return CUDA_SUCCESS;
}
FILLS(way_unmapped_half, step_bytes, cuMemCreate, unmap_half(), )
static void way_imported_own(void)
{
    CUhandle handle, again;
    int fd;
    begin();
    WITH(cuMemExportToShareableHandle);
    while (atomic_load(&held_bytes) + step_bytes <= most_bytes &&
           given(cuMemCreate(&handle, step_bytes, &on_device, 0))) {
        if (cuMemExportToShareableHandle(&fd, handle, CU_SHARE_FD, 0) != CUDA_SUCCESS)
            cannot("the driver does not export memory by a file");
        MUST(cuMemImportFromShareableHandle, &again, (void *)(intptr_t)fd, CU_SHARE_FD);
        close(fd);
        MUST(cuMemRelease, handle);
        atomic_fetch_add(&held_bytes, step_bytes);
    }
}
static void way_tiles(void)
{
    CUarray array;
    CUhandle handle;
    CUarray3d_desc sparse = { 8192, 8192, 0, 0x20, 4, CU_ARRAY_SPARSE };
    CUmap_info tile = { .operation = CU_OPERATION_MAP, .device_mask = 1 };
    CUalloc_prop for_tiles = { .type = 1, .location = { 1, 0 }, .usage = CU_FOR_TILES };
    begin();
    WITH(cuMemMapArrayAsync);
    MUST(cuArray3DCreate_v2, &array, &sparse);
    tile.resource = array;
    tile.part.level.width = 64;
    tile.part.level.height = 64;
    tile.part.level.depth = 1;
    while (atomic_load(&held_bytes) + step_bytes <= most_bytes &&
           given(cuMemCreate(&handle, step_bytes, &for_tiles, 0))) {
        tile.handle = handle;
        MUST(cuMemMapArrayAsync, &tile, 1, NULL);
        MUST(cuMemRelease, handle);
        tile.part.level.x += 64;
        atomic_fetch_add(&held_bytes, step_bytes);
    }
}

/* Two threads of which one undoes what the other takes hold of, at once. The memory raced for is
   kept by its first mapping: a driver may crash on a handle whose memory is gone. */
enum { RACES = 2000 };
static _Atomic int race, racing; /* which one is run; how many threads are at it */
static _Atomic int race_taken;   /* the last in which the first thread has made its call */
static _Atomic CUhandle race_handle;
static CUdeviceptr race_at;
static bool race_retains;

static void meet(int number)
{
    atomic_fetch_add(&racing, 1);
    while (atomic_load(&racing) < 2 * number)
        sched_yield();
}
static void *race_undo(void *nothing)
{
    (void)nothing;
    (void)cuCtxSetCurrent(primary);
    for (int i = 1;; i += 2) {
        meet(i);
        if (atomic_load(&race) == 0)
            return NULL;
        for (volatile int spin = i * 37 % 2000; spin > 0; spin--) /* any moment of the other's */
            continue;
        while (i % 8 == 1 && atomic_load(&race_taken) < i) /* now and then the other is first */
            sched_yield();
        if (race_retains)
            (void)cuMemUnmap(race_at, 2 * MIB);
        else
            (void)cuMemRelease(atomic_load(&race_handle));
        meet(i + 1);
    }
}
static void run_races(bool retains)
{
    pthread_t other;
    CUhandle handle;
    CUdeviceptr at;
    begin();
    WITH(cuMemCreate);
    race_retains = retains;
    atomic_store(&race, 1);
    if (pthread_create(&other, NULL, race_undo, NULL) != 0)
        cannot("no thread");
    int number = 1;
    for (int i = 0; i < RACES && atomic_load(&held_bytes) + 2 * MIB <= most_bytes;
         i++, number += 2) {
        MUST(cuMemAddressReserve, &race_at, 2 * MIB, 0, 0, 0);
        MUST(cuMemAddressReserve, &at, 2 * MIB, 0, 0, 0);
        if (!given(cuMemCreate(&handle, 2 * MIB, &on_device, 0)))
            break;
        MUST(cuMemMap, race_at, 2 * MIB, 0, handle, 0);
        if (retains)
            MUST(cuMemRelease, handle);
        atomic_store(&race_handle, handle);
        meet(number);
        bool kept = (retains ? cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)race_at)
                             : cuMemMap(at, 2 * MIB, 0, handle, 0)) == CUDA_SUCCESS;
        atomic_store(&race_taken, number);
        meet(number + 1);
        if (!retains)
            MUST(cuMemUnmap, race_at, 2 * MIB);
        atomic_fetch_add(&held_bytes, kept ? 2 * MIB : 0);
    }
    atomic_store(&race, 0);
    meet(number);
    pthread_join(other, NULL);
}
DOES(way_race_map, run_races(false))
DOES(way_race_retain, run_races(true))

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
    (void)another_context();
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
FILLS(way_async_per_thread, step_bytes, cuMemAllocAsync_ptsz,
      cuMemAllocAsync_ptsz(&at, step_bytes, stream), CUdeviceptr at)
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
static void way_async_handles(void) /* the default streams by their own handles */
{
    CUdeviceptr at;
    begin();
    WITH(cuMemAllocAsync);
    for (uintptr_t which = 1; which <= 2; which++)
        FILL(step_bytes, cuMemAllocAsync(&at, step_bytes, (CUstream)which));
}
static void way_async_kept(void) /* what a pool keeps of what was freed, then linear memory */
{
    CUdeviceptr at[STEPS / 2 - 1];
    CUpool pool;
    uint64_t all = UINT64_MAX;
    int count = 0;
    begin();
    WITH(cuMemAllocAsync);
    MUST(cuDeviceGetDefaultMemPool, &pool, 0);
    MUST(cuMemPoolSetAttribute, pool, CU_POOL_RELEASE_THRESHOLD, &all);
    while (count < STEPS / 2 - 1 && cuMemAllocAsync(&at[count], step_bytes, stream) == CUDA_SUCCESS)
        count++;
    most_bytes -= (uint64_t)count * step_bytes;
    while (count > 0)
        MUST(cuMemFreeAsync, at[--count], stream);
    fill_linear();
}
static void way_pool_gone(void) /* a pool is destroyed while its memory is in use */
{
    CUdeviceptr at;
    CUpool pool;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    begin();
    WITH(cuMemAllocFromPoolAsync);
    MUST(cuMemPoolCreate, &pool, &props);
    FILL(step_bytes, cuMemAllocFromPoolAsync(&at, step_bytes, pool, stream));
    MUST(cuMemPoolDestroy, pool);
    fill_linear();
}
/* A pool takes 32 MiB at once, and so may each node of a graph. */
static uint64_t pool_bytes(void)
{
    return step_bytes > 32 * MIB ? step_bytes : 32 * MIB;
}
static CUresult of_new_pool(void)
{
    CUdeviceptr at;
    CUpool pool;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    MUST(cuMemPoolCreate, &pool, &props);
    return cuMemAllocFromPoolAsync(&at, pool_bytes(), pool, stream);
}
FILLS(way_pools, pool_bytes(), cuMemAllocFromPoolAsync, of_new_pool(), )
static void way_pool_swapped(void) /* the device's pool is another at each call */
{
    CUdeviceptr at;
    CUpool pools[2];
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    int turn = 0;
    begin();
    WITH(cuDeviceSetMemPool);
    MUST(cuMemPoolCreate, &pools[0], &props);
    MUST(cuDeviceGetDefaultMemPool, &pools[1], 0);
    FILL(step_bytes,
         (cuDeviceSetMemPool(0, pools[turn++ % 2]), cuMemAllocAsync(&at, step_bytes, stream)));
}
static void way_async_mixed(void) /* freed by the other call, then all again */
{
    CUdeviceptr at[STEPS];
    int count = 0;
    begin();
    WITH(cuMemAllocAsync);
    while (count < STEPS && (count % 2 ? cuMemAllocAsync(&at[count], step_bytes, stream)
                                       : cuMemAlloc_v2(&at[count], step_bytes)) == CUDA_SUCCESS)
        count++;
    for (int i = 0; i < count; i++)
        (void)(i % 2 ? cuMemFree_v2(at[i]) : cuMemFreeAsync(at[i], stream));
    for (int i = 0; i < count;
         i++) /* which are gone: the driver refuses, and nothing is given back */
        (void)(i % 2 ? cuMemFreeAsync(at[i], stream) : cuMemFree_v2(at[i]));
    MUST(cuCtxSynchronize); /* or the pool keeps it */
    fill_linear();
}
static void *end_captures(void *count)
{
    CUgraph graph;
    (void)cuCtxSetCurrent(primary);
    while (atomic_load((_Atomic int *)count) != 0)
        if (cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED) == CUDA_SUCCESS)
            (void)cuStreamEndCapture(stream, &graph);
    return NULL;
}
/* A capture that another thread ends amid the call. No driver promises to survive that: two threads
   may not use one graph at once. */
static void way_capture_race(void)
{
    static _Atomic int goes_on = 1;
    pthread_t other;
    CUdeviceptr at;
    CUpool pool;
    uint64_t reserved = 0;
    begin();
    WITH(cuMemAllocAsync);
    WITH(cuMemPoolGetAttribute);
    MUST(cuDeviceGetDefaultMemPool, &pool, 0);
    MUST(cuStreamCreate, &stream, 1);
    if (pthread_create(&other, NULL, end_captures, &goes_on) != 0)
        cannot("no thread");
    for (int i = 0; i < 20000 && reserved < most_bytes; i++) { /* nodes take nothing */
        (void)cuMemAllocAsync(&at, 2 * MIB, stream);
        MUST(cuMemPoolGetAttribute, pool, CU_POOL_RESERVED_CURRENT, &reserved);
    }
    atomic_store(&goes_on, 0);
    pthread_join(other, NULL);
    atomic_store(&held_bytes, reserved);
}
static void way_capture_beside(void) /* memory of a stream beside one that is captured */
{
    CUstream captured;
    begin();
    WITH(cuStreamBeginCapture_v2);
    MUST(cuStreamCreate, &captured, 1);
    MUST(cuStreamCreate, &stream, 1);
    MUST(cuStreamBeginCapture_v2, captured, CU_CAPTURE_RELAXED);
    fill_async();
}

enum graph_way { PLAIN, CAPTURED, ON_STREAMS, NESTED, UPLOADED, FORGOTTEN };

static CUgraph new_graph(enum graph_way how)
{
    CUgraph graph, outer;
    CUnode node;
    CUmem_node memory = { .pool = { .type = 1, .location = { 1, 0 } }, .bytes = pool_bytes() };
    MUST(cuGraphCreate, &graph, 0);
    MUST(cuGraphAddMemAllocNode, &node, graph, NULL, 0, &memory);
    if (how != NESTED)
        return graph;
    MUST(cuGraphCreate, &outer, 0);
    CUnode_params inner = { .type = CU_NODE_GRAPH, .as.child = { graph, CU_CHILD_MOVES } };
    if (cuGraphAddNode == NULL || cuGraphAddNode(&node, outer, NULL, 0, &inner) != CUDA_SUCCESS)
        cannot("the driver has no child graphs with memory");
    return outer;
}
static CUresult capture_new(CUgraph *graph)
{
    CUdeviceptr at;
    MUST(cuStreamBeginCapture_v2, stream, CU_CAPTURE_RELAXED);
    CUresult asked = cuMemAllocAsync(&at, pool_bytes(), stream);
    CUresult ended = cuStreamEndCapture(stream, graph);
    return asked != CUDA_SUCCESS ? asked : ended;
}
static CUresult ready_new(enum graph_way how)
{
    CUgraph graph;
    CUexec exec;
    if (how == CAPTURED) {
        CUresult captured = capture_new(&graph);
        if (captured != CUDA_SUCCESS)
            return captured;
    } else {
        graph = new_graph(how);
    }
    if (how == ON_STREAMS)
        MUST(cuStreamCreate, &stream, 1);
    CUresult made = cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (made == CUDA_SUCCESS)
        made = how == UPLOADED ? cuGraphUpload(exec, stream) : cuGraphLaunch(exec, stream);
    if (made == CUDA_SUCCESS && how == FORGOTTEN)
        made = cuGraphExecDestroy(exec);
    return made != CUDA_SUCCESS ? made : cuStreamSynchronize(stream);
}
FILLS(way_graph, pool_bytes(), cuGraphInstantiateWithFlags, ready_new(PLAIN), )
static void way_graph_green(void)
{
    begin();
    WITH(cuGraphInstantiateWithFlags);
    of_green_context();
    MUST(cuCtxSetCurrent, primary);
    FILL(pool_bytes(), ready_new(PLAIN));
}
static void way_capture(void)
{
    begin();
    WITH(cuGraphInstantiateWithFlags);
    MUST(cuStreamCreate, &stream, 1);
    FILL(pool_bytes(), ready_new(CAPTURED));
}

static void fill_graphs(enum graph_way how)
{
    begin();
    WITH(cuGraphInstantiateWithFlags);
    FILL(pool_bytes(), ready_new(how));
    if (atomic_load(&held_bytes) != 0) /* else linear memory alone would be tried */
        fill_linear();
}
DOES(way_graph_streams, fill_graphs(ON_STREAMS))
DOES(way_graph_child, fill_graphs(NESTED))
DOES(way_graph_uploaded, fill_graphs(UPLOADED))
DOES(way_graph_forgotten, fill_graphs(FORGOTTEN))

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
    begin();
    fill_linear();
    (void)another_context();
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
DOES(way_heap, fill_limit(CU_LIMIT_HEAP))
DOES(way_printf, fill_limit(CU_LIMIT_PRINTF))

static void way_stack(void)
{
    size_t before = 0, value = 0;
    int sms = 1, threads = 1;
    begin();
    MUST(cuCtxGetLimit, &before, CU_LIMIT_STACK);
    MUST(cuDeviceGetAttribute, &sms, CU_ATTRIBUTE_SMS, 0);
    MUST(cuDeviceGetAttribute, &threads, CU_ATTRIBUTE_SM_THREADS, 0);
    uint64_t at_once = (uint64_t)sms * (uint64_t)threads;
    for (size_t more = most_bytes / at_once; more > 0; more /= 2)
        if (cuCtxSetLimit(CU_LIMIT_STACK, before + more) == CUDA_SUCCESS)
            break;
    MUST(cuCtxGetLimit, &value, CU_LIMIT_STACK);
    atomic_fetch_add(&held_bytes, value > before ? (value - before) * at_once : 0);
    fill_linear();
}
static void
way_detached(void) /* a context that was attached to goes on after it was detached from */
{
    CUcontext own, same;
    begin();
    WITH(cuCtxAttach);
    WITH(cuCtxDetach);
    own = another_context();
    if (cuCtxAttach(&same, 0) != CUDA_SUCCESS)
        cannot("the driver attaches to no context any more");
    fill_linear();
    MUST(cuCtxDetach, own);
    fill_linear();
}
static void way_contexts_again(void) /* contexts that end with all they have, then another */
{
    CUcontext other;
    CUdeviceptr at;
    begin();
    for (int i = 0; i < 4; i++) {
        MUST(cuCtxCreate_v2, &other, 0, 0);
        for (int j = 0; j < STEPS && cuMemAlloc_v2(&at, step_bytes) == CUDA_SUCCESS; j++)
            continue;
        if (i % 2 == 0)
            MUST(cuCtxSetCurrent, primary);
        MUST(cuCtxDestroy_v2, other);
    }
    MUST(cuCtxSetCurrent, primary);
    fill_linear();
}
static void way_reset(void) /* the primary context is reset, and retained anew */
{
    CUdeviceptr at;
    begin();
    WITH(cuDevicePrimaryCtxReset_v2);
    for (int i = 0; i < STEPS && cuMemAlloc_v2(&at, step_bytes) == CUDA_SUCCESS; i++)
        continue;
    MUST(cuDevicePrimaryCtxReset_v2, 0);
    begin();
    fill_linear();
}
static void way_green_holds(void) /* memory of a primary context that a green one alone keeps */
{
    begin();
    (void)green();
    fill_linear();
    MUST(cuDevicePrimaryCtxRelease_v2, 0);
    begin();
    fill_linear();
}
static void
way_green_left(void) /* memory that outlives the green context, which ends without a current one */
{
    CUcontext context;
    begin();
    for (int i = 0; i < 4; i++) {
        CUgreen one = green();
        MUST(cuCtxFromGreenCtx, &context, one);
        MUST(cuCtxSetCurrent, context);
        fill_linear();
        MUST(cuCtxSetCurrent, NULL);
        MUST(cuGreenCtxDestroy, one);
    }
    MUST(cuCtxSetCurrent, primary);
    fill_linear();
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

static void *churn_thread(void *shared)
{
    _Atomic CUdeviceptr *places = shared;
    CUdeviceptr at;
    (void)cuCtxSetCurrent(primary);
    for (int i = 0; i < 2000; i++) {
        if (cuMemAlloc_v2(&at, 2 * MIB) == CUDA_SUCCESS)
            at = atomic_exchange(&places[i % 8], at);
        if (at != 0)
            (void)cuMemFree_v2(at);
    }
    return NULL;
}
static void way_threads_free(void) /* threads that free what others have allocated, at once */
{
    static _Atomic CUdeviceptr places[8];
    pthread_t list[4];
    int count = 0;
    begin();
    while (count < 4 && pthread_create(&list[count], NULL, churn_thread, places) == 0)
        count++;
    while (count > 0)
        pthread_join(list[--count], NULL);
    for (int i = 0; i < 8; i++)
        atomic_fetch_add(&held_bytes, places[i] != 0 ? 2 * MIB : 0);
    fill_linear();
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
    most_bytes /= 4; /* each */
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

static void way_forked(void) /* a child that was forked amid CUDA, and executes nothing */
{
    int answers[2];
    begin();
    fill_linear();
    if (pipe(answers) != 0)
        cannot("no pipe");
    if ((children[0] = fork()) == 0) {
        uint64_t before = atomic_load(&held_bytes), held;
        CUdeviceptr at;
        while (atomic_load(&held_bytes) < before + most_bytes && cuInit(0) == CUDA_SUCCESS &&
               cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS &&
               cuCtxSetCurrent(primary) == CUDA_SUCCESS &&
               cuMemAlloc_v2(&at, step_bytes) == CUDA_SUCCESS)
            atomic_fetch_add(&held_bytes, step_bytes);
        held = atomic_load(&held_bytes) - before;
        if (write(answers[1], &held, sizeof held) == sizeof held)
            pause();
        _exit(0);
    }
    close(answers[1]);
    atomic_fetch_add(&held_bytes, answer(answers[0]));
}
static void way_killed_often(void) /* processes that are killed at any moment of their start */
{
    int answers;
    for (int i = 0; i < 8; i++) {
        pid_t child = fill_child(&answers, -1);
        for (volatile int spin = 0; spin < 1000000 * i; spin++)
            continue;
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(answers);
    }
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
/* Takes each file that comes, and says whether it could. */
static void serve(int other, bool (*take)(int fd))
{
    int fd;
    while ((fd = received_file(other)) >= 0) {
        bool had = take(fd);
        close(fd);
        if (send(other, had ? "y" : "n", 1, MSG_NOSIGNAL) != 1)
            return;
    }
    pause();
}
static bool import_file(int fd, CUhandle *handle)
{
    return cuMemImportFromShareableHandle(handle, (void *)(intptr_t)fd, CU_SHARE_FD) ==
           CUDA_SUCCESS;
}
static bool import_once(int fd)
{
    CUhandle handle;
    return import_file(fd, &handle);
}
static void import_all(int other)
{
    serve(other, import_once);
}
static bool import_again(int fd)
{
    CUhandle handle, again;
    return import_file(fd, &handle) && import_file(fd, &again) &&
           cuMemRelease(handle) == CUDA_SUCCESS;
}
static void import_twice(int other)
{
    serve(other, import_again);
}
static bool import_and_map(int fd)
{
    CUhandle handle;
    CUdeviceptr at;
    uint64_t bytes = limit_bytes / 4 * 3;
    return import_file(fd, &handle) && cuMemAddressReserve(&at, bytes, 0, 0, 0) == CUDA_SUCCESS &&
           cuMemMap(at, bytes, 0, handle, 0) == CUDA_SUCCESS;
}
static void map_all(int other)
{
    serve(other, import_and_map);
}
/* The maker gives memory on and releases it, again and again. */
static void give_on(void (*to)(int), bool strips_locks)
{
    uint64_t bytes = limit_bytes / 4 * 3;
    CUhandle handle;
    int fd, other = talk(to);
    struct flock none = { .l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 1 << 30 },
                 odd = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1 };
    odd.l_start = (off_t)1 << 62;
    begin();
    WITH(cuMemExportToShareableHandle);
    while (atomic_load(&held_bytes) + bytes <= most_bytes &&
           given(cuMemCreate(&handle, bytes, &on_device, 0))) {
        if (cuMemExportToShareableHandle(&fd, handle, CU_SHARE_FD, 0) != CUDA_SUCCESS)
            cannot("the driver does not export memory by a file");
        if (strips_locks &&
            (fcntl(fd, F_OFD_SETLK, &none) != 0 || fcntl(fd, F_OFD_SETLK, &odd) != 0))
            cannot("files of the driver take no locks");
        send_file(other, fd);
        close(fd);
        bool taken = agreed(other);
        (void)cuMemRelease(handle);
        if (!taken)
            break;
        atomic_fetch_add(&held_bytes, bytes);
    }
}
/* The maker releases what another of the same limit has imported. */
DOES(way_export, give_on(import_all, false))
DOES(way_import_twice, give_on(import_twice, false))
/* Locks on the file, by which libberth tells whose it is, are forged. */
DOES(way_export_forged, give_on(map_all, true))
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
    while (atomic_load(&held_bytes) + bytes <= most_bytes && given(cuMemAlloc_v2(&at, bytes))) {
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

static void way_lookup_old(void)
{
    void *found = NULL;
    unsigned at;
    begin_old();
    WITH(cuGetProcAddress);
    MUST(cuGetProcAddress, "cuMemAlloc", &found, 2000, 0);
    CUresult (*allocate)(unsigned *, unsigned) = (CUresult (*)(unsigned *, unsigned))found;
    FILL(piece_bytes, allocate(&at, (unsigned)piece_bytes));
    end_old();
}
static void
way_lookup_twice(void) /* the lookup itself looked up, and a call of a thread's stream */
{
    void *found = NULL;
    int status;
    CUdeviceptr at;
    begin();
    WITH(cuGetProcAddress_v2);
    MUST(cuGetProcAddress_v2, "cuGetProcAddress", &found, 12000, 0, &status);
    CUresult (*ask)(const char *, void **, int, uint64_t, int *) =
        (CUresult (*)(const char *, void **, int, uint64_t, int *))found;
    if (ask == NULL || ask("cuMemAllocAsync", &found, 12000, CU_LOOKUP_PER_THREAD, &status) != 0)
        cannot("the driver does not find its own lookup");
    CUresult (*allocate)(CUdeviceptr *, size_t, CUstream) =
        (CUresult (*)(CUdeviceptr *, size_t, CUstream))found;
    FILL(step_bytes, allocate(&at, step_bytes, NULL));
}
static void way_next(void)
{
    (void)driver_named(RTLD_NOW | RTLD_GLOBAL);
    look_up(RTLD_NEXT);
    begin();
    fill_linear();
}
static void way_copy(void) /* the driver's file under another name */
{
    struct link_map *map = NULL;
    char name[64];
    void *first = driver_named(RTLD_NOW | RTLD_LOCAL);
    if (first == NULL || dlinfo(first, RTLD_DI_LINKMAP, &map) != 0)
        cannot("the driver's file is not known");
    int from = open(map->l_name, O_RDONLY | O_CLOEXEC), to = memfd_create("copy", 0);
    char bytes[65536];
    for (ssize_t size; (size = read(from, bytes, sizeof bytes)) > 0;)
        if (write(to, bytes, (size_t)size) != size)
            cannot("no memory for a copy of the driver");
    snprintf(name, sizeof name, "/proc/self/fd/%d", to);
    look_up(dlopen(name, RTLD_NOW | RTLD_LOCAL));
    begin();
    fill_linear();
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
static const char *own_region; /* which no other program uses; NULL: none */

/* Ends before anything is taken, where the counters are those of other programs too. */
static void need_own_region(void)
{
    if (own_region == NULL)
        cannot("it would change counters that other programs may use");
}
/* Calls for each file of counters of the own region; false where there is none. */
static bool each_counter(bool (*call)(const char *path))
{
    bool any = false;
    DIR *folder = opendir(own_region);
    struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        char path[600];
        size_t size = strlen(entry->d_name);
        snprintf(path, sizeof path, "%s/%s", own_region, entry->d_name);
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
    need_own_region();
    begin();
    fill_linear();
    if (!each_counter(zero_total))
        cannot("there are no counters of berth that it may write");
    fill_linear();
}
/* All counters as they were before another process of the partition took what it has. */
static struct {
    char path[600];
    void *bytes;
    size_t size;
} kept;
static bool keep_counters(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    snprintf(kept.path, sizeof kept.path, "%s", path);
    kept.bytes = malloc((size_t)size + 1);
    kept.size = (size_t)size;
    bool read_all = kept.bytes != NULL && pread(fd, kept.bytes, kept.size, 0) == (ssize_t)size;
    if (fd >= 0)
        close(fd);
    return read_all && size != 0;
}
static void way_counters_restored(void)
{
    int answers, now[2];
    need_own_region();
    if (pipe(now) != 0)
        cannot("no pipe");
    children[0] = fill_child(&answers, now[0]);
    begin();
    if (!each_counter(keep_counters))
        cannot("there are no counters of berth that it may write");
    if (write(now[1], "n", 1) == 1)
        atomic_fetch_add(&held_bytes, answer(answers));
    int fd = open(kept.path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || pwrite(fd, kept.bytes, kept.size, 0) != (ssize_t)kept.size)
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
    need_own_region();
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
    { "contexts", "", way_contexts },
    { "linear", "cuMemAlloc", way_linear },
    { "linear-v1", "cuMemAlloc of 32 bits", way_linear_v1 },
    { "pitch", "cuMemAllocPitch", way_pitch },
    { "pitch-narrow", "cuMemAllocPitch of rows of one byte", way_pitch_narrow },
    { "managed", "cuMemAllocManaged", way_managed },
    { "managed-host", "cuMemAllocManaged for the host at first", way_managed_host },
    { "array", "cuArrayCreate", way_array },
    { "array-v1", "cuArrayCreate of 32 bits", way_array_v1 },
    { "array-3d", "cuArray3DCreate", way_cube },
    { "array-small", "arrays of 64 KiB, again and again", way_array_small },
    { "mipmap", "cuMipmappedArrayCreate", way_mipmap },
    { "mipmap-levels", "cuMipmappedArrayCreate with all levels", way_mipmap_levels },
    { "small", "64 KiB, again and again", way_small },
    { "rounding", "1 MiB and a byte, again and again, in steps of the card", way_rounding },
    { "rounding-managed", "the same of managed memory", way_rounding_managed },
    { "physical", "cuMemCreate", way_physical },
    { "physical-mapped", "cuMemCreate, kept by its mapping alone", way_mapped },
    { "physical-retained", "cuMemCreate, kept by a handle of cuMemRetainAllocationHandle alone",
      way_retained },
    { "mapped-twice", "memory mapped twice and unmapped once", way_mapped_twice },
    { "unmapped-half", "a range unmapped up to the middle of a mapping", way_unmapped_half },
    { "imported-own", "memory exported and imported by one process, then released",
      way_imported_own },
    { "tiles", "tiles of a sparse array, whose handles are released", way_tiles },
    { "race-map", "memory mapped while another thread releases its handle", way_race_map },
    { "race-retain", "handles fetched from a mapping while another thread unmaps it",
      way_race_retain },
    { "async", "cuMemAllocAsync", way_async },
    { "async-per-thread", "cuMemAllocAsync on the stream of a thread", way_async_per_thread },
    { "async-other-context", "cuMemAllocAsync on a stream of another context", way_async_other },
    { "async-no-context", "cuMemAllocAsync without a current context", way_async_none },
    { "async-handles", "cuMemAllocAsync on the default streams by their handles",
      way_async_handles },
    { "async-kept", "memory that a pool keeps after it was freed", way_async_kept },
    { "async-mixed", "pointers freed by the other call, and twice", way_async_mixed },
    { "async-green", "cuMemAllocAsync on a stream of a green context, without a current one",
      way_async_green },
    { "pool", "cuMemAllocFromPoolAsync from a pool of its own", way_pool },
    { "pool-default", "cuMemAllocFromPoolAsync from the default pool", way_pool_default },
    { "pool-gone", "a pool destroyed while its memory is in use", way_pool_gone },
    { "pools", "a new pool for each allocation", way_pools },
    { "pool-swapped", "the pool of the device exchanged at each call", way_pool_swapped },
    { "pool-green", "cuMemAllocFromPoolAsync on a stream of a green context", way_pool_green },
    { "graph", "memory nodes of graphs", way_graph },
    { "graph-green", "memory nodes of graphs on a stream of a green context", way_graph_green },
    { "graph-streams", "graphs, each on a stream of its own", way_graph_streams },
    { "graph-child", "memory nodes of child graphs", way_graph_child },
    { "graph-uploaded", "memory nodes of graphs that are only uploaded", way_graph_uploaded },
    { "graph-forgotten", "graphs destroyed after their launch, which leaves memory",
      way_graph_forgotten },
    { "capture", "cuMemAllocAsync in a captured graph", way_capture },
    { "capture-race", "cuMemAllocAsync while another thread ends the capture", way_capture_race },
    { "capture-beside", "cuMemAllocAsync while another stream is captured", way_capture_beside },
    { "green", "cuMemAlloc under a green context", way_green },
    { "green-ended", "cuMemAlloc after a green context that held nearly all has ended",
      way_green_ended },
    { "green-holds", "a primary context that a green one alone keeps", way_green_holds },
    { "green-left", "memory left by green contexts that end without a current one",
      way_green_left },
    { "second-context", "cuMemAlloc under a second context", way_second_context },
    { "detached", "cuMemAlloc after a context was detached from", way_detached },
    { "contexts-again", "contexts that end with all they hold, then another", way_contexts_again },
    { "reset", "cuMemAlloc after a reset of the primary context", way_reset },
    { "heap", "the heap of kernels, by cuCtxSetLimit", way_heap },
    { "stack", "the stacks of kernels, by cuCtxSetLimit", way_stack },
    { "printf", "the buffer of printf, by cuCtxSetLimit", way_printf },
    { "prefetch", "memory of the system, prefetched to the GPU", way_prefetch },
    { "threads", "eight threads at once", way_threads },
    { "threads-free", "threads that free what others allocate", way_threads_free },
    { "processes", "four processes at once", way_processes },
    { "killed", "a process after one that was killed", way_killed },
    { "forked", "a forked child that executes nothing", way_forked },
    { "killed-often", "a process after eight that were killed as they began", way_killed_often },
    { "export-release", "memory that another process imports before its maker releases it",
      way_export },
    { "import-twice", "memory imported twice and released once, then by its maker",
      way_import_twice },
    { "export-forged", "exported files whose locks are forged", way_export_forged },
    { "ipc-free", "memory that another process opens by IPC before its maker frees it", way_ipc },
    { "deepbind", "the driver by dlopen with RTLD_DEEPBIND", way_deepbind },
    { "dlmopen", "the driver in a namespace of the loader", way_namespace },
    { "next", "the driver by dlsym of RTLD_NEXT", way_next },
    { "copy", "a copy of the driver under another name", way_copy },
    { "lookup", "cuMemAlloc by cuGetProcAddress", way_lookup },
    { "lookup-old", "cuMemAlloc of 32 bits by cuGetProcAddress", way_lookup_old },
    { "lookup-twice", "cuMemAllocAsync by a cuGetProcAddress that was looked up",
      way_lookup_twice },
    { "no-environment", "a program without its environment", way_no_environment },
    { "counters", "a store into the counters that says that nothing is used", way_counters },
    { "counters-restored", "all counters as they were before another process",
      way_counters_restored },
    { "counters-removed", "counters that are removed, then another process", way_counters_removed },
};
enum { WAYS = sizeof ways / sizeof *ways, BASELINES = 2 };

int main(int count, char **words)
{
    if (count == 1) {
        for (int i = BASELINES; i < WAYS; i++)
            printf("%s\t%s\n", ways[i].name, ways[i].what);
        return 0;
    }
    char *end = NULL;
    uint64_t limit_mib = count == 3 || count == 4 ? strtoull(words[2], &end, 10) : 0;
    if (limit_mib < 64 || limit_mib > 1 << 20 || *end != 0) {
        fprintf(stderr,
                "usage: berth-prove [WAY LIMIT_MIB [REGION]], with a limit of 64 MiB or more\n");
        return 2;
    }
    own_region = words[3];
    limit_bytes = limit_mib * MIB;
    step_bytes = 2 * limit_bytes / STEPS / (2 * MIB) * (2 * MIB);
    piece_bytes = step_bytes < 2048 * MIB ? step_bytes : 2048 * MIB;
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

/* libcuda.so.1 over the fake card: the driver's calls in host memory, with a ledger of its own.

   Kernels are the functions named `spin_N` (N microseconds each), `wave_N` (N microseconds for
   every 132 blocks, begun or whole), `vary_A_B_K` (A microseconds, each K-th launch B: a persistent
   kernel, whose length its data make) and `even_N` (evenly spread from N/10 to 19N/10); any other
   runs no time at all. A GPU runs one kernel at a time, in the order of launch. */
#include "fake_inside.h"
#include "fake_mig.h"
#include "stopwatch.h"

#include <sched.h>

extern void *fake_lookup(const char *name, int version, bool per_thread, bool *known);

enum { WAVE_BLOCKS = 132 };

struct CUstream_st {
    uint32_t gpu;
    int capture_mode;
    struct CUctx_st *context;
    _Atomic uint64_t tail_ns;
    CUgraph capture;
};
struct CUevent_st {
    _Atomic uint64_t at_ns;
    uint32_t gpu;
    struct CUctx_st *context;
    struct CUevent_st *next;
};
struct CUfunc_st {
    uint64_t spin_ns, wave_ns, long_ns, every, even_ns;
    _Atomic uint64_t launches;
    struct CUmod_st *unloaded;
};
struct CUmipmap_st {
    uint64_t va;
};
struct CUpool_st {
    uint32_t gpu;
    bool device, gone, imported;
    int type; /* of allocation; 0: pinned */
    CUlocation location;
    uint64_t reserved, used, threshold;
    struct CUpool_st *next;
};
struct CUnode_st {
    int type;
    uint64_t bytes, ptr;
    uint32_t gpu;
    CUgraph child;
    struct CUnode_st *next;
    CUfunction function;
    unsigned blocks;
};
struct CUgraph_st {
    struct CUnode_st *nodes;
    size_t count;
};
struct CUexec_st {
    struct {
        uint64_t bytes, apart_bytes, held_bytes;
    } on[FAKE_GPUS];
    uint64_t kernel_ns;
};

enum what { FREE, BLOCK, ASYNC, VIRTUAL, HOSTED };
struct node {
    uint64_t va, bytes;
    enum what what;
    bool unplaced;
    uint32_t gpu;
    struct CUctx_st *context;
    struct CUpool_st *pool;
};
struct map {
    uint64_t va, bytes;
    struct physical *physical;
    struct map *next;
};

struct fake_card *fake_card;
#define card fake_card
static struct fake_process *self;
static uint32_t self_index;
static uint32_t watch_group;
static uint64_t watch_bytes;
bool fake_initialized, fake_injecting;
#define initialized fake_initialized
static bool forked, like_nodes, like_lazy;
static _Atomic uint64_t unplaced; /* managed memory that nobody has used yet */
static uint64_t swapped_bytes;    /* of managed memory that stays with the host */

static _Atomic uint32_t spin;
static struct node *nodes;
static size_t node_space, node_count;
static uint64_t heap_base, heap_next, heap_end;
static struct {
    uint64_t *list;
    size_t count, space;
} free_list[48];
static struct CUctx_st primaries[FAKE_GPUS];
static uint32_t primary_count[FAKE_GPUS];
static struct CUpool_st default_pools[FAKE_GPUS], *pool_list, *current_pool[FAKE_GPUS];
static uint64_t graph_reserved[FAKE_GPUS], graph_used[FAKE_GPUS], graph_idle[FAKE_GPUS];
static struct physical *physicals;
static struct map *maps;
static uint64_t next_handle = 0x1000;
static struct CUmod_st *modules;
static struct CUevent_st *events; /* those that live; one whose context is gone has none */
static struct CUstream_st legacy_streams[FAKE_GPUS];

static _Thread_local struct CUctx_st *current;
static _Thread_local struct CUctx_st *stack[16];
static _Thread_local int depth;
static _Thread_local int capture_mode;
static _Atomic int global_captures;
static _Atomic bool capture_spoiled;
static _Thread_local bool measuring;
static _Thread_local uint64_t waited_ns;

static void lock(void)
{
    for (unsigned tries = 0; atomic_exchange_explicit(&spin, 1, memory_order_acquire) != 0; tries++)
        if (tries > 64)
            sched_yield();
}

static void unlock(void)
{
    atomic_store_explicit(&spin, 0, memory_order_release);
}

/* ---- the ledger ---- */

/* On a watched card, with the ledger held: the sum after the change is that of this instant. */
static bool charge_watched(uint32_t gpu, uint64_t bytes)
{
    struct fake_gpu *device = &card->gpus[gpu];
    if (fake_group_bytes(card, FAKE_ALL, gpu) + bytes > device->total_bytes) {
        fake_reap_locked(card);
        if (fake_group_bytes(card, FAKE_ALL, gpu) + bytes > device->total_bytes)
            return false;
    }
    atomic_fetch_add(&self->bytes[gpu], bytes);
    if (watch_bytes == 0 || fake_group_bytes(card, watch_group, gpu) <= watch_bytes)
        return true;
    fake_reap_locked(card);
    uint64_t sum = fake_group_bytes(card, watch_group, gpu);
    if (sum > watch_bytes) {
        atomic_fetch_add(&device->violations, 1);
        if (atomic_load(&device->worst_bytes) < sum)
            atomic_store(&device->worst_bytes, sum);
    }
    return true;
}

static void lock_ledger(void)
{
    int got = measuring ? pthread_mutex_trylock(&card->ledger) : EBUSY;
    if (got == EOWNERDEAD)
        pthread_mutex_consistent(&card->ledger);
    if (got == 0 || got == EOWNERDEAD)
        return;
    if (!measuring) {
        fake_lock_ledger(card);
        return;
    }
    struct stopwatch watch;
    stopwatch_start(&watch);
    fake_lock_ledger(card);
    waited_ns += stopwatch_kept_ns(&watch);
}

static void reap(void)
{
    bool watched = atomic_load(&card->watched);
    if (watched)
        lock_ledger();
    fake_reap_locked(card);
    if (watched)
        fake_unlock_ledger(card);
}

static bool charge(uint32_t gpu, uint64_t bytes)
{
    struct fake_gpu *device = &card->gpus[gpu];
    if (bytes > device->total_bytes)
        return false;
    if (atomic_load_explicit(&card->watched, memory_order_relaxed)) {
        lock_ledger();
        bool had = charge_watched(gpu, bytes);
        fake_unlock_ledger(card);
        return had;
    }
    if (atomic_fetch_add(&device->used, bytes) + bytes > device->total_bytes) {
        atomic_fetch_sub(&device->used, bytes);
        reap();
        if (atomic_fetch_add(&device->used, bytes) + bytes > device->total_bytes) {
            atomic_fetch_sub(&device->used, bytes);
            return false;
        }
    }
    atomic_fetch_add(&self->bytes[gpu], bytes);
    return true;
}

static void refund(uint32_t gpu, uint64_t bytes)
{
    if (atomic_load_explicit(&card->watched, memory_order_relaxed)) {
        lock_ledger();
        atomic_fetch_sub(&self->bytes[gpu], bytes);
        fake_unlock_ledger(card);
        return;
    }
    atomic_fetch_sub(&self->bytes[gpu], bytes);
    atomic_fetch_sub(&card->gpus[gpu].used, bytes);
}

bool fake_charge(uint32_t gpu, uint64_t bytes)
{
    return charge(gpu, bytes);
}
void fake_refund(uint32_t gpu, uint64_t bytes)
{
    refund(gpu, bytes);
}
void fake_books(void)
{
    lock();
}
void fake_books_done(void)
{
    unlock();
}
struct CUctx_st *fake_current(void)
{
    return current;
}

bool fake_like(const char *word)
{
    const char *list = getenv("BERTH_FAKE_LIKE"), *at = list != NULL ? strstr(list, word) : NULL;
    return at != NULL;
}

/* BERTH_FAKE_ERRORS: each call counts for itself. */
CUresult fake_injected(const char *name)
{
    static struct {
        char name[64];
        int calls;
    } seen[16];
    const char *at = getenv("BERTH_FAKE_ERRORS");
    for (int i = 0; at != NULL && *at != 0 && i < 16; i++) {
        char wanted[64];
        int nth, code;
        if (sscanf(at, "%63[^:]:%d:%d", wanted, &nth, &code) != 3)
            break;
        if (strcmp(wanted, name) == 0) {
            seen[i].calls++;
            if (nth == 0 || seen[i].calls == nth)
                return code;
        }
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    return CUDA_SUCCESS;
}

/* For tests: what the driver knows, from its side. */
FAKE_EXPORT uint64_t fake_violations(int gpu)
{
    return atomic_load(&card->gpus[gpu].violations);
}
FAKE_EXPORT uint64_t fake_worst_bytes(int gpu)
{
    return atomic_load(&card->gpus[gpu].worst_bytes);
}
static void drop_closed(void);
static void populate(void);
FAKE_EXPORT uint64_t fake_own_bytes(int gpu)
{
    populate();
    drop_closed();
    return atomic_load(&self->bytes[gpu]);
}
FAKE_EXPORT uint64_t fake_own_busy_ns(int gpu)
{
    return atomic_load(&self->busy_ns[gpu]);
}
FAKE_EXPORT uint64_t fake_used_bytes(int gpu)
{
    reap();
    return fake_group_bytes(card, FAKE_ALL, (uint32_t)gpu);
}

/* How long this thread was kept waiting by others at the ledger, from the first call on: the fake's
   wait and not a guest's. */
FAKE_EXPORT uint64_t fake_waited_ns(void)
{
    measuring = true;
    return waited_ns;
}

/* ---- addresses ---- */

static size_t slot_of(uint64_t va)
{
    return (size_t)((va >> 9) * 0x9e3779b97f4a7c15ull >> 24) & (node_space - 1);
}

static struct node *find_node(uint64_t va)
{
    if (node_space == 0)
        return NULL;
    for (size_t at = slot_of(va);; at = (at + 1) & (node_space - 1)) {
        if (nodes[at].what == FREE)
            return NULL;
        if (nodes[at].va == va)
            return &nodes[at];
    }
}

static void put_node(struct node node)
{
    if ((node_count + 1) * 2 > node_space) {
        struct node *old = nodes;
        size_t old_space = node_space;
        node_space = node_space ? node_space * 2 : 4096;
        nodes = calloc(node_space, sizeof *nodes);
        node_count = 0;
        for (size_t i = 0; i < old_space; i++)
            if (old[i].what != FREE)
                put_node(old[i]);
        free(old);
    }
    size_t at = slot_of(node.va);
    while (nodes[at].what != FREE)
        at = (at + 1) & (node_space - 1);
    nodes[at] = node;
    node_count++;
}

static void drop_node(struct node *gone)
{
    size_t hole = (size_t)(gone - nodes), at = hole;
    node_count--;
    for (;;) {
        at = (at + 1) & (node_space - 1);
        if (nodes[at].what == FREE)
            break;
        size_t ideal = slot_of(nodes[at].va);
        if (((at - ideal) & (node_space - 1)) >= ((at - hole) & (node_space - 1))) {
            nodes[hole] = nodes[at];
            hole = at;
        }
    }
    nodes[hole].what = FREE;
}

static unsigned size_class(uint64_t bytes)
{
    unsigned class = 9;
    while (class < 47 && (1ull << class) < bytes)
        class++;
    return class;
}

static uint64_t new_address(uint64_t bytes)
{
    unsigned class = size_class(bytes);
    if (free_list[class].count != 0)
        return free_list[class].list[--free_list[class].count];
    if (heap_base == 0) {
        for (uint64_t size = fake_number("BERTH_FAKE_HEAP_GIB", 4096) << 30;
             size >= 1ull << 30 && heap_base == 0; size >>= 1) {
            void *space = mmap(NULL, size, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (space != MAP_FAILED) {
                madvise(space, size, MADV_DONTDUMP);
                heap_base = ((uint64_t)(uintptr_t)space + (2 << 20) - 1) & ~((2ull << 20) - 1);
                heap_next = heap_base;
                heap_end = (uint64_t)(uintptr_t)space + size;
            }
        }
    }
    uint64_t align = (1ull << class) < (2ull << 20) ? 1ull << class : 2ull << 20;
    uint64_t at = (heap_next + align - 1) & ~(align - 1);
    if (heap_base == 0 || at + (1ull << class) > heap_end)
        return 0;
    heap_next = at + (1ull << class);
    return at;
}

uint64_t fake_address(uint64_t bytes)
{
    return new_address(bytes);
}

static void old_address(uint64_t va, uint64_t bytes)
{
    unsigned class = size_class(bytes);
    if (free_list[class].count == free_list[class].space) {
        free_list[class].space = free_list[class].space ? free_list[class].space * 2 : 64;
        free_list[class].list =
            realloc(free_list[class].list, free_list[class].space * sizeof(uint64_t));
    }
    free_list[class].list[free_list[class].count++] = va;
}

/* ---- the process ---- */

static void after_fork(void)
{
    forked = initialized;
    initialized = false;
    atomic_store(&spin, 0);
    current = NULL;
    depth = 0;
}

/* CUDA_VISIBLE_DEVICES, by index or UUID: the card behind each ordinal; read at cuInit, as a driver
   does. */
static uint32_t order[FAKE_GPUS], visible_count;
static struct fake_mig_instance *visible_instance[FAKE_GPUS];

static uint32_t read_visible(void)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    uint32_t count = 0;
    if (text == NULL) {
        for (; count < card->gpu_count; count++)
            order[count] = count;
        return count;
    }
    while (*text != 0 && count < FAKE_GPUS) {
        uint32_t found = FAKE_GPUS;
        if (*text >= '0' && *text <= '9')
            found = (uint32_t)strtoul(text, NULL, 10);
        for (uint32_t g = 0; g < card->gpu_count && found == FAKE_GPUS; g++) {
            const unsigned char *b = card->gpus[g].uuid.bytes;
            char full[48];
            snprintf(full, sizeof full,
                     "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                     b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12],
                     b[13], b[14], b[15]);
            if ((strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0) &&
                strncmp(text + 4, full, strcspn(text + 4, ",")) == 0)
                found = g;
        }
        visible_instance[count] = fake_mig_named(text, strcspn(text, ","), &found);
        if (found >= card->gpu_count)
            break;
        order[count++] = found;
        text += strcspn(text, ",");
        text += *text == ',';
    }
    return count;
}

static uint32_t gpu_at(CUdevice dev)
{
    return (uint32_t)dev < visible_count ? order[dev] : 0;
}

uint32_t fake_gpu_at(CUdevice dev)
{
    return gpu_at(dev);
}
bool fake_is_gpu(CUdevice dev)
{
    return dev >= 0 && (uint32_t)dev < visible_count;
}

static CUdevice ordinal_of(uint32_t gpu)
{
    for (uint32_t i = 0; i < visible_count; i++)
        if (order[i] == gpu)
            return (CUdevice)i;
    return 0;
}

DO cuInit(unsigned flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    lock();
    if (initialized) {
        unlock();
        return CUDA_SUCCESS;
    }
    card = fake_attach();
    if (card == NULL || card->gpu_count == 0) {
        unlock();
        return CUDA_ERROR_NO_DEVICE;
    }
    const char *watch = getenv("BERTH_FAKE_WATCH");
    if (watch != NULL && strchr(watch, ':') != NULL) {
        watch_group = (uint32_t)strtoul(watch, NULL, 10);
        watch_bytes = strtoull(strchr(watch, ':') + 1, NULL, 10);
        atomic_store(&card->watched, 1);
    }
    reap();
    int fd = open(fake_path(), O_RDWR | O_CLOEXEC);
    for (uint32_t i = 0; fd >= 0 && i < FAKE_PROCESSES && self == NULL; i++) {
        struct fake_process *process = &card->processes[i];
        int failed = 0;
        if (i >= atomic_load(&card->seen)) { /* others that start make room in the same file */
            struct stopwatch watch;
            stopwatch_start(&watch);
            failed = fake_reserve(fd, offsetof(struct fake_card, processes) + i * sizeof *process,
                                  sizeof *process);
            waited_ns += stopwatch_kept_ns(&watch);
        }
        if (failed != 0) {
            fake_complain("has no room for another process", failed);
            break;
        }
        if (atomic_load(&process->state) != 0 || !fake_lock(fd, F_OFD_SETLK, i))
            continue;
        if (atomic_load(&process->state) != 0)
            continue;
        void *proof = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        if (proof == MAP_FAILED)
            break;
        madvise(proof, 4096, MADV_DONTFORK);
        process->pid = (uint32_t)getpid();
        process->group = watch_group;
        for (int g = 0; g < FAKE_GPUS; g++) {
            atomic_store(&process->bytes[g], 0);
            atomic_store(&process->busy_ns[g], 0);
        }
        uint32_t seen = atomic_load(&card->seen);
        while (seen < i + 1 && !atomic_compare_exchange_weak(&card->seen, &seen, i + 1)) { }
        atomic_store(&process->state, 1);
        self = process;
        self_index = i;
    }
    if (fd >= 0)
        close(fd);
    static bool watching;
    if (!watching)
        pthread_atfork(NULL, NULL, after_fork);
    watching = true;
    for (uint32_t g = 0; g < card->gpu_count; g++) {
        default_pools[g] = (struct CUpool_st){ .gpu = g, .device = true };
        current_pool[g] = &default_pools[g];
        legacy_streams[g].gpu = g;
        primaries[g].gpu = g;
        primaries[g].primary = true;
    }
    visible_count = read_visible();
    like_nodes = fake_like("nodes");
    like_lazy = fake_like("lazy");
    const char *errors = getenv("BERTH_FAKE_ERRORS");
    fake_injecting = errors != NULL && *errors != 0;
    initialized = self != NULL;
    unlock();
    return initialized ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

DO cuDriverGetVersion(int *version)
{
    *version =
        card != NULL ? (int)card->driver_version : (int)fake_number("BERTH_FAKE_VERSION", 13050);
    return CUDA_SUCCESS;
}
/* For tests: what to do while the driver is asked how many devices there are. */
static void (*when_counting)(void);
FAKE_EXPORT void fake_when_counting(void (*call)(void))
{
    when_counting = call;
}

DO cuDeviceGetCount(int *count)
{
    READY();
    GIVEN(count);
    if (when_counting != NULL)
        when_counting();
    *count = (int)visible_count;
    return CUDA_SUCCESS;
}
DO cuDeviceGet(CUdevice *dev, int ordinal)
{
    GPU(ordinal);
    *dev = ordinal;
    return CUDA_SUCCESS;
}
DO cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    GPU(dev);
    *uuid = card->gpus[gpu_at(dev)].uuid;
    if (visible_instance[dev] != NULL)
        memcpy(uuid->bytes, visible_instance[dev]->uuid, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}
DO cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    return cuDeviceGetUuid(uuid, dev);
}
DO cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    GPU(dev);
    GIVEN(bytes);
    *bytes = visible_instance[dev] != NULL ? visible_instance[dev]->bytes
                                           : card->gpus[gpu_at(dev)].total_bytes;
    return CUDA_SUCCESS;
}
DO cuDeviceTotalMem(unsigned *bytes, CUdevice dev)
{
    GPU(dev);
    GIVEN(bytes);
    uint64_t total = card->gpus[gpu_at(dev)].total_bytes;
    *bytes = total > 0xffffffffu ? 0xffffffffu : (unsigned)total;
    return CUDA_SUCCESS;
}
DO cuDeviceGetName(char *name, int size, CUdevice dev)
{
    GPU(dev);
    snprintf(name, (size_t)size, "berth fake GPU");
    return CUDA_SUCCESS;
}
DO cuDeviceGetAttribute(int *value, int attribute, CUdevice dev)
{
    GPU(dev);
    *value = attribute == CU_ATTRIBUTE_SMS          ? WAVE_BLOCKS
             : attribute == CU_ATTRIBUTE_SM_THREADS ? 2048
             : attribute == 75                      ? 9
             : attribute == 76                      ? 0
                                                    : 1;
    return CUDA_SUCCESS;
}

DO cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    IN_CONTEXT();
    GIVEN(free_bytes);
    GIVEN(total);
    populate();
    struct fake_gpu *gpu = &card->gpus[current->gpu];
    *total = gpu->total_bytes;
    *free_bytes = gpu->total_bytes - fake_used_of(card, current->gpu);
    return CUDA_SUCCESS;
}

DO cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    size_t f, t;
    GIVEN(free_bytes);
    GIVEN(total);
    CUresult result = cuMemGetInfo_v2(&f, &t);
    if (result == CUDA_SUCCESS) {
        *free_bytes = f > 0xffffffffu ? 0xffffffffu : (unsigned)f;
        *total = t > 0xffffffffu ? 0xffffffffu : (unsigned)t;
    }
    return result;
}

/* ---- contexts ---- */

DO cuCtxGetCurrent(CUcontext *ctx)
{
    READY();
    *ctx = current;
    return CUDA_SUCCESS;
}
DO cuCtxSetCurrent(CUcontext ctx)
{
    READY();
    current = ctx;
    return CUDA_SUCCESS;
}
DO cuCtxGetDevice(CUdevice *dev)
{
    IN_CONTEXT();
    *dev = ordinal_of(current->gpu);
    return CUDA_SUCCESS;
}
DO cuCtxPushCurrent_v2(CUcontext ctx)
{
    READY();
    if (depth == 16)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = current;
    current = ctx;
    return CUDA_SUCCESS;
}
DO cuCtxPopCurrent_v2(CUcontext *ctx)
{
    IN_CONTEXT();
    if (ctx != NULL)
        *ctx = current;
    current = depth > 0 ? stack[--depth] : NULL;
    return CUDA_SUCCESS;
}

DO cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev)
{
    (void)flags;
    GPU(dev);
    GIVEN(ctx);
    if (!charge(gpu_at(dev), card->context_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *ctx = calloc(1, sizeof **ctx);
    **ctx = (struct CUctx_st){ .gpu = gpu_at(dev), .alive = true };
    if (depth < 16)
        stack[depth++] = current;
    current = *ctx;
    return CUDA_SUCCESS;
}
DO cuCtxCreate(CUcontext *ctx, unsigned flags, CUdevice dev)
{
    return cuCtxCreate_v2(ctx, flags, dev);
}
DO cuCtxCreate_v3(CUcontext *ctx, void *affinity, int count, unsigned flags, CUdevice dev)
{
    (void)affinity, (void)count;
    return cuCtxCreate_v2(ctx, flags, dev);
}
DO cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned flags, CUdevice dev)
{
    (void)params;
    return cuCtxCreate_v2(ctx, flags, dev);
}

static void end_context(struct CUctx_st *context)
{
    lock();
    for (size_t i = 0; i < node_space; i++)
        while ((nodes[i].what == BLOCK || nodes[i].what == HOSTED) && nodes[i].context == context) {
            if (nodes[i].what == BLOCK && !nodes[i].unplaced)
                refund(nodes[i].gpu, nodes[i].bytes);
            else if (nodes[i].what == HOSTED)
                swapped_bytes -= nodes[i].bytes;
            old_address(nodes[i].va, nodes[i].bytes);
            drop_node(&nodes[i]);
        }
    for (struct CUmod_st **at = &modules; *at != NULL;) {
        struct CUmod_st *module = *at;
        if (module->context != context) {
            at = &module->next;
            continue;
        }
        refund(module->gpu, module->bytes);
        *at = module->next;
        free(module);
    }
    for (struct CUevent_st **at = &events; *at != NULL;) {
        struct CUevent_st *event = *at;
        if (event->context != context) {
            at = &event->next;
            continue;
        }
        event->context = NULL; /* kept, so that whoever uses it still is told */
        *at = event->next;
    }
    unlock();
    fake_limits_gone(context);
    refund(context->gpu, card->context_bytes);
    context->alive = false;
}

DO cuCtxDestroy_v2(CUcontext ctx)
{
    READY();
    if (ctx == NULL || !ctx->alive || ctx->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    end_context(ctx);
    if (current == ctx)
        current = depth > 0 ? stack[--depth] : NULL;
    free(ctx);
    return CUDA_SUCCESS;
}
DO cuCtxDestroy(CUcontext ctx)
{
    return cuCtxDestroy_v2(ctx);
}
DO cuCtxAttach(CUcontext *ctx, unsigned flags)
{
    IN_CONTEXT();
    GIVEN(ctx);
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    current->attached++;
    *ctx = current;
    return CUDA_SUCCESS;
}
DO cuCtxDetach(CUcontext ctx)
{
    READY();
    if (ctx == NULL || !ctx->alive || ctx->attached == 0)
        return cuCtxDestroy_v2(ctx);
    ctx->attached--;
    return CUDA_SUCCESS;
}

DO cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    GPU(dev);
    GIVEN(ctx);
    uint32_t gpu = gpu_at(dev);
    struct CUctx_st *context = &primaries[gpu];
    lock();
    bool starts = !context->alive;
    context->alive = true;
    primary_count[gpu]++;
    unlock();
    if (starts && !charge(gpu, card->context_bytes)) {
        lock();
        context->alive = false;
        primary_count[gpu] = 0;
        unlock();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ctx = context;
    return CUDA_SUCCESS;
}

DO cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    GPU(dev);
    uint32_t gpu = gpu_at(dev);
    if (primary_count[gpu] == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary_count[gpu] == 0)
        end_context(&primaries[gpu]);
    return CUDA_SUCCESS;
}
DO cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return cuDevicePrimaryCtxRelease_v2(dev);
}

DO cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    GPU(dev);
    uint32_t gpu = gpu_at(dev);
    if (primaries[gpu].alive)
        end_context(&primaries[gpu]);
    primary_count[gpu] = 0;
    return CUDA_SUCCESS;
}
DO cuDevicePrimaryCtxReset(CUdevice dev)
{
    return cuDevicePrimaryCtxReset_v2(dev);
}

DO cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active)
{
    GPU(dev);
    *flags = 0;
    *active = primaries[gpu_at(dev)].alive;
    return CUDA_SUCCESS;
}

/* An image that begins "mib=N" is that large on the card. */
static CUresult load(CUmodule *module, const void *image)
{
    IN_CONTEXT();
    GIVEN(module);
    uint64_t bytes = card->module_bytes;
    if (image != NULL && strncmp(image, "mib=", 4) == 0)
        bytes = strtoull((const char *)image + 4, NULL, 10) << 20;
    CUresult kept = fake_promises_kept(current);
    if (kept != CUDA_SUCCESS)
        return kept;
    if (!like_lazy && !charge(current->gpu, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct CUmod_st *made = calloc(1, sizeof *made);
    *made = (struct CUmod_st){ .gpu = current->gpu,
                               .bytes = like_lazy ? 0 : bytes,
                               .pending = like_lazy ? bytes : 0,
                               .context = current };
    lock();
    made->next = modules;
    modules = made;
    unlock();
    *module = made;
    return CUDA_SUCCESS;
}

/* What a lazy module's first function brings with it. */
static CUresult load_function(CUfunction function)
{
    struct CUmod_st *module = function->unloaded;
    if (module == NULL)
        return CUDA_SUCCESS;
    lock();
    uint64_t bytes = module->pending;
    bool had = bytes == 0 || charge(module->gpu, bytes);
    if (had) {
        module->bytes += bytes;
        module->pending = 0;
        function->unloaded = NULL;
    }
    unlock();
    return had ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult unload(CUmodule module)
{
    READY();
    lock();
    for (struct CUmod_st **at = &modules; *at != NULL; at = &(*at)->next)
        if (*at == module) {
            *at = module->next;
            unlock();
            refund(module->gpu, module->bytes);
            free(module);
            return CUDA_SUCCESS;
        }
    unlock();
    return CUDA_ERROR_INVALID_HANDLE;
}

DO cuModuleLoad(CUmodule *module, const char *path)
{
    READY();
    return load(module, path);
}
DO cuModuleLoadData(CUmodule *module, const void *image)
{
    READY();
    return load(module, image);
}
DO cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, void *o, void **v)
{
    READY();
    (void)n, (void)o, (void)v;
    return load(module, image);
}
DO cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    READY();
    return load(module, image);
}
DO cuModuleUnload(CUmodule module)
{
    READY();
    return unload(module);
}
DO cuLibraryLoadData(CUlibrary *library, const void *code, void *a, void **b, unsigned c, void *d,
                     void **e, unsigned f)
{
    READY();
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return load((CUmodule *)(void *)library, code);
}
DO cuLibraryLoadFromFile(CUlibrary *library, const char *path, void *a, void **b, unsigned c,
                         void *d, void **e, unsigned f)
{
    READY();
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return load((CUmodule *)(void *)library, path);
}
DO cuLibraryUnload(CUlibrary library)
{
    READY();
    return unload((CUmodule)(void *)library);
}

DO cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    READY();
    GIVEN(function);
    GIVEN(name);
    struct CUfunc_st *made = calloc(1, sizeof *made);
    if (like_lazy)
        made->unloaded = module != NULL && module->pending != 0 ? module : NULL;
    if (strncmp(name, "spin_", 5) == 0)
        made->spin_ns = strtoull(name + 5, NULL, 10) * 1000;
    if (strncmp(name, "wave_", 5) == 0)
        made->wave_ns = strtoull(name + 5, NULL, 10) * 1000;
    if (strncmp(name, "even_", 5) == 0)
        made->even_ns = strtoull(name + 5, NULL, 10) * 1000;
    unsigned long long usual_us, long_us, every;
    if (sscanf(name, "vary_%llu_%llu_%llu", &usual_us, &long_us, &every) == 3 && every != 0) {
        made->spin_ns = usual_us * 1000;
        made->long_ns = long_us * 1000;
        made->every = every;
    }
    *function = made;
    return CUDA_SUCCESS;
}

/* For tests: as if another library had asked the driver behind everybody's back. */
FAKE_EXPORT CUresult fake_get_function(CUfunction *function, CUmodule module)
{
    return cuModuleGetFunction(function, module, "f");
}
DO cuFuncLoad(CUfunction function)
{
    READY();
    GIVEN(function);
    return load_function(function);
}
DO cuFuncIsLoaded(int *state, CUfunction function)
{
    READY();
    GIVEN(state);
    GIVEN(function);
    *state = function->unloaded == NULL;
    return CUDA_SUCCESS;
}
DO cuFuncGetModule(CUmodule *module, CUfunction function)
{
    READY();
    GIVEN(module);
    GIVEN(function);
    *module = function->unloaded;
    return CUDA_SUCCESS;
}
DO cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return cuModuleGetFunction((CUfunction *)(void *)kernel, (CUmodule)(void *)library, name);
}
DO cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    READY();
    GIVEN(function);
    GIVEN(kernel);
    *function = (CUfunction)(void *)kernel;
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

static void populate(void)
{
    if (__builtin_expect(atomic_load_explicit(&unplaced, memory_order_relaxed) == 0, 1))
        return;
    lock();
    struct node *found = find_node(atomic_exchange(&unplaced, 0));
    if (found != NULL && found->unplaced && charge(found->gpu, found->bytes))
        found->unplaced = false; /* where it does not fit it stays with the host */
    unlock();
}

static CUresult allocate(uint64_t *va, uint64_t bytes)
{
    IN_CONTEXT();
    populate();
    if (va == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!charge(current->gpu, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    lock();
    uint64_t at = new_address(bytes);
    if (at != 0)
        put_node((struct node){
            .va = at, .bytes = bytes, .what = BLOCK, .gpu = current->gpu, .context = current });
    unlock();
    if (at == 0) {
        refund(current->gpu, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *va = at;
    return CUDA_SUCCESS;
}

static CUresult release(uint64_t va)
{
    READY();
    populate();
    if (va == 0)
        return CUDA_SUCCESS;
    lock();
    struct node *found = find_node(va);
    if (found == NULL || found->what == VIRTUAL) {
        unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct node node = *found;
    drop_node(found);
    if (node.what == ASYNC)
        node.pool->used -= node.bytes;
    if (node.what == HOSTED)
        swapped_bytes -= node.bytes;
    unlock();
    if (node.what == BLOCK && !node.unplaced)
        refund(node.gpu, node.bytes);
    lock(); /* the address comes back only after the bytes */
    old_address(node.va, node.bytes);
    unlock();
    return CUDA_SUCCESS;
}

DO cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
    READY();
    return allocate(ptr, bytes);
}

/* The calls of CUDA 2 have addresses of 32 bits: the lower half of what the card's addresses are
   here. */
DO cuMemAlloc(unsigned *ptr, unsigned bytes)
{
    uint64_t va;
    GIVEN(ptr);
    CUresult result = allocate(&va, bytes);
    if (result == CUDA_SUCCESS)
        *ptr = (unsigned)va;
    return result;
}
DO cuMemFree_v2(CUdeviceptr ptr)
{
    READY();
    return release(ptr);
}
DO cuMemFree(unsigned ptr)
{
    READY();
    uint64_t whole = ptr;
    lock();
    for (size_t i = 0; i < node_space && ptr != 0; i++)
        if (nodes[i].what != FREE && (unsigned)nodes[i].va == ptr)
            whole = nodes[i].va;
    unlock();
    return release(whole);
}
/* Managed memory is the card's, unless it is advised to stay with the host. */
DO cuMemAdvise(CUdeviceptr ptr, size_t bytes, int advice, CUdevice dev)
{
    enum { PREFER = 3, HOST = -1 };
    READY();
    if (advice != PREFER || dev != HOST)
        return CUDA_SUCCESS;
    lock();
    struct node *found = find_node(ptr);
    bool whole = found != NULL && found->what == BLOCK && found->bytes == bytes;
    uint32_t gpu = whole ? found->gpu : 0;
    bool placed = whole && !found->unplaced;
    if (whole)
        found->what = HOSTED, found->unplaced = false;
    swapped_bytes += whole ? bytes : 0;
    unlock();
    if (!whole)
        return CUDA_ERROR_INVALID_VALUE;
    if (placed)
        refund(gpu, bytes);
    return CUDA_SUCCESS;
}
FAKE_EXPORT uint64_t fake_swapped_bytes(void)
{
    return swapped_bytes;
}
/* Managed memory is the card's from its first use on, which is taken to be any later call of its
   maker's. */
DO cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned flags)
{
    (void)flags;
    IN_CONTEXT();
    if (ptr == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    populate();
    lock();
    uint64_t at = new_address(bytes);
    if (at != 0)
        put_node((struct node){ .va = at,
                                .bytes = bytes,
                                .what = BLOCK,
                                .gpu = current->gpu,
                                .context = current,
                                .unplaced = true });
    atomic_store(&unplaced, at);
    unlock();
    *ptr = at;
    return at != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
DO cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height,
                      unsigned element)
{
    (void)element;
    GIVEN(ptr);
    GIVEN(pitch);
    *pitch = (width + 511) / 512 * 512;
    return allocate(ptr, *pitch * height);
}
DO cuMemAllocPitch(unsigned *ptr, unsigned *pitch, unsigned width, unsigned height,
                   unsigned element)
{
    uint64_t va;
    size_t wide;
    GIVEN(ptr);
    GIVEN(pitch);
    CUresult result = cuMemAllocPitch_v2(&va, &wide, width, height, element);
    if (result == CUDA_SUCCESS) {
        *ptr = (unsigned)va;
        *pitch = (unsigned)wide;
    }
    return result;
}
DO cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
    READY();
    (void)flags;
    *ptr = malloc(bytes);
    return *ptr != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
DO cuMemAllocHost_v2(void **ptr, size_t bytes)
{
    return cuMemHostAlloc(ptr, bytes, 0);
}
DO cuMemFreeHost(void *ptr)
{
    free(ptr);
    return CUDA_SUCCESS;
}
DO cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    IN_CONTEXT();
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}
DO cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    IN_CONTEXT();
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}
DO cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    IN_CONTEXT();
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}
DO cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    IN_CONTEXT();
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}
DO cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes)
{
    IN_CONTEXT();
    memset((void *)(uintptr_t)to, value, bytes);
    return CUDA_SUCCESS;
}

static uint64_t pixels(size_t width, size_t height, size_t depth, int format, unsigned channels)
{
    uint64_t bytes = format == 1 || format == 8                   ? 1
                     : format == 2 || format == 9 || format == 16 ? 2
                                                                  : 4;
    return (uint64_t)width * (height ? height : 1) * (depth ? depth : 1) * bytes * channels;
}

static CUresult make_array(CUarray *array, uint64_t bytes, unsigned flags)
{
    struct CUarray_st *made = calloc(1, sizeof *made);
    bool sparse =
        (flags & (CU_ARRAY_SPARSE | CU_ARRAY_DEFERRED)) != 0; /* its memory is mapped later */
    IN_CONTEXT();
    CUresult result = sparse ? CUDA_SUCCESS : allocate(&made->va, bytes);
    if (result == CUDA_SUCCESS)
        *array = made;
    else
        free(made);
    return result;
}

DO cuArrayCreate_v2(CUarray *array, const CUarray_desc *d)
{
    READY();
    GIVEN(array);
    GIVEN(d);
    return make_array(array, pixels(d->width, d->height, 1, d->format, d->channels), 0);
}
DO cuArray3DCreate_v2(CUarray *array, const CUarray3d_desc *d)
{
    READY();
    GIVEN(array);
    GIVEN(d);
    return make_array(array, pixels(d->width, d->height, d->depth, d->format, d->channels),
                      d->flags);
}
DO cuArrayCreate(CUarray *array, const CUarray_desc_v1 *d)
{
    READY();
    GIVEN(array);
    GIVEN(d);
    return make_array(array, pixels(d->width, d->height, 1, d->format, d->channels), 0);
}
DO cuArray3DCreate(CUarray *array, const CUarray3d_desc_v1 *d)
{
    READY();
    GIVEN(array);
    GIVEN(d);
    return make_array(array, pixels(d->width, d->height, d->depth, d->format, d->channels),
                      d->flags);
}
DO cuArrayDestroy(CUarray array)
{
    READY();
    GIVEN(array);
    CUresult result = release(array->va);
    fake_parts_of(array);
    free(array);
    return result;
}
DO cuMipmappedArrayCreate(CUmipmap *mipmap, const CUarray3d_desc *d, unsigned levels)
{
    uint64_t bytes = 0;
    GIVEN(mipmap);
    GIVEN(d);
    for (unsigned level = 0; level < levels; level++) {
        size_t w = d->width >> level, h = d->height >> level, z = d->depth >> level;
        bytes += pixels(w ? w : 1, d->height ? (h ? h : 1) : 0, d->depth ? (z ? z : 1) : 0,
                        d->format, d->channels);
        if (w <= 1 && h <= 1 && z <= 1)
            break;
    }
    return make_array((CUarray *)(void *)mipmap, bytes, d->flags);
}
DO cuMipmappedArrayDestroy(CUmipmap mipmap)
{
    return cuArrayDestroy((CUarray)(void *)mipmap);
}

/* Memory of another process: an address here, bytes there. */
DO cuIpcGetMemHandle(CUipc *handle, CUdeviceptr ptr)
{
    READY();
    memset(handle, 0, sizeof *handle);
    memcpy(handle->bytes, &ptr, sizeof ptr);
    return CUDA_SUCCESS;
}
DO cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipc handle, unsigned flags)
{
    IN_CONTEXT();
    (void)handle, (void)flags;
    lock();
    *ptr = new_address(4096);
    put_node((struct node){ .va = *ptr, .bytes = 4096, .what = VIRTUAL });
    unlock();
    return CUDA_SUCCESS;
}
DO cuIpcCloseMemHandle(CUdeviceptr ptr)
{
    READY();
    lock();
    struct node *found = find_node(ptr);
    if (found != NULL)
        drop_node(found);
    unlock();
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- physical memory ---- */

/* By a handle that was not released. */
struct physical *fake_physical(uint64_t id)
{
    struct physical *at = physicals;
    while (at != NULL && at->id != id)
        at = at->next;
    return at != NULL && at->handles != 0 ? at : NULL;
}

struct physical *fake_physical_kept(uint64_t id)
{
    struct physical *at = physicals;
    while (at != NULL && at->id != id)
        at = at->next;
    return at;
}

struct physical *fake_physical_at(uint64_t va)
{
    struct map *at = maps;
    while (at != NULL && (va < at->va || va >= at->va + at->bytes))
        at = at->next;
    return at != NULL ? at->physical : NULL;
}

struct physical *fake_physical_new(uint32_t gpu, uint64_t bytes)
{
    struct physical *made = calloc(1, sizeof *made);
    *made = (struct physical){
        .id = next_handle++, .bytes = bytes, .gpu = gpu, .handles = 1, .fd = -1, .next = physicals
    };
    physicals = made;
    return made;
}

/* A file that was made of it holds it while it is open. */
static bool is_open(const struct physical *physical)
{
    struct stat file;
    return physical->fd >= 0 && fstat(physical->fd, &file) == 0 &&
           (uint64_t)file.st_ino == physical->file;
}

void fake_physical_drop(struct physical *physical)
{
    if (physical->handles != 0 || physical->maps != 0 || is_open(physical))
        return;
    struct physical **at = &physicals;
    while (*at != physical)
        at = &(*at)->next;
    *at = physical->next;
    uint64_t id = physical->id;
    refund(physical->gpu, physical->bytes);
    free(physical);
    fake_bindings_of(id);
}

/* What only a file held that is closed by now. */
static void drop_closed(void)
{
    lock();
    for (struct physical *at = physicals, *next; at != NULL; at = next) {
        next = at->next;
        if (at->handles == 0 && at->maps == 0)
            fake_physical_drop(at);
    }
    unlock();
}

DO cuMemGetAllocationGranularity(size_t *bytes, const CUalloc_prop *prop, int option)
{
    (void)prop, (void)option;
    *bytes = 2 << 20;
    return CUDA_SUCCESS;
}

DO cuMemCreate(CUhandle *handle, size_t bytes, const CUalloc_prop *prop, unsigned long long flags)
{
    (void)flags;
    READY();
    GIVEN(handle);
    GIVEN(prop);
    bool placed =
        prop->location.type == CU_LOCATION_DEVICE || prop->location.type == CU_LOCATION_DEVICE_PART;
    CUdevice dev = placed ? prop->location.id & 0xff : 0;
    GPU(dev);
    uint64_t counted = placed ? bytes : 0;
    uint32_t gpu = gpu_at(dev);
    if (bytes == 0 || bytes % (2 << 20) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!charge(gpu, counted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    lock();
    *handle = fake_physical_new(gpu, counted)->id;
    unlock();
    return CUDA_SUCCESS;
}

DO cuMemRelease(CUhandle handle)
{
    READY();
    lock();
    struct physical *physical = fake_physical(handle);
    if (physical == NULL || physical->handles == 0) {
        unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    physical->handles--;
    fake_physical_drop(physical);
    unlock();
    return CUDA_SUCCESS;
}

DO cuMemAddressReserve(CUdeviceptr *ptr, size_t bytes, size_t align, CUdeviceptr at,
                       unsigned long long flags)
{
    READY();
    (void)align, (void)at, (void)flags;
    lock();
    *ptr = new_address(bytes);
    if (*ptr != 0)
        put_node((struct node){ .va = *ptr, .bytes = bytes, .what = VIRTUAL });
    unlock();
    return *ptr != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

DO cuMemAddressFree(CUdeviceptr ptr, size_t bytes)
{
    READY();
    lock();
    struct node *found = find_node(ptr);
    if (found != NULL) {
        drop_node(found);
        old_address(ptr, bytes);
    }
    unlock();
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DO cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags)
{
    READY();
    (void)flags;
    lock();
    struct physical *physical = fake_physical(handle);
    if (physical == NULL || offset != 0) {
        unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct map *made = calloc(1, sizeof *made);
    *made = (struct map){ .va = ptr, .bytes = bytes, .physical = physical, .next = maps };
    maps = made;
    physical->maps++;
    unlock();
    return CUDA_SUCCESS;
}

DO cuMemSetAccess(CUdeviceptr ptr, size_t bytes, const void *access, size_t count)
{
    READY();
    (void)ptr, (void)bytes, (void)access, (void)count;
    return CUDA_SUCCESS;
}

DO cuMemUnmap(CUdeviceptr ptr, size_t bytes)
{
    READY();
    bool any = false;
    lock();
    for (struct map **at = &maps; *at != NULL;) {
        struct map *map = *at;
        if (map->va < ptr || map->va + map->bytes > ptr + bytes) {
            at = &map->next;
            continue;
        }
        *at = map->next;
        map->physical->maps--;
        fake_physical_drop(map->physical);
        free(map);
        any = true;
    }
    unlock();
    return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DO cuMemRetainAllocationHandle(CUhandle *handle, void *address)
{
    READY();
    uint64_t va = (uint64_t)(uintptr_t)address;
    lock();
    for (struct map *map = maps; map != NULL; map = map->next)
        if (va >= map->va && va < map->va + map->bytes) {
            map->physical->handles++;
            *handle = map->physical->id;
            unlock();
            return CUDA_SUCCESS;
        }
    unlock();
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- pools ---- */

static uint64_t steps(uint64_t bytes)
{
    uint64_t step = card->pool_step_bytes ? card->pool_step_bytes : 1;
    return (bytes + step - 1) / step * step;
}

static void shrink(struct CUpool_st *pool, uint64_t keep)
{
    if (keep >= pool->reserved)
        return;
    lock();
    uint64_t floor = steps(pool->used > keep ? pool->used : keep),
             gone = pool->reserved > floor ? pool->reserved - floor : 0;
    if (gone != 0 && pool->device)
        refund(pool->gpu, gone); /* before anybody can ask and be told that it is free */
    pool->reserved -= gone;
    unlock();
}

DO cuDeviceGetDefaultMemPool(CUpool *pool, CUdevice dev)
{
    GPU(dev);
    *pool = &default_pools[gpu_at(dev)];
    return CUDA_SUCCESS;
}
DO cuDeviceGetMemPool(CUpool *pool, CUdevice dev)
{
    GPU(dev);
    *pool = current_pool[gpu_at(dev)];
    return CUDA_SUCCESS;
}
DO cuDeviceSetMemPool(CUdevice dev, CUpool pool)
{
    GPU(dev);
    current_pool[gpu_at(dev)] = pool;
    return CUDA_SUCCESS;
}

/* Of the pools by location only those of managed memory, which no device's default pool is. */
DO cuMemGetDefaultMemPool(CUpool *pool, CUlocation *location, int type)
{
    static struct CUpool_st managed;
    READY();
    GIVEN(pool);
    GIVEN(location);
    if (type != CU_ALLOCATION_MANAGED)
        return cuDeviceGetDefaultMemPool(pool, location->id);
    lock();
    if (!managed.device) {
        managed = (struct CUpool_st){ .device = true, .type = type, .location = *location };
        managed.next = pool_list;
        pool_list = &managed;
    }
    unlock();
    *pool = &managed;
    return CUDA_SUCCESS;
}

DO cuMemPoolCreate(CUpool *pool, const CUpool_props *props)
{
    READY();
    GIVEN(pool);
    GIVEN(props);
    bool placed = props->location.type == CU_LOCATION_DEVICE ||
                  props->location.type == CU_LOCATION_DEVICE_PART;
    bool device = placed || props->type == CU_ALLOCATION_MANAGED;
    GPU(placed ? props->location.id & 0xff : 0);
    *pool = calloc(1, sizeof **pool);
    **pool = (struct CUpool_st){ .gpu = gpu_at(placed ? props->location.id & 0xff : 0),
                                 .device = device,
                                 .type = props->type,
                                 .location = props->location };
    lock();
    (*pool)->next = pool_list;
    pool_list = *pool;
    unlock();
    return CUDA_SUCCESS;
}

/* Another process's: nothing can be had of it, and what it gives to that process can be reached. */
DO cuMemPoolImportFromShareableHandle(CUpool *pool, void *handle, int type,
                                      unsigned long long flags)
{
    READY();
    GIVEN(pool);
    (void)handle, (void)flags;
    if (type != CU_SHARE_FD)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = calloc(1, sizeof **pool);
    (*pool)->imported = true;
    return CUDA_SUCCESS;
}

DO cuMemPoolDestroy(CUpool pool)
{
    READY();
    GIVEN(pool);
    shrink(pool, 0);
    pool->gone = true;
    return CUDA_SUCCESS;
}

DO cuMemPoolTrimTo(CUpool pool, size_t keep)
{
    READY();
    GIVEN(pool);
    shrink(pool, keep);
    return CUDA_SUCCESS;
}

DO cuMemPoolSetAttribute(CUpool pool, int attribute, void *value)
{
    READY();
    if (attribute == CU_POOL_RELEASE_THRESHOLD)
        pool->threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}

DO cuMemPoolGetAttribute(CUpool pool, int attribute, void *value)
{
    READY();
    if (pool->gone)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POOL_ALLOCATION_TYPE)
        return *(int *)value = pool->type != 0 ? pool->type : 1, CUDA_SUCCESS;
    if (attribute == CU_POOL_LOCATION_TYPE)
        return *(int *)value = pool->location.type, CUDA_SUCCESS;
    if (attribute == CU_POOL_LOCATION_ID)
        return *(int *)value = pool->location.id, CUDA_SUCCESS;
    *(uint64_t *)value = attribute == CU_POOL_RESERVED_CURRENT    ? pool->reserved
                         : attribute == CU_POOL_USED_CURRENT      ? pool->used
                         : attribute == CU_POOL_RELEASE_THRESHOLD ? pool->threshold
                                                                  : 0;
    return CUDA_SUCCESS;
}

static struct CUstream_st *stream_of(CUstream stream)
{
    return (uintptr_t)stream > 2 ? stream : &legacy_streams[current != NULL ? current->gpu : 0];
}

static CUresult add_alloc(CUgraph graph, uint32_t gpu, uint64_t bytes, uint64_t *ptr, CUnode *out)
{
    struct CUnode_st *node = calloc(1, sizeof *node);
    lock();
    *node = (struct CUnode_st){ .type = CU_NODE_MEM_ALLOC,
                                .bytes = bytes,
                                .ptr = new_address(bytes),
                                .gpu = gpu,
                                .next = graph->nodes };
    graph->nodes = node;
    graph->count++;
    unlock();
    *ptr = node->ptr;
    if (out != NULL)
        *out = node;
    return CUDA_SUCCESS;
}

static CUresult pool_alloc(CUdeviceptr *ptr, size_t bytes, CUpool pool, CUstream stream)
{
    IN_CONTEXT();
    if (ptr == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *queue = stream_of(stream);
    if (queue->capture != NULL)
        return add_alloc(queue->capture, current->gpu, bytes, ptr, NULL);
    if (pool == NULL)
        pool = current_pool[current->gpu];
    if (pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    /* A pool grows for one call at a time, and by no more than that call lacks. */
    lock();
    uint64_t room = pool->reserved - pool->used, grow = room < bytes ? steps(bytes - room) : 0,
             at = 0;
    bool had = grow == 0 || !pool->device || charge(pool->gpu, grow);
    if (had) {
        pool->reserved += grow;
        pool->used += bytes;
        at = new_address(bytes);
        put_node((struct node){
            .va = at, .bytes = bytes, .what = ASYNC, .gpu = pool->gpu, .pool = pool });
    }
    unlock();
    if (!had)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *ptr = at;
    return CUDA_SUCCESS;
}

DO cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
    READY();
    return pool_alloc(ptr, bytes, NULL, stream);
}
DO cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
    READY();
    return pool_alloc(ptr, bytes, NULL, stream);
}
DO cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t bytes, CUpool pool, CUstream stream)
{
    READY();
    GIVEN(pool);
    return pool_alloc(ptr, bytes, pool, stream);
}
DO cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUpool pool, CUstream stream)
{
    READY();
    GIVEN(pool);
    return pool_alloc(ptr, bytes, pool, stream);
}
DO cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
    if (stream_of(stream)->capture != NULL)
        return CUDA_SUCCESS;
    return release(ptr);
}
DO cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
    READY();
    return cuMemFreeAsync(ptr, stream);
}

/* ---- time ---- */

static void sleep_to(uint64_t ns)
{
    for (uint64_t now; (now = fake_now()) < ns;)
        nanosleep(&(struct timespec){ (time_t)((ns - now) / 1000000000u),
                                      (long)((ns - now) % 1000000000u) },
                  NULL);
}

/* How long the next launch of a function takes. */
static uint64_t length_ns(struct CUfunc_st *function, uint64_t blocks)
{
    uint64_t ns =
        function->spin_ns + function->wave_ns * ((blocks + WAVE_BLOCKS - 1) / WAVE_BLOCKS);
    if (function->every == 0 && function->even_ns == 0)
        return ns;
    uint64_t number = atomic_fetch_add(&function->launches, 1) + 1;
    if (function->every != 0)
        return number % function->every == 0 ? function->long_ns : ns;
    uint64_t mixed =
        number * 0x9e3779b97f4a7c15ull; /* of the golden ratio: spread evenly, without a pattern */
    return function->even_ns / 10 + (mixed >> 40) * (function->even_ns * 18 / 10) / (1 << 24);
}

static void work(struct CUstream_st *stream, uint64_t ns)
{
    uint32_t gpu = stream->gpu;
    uint64_t now = fake_now(), tail = atomic_load(&stream->tail_ns),
             earliest = now > tail ? now : tail, busy, start;
    busy = atomic_load(&card->gpus[gpu].busy_until_ns);
    do {
        start = busy > earliest ? busy : earliest;
    } while (!atomic_compare_exchange_weak(&card->gpus[gpu].busy_until_ns, &busy, start + ns));
    atomic_store(&stream->tail_ns, start + ns);
    atomic_fetch_add(&self->busy_ns[gpu], ns);
    for (uint64_t at = start; at < start + ns;) {
        uint64_t number = at / FAKE_BUCKET_NS, until = (number + 1) * FAKE_BUCKET_NS;
        uint64_t part = (until < start + ns ? until : start + ns) - at,
                 slot = number % FAKE_BUCKETS;
        if (atomic_exchange(&self->bucket[gpu][slot].number, number) != number)
            atomic_store(&self->bucket[gpu][slot].busy_ns, 0);
        atomic_fetch_add(&self->bucket[gpu][slot].busy_ns, part);
        at += part;
    }
}

static inline CUresult launch(CUfunction function, uint64_t blocks, CUstream stream)
{
    IN_CONTEXT();
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (__builtin_expect(function->unloaded != NULL, 0) && load_function(function) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (__builtin_expect(function->spin_ns == 0 && function->wave_ns == 0 && function->even_ns == 0,
                         1))
        return CUDA_SUCCESS;
    struct CUstream_st *queue = stream_of(stream);
    if (queue->capture != NULL) {
        struct CUnode_st *node = calloc(1, sizeof *node);
        *node = (struct CUnode_st){ .type = CU_NODE_KERNEL,
                                    .function = function,
                                    .blocks = (unsigned)blocks,
                                    .next = queue->capture->nodes };
        queue->capture->nodes = node;
        queue->capture->count++;
        return CUDA_SUCCESS;
    }
    work(queue, length_ns(function, blocks));
    return CUDA_SUCCESS;
}

#define GRID                                                                                    \
    CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
        unsigned shared, CUstream stream, void **params
#define UNUSED (void)bx, (void)by, (void)bz, (void)shared, (void)params
DO cuLaunchKernel(GRID, void **extra)
{
    UNUSED, (void)extra;
    return launch(f, (uint64_t)gx * gy * gz, stream);
}
DO cuLaunchKernel_ptsz(GRID, void **extra)
{
    UNUSED, (void)extra;
    return launch(f, (uint64_t)gx * gy * gz, stream);
}
DO cuLaunchCooperativeKernel(GRID)
{
    UNUSED;
    return launch(f, (uint64_t)gx * gy * gz, stream);
}
DO cuLaunchCooperativeKernel_ptsz(GRID)
{
    UNUSED;
    return launch(f, (uint64_t)gx * gy * gz, stream);
}
DO cuLaunchKernelEx(const CUlaunch *l, CUfunction f, void **params, void **extra)
{
    (void)params, (void)extra;
    GIVEN(l);
    return launch(f, (uint64_t)l->grid_x * l->grid_y * l->grid_z, l->stream);
}
DO cuLaunchKernelEx_ptsz(const CUlaunch *l, CUfunction f, void **params, void **extra)
{
    return cuLaunchKernelEx(l, f, params, extra);
}
DO cuLaunchCooperativeKernelMultiDevice(CUcooperative *list, unsigned count, unsigned flags)
{
    (void)flags;
    GIVEN(list);
    for (unsigned i = 0; i < count; i++) {
        CUresult result =
            launch(list[i].function, (uint64_t)list[i].grid_x * list[i].grid_y * list[i].grid_z,
                   list[i].stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}
DO cuLaunch(CUfunction f)
{
    return launch(f, 1, NULL);
}
DO cuLaunchGrid(CUfunction f, int width, int height)
{
    return launch(f, (uint64_t)width * (uint64_t)height, NULL);
}
DO cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
    return launch(f, (uint64_t)width * (uint64_t)height, stream);
}

DO cuStreamCreate(CUstream *stream, unsigned flags)
{
    IN_CONTEXT();
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    (*stream)->gpu = current->gpu;
    (*stream)->context = current;
    return CUDA_SUCCESS;
}
DO cuStreamDestroy_v2(CUstream stream)
{
    READY();
    free(stream);
    return CUDA_SUCCESS;
}
DO cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
    IN_CONTEXT();
    *ctx = (uintptr_t)stream > 2 ? stream->context : current;
    return CUDA_SUCCESS;
}

static void settled(uint32_t gpu)
{
    shrink(&default_pools[gpu], default_pools[gpu].threshold);
    for (struct CUpool_st *pool = pool_list; pool != NULL; pool = pool->next)
        if (pool->gpu == gpu)
            shrink(pool, pool->gone ? 0 : pool->threshold);
}

DO cuStreamSynchronize(CUstream stream)
{
    IN_CONTEXT();
    struct CUstream_st *queue = stream_of(stream);
    if (atomic_load(&queue->tail_ns) > fake_now())
        sleep_to(atomic_load(&queue->tail_ns));
    settled(queue->gpu);
    return CUDA_SUCCESS;
}
DO cuStreamSynchronize_ptsz(CUstream stream)
{
    return cuStreamSynchronize(stream);
}
DO cuStreamQuery(CUstream stream)
{
    IN_CONTEXT();
    return atomic_load(&stream_of(stream)->tail_ns) > fake_now() ? CUDA_ERROR_NOT_READY
                                                                 : CUDA_SUCCESS;
}
DO cuStreamQuery_ptsz(CUstream stream)
{
    return cuStreamQuery(stream);
}
DO cuCtxSynchronize(void)
{
    return cuStreamSynchronize(NULL);
}
DO cuCtxSynchronize_v2(CUcontext ctx)
{
    GIVEN(ctx);
    return cuStreamSynchronize(NULL);
}
/* While a stream is captured for all to respect, calls that a capture cannot hold spoil it, of
   threads that do not say that they know what they do. */
#define UNSAFE()                                                                        \
    do {                                                                                \
        if (atomic_load(&global_captures) != 0 && capture_mode != CU_CAPTURE_RELAXED) { \
            atomic_store(&capture_spoiled, true);                                       \
            return CUDA_ERROR_CAPTURE_UNSUPPORTED;                                      \
        }                                                                               \
    } while (0)
DO cuThreadExchangeStreamCaptureMode(int *mode)
{
    GIVEN(mode);
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
DO cuEventCreate(CUevent *event, unsigned flags)
{
    IN_CONTEXT();
    UNSAFE();
    (void)flags;
    *event = calloc(1, sizeof **event);
    (*event)->context = current;
    lock();
    (*event)->next = events;
    events = *event;
    unlock();
    return CUDA_SUCCESS;
}
#define LIVES(event)                                       \
    do {                                                   \
        if (__builtin_expect((event)->context == NULL, 0)) \
            return CUDA_ERROR_INVALID_HANDLE;              \
    } while (0)
DO cuEventDestroy_v2(CUevent event)
{
    READY();
    GIVEN(event);
    LIVES(event);
    lock();
    for (struct CUevent_st **at = &events; *at != NULL; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            break;
        }
    unlock();
    free(event);
    return CUDA_SUCCESS;
}
FAKE_EXPORT unsigned fake_own_events(void)
{
    unsigned count = 0;
    lock();
    for (struct CUevent_st *event = events; event != NULL; event = event->next)
        count++;
    unlock();
    return count;
}
DO cuEventRecord(CUevent event, CUstream stream)
{
    IN_CONTEXT();
    LIVES(event);
    uint64_t now = fake_now(), tail = atomic_load(&stream_of(stream)->tail_ns);
    atomic_store(&event->at_ns, tail > now ? tail : now);
    event->gpu = stream_of(stream)->gpu;
    return CUDA_SUCCESS;
}
DO cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return cuEventRecord(event, stream);
}
DO cuEventQuery(CUevent event)
{
    READY();
    UNSAFE();
    LIVES(event);
    return atomic_load(&event->at_ns) > fake_now() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
DO cuEventSynchronize(CUevent event)
{
    READY();
    GIVEN(event);
    if (atomic_load(&event->at_ns) > fake_now())
        sleep_to(atomic_load(&event->at_ns));
    settled(event->gpu);
    return CUDA_SUCCESS;
}
DO cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    READY();
    LIVES(from);
    LIVES(to);
    *ms = (float)((double)(int64_t)(atomic_load(&to->at_ns) - atomic_load(&from->at_ns)) / 1e6);
    return CUDA_SUCCESS;
}

/* ---- graphs ---- */

DO cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    IN_CONTEXT();
    if ((uintptr_t)stream <= 2)
        return CUDA_ERROR_CAPTURE_UNSUPPORTED;
    stream->capture_mode = mode;
    if (mode == 0)
        atomic_fetch_add(&global_captures, 1);
    stream_of(stream)->capture = calloc(1, sizeof(struct CUgraph_st));
    return CUDA_SUCCESS;
}
DO cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
    return cuStreamBeginCapture_v2(stream, mode);
}
DO cuStreamBeginCapture(CUstream stream)
{
    return cuStreamBeginCapture_v2(stream, 0);
}
DO cuStreamBeginCapture_ptsz(CUstream stream)
{
    return cuStreamBeginCapture_v2(stream, 0);
}
DO cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUnode *needs,
                               const void *edges, size_t count, int mode)
{
    IN_CONTEXT();
    (void)needs, (void)edges, (void)count;
    GIVEN(graph);
    if ((uintptr_t)stream <= 2)
        return CUDA_ERROR_CAPTURE_UNSUPPORTED;
    stream->capture_mode = mode;
    if (mode == 0)
        atomic_fetch_add(&global_captures, 1);
    stream_of(stream)->capture = graph;
    return CUDA_SUCCESS;
}
DO cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUnode *needs,
                                    const void *edges, size_t count, int mode)
{
    return cuStreamBeginCaptureToGraph(stream, graph, needs, edges, count, mode);
}
DO cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *call, void *data)
{
    (void)call, (void)data;
    return cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, mode);
}
DO cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph, void *call,
                                      void *data)
{
    return cuStreamBeginRecaptureToGraph(stream, mode, graph, call, data);
}
DO cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    IN_CONTEXT();
    GIVEN(graph);
    *graph = stream_of(stream)->capture;
    stream_of(stream)->capture = NULL;
    if (*graph != NULL && stream_of(stream)->capture_mode == 0 &&
        atomic_fetch_sub(&global_captures, 1) == 1 && atomic_exchange(&capture_spoiled, false))
        return CUDA_ERROR_CAPTURE_INVALIDATED;
    return *graph != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
DO cuStreamIsCapturing(CUstream stream, int *status)
{
    IN_CONTEXT();
    *status = stream_of(stream)->capture != NULL;
    return CUDA_SUCCESS;
}
DO cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
    return cuStreamIsCapturing(stream, status);
}
DO cuGraphCreate(CUgraph *graph, unsigned flags)
{
    READY();
    (void)flags;
    *graph = calloc(1, sizeof **graph);
    return CUDA_SUCCESS;
}
DO cuGraphDestroy(CUgraph graph)
{
    READY();
    GIVEN(graph);
    while (graph->nodes != NULL) {
        struct CUnode_st *next = graph->nodes->next;
        free(graph->nodes);
        graph->nodes = next;
    }
    free(graph);
    return CUDA_SUCCESS;
}
DO cuGraphAddMemAllocNode(CUnode *node, CUgraph graph, const CUnode *needs, size_t count,
                          CUmem_node *params)
{
    READY();
    (void)needs, (void)count;
    bool placed = params->pool.location.type == CU_LOCATION_DEVICE;
    GPU(placed ? params->pool.location.id : 0);
    uint32_t gpu = placed ? gpu_at(params->pool.location.id) : current != NULL ? current->gpu : 0;
    return add_alloc(graph, gpu, params->bytes, &params->ptr, node);
}
DO cuGraphAddChildGraphNode(CUnode *out, CUgraph graph, const CUnode *needs, size_t count,
                            CUgraph child)
{
    READY();
    (void)needs, (void)count;
    struct CUnode_st *node = calloc(1, sizeof *node);
    *node = (struct CUnode_st){ .type = CU_NODE_GRAPH, .child = child, .next = graph->nodes };
    graph->nodes = *out = node;
    graph->count++;
    return CUDA_SUCCESS;
}
DO cuGraphGetNodes(CUgraph graph, CUnode *list, size_t *count)
{
    READY();
    size_t i = 0;
    if (list != NULL)
        for (struct CUnode_st *node = graph->nodes; node != NULL && i < *count; node = node->next)
            list[i++] = node;
    *count = list != NULL ? i : graph->count;
    return CUDA_SUCCESS;
}
DO cuGraphNodeGetType(CUnode node, int *type)
{
    READY();
    *type = node->type;
    return CUDA_SUCCESS;
}
DO cuGraphMemAllocNodeGetParams(CUnode node, CUmem_node *params)
{
    READY();
    memset(params, 0, sizeof *params);
    params->pool.type = 1;
    params->pool.location = (CUlocation){ CU_LOCATION_DEVICE, ordinal_of(node->gpu) };
    params->bytes = node->bytes;
    params->ptr = node->ptr;
    return CUDA_SUCCESS;
}
DO cuGraphChildGraphNodeGetGraph(CUnode node, CUgraph *graph)
{
    READY();
    *graph = node->child;
    return CUDA_SUCCESS;
}

static void sum(CUgraph graph, struct CUexec_st *exec)
{
    for (struct CUnode_st *node = graph->nodes; node != NULL; node = node->next) {
        exec->on[node->gpu].bytes += node->bytes;
        exec->on[node->gpu].apart_bytes += steps(node->bytes);
        if (node->function != NULL)
            exec->kernel_ns += length_ns(node->function, node->blocks);
        if (node->child != NULL)
            sum(node->child, exec);
    }
}

DO cuGraphInstantiateWithFlags(CUexec *exec, CUgraph graph, unsigned long long flags)
{
    IN_CONTEXT();
    (void)flags;
    GIVEN(exec);
    GIVEN(graph);
    *exec = calloc(1, sizeof **exec);
    sum(graph, *exec);
    return CUDA_SUCCESS;
}
DO cuGraphInstantiate_v2(CUexec *exec, CUgraph graph, CUnode *node, char *log, size_t size)
{
    (void)node, (void)log, (void)size;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}
DO cuGraphInstantiateWithParams(CUexec *exec, CUgraph graph, void *params)
{
    (void)params;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}
DO cuGraphInstantiate(CUexec *exec, CUgraph graph, CUnode *node, char *log, size_t size)
{
    return cuGraphInstantiate_v2(exec, graph, node, log, size);
}
DO cuGraphInstantiateWithParams_ptsz(CUexec *exec, CUgraph graph, void *params)
{
    return cuGraphInstantiateWithParams(exec, graph, params);
}
DO cuGraphExecDestroy(CUexec exec)
{
    READY();
    GIVEN(exec);
    lock();
    for (uint32_t gpu = 0; gpu < card->gpu_count; gpu++)
        graph_idle[gpu] += exec->on[gpu].held_bytes;
    unlock();
    free(exec);
    return CUDA_SUCCESS;
}
/* A graph's memory is there from its upload or its first launch on. */
static CUresult ready_graph(CUexec exec)
{
    IN_CONTEXT();
    GIVEN(exec);
    bool had = true;
    lock();
    for (uint32_t gpu = 0; gpu < card->gpu_count && had; gpu++) {
        uint64_t need = steps(exec->on[gpu].bytes);
        uint64_t grow = need > graph_reserved[gpu] ? need - graph_reserved[gpu] : 0;
        if (like_nodes)
            grow = exec->on[gpu].apart_bytes - exec->on[gpu].held_bytes;
        had = grow == 0 || charge(gpu, grow);
        if (like_nodes && had)
            exec->on[gpu].held_bytes = exec->on[gpu].apart_bytes;
        graph_reserved[gpu] += had ? grow : 0;
    }
    unlock();
    return had ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

DO cuGraphUpload(CUexec exec, CUstream stream)
{
    (void)stream;
    return ready_graph(exec);
}
DO cuGraphUpload_ptsz(CUexec exec, CUstream stream)
{
    return cuGraphUpload(exec, stream);
}
DO cuGraphLaunch(CUexec exec, CUstream stream)
{
    CUresult result = ready_graph(exec);
    if (result == CUDA_SUCCESS && exec->kernel_ns != 0)
        work(stream_of(stream), exec->kernel_ns);
    return result;
}
DO cuGraphLaunch_ptsz(CUexec exec, CUstream stream)
{
    return cuGraphLaunch(exec, stream);
}
DO cuDeviceGetGraphMemAttribute(CUdevice dev, int attribute, void *value)
{
    GPU(dev);
    *(uint64_t *)value = attribute == CU_GRAPH_MEM_RESERVED_CURRENT ? graph_reserved[gpu_at(dev)]
                                                                    : graph_used[gpu_at(dev)];
    return CUDA_SUCCESS;
}
DO cuDeviceGraphMemTrim(CUdevice dev)
{
    GPU(dev);
    lock();
    uint64_t gone = like_nodes ? graph_idle[gpu_at(dev)] : graph_reserved[gpu_at(dev)];
    refund(gpu_at(dev), gone);
    graph_reserved[gpu_at(dev)] -= gone;
    graph_idle[gpu_at(dev)] = 0;
    unlock();
    return CUDA_SUCCESS;
}

/* ---- lookups ---- */

/* BERTH_FAKE_LOOKUPS=FILE writes down what is looked up, as bench/partition_lookups.py reads it. */
static void write_down(const char *name, int version, uint64_t flags)
{
    const char *path = getenv("BERTH_FAKE_LOOKUPS");
    FILE *file = path != NULL && *path != 0 && name != NULL ? fopen(path, "ae") : NULL;
    if (file != NULL) {
        fprintf(file, "%s\t%d\t%llu\n", name, version, (unsigned long long)flags);
        fclose(file);
    }
}

DO cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
    bool known = false;
    write_down(name, version, flags);
    int own =
        card != NULL ? (int)card->driver_version : (int)fake_number("BERTH_FAKE_VERSION", 13050);
    if (name == NULL || found == NULL || version > own)
        return CUDA_ERROR_INVALID_VALUE;
    *found = fake_lookup(name, version, (flags & CU_LOOKUP_PER_THREAD) != 0, &known);
    if (status != NULL)
        *status = *found != NULL ? CU_LOOKUP_FOUND
                  : known        ? CU_LOOKUP_OLD_VERSION
                                 : CU_LOOKUP_NO_SYMBOL;
    return CUDA_SUCCESS;
}

DO cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{
    CUresult result = cuGetProcAddress_v2(name, found, version, flags, NULL);
    return result == CUDA_SUCCESS && *found == NULL ? CUDA_ERROR_NOT_FOUND : result;
}

DO cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
            : error == CUDA_SUCCESS           ? "no error"
                                              : "error";
    return CUDA_SUCCESS;
}
DO cuGetErrorName(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return CUDA_SUCCESS;
}

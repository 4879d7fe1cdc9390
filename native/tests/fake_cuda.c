/* libcuda.so.1 over the fake card: the driver's calls in host memory, with a ledger of its own
   (fake_ledger.c). Here: the process, its devices and its contexts. */
#include "fake_inside.h"
#include "fake_mig.h"
#include "stopwatch.h"

bool fake_initialized, fake_injecting, fake_like_nodes, fake_like_lazy;
_Thread_local struct CUctx_st *fake_context;

static bool forked;
static struct CUctx_st primaries[FAKE_GPUS];
static uint32_t primary_count[FAKE_GPUS];
static _Thread_local struct CUctx_st *stack[16];
static _Thread_local int depth;

/* ---- the process ---- */

static void after_fork(void)
{
    forked = fake_initialized;
    fake_initialized = false;
    fake_books_forget();
    fake_context = NULL;
    depth = 0;
}

/* CUDA_VISIBLE_DEVICES, by index or UUID: the fake_card behind each ordinal; read at cuInit, as a
   driver does. */
static uint32_t order[FAKE_GPUS], visible_count;
static struct fake_mig_instance *visible_instance[FAKE_GPUS];

/* Whether the GPU's device node is there; BERTH_FAKE_NODES names the folder, else all are. */
static bool has_node(uint32_t gpu)
{
    const char *folder = getenv("BERTH_FAKE_NODES");
    char path[256];
    if (folder == NULL || *folder == 0)
        return true;
    snprintf(path, sizeof path, "%.200s/nvidia%u", folder, gpu);
    return access(path, F_OK) == 0;
}

static uint32_t read_visible(void)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    uint32_t count = 0;
    if (text == NULL) {
        for (uint32_t g = 0; g < fake_card->gpu_count; g++)
            if (has_node(g))
                order[count++] = g;
        return count;
    }
    while (*text != 0 && count < FAKE_GPUS) {
        uint32_t found = FAKE_GPUS;
        if (*text >= '0' && *text <= '9')
            found = (uint32_t)strtoul(text, NULL, 10);
        for (uint32_t g = 0; g < fake_card->gpu_count && found == FAKE_GPUS; g++) {
            const unsigned char *b = fake_card->gpus[g].uuid.bytes;
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
        if (found >= fake_card->gpu_count)
            break;
        order[count++] = found;
        text += strcspn(text, ",");
        text += *text == ',';
    }
    return count;
}

uint64_t fake_instance_bytes(uint32_t gpu)
{
    for (uint32_t i = 0; i < visible_count; i++)
        if (order[i] == gpu && visible_instance[i] != NULL)
            return visible_instance[i]->bytes;
    return UINT64_MAX;
}

uint32_t fake_gpu_at(CUdevice dev)
{
    return (uint32_t)dev < visible_count ? order[dev] : 0;
}

bool fake_is_gpu(CUdevice dev)
{
    return dev >= 0 && (uint32_t)dev < visible_count;
}

CUdevice fake_ordinal_of(uint32_t gpu)
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
    fake_books();
    if (fake_initialized) {
        fake_books_done();
        return CUDA_SUCCESS;
    }
    fake_card = fake_attach();
    if (fake_card == NULL || fake_card->gpu_count == 0) {
        fake_books_done();
        return CUDA_ERROR_NO_DEVICE;
    }
    const char *watch = getenv("BERTH_FAKE_WATCH");
    if (watch != NULL && strchr(watch, ':') != NULL) {
        fake_watch_group = (uint32_t)strtoul(watch, NULL, 10);
        fake_watch_bytes = strtoull(strchr(watch, ':') + 1, NULL, 10);
        atomic_store(&fake_card->watched, 1);
    }
    fake_reap_dead();
    int fd = open(fake_path(), O_RDWR | O_CLOEXEC);
    for (uint32_t i = 0; fd >= 0 && i < FAKE_PROCESSES && fake_self == NULL; i++) {
        struct fake_process *process = &fake_card->processes[i];
        int failed = 0;
        if (i >= atomic_load(&fake_card->seen)) { /* others that start make room in the same file */
            struct stopwatch watch;
            stopwatch_start(&watch);
            failed = fake_reserve(fd, offsetof(struct fake_card, processes) + i * sizeof *process,
                                  sizeof *process);
            if (failed == 0)
                failed =
                    fake_reserve(fd, offsetof(struct fake_card, busy) + i * sizeof *fake_card->busy,
                                 sizeof *fake_card->busy);
            fake_kept_ns += stopwatch_kept_ns(&watch);
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
        process->group = fake_watch_group;
        process->cgroup = 0;
        for (int g = 0; g < FAKE_GPUS; g++) {
            atomic_store(&process->bytes[g], 0);
            atomic_store(&process->busy_ns[g], 0);
        }
        fake_self = process;
        fake_checkpoint_begins();
        uint32_t seen = atomic_load(&fake_card->seen);
        while (seen < i + 1 && !atomic_compare_exchange_weak(&fake_card->seen, &seen, i + 1)) { }
        atomic_store(&process->state, 1);
    }
    if (fd >= 0)
        close(fd);
    static bool watching;
    if (!watching)
        pthread_atfork(NULL, NULL, after_fork);
    watching = true;
    for (uint32_t g = 0; g < fake_card->gpu_count; g++) {
        fake_pools_start(g);
        fake_streams_start(g);
        primaries[g].gpu = g;
        primaries[g].primary = true;
    }
    visible_count = read_visible();
    fake_like_nodes = fake_like("nodes");
    fake_like_lazy = fake_like("lazy");
    const char *errors = getenv("BERTH_FAKE_ERRORS");
    fake_injecting = errors != NULL && *errors != 0;
    fake_initialized = fake_self != NULL;
    fake_books_done();
    return fake_initialized ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

DO cuDriverGetVersion(int *version)
{
    *version = fake_card != NULL ? (int)fake_card->driver_version
                                 : (int)fake_number("BERTH_FAKE_VERSION", 13050);
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
    CUresult wrong = fake_given(fake_ready(__func__), count);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (when_counting != NULL)
        when_counting();
    *count = (int)visible_count;
    return CUDA_SUCCESS;
}
DO cuDeviceGet(CUdevice *dev, int ordinal)
{
    CUresult wrong = fake_on_gpu(__func__, ordinal);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *dev = ordinal;
    return CUDA_SUCCESS;
}
DO cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *uuid = fake_card->gpus[fake_gpu_at(dev)].uuid;
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
    CUresult wrong = fake_given(fake_on_gpu(__func__, dev), bytes);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *bytes = visible_instance[dev] != NULL ? visible_instance[dev]->bytes
                                           : fake_card->gpus[fake_gpu_at(dev)].total_bytes;
    return CUDA_SUCCESS;
}
DO cuDeviceTotalMem(unsigned *bytes, CUdevice dev)
{
    CUresult wrong = fake_given(fake_on_gpu(__func__, dev), bytes);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    uint64_t total = fake_card->gpus[fake_gpu_at(dev)].total_bytes;
    *bytes = total > 0xffffffffu ? 0xffffffffu : (unsigned)total;
    return CUDA_SUCCESS;
}
DO cuDeviceGetName(char *name, int size, CUdevice dev)
{
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    snprintf(name, (size_t)size, "berth fake GPU");
    return CUDA_SUCCESS;
}
DO cuDeviceGetAttribute(int *value, int attribute, CUdevice dev)
{
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *value = attribute == CU_ATTRIBUTE_SMS          ? FAKE_WAVE_BLOCKS
             : attribute == CU_ATTRIBUTE_SM_THREADS ? 2048
             : attribute == 75                      ? 9
             : attribute == 76                      ? 0
             : attribute == CU_ATTRIBUTE_PAGEABLE   ? fake_like("hmm")
                                                    : 1;
    return CUDA_SUCCESS;
}

DO cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUresult wrong = fake_given(fake_given(fake_in_context(__func__), free_bytes), total);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_populate();
    struct fake_gpu *gpu = &fake_card->gpus[fake_context->gpu];
    *total = gpu->total_bytes;
    *free_bytes = gpu->total_bytes - fake_used_of(fake_card, fake_context->gpu);
    return CUDA_SUCCESS;
}

DO cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    size_t f, t;
    CUresult wrong = fake_given(fake_given(CUDA_SUCCESS, free_bytes), total);
    if (wrong != CUDA_SUCCESS)
        return wrong;
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
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *ctx = fake_context;
    return CUDA_SUCCESS;
}
DO cuCtxSetCurrent(CUcontext ctx)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (ctx != NULL && !ctx->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    fake_context = ctx;
    return CUDA_SUCCESS;
}
DO cuCtxGetDevice(CUdevice *dev)
{
    CUresult wrong = fake_in_context(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *dev = fake_ordinal_of(fake_context->gpu);
    return CUDA_SUCCESS;
}
DO cuCtxGetDevice_v2(CUdevice *dev, CUcontext ctx)
{
    CUresult wrong = fake_given(fake_ready(__func__), dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    ctx = ctx != NULL ? ctx : fake_context;
    if (ctx == NULL || !ctx->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    *dev = fake_ordinal_of(ctx->gpu);
    return CUDA_SUCCESS;
}
DO cuCtxPushCurrent_v2(CUcontext ctx)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (ctx == NULL || !ctx->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == 16)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = fake_context;
    fake_context = ctx;
    return CUDA_SUCCESS;
}
DO cuCtxPopCurrent_v2(CUcontext *ctx)
{
    CUresult wrong = fake_given(fake_ready(__func__), fake_context);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (ctx != NULL)
        *ctx = fake_context;
    fake_context = depth > 0 ? stack[--depth] : NULL;
    return CUDA_SUCCESS;
}

DO cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev)
{
    (void)flags;
    CUresult wrong = fake_given(fake_on_gpu(__func__, dev), ctx);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (!fake_charge(fake_gpu_at(dev), fake_card->context_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *ctx = calloc(1, sizeof **ctx);
    **ctx = (struct CUctx_st){ .gpu = fake_gpu_at(dev), .alive = true };
    if (depth < 16)
        stack[depth++] = fake_context;
    fake_context = *ctx;
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

/* The structure is kept, so that a program that still uses the handle is told. */
static void end_context(struct CUctx_st *context)
{
    fake_parts_gone(context);
    fake_memory_gone(context);
    fake_modules_gone(context);
    fake_events_gone(context);
    fake_limits_gone(context);
    fake_streams_gone(context);
    fake_refund(context->gpu, fake_card->context_bytes);
    context->alive = false;
}

DO cuCtxDestroy_v2(CUcontext ctx)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (ctx == NULL || !ctx->alive || ctx->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    end_context(ctx);
    if (fake_context == ctx)
        fake_context = depth > 0 ? stack[--depth] : NULL;
    return CUDA_SUCCESS;
}
DO cuCtxDestroy(CUcontext ctx)
{
    return cuCtxDestroy_v2(ctx);
}
DO cuCtxAttach(CUcontext *ctx, unsigned flags)
{
    CUresult wrong = fake_given(fake_in_context(__func__), ctx);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    fake_context->attached++;
    *ctx = fake_context;
    return CUDA_SUCCESS;
}
DO cuCtxDetach(CUcontext ctx)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (ctx == NULL || !ctx->alive || ctx->attached == 0)
        return cuCtxDestroy_v2(ctx);
    ctx->attached--;
    return CUDA_SUCCESS;
}

DO cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    CUresult wrong = fake_given(fake_on_gpu(__func__, dev), ctx);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    uint32_t gpu = fake_gpu_at(dev);
    struct CUctx_st *context = &primaries[gpu];
    fake_books();
    bool starts = !context->alive;
    context->alive = true;
    primary_count[gpu]++;
    fake_books_done();
    bool had = !starts || fake_charge(gpu, fake_card->context_bytes);
    if (starts && had) /* a real one takes about a third of a second */
        usleep((useconds_t)fake_number("BERTH_FAKE_CONTEXT_MS", 0) * 1000);
    if (!had) {
        fake_books();
        context->alive = false;
        primary_count[gpu] = 0;
        fake_books_done();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ctx = context;
    return CUDA_SUCCESS;
}

DO cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    uint32_t gpu = fake_gpu_at(dev);
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
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    uint32_t gpu = fake_gpu_at(dev);
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
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *flags = 0;
    *active = primaries[fake_gpu_at(dev)].alive;
    return CUDA_SUCCESS;
}

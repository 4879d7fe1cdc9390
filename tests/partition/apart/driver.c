/* A second fake driver, written from NVIDIA's cuda.h and from nothing of native/, so that the two do
   not share one misunderstanding. It is unlike the first: its GPU is shared by time slices, its pools
   double, the memory nodes of graphs each hold memory of their own, and modules may be loaded when a
   function is asked for. */
#include "card.h"
#include "driver.h"

static struct process *self;
struct CUstream_st { int none; };
struct CUevent_st { uint64_t at_ns; };
struct CUmod_st { uint64_t bytes; bool loaded; };
struct CUfunc_st { uint64_t ns; CUmodule module; };
struct CUmemPoolHandle_st { uint64_t reserved, used, keep; };
struct CUarray_st { uint64_t bytes, mapped; };
struct physical { uint64_t bytes; int holds; };
enum { THINGS = 4096, CONTEXT_MIB = 300, POOL_STEP_MIB = 32 };
static struct { CUdeviceptr at; uint64_t bytes; CUmemoryPool pool; } things[THINGS];
static struct { CUdeviceptr at; struct physical *memory; } maps[64];
static struct CUctx_st primary;
static struct CUmemPoolHandle_st default_pool;
_Thread_local CUcontext current;

bool charge(uint64_t bytes)
{
    lock();
    bool fits = held(-1) + bytes <= card_bytes;
    self->bytes += fits ? bytes : 0;
    uint64_t sum = held((int)self->part), *most = &card->most[self->part];
    *most = sum > *most ? sum : *most;
    unlock();
    return fits;
}
void refund(uint64_t bytes) { self->bytes -= bytes; }

/* What the tests ask of the driver itself. */
uint64_t apart_held(void)
{
    lock();
    uint64_t sum = held((int)self->part);
    unlock();
    return sum;
}
uint64_t apart_most(void) { return card->most[self->part]; }
uint64_t apart_used_ns(void) { return self->used_ns; }

CUresult cuInit(unsigned flags)
{
    const char *part = getenv("APART_PART");
    if (flags != 0 || !open_card())
        return flags != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NO_DEVICE;
    lock();
    for (int i = 0; i < PROCESSES && self == NULL; i++)
        if (card->processes[i].pid == 0) {
            self = &card->processes[i];
            self->part = part != NULL ? (unsigned)atoi(part) : 0;
            self->pid = (unsigned)getpid();
        }
    unlock();
    return self != NULL ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
__attribute__((destructor)) static void ends(void) { if (self != NULL) self->bytes = 0; }
CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count)
{
    *count = self != NULL;
    return self != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}
CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = 0;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetUuid_v2(CUuuid *id, CUdevice device)
{
    memcpy(id->bytes, uuid, 16);
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    *bytes = card_bytes;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice device)
{
    *value = what == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT             ? 80
             : what == CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR ? 2048
                                                                          : 1;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* ---- contexts, streams, events ---- */
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    EXPECT(self != NULL && device == 0, CUDA_ERROR_NOT_INITIALIZED);
    EXPECT(primary.lives || charge(CONTEXT_MIB * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    primary.lives = true;
    *context = &primary;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = primary.lives;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) { current = context; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = current; return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) { current = context; return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext *context) { *context = current; current = NULL; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { NEEDS_CONTEXT; *device = 0; return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    NEEDS_CONTEXT;
    *value = current->limits[limit];
    return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    NEEDS_CONTEXT;
    uint64_t times = limit == CU_LIMIT_STACK_SIZE ? 80 * 2048 : 1, was = current->limits[limit];
    EXPECT(value <= was || charge((value - was) * times), CUDA_ERROR_OUT_OF_MEMORY);
    if (value < was)
        refund((was - value) * times);
    current->limits[limit] = value;
    return CUDA_SUCCESS;
}
static void settle(CUmemoryPool pool)
{
    uint64_t least = pool->used > pool->keep ? pool->used : pool->keep;
    if (least >= pool->reserved)
        return;
    uint64_t to = (least + POOL_STEP_MIB * MIB - 1) / (POOL_STEP_MIB * MIB) * (POOL_STEP_MIB * MIB);
    if (to < pool->reserved) {
        refund(pool->reserved - to);
        pool->reserved = to;
    }
}
static CUmemoryPool pools[8];
CUresult cuCtxSynchronize(void)
{
    NEEDS_CONTEXT;
    for (uint64_t now; (now = now_ns()) < self->tail_ns;)
        usleep((useconds_t)((self->tail_ns - now) / 1000 + 1));
    settle(&default_pool);
    for (int i = 0; i < 8 && pools[i] != NULL; i++)
        settle(pools[i]);
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) { (void)stream; return cuCtxSynchronize(); }
CUresult cuStreamQuery(CUstream stream)
{
    NEEDS_CONTEXT;
    (void)stream;
    return now_ns() < self->tail_ns ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    NEEDS_CONTEXT;
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    NEEDS_CONTEXT;
    (void)flags;
    *event = calloc(1, sizeof **event);
    return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) { free(event); return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream stream)
{
    NEEDS_CONTEXT;
    (void)stream;
    uint64_t now = now_ns();
    event->at_ns = self->tail_ns > now ? self->tail_ns : now;
    return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent event) { return event->at_ns > now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    *ms = (float)((double)(to->at_ns - from->at_ns) / 1e6);
    return CUDA_SUCCESS;
}

/* ---- modules, launches ----  An image is `eager MIB` or `lazy MIB`; a function `runs_US`. */
static bool load(CUmodule module)
{
    if (!module->loaded && !charge(module->bytes))
        return false;
    module->loaded = true;
    return true;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    NEEDS_CONTEXT;
    struct CUmod_st made = { (uint64_t)atoi(strchr(image, ' ')) * MIB, false };
    EXPECT(*(const char *)image == 'l' || load(&made), CUDA_ERROR_OUT_OF_MEMORY);
    *module = malloc(sizeof **module);
    **module = made;
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module)
{
    refund(module->loaded ? module->bytes : 0);
    free(module);
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    NEEDS_CONTEXT;
    EXPECT(load(module), CUDA_ERROR_OUT_OF_MEMORY);
    *function = malloc(sizeof **function);
    **function = (struct CUfunc_st){ strncmp(name, "runs_", 5) == 0 ? (uint64_t)atoi(name + 5) * 1000 : 0, module };
    return CUDA_SUCCESS;
}
CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    *module = function->module;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute what, CUfunction function)
{
    (void)what;
    (void)function;
    *value = 0;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned bytes, CUstream stream, void **params, void **extra)
{
    NEEDS_CONTEXT;
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)bytes, (void)stream, (void)params, (void)extra;
    uint64_t now = now_ns(), at_once = 1;
    for (int i = 0; i < PROCESSES; i++) /* time slices: each that has work slows the others */
        at_once += &card->processes[i] != self && card->processes[i].tail_ns > now;
    self->tail_ns = (self->tail_ns > now ? self->tail_ns : now) + function->ns * at_once;
    self->used_ns += function->ns;
    return CUDA_SUCCESS;
}

/* ---- linear memory, arrays ---- */
static CUresult hold(CUdeviceptr *at, uint64_t bytes, CUmemoryPool pool)
{
    static CUdeviceptr next = 0x100000000;
    *at = next;
    next += (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    for (int i = 0; i < THINGS; i++)
        if (things[i].at == 0) {
            things[i].at = *at;
            things[i].bytes = bytes;
            things[i].pool = pool;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_UNKNOWN;
}
CUresult cuMemAlloc(CUdeviceptr *at, size_t bytes)
{
    NEEDS_CONTEXT;
    EXPECT(bytes != 0, CUDA_ERROR_INVALID_VALUE);
    return charge(bytes) ? hold(at, bytes, NULL) : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAllocManaged(CUdeviceptr *at, size_t bytes, unsigned flags)
{
    (void)flags;
    return cuMemAlloc(at, bytes);
}
CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream)
{
    (void)stream;
    for (int i = 0; i < THINGS; i++)
        if (at != 0 && things[i].at == at) {
            if (things[i].pool != NULL)
                things[i].pool->used -= things[i].bytes;
            else
                refund(things[i].bytes);
            things[i].at = 0;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemFree(CUdeviceptr at)
{
    CUresult result = cuMemFreeAsync(at, NULL);
    settle(&default_pool);
    return result;
}
CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
    NEEDS_CONTEXT;
    lock();
    *free_bytes = card_bytes - held(-1);
    unlock();
    *total = card_bytes;
    return CUDA_SUCCESS;
}
CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    NEEDS_CONTEXT;
    uint64_t depth = d->Depth != 0 ? d->Depth : 1, bytes = d->Width * d->Height * depth * d->NumChannels * 4;
    bool sparse = (d->Flags & CUDA_ARRAY3D_SPARSE) != 0;
    EXPECT(sparse || charge(bytes), CUDA_ERROR_OUT_OF_MEMORY);
    *array = calloc(1, sizeof **array);
    (*array)->bytes = sparse ? 0 : bytes;
    return CUDA_SUCCESS;
}
CUresult cuArrayDestroy(CUarray array) { refund(array->bytes); free(array); return CUDA_SUCCESS; }

/* ---- physical memory, mapped into addresses and sparse arrays ---- */
static void let_go(struct physical *memory)
{
    if (--memory->holds == 0)
        refund(memory->bytes);
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    EXPECT(self != NULL && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && flags == 0, CUDA_ERROR_INVALID_VALUE);
    EXPECT(charge(bytes), CUDA_ERROR_OUT_OF_MEMORY);
    struct physical *memory = malloc(sizeof *memory);
    *memory = (struct physical){ bytes, 1 };
    *handle = (uintptr_t)memory;
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    let_go((struct physical *)(uintptr_t)handle);
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    (void)bytes, (void)offset, (void)flags;
    for (int i = 0; i < 64; i++)
        if (maps[i].at == 0) {
            maps[i].at = at;
            maps[i].memory = (struct physical *)(uintptr_t)handle;
            maps[i].memory->holds++;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_UNKNOWN;
}
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    (void)bytes;
    for (int i = 0; i < 64; i++)
        if (maps[i].at == at) {
            let_go(maps[i].memory);
            maps[i].at = 0;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream)
{
    NEEDS_CONTEXT;
    (void)stream;
    for (unsigned i = 0; i < count; i++) { /* a part is told by its array and its place in x */
        CUdeviceptr part = (uintptr_t)list[i].resource.array + list[i].subresource.sparseLevel.offsetX + 1;
        if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
            cuMemMap(part, 0, 0, list[i].memHandle.memHandle, 0);
        else
            cuMemUnmap(part, 0);
    }
    return CUDA_SUCCESS;
}

/* ---- pools ---- */
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    EXPECT(self != NULL && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE);
    *pool = calloc(1, sizeof **pool);
    for (int i = 0; i < 8; i++)
        if (pools[i] == NULL) {
            pools[i] = *pool;
            break;
        }
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    *pool = &default_pool;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    return cuDeviceGetMemPool(pool, device);
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute what, void *value)
{
    if (what == CU_MEMPOOL_ATTR_LOCATION_ID || what == CU_MEMPOOL_ATTR_LOCATION_TYPE ||
        what == CU_MEMPOOL_ATTR_ALLOCATION_TYPE)
        *(int *)value = what != CU_MEMPOOL_ATTR_LOCATION_ID;
    else
        *(uint64_t *)value = what == CU_MEMPOOL_ATTR_USED_MEM_CURRENT       ? pool->used
                             : what == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved
                                                                            : pool->keep;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute what, void *value)
{
    pool->keep = what == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? *(uint64_t *)value : pool->keep;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    uint64_t was = pool->keep;
    pool->keep = keep;
    settle(pool);
    pool->keep = was;
    return CUDA_SUCCESS;
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *at, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    NEEDS_CONTEXT;
    (void)stream;
    uint64_t needs = pool->used + bytes, step = POOL_STEP_MIB * MIB;
    if (needs > pool->reserved) { /* it doubles, or grows by what it must where that does not fit */
        uint64_t least = (needs + step - 1) / step * step, twice = 2 * pool->reserved;
        uint64_t to = twice > least && charge(twice - pool->reserved) ? twice : 0;
        EXPECT(to != 0 || charge(least - pool->reserved), CUDA_ERROR_OUT_OF_MEMORY);
        pool->reserved = to != 0 ? to : least;
    }
    pool->used += bytes;
    return hold(at, bytes, pool);
}
CUresult cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream stream)
{
    return cuMemAllocFromPoolAsync(at, bytes, &default_pool, stream);
}

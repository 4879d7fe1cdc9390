/* The fake driver's calls by which memory outlives its handle, passes between programs or is taken
   for something else: sparse arrays, export and import, IPC, external memory, multicast, a
   context's limits. */
#include "fake_inside.h"

/* ---- sparse arrays ---- */

/* One tile for one GPU. The texels of a level lie in tiles of 64 x 64 x 1, the bytes of a mip tail
   in tiles of 64 KiB; a request for several makes one part for each. */
enum { TILE_SIDE = 64, TILE_BYTES = 1 << 16 };
struct place {
    const void *resource;
    int part_type;
    unsigned level, layer, device;
    uint64_t x, y, z;
};
struct part {
    struct place where;
    struct CUctx_st *context;
    struct physical *physical;
    struct part *next;
};
static struct part *parts;

static void let_go(struct physical *physical)
{
    physical->maps--;
    fake_physical_drop(physical);
}

static bool same_place(const struct place *a, const struct place *b)
{
    return a->resource == b->resource && a->part_type == b->part_type && a->level == b->level &&
           a->layer == b->layer && a->device == b->device && a->x == b->x && a->y == b->y &&
           a->z == b->z;
}

/* A tile holds one memory at a time: NULL leaves it empty. */
static void set_tile(const struct place *where, struct physical *physical)
{
    if (physical != NULL)
        physical->maps++;
    for (struct part **at = &parts; *at != NULL; at = &(*at)->next)
        if (same_place(&(*at)->where, where)) {
            struct part *part = *at;
            *at = part->next;
            let_go(part->physical);
            free(part);
            break;
        }
    if (physical == NULL)
        return;
    struct part *made = calloc(1, sizeof *made);
    *made = (struct part){
        .where = *where, .context = fake_owner(), .physical = physical, .next = parts
    };
    parts = made;
}

static uint64_t tiles(uint64_t from, uint64_t size, uint64_t side)
{
    return size == 0 ? 1 : (from + size + side - 1) / side - from / side;
}

static void set_tiles(const CUmap_info *info, struct physical *physical)
{
    bool tail = info->part_type == 1;
    struct place first = { .resource = info->resource, .part_type = info->part_type };
    uint64_t across, down = 1, deep = 1;
    if (tail) {
        first.layer = info->part.tail.layer;
        first.x = info->part.tail.offset / TILE_BYTES;
        across = tiles(info->part.tail.offset, info->part.tail.size, TILE_BYTES);
    } else {
        first.level = info->part.level.level;
        first.layer = info->part.level.layer;
        first.x = info->part.level.x / TILE_SIDE;
        first.y = info->part.level.y / TILE_SIDE;
        first.z = info->part.level.z;
        across = tiles(info->part.level.x, info->part.level.width, TILE_SIDE);
        down = tiles(info->part.level.y, info->part.level.height, TILE_SIDE);
        deep = info->part.level.depth != 0 ? info->part.level.depth : 1;
    }
    for (unsigned device = 0; device < 32; device++)
        for (uint64_t i = 0; i < across * down * deep && (info->device_mask >> device & 1); i++) {
            struct place where = first;
            where.device = device;
            where.x += i % across;
            where.y += i / across % down;
            where.z += i / across / down;
            set_tile(&where, physical);
        }
}

static void drop_parts(const void *array, const struct CUctx_st *context)
{
    fake_books();
    for (struct part **at = &parts; *at != NULL;) {
        struct part *part = *at;
        if (part->where.resource != array && part->context != context) {
            at = &part->next;
            continue;
        }
        *at = part->next;
        let_go(part->physical);
        free(part);
    }
    fake_books_done();
}

void fake_parts_of(CUarray array)
{
    drop_parts(array, NULL);
}

/* A context takes its arrays along. */
void fake_parts_gone(struct CUctx_st *context)
{
    drop_parts(NULL, context);
}

/* Whole tiles, of memory that was made for them. */
static bool fits_tiles(const CUmap_info *info, const struct physical *physical)
{
    bool whole = info->part_type == 1
                     ? info->part.tail.size != 0 && info->part.tail.offset % TILE_BYTES == 0
                     : info->part.level.width != 0 && info->part.level.height != 0 &&
                           info->part.level.depth != 0 && info->part.level.x % TILE_SIDE == 0 &&
                           info->part.level.y % TILE_SIDE == 0 &&
                           info->part.level.width % TILE_SIDE == 0 &&
                           info->part.level.height % TILE_SIDE == 0;
    return whole && info->device_mask != 0 &&
           (info->operation != CU_OPERATION_MAP || (physical != NULL && physical->for_tiles));
}
DO cuMemMapArrayAsync(CUmap_info *list, unsigned count, CUstream stream)
{
    CUresult wrong = fake_given(fake_in_context(__func__), list);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)stream;
    fake_books();
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        bool maps = list[i].operation == CU_OPERATION_MAP;
        struct physical *physical = maps ? fake_physical(list[i].handle) : NULL;
        if (!fits_tiles(&list[i], physical))
            result = CUDA_ERROR_INVALID_VALUE;
        else
            set_tiles(&list[i], physical);
    }
    fake_books_done();
    return result;
}
DO cuMemMapArrayAsync_ptsz(CUmap_info *list, unsigned count, CUstream stream)
{
    return cuMemMapArrayAsync(list, count, stream);
}

/* ---- export and import ---- */

/* The file holds the memory, as a driver's does: until the last descriptor of it is closed, in
   whatever process. Its lock says whether one is open. Two words in it tell what it is. */
static int share_as_file(struct physical *physical)
{
    char path[300];
    fake_lock_ledger(fake_card);
    struct fake_shared *shared = physical->shared;
    for (int i = 0; shared == NULL && i < FAKE_SHARED; i++)
        if (fake_card->shared[i].number == 0)
            shared = &fake_card->shared[i];
    if (shared == NULL)
        abort();
    uint32_t self = (uint32_t)(fake_self - fake_card->processes);
    if (physical->shared == NULL)
        *shared = (struct fake_shared){ .number = ++fake_card->shared_count,
                                        .bytes = physical->bytes,
                                        .gpu = physical->gpu,
                                        .owner = self + 1,
                                        .holders = { self + 1 } };
    physical->shared = shared;
    fake_shared_path(path, shared->number);
    uint64_t told[2] = { (uint64_t)(shared - fake_card->shared), shared->number };
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    struct flock lock = { .l_type = F_RDLCK, .l_start = FAKE_LOCKS, .l_len = 1 };
    if (fd < 0 || pwrite(fd, told, sizeof told, 0) != sizeof told ||
        fcntl(fd, F_OFD_SETLK, &lock) != 0)
        abort();
    fake_unlock_ledger(fake_card);
    return fd;
}

DO cuMemExportToShareableHandle(void *out, CUhandle handle, int type, unsigned long long flags)
{
    CUresult wrong = fake_given(fake_ready(__func__), out);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (flags != 0 || (type != CU_SHARE_FD && type != CU_SHARE_FABRIC))
        return CUDA_ERROR_INVALID_VALUE;
    fake_books();
    struct physical *physical = fake_physical(handle);
    fake_shares_memory();
    uint64_t told[2] = { (uint64_t)getpid(), physical != NULL ? physical->id : 0 };
    if (physical != NULL && type == CU_SHARE_FABRIC) {
        memset(out, 0, CU_FABRIC_BYTES);
        memcpy(out, told, sizeof told);
    } else if (physical != NULL) {
        struct stat file;
        int fd = share_as_file(physical);
        if (fstat(fd, &file) != 0)
            abort();
        physical->fd = fd;
        physical->file = (uint64_t)file.st_ino;
        *(int *)out = fd;
    }
    fake_books_done();
    return physical != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* With the books: the memory of a file; one more that holds it. */
static struct physical *import_file(int fd)
{
    uint64_t told[2] = { 0, 0 };
    if (pread(fd, told, sizeof told, 0) != sizeof told || told[0] >= FAKE_SHARED)
        return NULL;
    struct fake_shared *shared = &fake_card->shared[told[0]];
    struct physical *physical = fake_physical_shared(shared);
    if (physical != NULL)
        return physical->handles++, physical;
    fake_lock_ledger(fake_card);
    uint32_t self = (uint32_t)(fake_self - fake_card->processes);
    int place = 0;
    while (place < FAKE_HOLDERS && shared->holders[place] != 0)
        place++;
    if (shared->number == told[1] && place < FAKE_HOLDERS) {
        shared->holders[place] = self + 1;
        if (shared->owner == 0) {
            shared->owner = self + 1;
            atomic_fetch_add(&fake_self->bytes[shared->gpu], shared->bytes);
        }
        physical = fake_physical_new(shared->gpu, shared->bytes);
        physical->shared = shared;
    }
    fake_unlock_ledger(fake_card);
    return physical;
}

/* With the books: by what the process that made it told; another's is charged to it. */
static struct physical *import_fabric(const uint64_t *told)
{
    struct physical *physical = told[0] == (uint64_t)getpid() ? fake_physical_kept(told[1]) : NULL;
    if (physical != NULL)
        physical->handles++;
    return physical != NULL || told[0] == (uint64_t)getpid() ? physical : fake_physical_new(0, 0);
}

DO cuMemImportFromShareableHandle(CUhandle *handle, void *from, int type)
{
    CUresult wrong = fake_given(fake_ready(__func__), handle);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (type != CU_SHARE_FD && (type != CU_SHARE_FABRIC || from == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    fake_books();
    fake_shares_memory();
    struct physical *physical =
        type == CU_SHARE_FD ? import_file((int)(intptr_t)from) : import_fabric(from);
    if (physical != NULL)
        *handle = physical->id;
    fake_books_done();
    return physical != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DO cuMemGetAllocationPropertiesFromHandle(CUalloc_prop *prop, CUhandle handle)
{
    CUresult wrong = fake_given(fake_ready(__func__), prop);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    struct physical *physical = fake_physical(handle);
    *prop = (CUalloc_prop){ .type = 1, .location = { CU_LOCATION_DEVICE, 0 } };
    if (physical != NULL)
        prop->location.id = fake_ordinal_of(physical->gpu);
    fake_books_done();
    return physical != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- external memory: made by a graphics interface, and the card's from here on ---- */

struct CUext_st {
    uint32_t gpu;
    uint64_t bytes;
};

DO cuImportExternalMemory(CUext *out, const CUext_desc *desc)
{
    CUresult wrong = fake_given(fake_given(fake_in_context(__func__), out), desc);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    uint32_t gpu = fake_context->gpu;
    uint64_t step = fake_number("BERTH_FAKE_STEP_KIB", 0) << 10, bytes = desc->size;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (step != 0) /* it shares no step with what CUDA allocates */
        bytes = (bytes + step - 1) / step * step;
    if (!fake_charge(gpu, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = calloc(1, sizeof **out);
    **out = (struct CUext_st){ .gpu = gpu, .bytes = bytes };
    return CUDA_SUCCESS;
}

DO cuDestroyExternalMemory(CUext memory)
{
    CUresult wrong = fake_given(fake_ready(__func__), memory);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_refund(memory->gpu, memory->bytes);
    free(memory);
    return CUDA_SUCCESS;
}

/* ---- multicast ---- */

struct binding {
    uint64_t object, offset;
    CUdevice dev;
    struct physical *physical;
    struct binding *next;
};
static struct binding *bindings;

DO cuMulticastCreate(CUhandle *handle, const CUmulticast_prop *prop)
{
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), handle), prop);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    *handle = fake_physical_new(0, 0)->id;
    fake_books_done();
    return CUDA_SUCCESS;
}

DO cuMulticastAddDevice(CUhandle object, CUdevice dev)
{
    CUresult wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    bool known = fake_physical(object) != NULL;
    fake_books_done();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult bind(CUhandle object, CUdevice dev, size_t offset, uint64_t memory, uint64_t va)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    struct physical *physical = memory != 0 ? fake_physical(memory) : fake_physical_at(va);
    bool good = physical != NULL && fake_physical(object) != NULL;
    if (good) {
        struct binding *made = calloc(1, sizeof *made);
        /* The first versions name no device: it is the memory's. */
        dev = dev < 0 ? fake_ordinal_of(physical->gpu) : dev;
        *made = (struct binding){ object, offset, dev, physical, bindings };
        bindings = made;
        physical->maps++;
    }
    fake_books_done();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DO cuMulticastBindMem(CUhandle object, size_t offset, CUhandle memory, size_t from, size_t bytes,
                      unsigned long long flags)
{
    (void)from, (void)bytes, (void)flags;
    return bind(object, -1, offset, memory, 0);
}
DO cuMulticastBindMem_v2(CUhandle object, CUdevice dev, size_t offset, CUhandle memory, size_t from,
                         size_t bytes, unsigned long long flags)
{
    (void)from, (void)bytes, (void)flags;
    return bind(object, dev, offset, memory, 0);
}
DO cuMulticastBindAddr(CUhandle object, size_t offset, CUdeviceptr ptr, size_t bytes,
                       unsigned long long flags)
{
    (void)bytes, (void)flags;
    return bind(object, -1, offset, 0, ptr);
}
DO cuMulticastBindAddr_v2(CUhandle object, CUdevice dev, size_t offset, CUdeviceptr ptr,
                          size_t bytes, unsigned long long flags)
{
    (void)bytes, (void)flags;
    return bind(object, dev, offset, 0, ptr);
}

static bool unbind(CUhandle object, CUdevice dev, size_t from, size_t bytes)
{
    bool any = false;
    for (struct binding **at = &bindings; *at != NULL;) {
        struct binding *gone = *at;
        if (gone->object != object || (dev >= 0 && gone->dev != dev) || gone->offset < from ||
            gone->offset - from >= bytes) {
            at = &gone->next;
            continue;
        }
        *at = gone->next;
        let_go(gone->physical);
        free(gone);
        any = true;
    }
    return any;
}

void fake_bindings_of(uint64_t object)
{
    if (bindings != NULL)
        unbind(object, -1, 0, SIZE_MAX);
}

DO cuMulticastUnbind(CUhandle object, CUdevice dev, size_t offset, size_t bytes)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    bool any = unbind(object, dev, offset, bytes);
    fake_books_done();
    return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- what a context sets aside ---- */

static const uint64_t first_limits[CU_LIMITS] = { 1024, 1 << 20, 8 << 20, 2, 2048 };
enum { SMS = 132, SM_THREADS = 2048 };

static uint64_t limit_costs(int limit, uint64_t value)
{
    uint64_t above = value > first_limits[limit] ? value - first_limits[limit] : 0;
    return limit == CU_LIMIT_STACK ? above * SMS * SM_THREADS : limit <= CU_LIMIT_HEAP ? above : 0;
}

DO cuCtxGetLimit(size_t *value, int limit)
{
    CUresult wrong = fake_given(fake_in_context(__func__), value);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (limit < 0 || limit >= CU_LIMITS)
        return CUDA_ERROR_INVALID_VALUE;
    if (limit == CU_LIMIT_SYNC_DEPTH) /* gone since compute capability 9.0 */
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = first_limits[limit] + fake_context->limits[limit];
    return CUDA_SUCCESS;
}

/* The heap is taken in whole MiB, and the driver says what it made of the request. */
static CUresult set_limit(struct CUctx_st *context, int limit, size_t value)
{
    if (limit < 0 || limit >= CU_LIMITS || value > 1ull << 48)
        return CUDA_ERROR_INVALID_VALUE;
    if (limit == CU_LIMIT_HEAP)
        value = (value + (1 << 20) - 1) & ~((1ull << 20) - 1);
    value = value > first_limits[limit] ? value : first_limits[limit];
    uint64_t least = limit == CU_LIMIT_STACK ? limit_costs(limit, context->stack_bytes) : 0;
    uint64_t before = limit_costs(limit, first_limits[limit] + context->limits[limit]);
    uint64_t after = limit_costs(limit, value);
    before = before > least ? before : least;
    after = after > least ? after : least;
    if (limit == CU_LIMIT_HEAP && fake_like("heap")) {
        context->promised_bytes += after;
        context->promised_bytes -=
            before < context->promised_bytes ? before : context->promised_bytes;
    } else if (after > before) {
        if (!fake_charge(context->gpu, after - before))
            return CUDA_ERROR_OUT_OF_MEMORY;
        context->limit_bytes += after - before;
    } else {
        fake_refund(context->gpu, before - after);
        context->limit_bytes -= before - after;
    }
    context->limits[limit] = value - first_limits[limit];
    return CUDA_SUCCESS;
}

DO cuCtxSetLimit(int limit, size_t value)
{
    CUresult wrong = fake_in_context(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (limit == CU_LIMIT_SYNC_DEPTH)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (fake_like("slow")) /* it waits for the GPU, before and after */
        usleep(50);
    fake_books();
    CUresult result = set_limit(fake_context, limit, value);
    fake_books_done();
    if (fake_like("slow"))
        usleep(50);
    return result;
}

CUresult fake_promises_kept(struct CUctx_st *context)
{
    if (context->promised_bytes == 0)
        return CUDA_SUCCESS;
    if (!fake_charge(context->gpu, context->promised_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->limit_bytes += context->promised_bytes;
    context->promised_bytes = 0;
    return CUDA_SUCCESS;
}

/* A launch needs more than the stack of each thread has. */
CUresult fake_stack_grows(struct CUctx_st *context, uint64_t local_bytes)
{
    uint64_t set = first_limits[CU_LIMIT_STACK] + context->limits[CU_LIMIT_STACK],
             had = context->stack_bytes > set ? context->stack_bytes : set;
    uint64_t before = limit_costs(CU_LIMIT_STACK, had),
             after = limit_costs(CU_LIMIT_STACK, local_bytes);
    if (after <= before)
        return CUDA_SUCCESS;
    if (!fake_charge(context->gpu, after - before))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->limit_bytes += after - before;
    context->stack_bytes = local_bytes;
    return CUDA_SUCCESS;
}

void fake_limits_gone(struct CUctx_st *context)
{
    context->stack_bytes = 0;
    fake_refund(context->gpu, context->limit_bytes);
    context->limit_bytes = context->promised_bytes = 0;
    memset(context->limits, 0, sizeof context->limits);
}

/* ---- pools of other processes: memory of theirs may be reached, and none of one's own be had ----
 */

DO cuMemPoolExportToShareableHandle(void *out, CUpool pool, int type, unsigned long long flags)
{
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), out), pool);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)flags;
    if (type != CU_SHARE_FD)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)out = memfd_create("berth-fake-pool", MFD_CLOEXEC);
    return *(int *)out >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

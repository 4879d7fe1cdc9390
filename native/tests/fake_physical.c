/* Physical memory, and where it is mapped. */
#include "fake_inside.h"

struct map {
    uint64_t va, bytes;
    struct physical *physical;
    struct map *next;
};
static struct physical *physicals;
static struct map *maps;
static uint64_t next_handle = 0x1000;

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

struct physical *fake_physical_shared(const struct fake_shared *shared)
{
    struct physical *at = physicals;
    while (at != NULL && at->shared != shared)
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
    if (physical->shared == NULL) {
        fake_refund(physical->gpu, physical->bytes);
    } else {
        fake_lock_ledger(fake_card);
        fake_shared_leave(fake_card, physical->shared, (uint32_t)(fake_self - fake_card->processes),
                          false);
        fake_unlock_ledger(fake_card);
    }
    free(physical);
    fake_bindings_of(id);
}

/* What only a file held that is closed by now. */
void fake_drop_closed(void)
{
    fake_books();
    for (struct physical *at = physicals, *next; at != NULL; at = next) {
        next = at->next;
        if (at->handles == 0 && at->maps == 0)
            fake_physical_drop(at);
    }
    fake_books_done();
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
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), handle), prop);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    bool placed =
        prop->location.type == CU_LOCATION_DEVICE || prop->location.type == CU_LOCATION_DEVICE_PART;
    CUdevice dev = placed ? prop->location.id & 0xff : 0;
    wrong = fake_on_gpu(__func__, dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    uint64_t counted = placed ? bytes : 0;
    uint32_t gpu = fake_gpu_at(dev);
    if (bytes == 0 || bytes % (2 << 20) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    fake_drop_closed();
    if (!fake_charge(gpu, counted))
        return CUDA_ERROR_OUT_OF_MEMORY;
    fake_books();
    struct physical *made = fake_physical_new(gpu, counted);
    made->for_tiles = (prop->usage & CU_FOR_TILES) != 0;
    *handle = made->id;
    fake_books_done();
    return CUDA_SUCCESS;
}

DO cuMemRelease(CUhandle handle)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    struct physical *physical = fake_physical(handle);
    if (physical == NULL || physical->handles == 0) {
        fake_books_done();
        return CUDA_ERROR_INVALID_VALUE;
    }
    physical->handles--;
    fake_physical_drop(physical);
    fake_books_done();
    return CUDA_SUCCESS;
}

DO cuMemAddressReserve(CUdeviceptr *ptr, size_t bytes, size_t align, CUdeviceptr at,
                       unsigned long long flags)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)align, (void)at, (void)flags;
    fake_books();
    *ptr = fake_address(bytes);
    if (*ptr != 0)
        fake_node_put((struct node){ .va = *ptr, .bytes = bytes, .what = VIRTUAL });
    fake_books_done();
    return *ptr != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

DO cuMemAddressFree(CUdeviceptr ptr, size_t bytes)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    struct node *found = fake_node_at(ptr);
    if (found != NULL) {
        fake_node_drop(found);
        fake_address_back(ptr, bytes);
    }
    fake_books_done();
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DO cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)flags;
    fake_books();
    struct physical *physical = fake_physical(handle);
    if (physical == NULL || offset != 0) {
        fake_books_done();
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct map *made = calloc(1, sizeof *made);
    *made = (struct map){ .va = ptr, .bytes = bytes, .physical = physical, .next = maps };
    maps = made;
    physical->maps++;
    fake_books_done();
    return CUDA_SUCCESS;
}

DO cuMemSetAccess(CUdeviceptr ptr, size_t bytes, const void *access, size_t count)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)ptr, (void)bytes, (void)access, (void)count;
    return CUDA_SUCCESS;
}

DO cuMemUnmap(CUdeviceptr ptr, size_t bytes)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    bool any = false;
    fake_books();
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
    fake_books_done();
    return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DO cuMemRetainAllocationHandle(CUhandle *handle, void *address)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    uint64_t va = (uint64_t)(uintptr_t)address;
    fake_books();
    for (struct map *map = maps; map != NULL; map = map->next)
        if (va >= map->va && va < map->va + map->bytes) {
            map->physical->handles++;
            *handle = map->physical->id;
            fake_books_done();
            return CUDA_SUCCESS;
        }
    fake_books_done();
    return CUDA_ERROR_INVALID_VALUE;
}

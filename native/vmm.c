/* Physical memory (cuMemCreate) lives while a handle or a mapping of it does: counted together, given back once. */
#define _GNU_SOURCE
#include "devices.h"
#include "ledger.h"
#include "parts.h"

#include <stdlib.h>
#include <string.h>

struct record { uint64_t bytes; struct device *device; uint32_t handles, maps; };
struct mapping { uint64_t at, bytes; struct record *record; };

static struct turn turn;
static struct mapping *mappings; /* sorted by address */
static size_t mapping_count, mapping_space;

/* The first mapping that ends after `address`. */
static size_t mapping_after(uint64_t address)
{
    size_t low = 0, high = mapping_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (mappings[middle].at + mappings[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool mapping_add(struct mapping mapping)
{
    if (mapping_count == mapping_space) {
        size_t space = mapping_space ? mapping_space * 2 : 256;
        struct mapping *larger = realloc(mappings, space * sizeof *larger);
        if (larger == NULL)
            return false;
        mappings = larger;
        mapping_space = space;
    }
    size_t at = mapping_after(mapping.at);
    memmove(&mappings[at + 1], &mappings[at], (mapping_count - at) * sizeof *mappings);
    mappings[at] = mapping;
    mapping_count++;
    return true;
}

/* One handle or mapping less, after the driver did it. */
static void drop(struct record *record, uint32_t handles, uint32_t maps)
{
    turn_take(&turn);
    record->handles -= handles;
    record->maps -= maps;
    bool last = record->handles == 0 && record->maps == 0;
    turn_leave(&turn);
    if (last) {
        give(record->device, record->bytes);
        free(record);
    }
}

CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUalloc_prop *prop, unsigned long long flags)
{
    struct device *device = prop != NULL && prop->location.type == CU_LOCATION_DEVICE ? device_of(prop->location.id) : NULL;
    if (device == NULL || handle == NULL)
        return REAL(cuMemCreate)(handle, bytes, prop, flags);
    struct record *record = malloc(sizeof *record);
    if (record == NULL || !take(device, bytes, "cuMemCreate")) {
        free(record);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMemCreate)(handle, bytes, prop, flags);
    if (result != CUDA_SUCCESS) {
        give(device, bytes);
        free(record);
        return result;
    }
    *record = (struct record){ bytes, device, 1, 0 };
    ledger_put((struct entry){ .key = *handle, .bytes = bytes, .owner = record, .kind = HANDLE, .device = (uint16_t)device->ordinal, .count = 1 });
    return result;
}

CUresult cuMemRelease(CUhandle handle)
{
    struct entry entry;
    turn_take(&turn);
    bool known = ledger_take(HANDLE, handle, &entry);
    if (known && --entry.count != 0)
        ledger_put(entry);
    turn_leave(&turn);
    CUresult result = REAL(cuMemRelease)(handle);
    if (!known)
        return result;
    if (result == CUDA_SUCCESS) {
        drop(entry.owner, 1, 0);
    } else {
        turn_take(&turn);
        struct entry now;
        if (ledger_take(HANDLE, handle, &now))
            entry = now;
        entry.count++;
        ledger_put(entry);
        turn_leave(&turn);
    }
    return result;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags)
{
    struct entry entry;
    turn_take(&turn);
    bool known = atomic_load_explicit(&limiting, memory_order_relaxed) && ledger_get(HANDLE, handle, &entry);
    struct record *record = known ? entry.owner : NULL;
    if (known)
        record->maps++;
    turn_leave(&turn);
    CUresult result = REAL(cuMemMap)(ptr, bytes, offset, handle, flags);
    if (!known)
        return result;
    bool kept = false;
    if (result == CUDA_SUCCESS) {
        turn_take(&turn);
        kept = mapping_add((struct mapping){ ptr, bytes, record });
        turn_leave(&turn);
    }
    if (!kept && result != CUDA_SUCCESS)
        drop(record, 0, 1);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes)
{
    struct mapping few[8], *gone = few;
    turn_take(&turn);
    size_t first = mapping_after(ptr), count = 0;
    while (first + count < mapping_count && mappings[first + count].at < ptr + bytes)
        count++;
    if (count > 8)
        gone = malloc(count * sizeof *gone);
    if (gone != NULL && count != 0) {
        memcpy(gone, &mappings[first], count * sizeof *gone);
        memmove(&mappings[first], &mappings[first + count], (mapping_count - first - count) * sizeof *mappings);
        mapping_count -= count;
    }
    turn_leave(&turn);
    CUresult result = REAL(cuMemUnmap)(ptr, bytes);
    if (gone == NULL)
        return result; /* stays counted until the process ends */
    for (size_t i = 0; i < count; i++) {
        if (result == CUDA_SUCCESS) {
            drop(gone[i].record, 0, 1);
        } else {
            turn_take(&turn);
            mapping_add(gone[i]);
            turn_leave(&turn);
        }
    }
    if (gone != few)
        free(gone);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address)
{
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result != CUDA_SUCCESS || handle == NULL || !atomic_load_explicit(&limiting, memory_order_relaxed))
        return result;
    turn_take(&turn);
    uint64_t at = (uint64_t)(uintptr_t)address;
    size_t found = mapping_after(at);
    if (found < mapping_count && mappings[found].at <= at) {
        struct record *record = mappings[found].record;
        struct entry entry;
        if (!ledger_take(HANDLE, *handle, &entry) || entry.owner != record)
            entry = (struct entry){ .key = *handle, .bytes = record->bytes, .owner = record, .kind = HANDLE, .device = (uint16_t)record->device->ordinal };
        entry.count++;
        record->handles++;
        ledger_put(entry);
    }
    turn_leave(&turn);
    return result;
}

static void vmm_forget(void)
{
    atomic_store(&turn.word, 0);
    mapping_count = 0;
}

PART(.forget = vmm_forget);

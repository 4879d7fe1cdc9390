/* Physical memory (cuMemCreate) lives while anything holds it: a handle, a mapping, a tile of a
   sparse array, a multicast object that it is bound to, or a file that it was exported to. It is
   counted once, and given back with the last of these.

   What was exported and imported again in this process is one memory. Memory of another process of
   the partition counts there as long as that is charged for it; any other counts here, from its
   import on, or from its mapping on where nothing tells its size (exports.c). */
#define _GNU_SOURCE
#include "vmm.h"
#include "exports.h"
#include "ledger.h"
#include "parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct record {
    uint64_t bytes;
    struct device *device; /* NULL: nothing is counted for it */
    uint32_t handles, maps;
    void (*when_gone)(const void *); /* of a multicast object; NULL: nothing */
    bool exported;
    bool imported; /* as large as is said of it, or as what was mapped of it where that is more */
    bool unsized;  /* nothing was said */
    struct export_tag tag;   /* of what was exported; serial 0: to no file */
    struct device *borrowed; /* imported, and charged to another process of this GPU's region */
    int fd;                  /* the file that it was exported to; -1: none */
    dev_t file_device, file_kind;
    ino_t file;
    unsigned char fabric[CU_FABRIC_BYTES];
    struct record *next; /* of those exported */
};
struct mapping {
    uint64_t at, bytes;
    struct record *record;
};
static struct turn turn;
static struct mapping *mappings; /* sorted by address */
static size_t mapping_count, mapping_space;
static struct record *exports;

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

/* Without memory for it what is mapped stays counted until the process ends. */
static void mapping_add(struct mapping mapping)
{
    IN_TURN(&turn);
    if (mapping_count == mapping_space)
        mappings = list_grown(mappings, &mapping_space, sizeof *mappings);
    if (mapping_count == mapping_space)
        return;
    size_t at = mapping_after(mapping.at);
    memmove(&mappings[at + 1], &mappings[at], (mapping_count - at) * sizeof *mappings);
    mappings[at] = mapping;
    mapping_count++;
}

/* ---- what holds a record ---- */

/* With the turn: whether the file that it was exported to is still open here. */
static bool is_open(const struct record *record)
{
    struct stat file;
    return record->fd >= 0 && fstat(record->fd, &file) == 0 && file.st_dev == record->file_device &&
           file.st_ino == record->file && file.st_rdev == record->file_kind;
}

/* With the turn: takes a record out that nothing holds any more; the caller ends it. */
static bool unheld(struct record *record)
{
    if (record->handles != 0 || record->maps != 0)
        return false;
    if (record->exported && is_open(record)) {
        parts_mark_dirty(); /* looked at again by reclaim_exports */
        return false;
    }
    for (struct record **at = &exports; record->exported && *at != NULL; at = &(*at)->next)
        if (*at == record) {
            *at = record->next;
            break;
        }
    return true;
}

static void ended(struct record *record);

void vmm_drop(struct record *record, uint32_t handles, uint32_t maps)
{
    if (WITHIN(&turn, (record->handles -= handles, record->maps -= maps, unheld(record))))
        ended(record);
}

/* Ends what was exported and is held by nothing any more. */
static void reclaim_exports(struct device *device)
{
    (void)device; /* they are few: of all */
    for (;;) {
        struct record *gone = NULL;
        turn_take(&turn);
        for (struct record *at = exports; at != NULL && gone == NULL; at = at->next)
            if (unheld(at))
                gone = at;
        turn_leave(&turn);
        if (gone == NULL)
            return;
        ended(gone);
    }
}

static void ended(struct record *record)
{
    if (record->device != NULL && record->tag.serial != 0)
        exports_end(record->device, &record->tag);
    else if (record->device != NULL)
        give(record->device, record->bytes);
    if (record->when_gone != NULL)
        record->when_gone(record);
    if (record->borrowed != NULL)
        exports_return(record->borrowed);
    free(record);
}

struct record *vmm_hold(CUhandle handle)
{
    struct entry entry;
    if (!limits_any())
        return NULL;
    IN_TURN(&turn);
    struct record *record = ledger_get(HANDLE, handle, &entry) ? entry.owner : NULL;
    if (record != NULL)
        record->maps++;
    return record;
}

void vmm_hold_again(struct record *record)
{
    IN_TURN(&turn);
    record->maps++;
}

bool vmm_is_last(struct record *record)
{
    IN_TURN(&turn);
    return record->handles == 0 && record->maps == 1;
}

CUdevice vmm_device(const struct record *record)
{
    return record->device != NULL ? record->device->handle : -1;
}

struct record *vmm_hold_at(CUdeviceptr address)
{
    IN_TURN(&turn);
    size_t found = mapping_after(address);
    if (found == mapping_count || mappings[found].at > address)
        return NULL;
    mappings[found].record->maps++;
    return mappings[found].record;
}

/* ---- handles ---- */

struct device *device_at_location(const CUlocation *location, int type)
{
    struct device *device = NULL;
    if (location->type == CU_LOCATION_DEVICE)
        device = device_of(location->id);
    else if (location->type == CU_LOCATION_DEVICE_PART)
        device = device_of(location->id & 0xff);
    else if (location->type >= CU_LOCATION_HOST && location->type <= CU_LOCATION_HOST_LAST &&
             type != CU_ALLOCATION_MANAGED)
        return NULL;
    /* Managed memory counts wherever it begins, as that of cuMemAllocManaged does; and so does
       what the driver may know a place for that is not known here. */
    return device != NULL ? device : device_for_memory();
}

static struct entry entry_of_handle(CUhandle handle, struct record *record)
{
    int gpu = record->device != NULL ? record->device->ordinal : 0;
    return entry_of(HANDLE, handle, record->bytes, record, gpu);
}

static void keep(CUhandle handle, struct record *record)
{
    struct entry entry = entry_of_handle(handle, record);
    entry.count = 1;
    ledger_put(entry);
}

/* Without memory for it what is bound to the object stays counted until the process ends. */
void vmm_keep_object(CUhandle object, void (*when_gone)(const void *))
{
    struct record *record = calloc(1, sizeof *record);
    if (record == NULL)
        return;
    *record = (struct record){ .handles = 1, .fd = -1, .when_gone = when_gone };
    keep(object, record);
}

CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUalloc_prop *prop,
                     unsigned long long flags)
{
    struct device *device = prop != NULL ? device_at_location(&prop->location, prop->type) : NULL;
    if (device == NULL || handle == NULL)
        return REAL(cuMemCreate)(handle, bytes, prop, flags);
    struct record *record = malloc(sizeof *record);
    if (record == NULL || !obtain(device, bytes, "cuMemCreate")) {
        free(record);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMemCreate)(handle, bytes, prop, flags);
    driver_answered(device, bytes, "cuMemCreate", result);
    if (result != CUDA_SUCCESS) {
        give(device, bytes);
        free(record);
        return result;
    }
    *record = (struct record){ .bytes = bytes, .device = device, .handles = 1, .fd = -1 };
    keep(*handle, record);
    return result;
}

/* The handle leads to its record until the driver has let go of it, without a count: what another
   thread maps or exports meanwhile is held. */
CUresult cuMemRelease(CUhandle handle)
{
    struct entry entry;
    bool known =
        WITHIN(&turn, ledger_get(HANDLE, handle, &entry) && ledger_count(HANDLE, handle, -1));
    CUresult result = REAL(cuMemRelease)(handle);
    if (!known)
        return result;
    struct record *record = entry.owner;
    turn_take(&turn);
    bool same = ledger_get(HANDLE, handle, &entry) && entry.owner == record, last = false;
    if (result != CUDA_SUCCESS) {
        if (same)
            (void)ledger_count(HANDLE, handle, 1);
    } else {
        if (same && entry.count == 0)
            (void)ledger_take(HANDLE, handle, &entry);
        record->handles--;
        last = unheld(record);
    }
    turn_leave(&turn);
    if (last)
        ended(record);
    return result;
}

static bool vmm_grow(struct record *record, uint64_t bytes, const char *call)
{
    bool grows = record->imported && record->device != NULL;
    uint64_t more = grows ? WITHIN(&turn, above(bytes, record->bytes)) : 0;
    if (more != 0 && !obtain(record->device, more, call))
        return false;
    WITHIN(&turn, record->bytes += more);
    return true;
}

bool vmm_hold_grown(CUhandle handle, uint64_t bytes, const char *call, struct record **record)
{
    *record = vmm_hold(handle);
    if (*record == NULL || vmm_grow(*record, bytes, call))
        return true;
    vmm_drop(*record, 0, 1);
    return false;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset, CUhandle handle,
                  unsigned long long flags)
{
    struct record *record;
    if (!vmm_hold_grown(handle, bytes, "cuMemMap", &record))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemMap)(ptr, bytes, offset, handle, flags);
    if (record != NULL && result == CUDA_SUCCESS)
        mapping_add((struct mapping){ ptr, bytes, record });
    else if (record != NULL)
        vmm_drop(record, 0, 1);
    return result;
}

/* With the turn: the mappings that lie in a range, which the driver unmaps whole or not at all;
   returns how many, of which up to `most` are in `out`. */
static size_t mappings_in(CUdeviceptr ptr, size_t bytes, struct mapping *out, size_t most)
{
    size_t count = 0;
    for (size_t i = mapping_after(ptr); i < mapping_count && mappings[i].at < ptr + bytes; i++)
        if (mappings[i].at >= ptr && mappings[i].bytes <= ptr + bytes - mappings[i].at) {
            if (count < most)
                out[count] = mappings[i];
            count++;
        }
    return count;
}

/* Whether it was there. */
static bool mapping_take(const struct mapping *gone)
{
    IN_TURN(&turn);
    for (size_t i = mapping_after(gone->at); i < mapping_count && mappings[i].at == gone->at; i++)
        if (mappings[i].record == gone->record) {
            memmove(&mappings[i], &mappings[i + 1], (--mapping_count - i) * sizeof *mappings);
            return true;
        }
    return false;
}

/* The mappings lead to their records until the driver has undone them: what another thread retains
   meanwhile is held. */
CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes)
{
    struct mapping few[8], *gone = few;
    turn_take(&turn);
    size_t count = mappings_in(ptr, bytes, few, 8);
    if (count > 8 && (gone = malloc(count * sizeof *gone)) != NULL)
        (void)mappings_in(ptr, bytes, gone, count);
    turn_leave(&turn);
    CUresult result = REAL(cuMemUnmap)(ptr, bytes);
    for (size_t i = 0; gone != NULL && result == CUDA_SUCCESS && i < count; i++)
        if (mapping_take(&gone[i]))
            vmm_drop(gone[i].record, 0, 1);
    if (gone != few)
        free(gone); /* where there was no memory for it, all stays counted until the process ends */
    return result;
}

CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address)
{
    struct record *record = handle != NULL && limits_any() ? vmm_hold_at((uintptr_t)address) : NULL;
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (record != NULL && result == CUDA_SUCCESS) {
        struct entry entry;
        turn_take(&turn);
        if (!ledger_get(HANDLE, *handle, &entry) || entry.owner != record)
            entry = entry_of_handle(*handle, record);
        entry.count++;
        record->handles++;
        ledger_put(entry);
        turn_leave(&turn);
    }
    if (record != NULL)
        vmm_drop(record, 0, 1);
    return result;
}

/* ---- export and import ---- */

/* With the turn: what another process needs to know of it. */
static void export_record(struct record *record, bool to_file)
{
    if (!record->exported) {
        record->next = exports;
        exports = record;
        record->exported = true;
    }
    if (to_file && record->tag.serial == 0 && record->device != NULL)
        record->tag = exports_begin(record->device, record->bytes);
}

CUresult cuMemExportToShareableHandle(void *out, CUhandle handle, int type,
                                      unsigned long long flags)
{
    struct record *record = vmm_hold(handle);
    CUresult result = REAL(cuMemExportToShareableHandle)(out, handle, type, flags);
    struct stat file;
    if (record == NULL)
        return result;
    bool to_file = result == CUDA_SUCCESS && type == CU_SHARE_FD;
    turn_take(&turn);
    if (result == CUDA_SUCCESS && record->borrowed == NULL && !record->unsized)
        export_record(record, to_file);
    if (to_file && record->exported && fstat(*(int *)out, &file) == 0) {
        record->fd = *(int *)out;
        record->file_device = file.st_dev;
        record->file = file.st_ino;
        record->file_kind = file.st_rdev;
    } else if (result == CUDA_SUCCESS && type == CU_SHARE_FABRIC) {
        memcpy(record->fabric, out, CU_FABRIC_BYTES);
    }
    if (to_file && !record->unsized)
        exports_tag_file(*(int *)out, &record->tag);
    turn_leave(&turn);
    vmm_drop(record, 0, 1);
    return result;
}

/* With the turn: which of those exported it is; NULL: none. */
static struct record *exported_as(const void *from, int type, const struct export_tag *tag)
{
    static const unsigned char none[CU_FABRIC_BYTES];
    bool own = tag != NULL && tag->serial != 0 && exports_is_own(tag);
    for (struct record *at = exports; at != NULL; at = at->next) {
        if (type == CU_SHARE_FABRIC && from != NULL && memcmp(at->fabric, none, sizeof none) != 0 &&
            memcmp(at->fabric, from, sizeof none) == 0)
            return at;
        if (own && at->tag.serial == tag->serial && at->tag.region == tag->region)
            return at;
    }
    return NULL;
}

static struct device *device_of_handle(CUhandle handle)
{
    CUalloc_prop prop;
    if (REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, handle) == CUDA_SUCCESS)
        return device_at_location(&prop.location, prop.type);
    return device_for_memory();
}

/* Charges what is imported, unless another process of the partition is charged for it. */
static bool charge_import(struct record *record, CUhandle handle, const struct export_tag *tag)
{
    bool sized = tag != NULL && tag->bytes != 0; /* the host's memory has a tag without */
    if (sized && (record->borrowed = exports_borrow(tag)) != NULL) {
        record->tag = *tag;
        return true;
    }
    record->device = device_of_handle(handle);
    record->unsized = !sized;
    record->bytes = sized ? tag->bytes : 0;
    return record->device == NULL ||
           obtain(record->device, record->bytes, "cuMemImportFromShareableHandle");
}

CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *from, int type)
{
    CUhandle again;
    struct export_tag tag;
    if (handle == NULL || !limits_any())
        return REAL(cuMemImportFromShareableHandle)(handle, from, type);
    bool tagged = type == CU_SHARE_FD && exports_read_tag((int)(intptr_t)from, &tag);
    struct record *fresh = malloc(sizeof *fresh);
    if (fresh == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *fresh = (struct record){ .handles = 1, .fd = -1, .imported = true };
    turn_take(&turn);
    struct record *record = exported_as(from, type, tagged ? &tag : NULL);
    if (record != NULL)
        record->handles++;
    turn_leave(&turn);
    CUresult result = REAL(cuMemImportFromShareableHandle)(&again, from, type);
    if (result == CUDA_SUCCESS && record == NULL &&
        !charge_import(fresh, again, tagged ? &tag : NULL)) {
        (void)REAL(cuMemRelease)(again);
        free(fresh);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (record != NULL || result != CUDA_SUCCESS)
        free(fresh);
    if (record != NULL && result != CUDA_SUCCESS)
        vmm_drop(record, 1, 0);
    if (result != CUDA_SUCCESS)
        return result;
    *handle = again;
    record = record != NULL ? record : fresh;
    /* A driver may give the same name again. */
    struct entry entry;
    turn_take(&turn);
    bool known = ledger_take(HANDLE, again, &entry);
    struct record *own = known ? entry.owner : NULL;
    if (known) {
        own->handles += own != record;
        entry.count++;
        ledger_put(entry);
    }
    turn_leave(&turn);
    if (!known)
        keep(again, record);
    else if (own != record)
        vmm_drop(record, 1, 0);
    return result;
}

static void vmm_forget(void)
{
    mappings = NULL; /* which may be amid its growth */
    mapping_count = mapping_space = 0;
    exports = NULL;
}

PART(.turn = &turn, .forget = vmm_forget, .reclaim = reclaim_exports);

/* NVML: memory and processes as the container's own part, also for programs that never start CUDA. */
#define _GNU_SOURCE
#include "nvml.h"
#include "cards.h"
#include "parts.h"
#include "routes.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Regions of GPUs that are only looked at. */
static struct { NVdevice handle; struct berth_region region; bool limited; } looked[MAX_DEVICES];
static int looked_count;
static struct turn turn;

static struct berth_region *region_of(NVdevice handle, uint64_t *limit)
{
    char text[96] = "";
    unsigned char uuid[16];
    struct berth_error error;
    struct berth_region *region = NULL;
    if (!settings.active || !HAVE(nvmlDeviceGetUUID) || real.nvmlDeviceGetUUID(handle, text, sizeof text) != NV_SUCCESS || !region_uuid_parse(text, uuid))
        return NULL;
    struct device *device = device_by_uuid(uuid);
    if (device != NULL) {
        *limit = atomic_load(&device->region.limit->mem_bytes);
        return &device->region;
    }
    turn_take(&turn);
    int at = 0;
    while (at < looked_count && looked[at].handle != handle)
        at++;
    if (at < MAX_DEVICES && (at == looked_count || !looked[at].limited)) {
        looked[at].handle = handle;
        looked[at].limited = region_open(&looked[at].region, settings.folder, uuid, &error);
        looked_count = at == looked_count ? at + 1 : looked_count;
    }
    if (at < MAX_DEVICES && looked[at].limited)
        region = &looked[at].region;
    turn_leave(&turn);
    if (region != NULL) {
        *limit = atomic_load(&region->limit->mem_bytes);
        return region;
    }
    /* Nobody has used it yet: the limit alone. */
    static struct berth_use_file nothing;
    static struct berth_region unused = { .use = &nothing, .slot = 0 };
    uint64_t mib = 0;
    unsigned index = 0;
    if (HAVE(nvmlDeviceGetIndex))
        real.nvmlDeviceGetIndex(handle, &index);
    if (settings.mem_mib.given && !settings_for(&settings.mem_mib, (int)index, uuid, &mib))
        mib = 0;
    *limit = settings.mem_mib.given ? mib << 20 : settings.made_by_agent || settings.wrong[0] != 0 ? 0 : UINT64_MAX;
    return &unused;
}

static void shrink(struct berth_region *region, uint64_t limit, unsigned long long *total, unsigned long long *free_bytes, unsigned long long *used)
{
    region_glance(region);
    uint64_t taken = atomic_load(&region->use->total.used);
    if (limit < *total)
        *total = limit;
    *used = taken < *total ? taken : *total;
    if (*free_bytes > *total - *used)
        *free_bytes = *total - *used;
}

int nvmlDeviceGetMemoryInfo(NVdevice device, NVmemory *memory)
{
    int result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    uint64_t limit;
    struct berth_region *region = result == NV_SUCCESS && memory != NULL ? region_of(device, &limit) : NULL;
    if (region != NULL)
        shrink(region, limit, &memory->total, &memory->free, &memory->used);
    return result;
}

int nvmlDeviceGetMemoryInfo_v2(NVdevice device, NVmemory_v2 *memory)
{
    int result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    uint64_t limit;
    struct berth_region *region = result == NV_SUCCESS && memory != NULL ? region_of(device, &limit) : NULL;
    if (region != NULL) {
        shrink(region, limit, &memory->total, &memory->free, &memory->used);
        memory->reserved = 0;
    }
    return result;
}

static bool is_ours(struct berth_region *region, unsigned pid)
{
    uint32_t seen = atomic_load(&region->use->slots_seen);
    for (uint32_t i = 0; i < seen && i < BERTH_SLOTS; i++)
        if (atomic_load(&region->use->slots[i].state) != 0 && region->use->slots[i].pid == pid)
            return true;
    return false;
}

/* Leaves the processes of this region in a list that the driver filled. */
static int filter(int result, NVdevice device, unsigned *count, void *list, size_t size)
{
    uint64_t limit;
    if (result != NV_SUCCESS || count == NULL || list == NULL)
        return result;
    struct berth_region *region = region_of(device, &limit);
    if (region == NULL)
        return result;
    unsigned kept = 0;
    for (unsigned i = 0; i < *count; i++) {
        char *item = (char *)list + i * size;
        unsigned pid;
        memcpy(&pid, item, sizeof pid);
        if (is_ours(region, pid))
            memmove((char *)list + kept++ * size, item, size);
    }
    *count = kept;
    return result;
}

#define PROCESSES(name, type)                                                     \
    int name(NVdevice device, unsigned *count, type *list)                        \
    {                                                                             \
        return filter(REAL(name)(device, count, list), device, count, list, sizeof *list); \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, NVprocess_v1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, NVprocess)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, NVprocess)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, NVprocess_v1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, NVprocess)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, NVprocess)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, NVprocess_v1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, NVprocess)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, NVprocess)

static void nvml_forget(void)
{
    atomic_store(&turn.word, 0);
}

PART(.forget = nvml_forget);

NVdevice nvml_handle(struct device *device)
{
    NVdevice known = atomic_load(&device->nvml);
    if (known == NULL && (known = nvml_named(device->uuid)) != NULL)
        atomic_store(&device->nvml, known);
    return known;
}

bool nvml_own_bytes(struct device *device, uint64_t *bytes)
{
    enum { MOST = 512 };
    NVdevice handle = nvml_handle(device);
    int (*ask)(NVdevice, unsigned *, NVprocess *) = HAVE(nvmlDeviceGetComputeRunningProcesses_v3) ? real.nvmlDeviceGetComputeRunningProcesses_v3
                                                                                                 : real.nvmlDeviceGetComputeRunningProcesses_v2;
    if (handle == NULL || ask == NULL)
        return false;
    unsigned count = MOST, own = (unsigned)getpid();
    NVprocess *list = malloc(MOST * sizeof *list);
    bool found = false;
    if (list != NULL && ask(handle, &count, list) == NV_SUCCESS)
        for (unsigned i = 0; i < count && i < MOST; i++)
            if (list[i].pid == own && list[i].bytes != ~0ull) {
                *bytes = list[i].bytes;
                found = true;
            }
    free(list);
    return found;
}

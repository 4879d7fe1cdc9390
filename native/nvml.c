/* NVML: memory and processes as the container's own part, also for programs without CUDA. */
#define _GNU_SOURCE
#include "devices.h"
#include "parts.h"
#include "nvml_delta.h"
#include "routes.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>

/* Regions of GPUs that are only looked at. */
static struct {
    NVdevice handle;
    struct berth_region region;
    bool limited;
} looked[MAX_DEVICES];
static int looked_count;
static struct turn turn;

/* What is shown of a device. */
struct sight {
    struct berth_region *region;
    uint64_t limit;
    bool turned; /* it is looked at only, and kept by the turn until it was */
};

static void seen(struct sight *sight)
{
    if (sight->turned)
        turn_leave(&turn);
}

/* False where the driver's own word stands; where true, `seen` ends it. */
static bool sight_of(NVdevice handle, struct sight *sight)
{
    char text[96] = "";
    unsigned char uuid[16];
    struct berth_error error;
    *sight = (struct sight){ .region = NULL };
    if (!settings.active || !NVHAVE(nvmlDeviceGetUUID) ||
        real.nvmlDeviceGetUUID(handle, text, sizeof text) != NV_SUCCESS ||
        !region_uuid_parse(text, uuid))
        return false;
    struct device *device = device_by_uuid(uuid);
    if (device != NULL) {
        *sight =
            (struct sight){ .region = &device->region, .limit = region_shown(&device->region) };
        return true;
    }
    turn_take(&turn);
    int at = 0;
    while (at < looked_count && looked[at].handle != handle)
        at++;
    if (at < looked_count && looked[at].limited && region_replaced(&looked[at].region)) {
        region_close(&looked[at].region);
        looked[at].limited = false;
    }
    if (at < MAX_DEVICES && (at == looked_count || !looked[at].limited)) {
        looked[at].handle = handle;
        looked[at].limited = region_open(&looked[at].region, settings.folder, uuid, &error);
        looked_count = at == looked_count ? at + 1 : looked_count;
    }
    if (at < MAX_DEVICES && looked[at].limited) {
        struct berth_region *region = &looked[at].region;
        *sight = (struct sight){ .region = region, .limit = region_shown(region), .turned = true };
        return true;
    }
    turn_leave(&turn);
    /* No process has used it yet: the limit alone. */
    static struct berth_use_file nothing;
    static struct berth_region unused = { .use = &nothing, .slot = 0 };
    uint64_t mib = 0;
    unsigned index = 0;
    if (NVHAVE(nvmlDeviceGetIndex))
        real.nvmlDeviceGetIndex(handle, &index);
    if (settings.mem_mib.given && !settings_for(&settings.mem_mib, (int)index, uuid, &mib))
        mib = 0;
    sight->region = &unused;
    sight->limit = settings.mem_mib.given                     ? mib << 20
                   : settings.made_by_agent || devices_none() ? 0
                                                              : UINT64_MAX;
    return true;
}

static bool shrink(NVdevice device, unsigned long long *total, unsigned long long *free_bytes,
                   unsigned long long *used)
{
    struct sight sight;
    if (!sight_of(device, &sight))
        return false;
    region_glance(sight.region);
    uint64_t taken = atomic_load(&sight.region->use->total.used);
    if (sight.limit < *total)
        *total = sight.limit;
    *used = taken < *total ? taken : *total;
    if (*free_bytes > *total - *used)
        *free_bytes = *total - *used;
    seen(&sight);
    return true;
}

int nvmlDeviceGetMemoryInfo(NVdevice device, NVmemory *memory)
{
    int result = NVREAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result == NV_SUCCESS && memory != NULL)
        shrink(device, &memory->total, &memory->free, &memory->used);
    return result;
}

int nvmlDeviceGetMemoryInfo_v2(NVdevice device, NVmemory_v2 *memory)
{
    int result = NVREAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result == NV_SUCCESS && memory != NULL &&
        shrink(device, &memory->total, &memory->free, &memory->used))
        memory->reserved = 0;
    return result;
}

/* Leaves the partition's own of `count` items of `size` bytes; the pid is `at` bytes from an item's
   start. */
static unsigned keep_ours(NVdevice device, void *list, unsigned count, size_t size, size_t at)
{
    struct sight sight;
    unsigned kept = 0;
    if (list == NULL || !sight_of(device, &sight))
        return count;
    for (unsigned i = 0; i < count; i++) {
        char *item = (char *)list + i * size;
        unsigned pid;
        memcpy(&pid, item + at, sizeof pid);
        if (processes_ours(sight.region, pid))
            memmove((char *)list + kept++ * size, item, size);
    }
    seen(&sight);
    return kept;
}

static int filter(int result, NVdevice device, unsigned *count, void *list, size_t size)
{
    if (result == NV_SUCCESS && count != NULL && list != NULL)
        *count = keep_ours(device, list, *count, size, 0);
    return result;
}

#define NVLISTS(name, type)                                                                  \
    int name(NVdevice device, unsigned *count, type *list)                                   \
    {                                                                                        \
        return filter(NVREAL(name)(device, count, list), device, count, list, sizeof *list); \
    }
#include "hooks.h"

/* Which processes compute. A caller that only asks how much room it takes is told the driver's own
   number, which is enough. */
int nvmlDeviceGetProcessUtilization(NVdevice device, NVutilization *samples, unsigned *count,
                                    unsigned long long since_us)
{
    int result = NVREAL(nvmlDeviceGetProcessUtilization)(device, samples, count, since_us);
    if (result == NV_SUCCESS && samples != NULL && count != NULL && *count != 0) {
        *count = keep_ours(device, samples, *count, sizeof *samples, offsetof(NVutilization, pid));
        return *count != 0 ? NV_SUCCESS
                           : NV_NOT_FOUND; /* as the driver says where no process computes */
    }
    return result;
}

int nvmlDeviceGetProcessesUtilizationInfo(NVdevice device, NVutilizations *all)
{
    int result = NVREAL(nvmlDeviceGetProcessesUtilizationInfo)(device, all);
    if (result == NV_SUCCESS && all != NULL && all->list != NULL && all->count != 0) {
        all->count = keep_ours(device, all->list, all->count, sizeof *all->list,
                               offsetof(NVutilization_v1, pid));
        return all->count != 0 ? NV_SUCCESS : NV_NOT_FOUND;
    }
    return result;
}

int nvmlDeviceGetRunningProcessDetailList(NVdevice device, NVdetails *all)
{
    int result = NVREAL(nvmlDeviceGetRunningProcessDetailList)(device, all);
    if (result == NV_SUCCESS && all != NULL && all->list != NULL)
        all->count =
            keep_ours(device, all->list, all->count, sizeof *all->list, offsetof(NVdetail, pid));
    return result;
}

int nvmlDeviceGetAccountingPids(NVdevice device, unsigned *count, unsigned *pids)
{
    int result = NVREAL(nvmlDeviceGetAccountingPids)(device, count, pids);
    if (result == NV_SUCCESS && count != NULL && pids != NULL)
        *count = keep_ours(device, pids, *count, sizeof *pids, 0);
    return result;
}

int nvmlDeviceGetAccountingStats(NVdevice device, unsigned pid, NVaccount *account)
{
    struct sight sight;
    if (account != NULL && sight_of(device, &sight)) {
        bool ours = processes_ours(sight.region, pid);
        seen(&sight);
        if (!ours)
            return NV_NOT_FOUND;
    }
    return NVREAL(nvmlDeviceGetAccountingStats)(device, pid, account);
}

PART(.turn = &turn);

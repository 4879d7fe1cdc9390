/* What the driver says of its devices: asked once, at the start, and before any lock is taken. */
#define _GNU_SOURCE
#include "cards.h"
#include "routes.h"
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

NVdevice nvml_named(const unsigned char uuid[16])
{
    static shared32 ready;
    if (!routes_have_nvml() || !HAVE(nvmlInit_v2) || !HAVE(nvmlDeviceGetHandleByUUID))
        return NULL;
    if (!atomic_load(&ready) && real.nvmlInit_v2() != NV_SUCCESS)
        return NULL;
    atomic_store(&ready, 1);
    char text[48] = "GPU-";
    NVdevice handle = NULL;
    region_uuid_text(uuid, text + 4);
    if (real.nvmlDeviceGetHandleByUUID(text, &handle) != NV_SUCCESS) {
        memcpy(text, "MIG-", 4);
        if (real.nvmlDeviceGetHandleByUUID(text, &handle) != NV_SUCCESS)
            return NULL;
    }
    return handle;
}

/* Where CUDA_VISIBLE_DEVICES reorders, the position among all of the container's GPUs; -1 where it
   cannot be told. */
static int position_of(struct card *card, int ordinal)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible == NULL || *visible == 0)
        return ordinal;
    for (int i = 0; i < ordinal && visible != NULL; i++) {
        visible = strchr(visible, ',');
        visible = visible != NULL ? visible + 1 : NULL;
    }
    char *end = NULL;
    long position =
        visible != NULL && *visible >= '0' && *visible <= '9' ? strtol(visible, &end, 10) : -1;
    if (position >= 0 && (*end == 0 || *end == ','))
        return (int)position;
    unsigned index = 0;
    card->nvml = nvml_named(card->uuid);
    if (card->nvml != NULL && REAL(nvmlDeviceGetIndex)(card->nvml, &index) == NV_SUCCESS)
        return (int)index;
    return -1;
}

static bool ask(struct card *card, int ordinal, struct berth_error *error)
{
    CUuuid uuid;
    CUresult asked = REAL(cuDeviceGetUuid_v2)(&uuid, card->handle);
    if (asked != CUDA_SUCCESS && HAVE(cuDeviceGetUuid))
        asked = real.cuDeviceGetUuid(&uuid, card->handle);
    if (asked != CUDA_SUCCESS)
        return region_fail(
            error, "GPU %d has no UUID, by which its region is named; the driver is too old",
            ordinal);
    memcpy(card->uuid, uuid.bytes, 16);
    if ((settings.mem_mib.given || settings.core_pct.given || settings.priority != 0) &&
        (!HAVE(cuDeviceTotalMem_v2) ||
         real.cuDeviceTotalMem_v2(&card->bytes, card->handle) != CUDA_SUCCESS))
        card->bytes = 0;
    int pageable = 0;
    card->pageable = REAL(cuDeviceGetAttribute)(&pageable, CU_ATTRIBUTE_PAGEABLE, card->handle) ==
                         CUDA_SUCCESS &&
                     pageable != 0;
    if (settings.mem_mib.per_device || settings.core_pct.per_device)
        card->position = position_of(card, ordinal);
    return true;
}

int cards_ask(struct card cards[MAX_DEVICES], struct berth_error *error)
{
    int count = 0;
    CUresult counted = REAL(cuDeviceGetCount)(&count);
    if (counted != CUDA_SUCCESS) {
        region_fail(
            error,
            "the driver does not tell how many GPUs there are (cuDeviceGetCount: error %d), so "
            "that none of them can be limited; start the program again, or look at the driver "
            "with nvidia-smi",
            counted);
        return 0;
    }
    count = count < MAX_DEVICES ? count : MAX_DEVICES;
    for (int i = 0; i < count; i++) {
        cards[i] = (struct card){ .handle = i, .position = i };
        if (HAVE(cuDeviceGet))
            real.cuDeviceGet(&cards[i].handle, i);
    }
    for (int i = 0; i < count && ask(&cards[i], i, error); i++) { }
    return count;
}

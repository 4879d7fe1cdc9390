/* What a process is told about the card: a card as large as its limit, or as that may become. */
#define _GNU_SOURCE
#include "devices.h"
#include "parts.h"

#define TELLS_TOTAL(name, type)                                            \
    CUresult name(type *bytes, CUdevice dev)                               \
    {                                                                      \
        CUresult result = REAL(name)(bytes, dev);                          \
        struct device *device = device_of(dev);                            \
        if (result == CUDA_SUCCESS && device != NULL && bytes != NULL)     \
            *bytes = (type)smaller(*bytes, region_shown(&device->region)); \
        return result;                                                     \
    }
TELLS_TOTAL(cuDeviceTotalMem, unsigned)
TELLS_TOTAL(cuDeviceTotalMem_v2, size_t)

static void shrink(struct device *device, uint64_t *free_bytes, uint64_t *total)
{
    if (LOAD(parts_dirty))
        parts_reclaim(device);
    region_glance(&device->region);
    uint64_t limit = region_shown(&device->region);
    uint64_t used = LOAD(device->region.use->total.used);
    *total = smaller(*total, limit);
    *free_bytes = smaller(*free_bytes, used < *total ? *total - used : 0);
}

#define TELLS_FREE(name, type)                                       \
    CUresult name(type *free_bytes, type *total)                     \
    {                                                                \
        struct device *device = device_current();                    \
        if (device == NULL)                                          \
            return REAL(name)(free_bytes, total);                    \
        type real_free = 0, real_total = 0;                          \
        if (free_bytes == NULL || total == NULL)                     \
            return CUDA_ERROR_INVALID_VALUE;                         \
        CUresult result = REAL(name)(&real_free, &real_total);       \
        if (result == CUDA_SUCCESS) {                                \
            uint64_t wide_free = real_free, wide_total = real_total; \
            shrink(device, &wide_free, &wide_total);                 \
            *free_bytes = (type)wide_free;                           \
            *total = (type)wide_total;                               \
        }                                                            \
        return result;                                               \
    }
TELLS_FREE(cuMemGetInfo, unsigned)
TELLS_FREE(cuMemGetInfo_v2, size_t)

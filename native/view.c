/* What a process is told about the card: a card as large as its limit, or as that may become. */
#define _GNU_SOURCE
#include "devices.h"
#include "parts.h"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, dev);
    struct device *device = device_of(dev);
    if (result == CUDA_SUCCESS && device != NULL && bytes != NULL)
        *bytes = (size_t)smaller(*bytes, region_shown(&device->region));
    return result;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice dev)
{
    CUresult result = REAL(cuDeviceTotalMem)(bytes, dev);
    struct device *device = device_of(dev);
    if (result == CUDA_SUCCESS && device != NULL && bytes != NULL)
        *bytes = (unsigned)smaller(*bytes, region_shown(&device->region));
    return result;
}

static void shrink(struct device *device, uint64_t *free_bytes, uint64_t *total)
{
    if (atomic_load_explicit(&parts_dirty, memory_order_relaxed))
        parts_reclaim(device);
    region_glance(&device->region);
    uint64_t limit = region_shown(&device->region);
    uint64_t used = atomic_load_explicit(&device->region.use->total.used, memory_order_relaxed);
    *total = smaller(*total, limit);
    *free_bytes = smaller(*free_bytes, used < *total ? *total - used : 0);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    struct device *device = device_current();
    if (device == NULL)
        return REAL(cuMemGetInfo_v2)(free_bytes, total);
    size_t real_free = 0, real_total = 0;
    if (free_bytes == NULL || total == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = REAL(cuMemGetInfo_v2)(&real_free, &real_total);
    if (result == CUDA_SUCCESS) {
        uint64_t wide_free = real_free, wide_total = real_total;
        shrink(device, &wide_free, &wide_total);
        *free_bytes = (size_t)wide_free;
        *total = (size_t)wide_total;
    }
    return result;
}

CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    struct device *device = device_current();
    if (device == NULL)
        return REAL(cuMemGetInfo)(free_bytes, total);
    unsigned real_free = 0, real_total = 0;
    if (free_bytes == NULL || total == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = REAL(cuMemGetInfo)(&real_free, &real_total);
    if (result == CUDA_SUCCESS) {
        uint64_t wide_free = real_free, wide_total = real_total;
        shrink(device, &wide_free, &wide_total);
        *free_bytes = (unsigned)wide_free;
        *total = (unsigned)wide_total;
    }
    return result;
}

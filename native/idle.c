/* Idle tenants: one that does not call the driver for long may be suspended for others, and comes
   back with its next call. That call is counted and, while the process is away, asks to be resumed
   (wish.c) and waits, before the driver sees it. Calls that are counted by nothing else, copies
   above all, pass through here. */
#define _GNU_SOURCE
#include "devices.h"

#include <errno.h>
#include <time.h>

shared32 watched;

/* Counted first, then looked: who suspends writes first that it is away, then looks at the count.
   So one of the two sees the other. */
static void count_and_wait(void)
{
    struct device *device;
    int error = errno;
    for (int i = 0; (device = device_at(i)) != NULL; i++) {
        struct berth_region *region = &device->region;
        if (!device->limited || region->slot < 0)
            continue;
        atomic_fetch_add(&region->use->calls, 1);
        while (atomic_load(&region->limit->watch) == BERTH_AWAY)
            if (!region_ask(region, BERTH_COMES_BACK, clock_ns()))
                nanosleep(&(struct timespec){ 0, 10000000 }, NULL);
    }
    errno = error;
}
void (*arriving)(void) = count_and_wait;

#define PASS(name, params, args) \
    CUresult name params         \
    {                            \
        return REAL(name) args;  \
    }
#define COPY(name, thread, params, args)                         \
    PASS(name, params, args) PASS(name##_##thread, params, args)
COPY(cuMemcpy, ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
COPY(cuMemcpyHtoD_v2, ptds, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes))
COPY(cuMemcpyDtoH_v2, ptds, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))
COPY(cuMemcpyDtoD_v2, ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
COPY(cuMemsetD8_v2, ptds, (CUdeviceptr to, unsigned char value, size_t count), (to, value, count))
COPY(cuMemsetD32_v2, ptds, (CUdeviceptr to, unsigned value, size_t count), (to, value, count))
COPY(cuMemcpyAsync, ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemcpyHtoDAsync_v2, ptsz, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemcpyDtoHAsync_v2, ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemcpyDtoDAsync_v2, ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))
COPY(cuMemsetD8Async, ptsz, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
     (to, value, count, stream))
COPY(cuMemsetD32Async, ptsz, (CUdeviceptr to, unsigned value, size_t count, CUstream stream),
     (to, value, count, stream))

/* Memory of the system that a GPU reaches by itself (HMM, ATS): of malloc, say. What is prefetched
   to a GPU counts there until it is prefetched away or unmapped. What a kernel brings by touching
   it is seen by no call; nvidia-uvm's `uvm_disable_hmm=1` and `uvm_ats_mode=0` turn that off.

   Managed memory counts where it was allocated, wherever it is prefetched to. */
#define _GNU_SOURCE
#include "devices.h"
#include "parts.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, LOOK_BYTES = 2 << 20 };

struct range {
    uint64_t from, to;
    struct device *device;
};
static struct turn turn;
static struct range *ranges; /* that do not overlap */
static size_t range_count, range_space;

/* With the turn; without memory for it the range stays charged until the process ends. */
static void add(struct range range)
{
    if (range_count == range_space)
        ranges = list_grown(ranges, &range_space, sizeof *ranges);
    if (range.from < range.to && range_count < range_space)
        ranges[range_count++] = range;
}

static uint64_t overlap(const struct range *one, uint64_t from, uint64_t to)
{
    uint64_t low = one->from > from ? one->from : from, high = one->to < to ? one->to : to;
    return low < high ? high - low : 0;
}

static uint64_t covered(const struct device *device, uint64_t from, uint64_t to)
{
    uint64_t sum = 0;
    IN_TURN(&turn);
    for (size_t i = 0; i < range_count; i++)
        if (ranges[i].device == device)
            sum += overlap(&ranges[i], from, to);
    return sum;
}

/* Takes addresses out of what counts, and gives back what counted on other GPUs than `kept`;
   returns what counted on that. */
static uint64_t cut(uint64_t from, uint64_t to, const struct device *kept)
{
    uint64_t sum = 0;
    for (;;) {
        struct range gone = { 0, 0, NULL };
        uint64_t bytes = 0;
        turn_take(&turn);
        for (size_t i = 0; i < range_count && bytes == 0; i++) {
            if ((bytes = overlap(&ranges[i], from, to)) == 0)
                continue;
            gone = ranges[i];
            ranges[i] = ranges[--range_count];
            add((struct range){ gone.from, gone.from < from ? from : gone.from, gone.device });
            add((struct range){ gone.to > to ? to : gone.to, gone.to, gone.device });
        }
        turn_leave(&turn);
        if (bytes == 0)
            return sum;
        if (gone.device == kept)
            sum += bytes;
        else
            give(gone.device, bytes);
    }
}

/* What was unmapped by now is on no card. */
static void drop_unmapped(struct device *device)
{
    unsigned char seen[LOOK_BYTES / PAGE];
    KEEPS_ERRNO;
    for (size_t i = 0;; i++) {
        struct range range =
            WITHIN(&turn, i < range_count ? ranges[i] : (struct range){ 0, 0, NULL });
        if (range.device == NULL)
            break;
        if (device != NULL && range.device != device)
            continue;
        for (uint64_t at = range.from; at < range.to; at += LOOK_BYTES) {
            uint64_t end = at + LOOK_BYTES < range.to ? at + LOOK_BYTES : range.to;
            if (mincore((void *)(uintptr_t)at, end - at, seen) != 0 && errno == ENOMEM)
                (void)cut(at, end, NULL);
        }
    }
}

/* ---- the calls ---- */

struct prefetch {
    uint64_t from, to, taken, had;
    struct device *device; /* NULL: to the host */
    bool counted;
};

static bool is_system(uint64_t at)
{
    unsigned type;
    return !HAVE(cuPointerGetAttribute) ||
           real.cuPointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, at) != CUDA_SUCCESS;
}

static bool prefetch_begin(struct prefetch *prefetch, CUdeviceptr at, size_t bytes,
                           CUlocation location, const char *call)
{
    *prefetch = (struct prefetch){ .from = at & ~(uint64_t)(PAGE - 1),
                                   .to = (at + bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1) };
    if (!limits_any() || bytes == 0 || !is_system(at))
        return true;
    prefetch->counted = true;
    if (location.type >= CU_LOCATION_HOST && location.type <= CU_LOCATION_HOST_LAST)
        return true;
    struct device *device = device_of(location.id);
    prefetch->device = device != NULL ? device : device_for_memory();
    if (prefetch->device == NULL)
        return true;
    prefetch->had = covered(prefetch->device, prefetch->from, prefetch->to);
    prefetch->taken = prefetch->to - prefetch->from - prefetch->had;
    return obtain(prefetch->device, prefetch->taken, call);
}

static void prefetch_end(const struct prefetch *prefetch, CUresult result)
{
    if (!prefetch->counted)
        return;
    if (result != CUDA_SUCCESS) {
        if (prefetch->device != NULL)
            give(prefetch->device, prefetch->taken);
        return;
    }
    uint64_t had = cut(prefetch->from, prefetch->to, prefetch->device);
    if (prefetch->device == NULL)
        return;
    if (had > prefetch->had) /* another thread prefetched it meanwhile */
        give(prefetch->device, had - prefetch->had);
    IN_TURN(&turn);
    add((struct range){ prefetch->from, prefetch->to, prefetch->device });
}

/* The first version names the host by -1. */
static CUlocation location_of(CUdevice dev)
{
    return (CUlocation){ dev < 0 ? CU_LOCATION_HOST : CU_LOCATION_DEVICE, dev };
}

#define PREFETCH(location, call)                                                    \
    ({                                                                              \
        struct prefetch prefetch;                                                   \
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;                                 \
        if (prefetch_begin(&prefetch, at, bytes, location, "cuMemPrefetchAsync")) { \
            result = (call);                                                        \
            prefetch_end(&prefetch, result);                                        \
        }                                                                           \
        result;                                                                     \
    })
DEFINE_TWINS(cuMemPrefetchAsync, (CUdeviceptr at, size_t bytes, CUdevice dev, CUstream stream),
             PREFETCH(location_of(dev), REAL_TWIN(cuMemPrefetchAsync)(at, bytes, dev, stream)))
DEFINE_TWINS(cuMemPrefetchAsync_v2,
             (CUdeviceptr at, size_t bytes, CUlocation location, unsigned flags, CUstream stream),
             PREFETCH(location,
                      REAL_TWIN(cuMemPrefetchAsync_v2)(at, bytes, location, flags, stream)))

/* A list of ranges; each location is that of the ranges from its index to the next one's. */
struct batch {
    CUdeviceptr *at;
    size_t *bytes, count;
    CUlocation *locations;
    size_t *first, location_count;
};
typedef CUresult batch_call(CUdeviceptr *at, size_t *bytes, size_t count, CUlocation *locations,
                            size_t *first, size_t location_count, unsigned long long flags,
                            CUstream stream);

static CUresult prefetch_batch(const struct batch *batch, batch_call *call,
                               unsigned long long flags, CUstream stream)
{
    bool counted = limits_any() && batch->at != NULL && batch->bytes != NULL &&
                   batch->locations != NULL && batch->first != NULL && batch->location_count != 0 &&
                   batch->count != 0;
    struct prefetch *list = counted ? calloc(batch->count, sizeof *list) : NULL;
    CUresult result = counted && list == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    size_t begun = 0, place = 0;
    for (; list != NULL && begun < batch->count; begun++) {
        while (place + 1 < batch->location_count && batch->first[place + 1] <= begun)
            place++;
        if (!prefetch_begin(&list[begun], batch->at[begun], batch->bytes[begun],
                            batch->locations[place], "cuMemPrefetchBatchAsync")) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
    }
    if (result == CUDA_SUCCESS)
        result = call(batch->at, batch->bytes, batch->count, batch->locations, batch->first,
                      batch->location_count, flags, stream);
    for (size_t i = 0; list != NULL && i < begun; i++)
        prefetch_end(&list[i], result);
    free(list);
    return result;
}

#define BATCH(name)                                                                           \
    DEFINE_TWINS(                                                                             \
        name,                                                                                 \
        (CUdeviceptr * at, size_t *bytes, size_t count, CUlocation *locations, size_t *first, \
         size_t location_count, unsigned long long flags, CUstream stream),                   \
        prefetch_batch(&(struct batch){ at, bytes, count, locations, first, location_count }, \
                       REAL_TWIN(name), flags, stream))
BATCH(cuMemPrefetchBatchAsync)
BATCH(cuMemDiscardAndPrefetchBatchAsync)

static void system_memory_forget(void)
{
    ranges = NULL; /* which may be amid its growth */
    range_count = range_space = 0;
}

PART(.turn = &turn, .forget = system_memory_forget, .reclaim = drop_unmapped);

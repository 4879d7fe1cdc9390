/* The devices that this process sees, each with its region. */
#define _GNU_SOURCE
#include "devices.h"
#include "capture.h"
#include "cards.h"
#include "ledger.h"
#include "parts.h"
#include "settings.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

shared32 limiting, pacing, several;

static struct device devices[MAX_DEVICES];
static shared32 device_count, context_changes;
static struct turn turn;
static shared32 started, forked; /* forked: the driver answers nothing at all in this child */

static _Thread_local struct {
    CUcontext context, seen; /* seen: whosever device it is */
    struct device *device;
    uint32_t changes;
} last;

static void after_fork(void)
{
    region_fork_child();
    for (uint32_t i = 0; i < atomic_load(&device_count); i++)
        if (devices[i].limited)
            region_forget(&devices[i].region);
    atomic_store(&forked, atomic_load(&limiting));
    atomic_store(&started, 0);
    last.context = NULL;
}

PART(.turn = &turn, .fork_begins = region_fork_begins, .fork_ended = region_fork_ended,
     .forget = after_fork);

/* A GPU that has no limit of its own where others have one: nothing of it. */
static bool nothing_of(struct device *device)
{
    void *memory = mmap(NULL, sizeof(struct berth_limit_file) + sizeof(struct berth_use_file),
                        PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    memset(&device->region, 0, sizeof device->region);
    device->region.limit = memory;
    device->region.use = (void *)((char *)memory + sizeof(struct berth_limit_file));
    device->region.slot = -1;
    return true;
}

/* Where a limit cannot be known after all: the driver has started by now, and a program that does
   not listen to its answer must get nothing from it. */
static void nothing_of_all(const struct card *cards, int count)
{
    for (int i = 0; i < count; i++) {
        devices[i].ordinal = i;
        devices[i].handle = cards[i].handle;
        devices[i].limited = nothing_of(&devices[i]);
    }
    atomic_store(&device_count, (uint32_t)count);
    atomic_store(&limiting, 1);
}

static bool attach(struct device *device, const struct card *card, struct berth_error *error)
{
    uint64_t mem_mib = 0, core_pct = 0, bytes = 0;
    uint32_t flags = (settings.burst ? BERTH_BURST : 0) | settings.priority;
    bool given = settings.mem_mib.given || settings.core_pct.given || settings.priority != 0;
    if (given) {
        if (!settings.mem_mib.given)
            bytes = card->bytes;
        else if (settings_for(&settings.mem_mib, card->position, device->uuid, &mem_mib))
            bytes = mem_mib << 20;
        else
            log_line("nothing of GPU %d: the list of limits names others only", card->position);
        if (card->bytes != 0 && bytes > card->bytes) {
            log_line("the limit of %llu MiB is above the card, which has %llu MiB; the card's size "
                     "is the limit",
                     (unsigned long long)mem_mib, (unsigned long long)(card->bytes >> 20));
            bytes = card->bytes;
        }
        if (settings.core_pct.given)
            settings_for(&settings.core_pct, card->position, device->uuid, &core_pct);
    }
    for (int attempts = 0; attempts < 3; attempts++) {
        bool made = given && attempts == 0;
        if (made ? !region_make(&device->region, settings.folder, device->uuid, "", bytes,
                                (uint32_t)core_pct, flags, error)
                 : !region_open(&device->region, settings.folder, device->uuid, error)) {
            if (error->text[0] != 0 || !nothing_of(device))
                return false;
            device->limited = true;
            return true;
        }
        device->limited = true;
        if (region_join(&device->region, error))
            return true;
        if (!region_replaced(&device->region))
            return false;
        region_close(&device->region); /* between the two, by one of the same name */
    }
    return false;
}

/* With the turn held: each device gets its region and this process a slot in it. */
static bool join_all(const struct card *cards, int count, struct berth_error *error)
{
    bool paced = false, counted = false;
    for (int i = 0; i < count; i++) {
        struct device *device = &devices[i];
        bool known = device->limited; /* before a fork */
        device->ordinal = i;
        device->handle = cards[i].handle;
        memcpy(device->uuid, cards[i].uuid, 16);
        if (cards[i].nvml != NULL)
            atomic_store(&device->nvml, cards[i].nvml);
        if (known ? !region_join(&device->region, error) && device->region.use->magic != 0
                  : !attach(device, &cards[i], error))
            return false;
        error->text[0] = 0;
        if (cards[i].pageable && device->region.slot >= 0 &&
            atomic_exchange(&device->region.use->pageable_logged, 1) == 0)
            log_line(
                "GPU %d reaches the memory of the system by itself: what is prefetched of it "
                "counts, what kernels touch does not; uvm_disable_hmm=1 of nvidia-uvm (HMM) or "
                "uvm_ats_mode=0 (ATS) turns that off",
                cards[i].position);
        counted = counted || atomic_load(&device->region.limit->watch) != BERTH_UNWATCHED;
        paced = paced || atomic_load(&device->region.limit->core_pct) != 0 ||
                (atomic_load(&device->region.limit->flags) & (BERTH_AGENT | BERTH_LOW));
        atomic_store(&device_count, (uint32_t)i + 1);
    }
    atomic_store(&watched, counted);
    atomic_store(&pacing, paced || counted); /* each launch is looked at */
    return true;
}

bool devices_none(void)
{
    return atomic_load(&settings.no_gpu) != 0;
}

CUresult devices_start(CUresult result)
{
    if (!settings.active || result != CUDA_SUCCESS)
        return result;
    int saved = errno, count = 0;
    struct card cards[MAX_DEVICES];
    struct berth_error error = { "" };
    bool first = !atomic_load(&started) && !devices_none();
    /* Two threads may both ask; the driver answers them the same. */
    if (first)
        count = cards_ask(cards, &error);
    turn_take(&turn);
    if (first && !atomic_load(&started) && !devices_none()) {
        if (error.text[0] == 0 && join_all(cards, count, &error)) {
            atomic_store(&several, count > 1 || atomic_load(&watched));
            atomic_store(&limiting, 1);
            atomic_store(&forked, 0);
            atomic_store(&started, 1);
        } else {
            settings_fail(error.text);
            nothing_of_all(cards, count);
        }
    }
    turn_leave(&turn);
    errno = saved;
    return devices_none() ? CUDA_ERROR_NO_DEVICE : result;
}

CUresult cuInit(unsigned flags)
{
    if (!HAVE(cuInit)) {
        (void)real.find("cuInit");
        if (!HAVE(cuInit)) {
            log_line("no GPU: there is no libcuda.so.1 loaded; install NVIDIA's driver, or give "
                     "the container its libraries");
            return CUDA_ERROR_NO_DEVICE;
        }
    }
    if (settings.active && devices_none())
        return CUDA_ERROR_NO_DEVICE;
    return devices_start(real.cuInit(flags));
}

CUresult cuDeviceGetCount(int *count)
{
    if (settings.active && devices_none()) {
        if (count != NULL)
            *count = 0;
        return CUDA_ERROR_NO_DEVICE;
    }
    return REAL(cuDeviceGetCount)(count);
}

struct device *device_of(CUdevice handle)
{
    if (UNLIKELY(!LOAD_ACQUIRE(limiting)))
        return NULL;
    uint32_t count = LOAD_ACQUIRE(device_count);
    if (handle >= 0 && (uint32_t)handle < count && devices[handle].handle == handle)
        return devices[handle].limited ? &devices[handle] : NULL;
    for (uint32_t i = 0; i < count; i++)
        if (devices[i].handle == handle)
            return devices[i].limited ? &devices[i] : NULL;
    return NULL;
}

/* The first GPU that has a limit: what belongs to no GPU in particular counts there. */
static struct device *device_first(void)
{
    struct device *device;
    for (int i = 0; (device = device_at(i)) != NULL; i++)
        if (device->limited)
            return device;
    return NULL;
}

/* A driver that fails to tell is no way round the limit. */
static struct device *context_unknown(CUresult result)
{
    static shared32 logged;
    if (atomic_load(&forked))
        return NULL;
    if (atomic_exchange(&logged, 1) == 0)
        log_line("the driver does not tell which context is current (cuCtxGetCurrent: error %d); "
                 "what has no other GPU counts on the first that has a limit",
                 result);
    return device_first();
}

CUcontext context_current(void)
{
    CUcontext context = NULL;
    return REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
}

bool context_enter(CUcontext context)
{
    return HAVE(cuCtxPushCurrent_v2) && HAVE(cuCtxPopCurrent_v2) &&
           real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

void context_leave(bool entered)
{
    CUcontext context;
    if (entered)
        (void)real.cuCtxPopCurrent_v2(&context);
}

struct device *device_current(void)
{
    CUcontext context = NULL;
    CUdevice handle = 0;
    if (UNLIKELY(!LOAD_ACQUIRE(limiting)))
        return NULL;
    last.seen = NULL;
    CUresult asked =
        LIKELY(HAVE(cuCtxGetCurrent)) ? real.cuCtxGetCurrent(&context) : CUDA_ERROR_NOT_FOUND;
    if (UNLIKELY(asked != CUDA_SUCCESS))
        return context_unknown(asked);
    if (context == NULL)
        return NULL;
    last.seen = context;
    uint32_t changes = LOAD_ACQUIRE(context_changes);
    if (LIKELY(last.context == context && last.changes == changes))
        return last.device;
    if (!HAVE(cuCtxGetDevice) || real.cuCtxGetDevice(&handle) != CUDA_SUCCESS) {
        struct entry entry; /* a failure is no way round the limit */
        bool known = ledger_get(CONTEXT, (uintptr_t)context, &entry);
        return known ? device_at(entry.device) : device_first();
    }
    last.context = context;
    last.changes = changes;
    last.device = device_of(handle);
    return last.device != NULL ? last.device : (last.device = device_first());
}

struct device *device_for_memory(void)
{
    struct device *device = device_current();
    if (LIKELY(device != NULL) || atomic_load(&forked))
        return device;
    return device_first();
}

/* NULL where the driver does not tell. */
static struct device *device_of_context(CUcontext context)
{
    struct entry entry;
    CUdevice handle;
    if (ledger_get(CONTEXT, (uintptr_t)context, &entry))
        return device_at(entry.device);
    if (REAL(cuCtxGetDevice_v2)(&handle, context) == CUDA_SUCCESS)
        return device_of(handle);
    if (!HAVE(cuCtxGetDevice) || !context_enter(context))
        return NULL;
    bool reported = real.cuCtxGetDevice(&handle) == CUDA_SUCCESS;
    context_leave(true);
    return reported ? device_of(handle) : NULL;
}

/* A stream of a green context has no context that the first cuStreamGetCtx could name. */
struct device *device_of_stream(CUstream stream, bool *known)
{
    CUdevice handle;
    CUcontext context;
    CUgreen green;
    struct entry entry;
    struct device *device = NULL;
    *known = true;
    if (!LOAD_ACQUIRE(limiting) || atomic_load(&forked))
        return NULL;
    if (LIKELY(!LOAD(several)))
        return device_first();
    if ((uintptr_t)stream <= 2)
        return device_for_memory();
    if (REAL(cuStreamGetDevice)(stream, &handle) == CUDA_SUCCESS)
        device = device_of(handle);
    if (device == NULL && REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS && context != NULL)
        device = device_of_context(context);
    if (device == NULL && REAL(cuStreamGetGreenCtx)(stream, &green) == CUDA_SUCCESS &&
        green != NULL && ledger_get(GREEN, (uintptr_t)green, &entry))
        device = device_at(entry.device);
    *known = device != NULL;
    return device;
}

CUcontext device_context(void)
{
    return last.seen;
}

struct device *device_at(int position)
{
    return atomic_load(&limiting) && position >= 0 &&
                   (uint32_t)position < atomic_load(&device_count)
               ? &devices[position]
               : NULL;
}

struct device *device_by_uuid(const unsigned char uuid[16])
{
    struct device *device;
    for (int i = 0; (device = device_at(i)) != NULL; i++)
        if (memcmp(device->uuid, uuid, 16) == 0)
            return device->limited ? device : NULL;
    return NULL;
}

NVdevice device_nvml(struct device *device)
{
    NVdevice known = atomic_load(&device->nvml);
    if (known == NULL && (known = nvml_named(device->uuid)) != NULL)
        atomic_store(&device->nvml, known);
    return known;
}

void devices_changed(void)
{
    atomic_fetch_add(&context_changes, 1);
}

bool take_quietly(struct device *device, uint64_t bytes, uint64_t *left)
{
    *left = 0;
    if (LIKELY(region_take(&device->region, bytes, left)))
        return true;
    if (device->region.slot < 0)
        return false;
    if (region_reap(&device->region) > 0 && region_take(&device->region, bytes, left))
        return true;
    parts_reclaim(device);
    return region_take(&device->region, bytes, left) || region_take_beyond(&device->region, bytes);
}

void refuse(struct device *device, uint64_t bytes, uint64_t left, const char *call)
{
    static shared32 logged;
    region_refuse(&device->region, call, bytes, left);
    uint32_t number = atomic_fetch_add(&logged, 1);
    if (number < 16 || (number & (number - 1)) == 0) /* a program that asks again and again */
        log_line("refused %s of %llu bytes on GPU %d: %llu left", call, (unsigned long long)bytes,
                 device->ordinal, (unsigned long long)left);
}

void witness_answered(struct device *device, uint64_t bytes, const char *call, CUresult result)
{
    uint64_t limit = LOAD(device->region.limit->mem_bytes),
             others = LOAD(device->region.use->total.used) - bytes;
    if (result == CUDA_SUCCESS)
        region_note_peak(&device->region);
    else if (result == CUDA_ERROR_OUT_OF_MEMORY)
        refuse(device, bytes, others < limit ? limit - others : 0, call);
}

/* Whether a larger limit may be had by asking, and would do. */
static bool can_help(const struct berth_region *region, uint64_t bytes)
{
    uint64_t most = region_most(region), used = atomic_load(&region->use->total.used);
    return most > atomic_load(&region->limit->mem_bytes) && used <= most && bytes <= most - used &&
           !capture_under_way();
}

static __attribute__((noinline, cold)) bool obtain_slowly(struct device *device, uint64_t bytes,
                                                          uint64_t asked, const char *call)
{
    uint64_t left, since_ns = 0;
    if (take_quietly(device, bytes, &left))
        return true;
    while (can_help(&device->region, bytes)) {
        if (since_ns == 0)
            since_ns = clock_ns();
        bool again = region_ask(&device->region, bytes, since_ns);
        if (take_quietly(device, bytes, &left))
            return true;
        if (!again)
            break;
    }
    refuse(device, asked, left + above(asked, bytes), call);
    return false;
}

bool obtain_for(struct device *device, uint64_t bytes, uint64_t asked, const char *call)
{
    uint64_t left;
    return LIKELY(region_take(&device->region, bytes, &left)) ||
           obtain_slowly(device, bytes, asked, call);
}

bool obtain(struct device *device, uint64_t bytes, const char *call)
{
    return obtain_for(device, bytes, bytes, call);
}

void give(struct device *device, uint64_t bytes)
{
    region_give(&device->region, bytes);
}

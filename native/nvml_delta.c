/* What a call made the driver take for itself, by what NVML or the driver says before it and after
   it.

   A pid proves nothing: in a container NVML may tell of the host's pids, among which the own number
   is another process's, or of the own pid with no memory. So a process is the one that comes to
   hold memory while its first context is made. */
#define _GNU_SOURCE
#include "nvml_delta.h"
#include "processes.h"
#include "settings.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 256 };
enum {
    KNOWN_CONTEXT_BYTES = 512 << 20
}; /* what a context takes on the cards of a data centre, with some to spare */
#define LEAST_BYTES (1ull << 20)    /* no context is smaller */
#define MOST_BYTES (2ull << 30)     /* or larger */
#define APART_BYTES (16ull << 20)   /* how far two of NVML's words may be apart */
#define MEASURING_NS 30000000000ull /* one that has measured for longer has died */

struct look {
    NVprocess list[MOST];
    unsigned count;
    bool listed, totalled, steady; /* steady: no process of the partition allocated meanwhile */
    uint64_t total, free_bytes, charged, change, held;
    uint64_t measuring; /* what this look has put down as its own, 0 where another measures */
};

static bool read_list(NVdevice handle, struct look *look)
{
    int (*const calls[])(NVdevice, unsigned *,
                         NVprocess *) = { real.nvmlDeviceGetComputeRunningProcesses_v3,
                                          real.nvmlDeviceGetComputeRunningProcesses_v2 };
    for (int i = 0; i < 2; i++) {
        look->count = MOST;
        if (calls[i] != NULL && calls[i](handle, &look->count, look->list) == NV_SUCCESS)
            return true;
    }
    NVprocess_v1 list[MOST];
    look->count = MOST;
    if (!HAVE(nvmlDeviceGetComputeRunningProcesses) ||
        real.nvmlDeviceGetComputeRunningProcesses(handle, &look->count, list) != NV_SUCCESS) {
        look->count = 0;
        return false;
    }
    for (unsigned i = 0; i < look->count && i < MOST; i++)
        look->list[i] = (NVprocess){ .pid = list[i].pid, .bytes = list[i].bytes };
    return true;
}

uint64_t driver_free(void)
{
    size_t free_bytes = 0, total = 0;
    bool said = HAVE(cuMemGetInfo_v2) && real.cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS;
    return said ? free_bytes : 0;
}

/* What all hold and what was charged, of one instant if no process of the partition allocates for
   so long. */
static void look_at_sums(struct device *device, struct look *look)
{
    NVdevice handle = device_nvml(device);
    NVmemory memory;
    struct berth_use_file *use = device->region.use;
    look->steady = false;
    for (int attempts = 0; attempts < 4 && !look->steady; attempts++) {
        look->change = atomic_load(&use->total.tag);
        look->charged = atomic_load(&use->total.used);
        look->totalled = handle != NULL && HAVE(nvmlDeviceGetMemoryInfo) &&
                         real.nvmlDeviceGetMemoryInfo(handle, &memory) == NV_SUCCESS;
        look->total = look->totalled ? memory.used : 0;
        look->free_bytes = driver_free();
        look->steady = atomic_load(&use->total.tag) == look->change;
    }
}

static void fill(struct device *device, struct look *look)
{
    NVdevice handle = device_nvml(device);
    struct berth_slot *slot = processes_slot(device);
    uint64_t seq;
    for (int attempts = 0; attempts < 4;
         attempts++) { /* until no other thread of this process allocates meanwhile */
        seq = slot != NULL ? atomic_load(&slot->seq) : 0;
        look->listed = handle != NULL && read_list(handle, look);
        look->held = slot != NULL ? atomic_load(&slot->held) : 0;
        if (slot == NULL || atomic_load(&slot->seq) == seq)
            break;
    }
    look_at_sums(device, look);
}

struct look *look_before(struct device *device)
{
    struct look *look = calloc(1, sizeof *look);
    if (look == NULL)
        return NULL;
    /* Two of a partition that measure at once would measure each other. Neither waits: the second
       charges what is known. */
    shared64 *measuring = &device->region.use->measuring_ns;
    uint64_t since = 0, now = clock_ns() & ~(uint64_t)BERTH_MEASURING_SLOT;
    uint64_t own = now | ((unsigned)device->region.slot & BERTH_MEASURING_SLOT);
    if (atomic_compare_exchange_strong(measuring, &since, own) ||
        (now - since > MEASURING_NS && atomic_compare_exchange_strong(measuring, &since, own)))
        look->measuring = own;
    fill(device, look);
    return look;
}

void look_end(struct device *device, struct look *before)
{
    uint64_t own = before != NULL ? before->measuring : 0;
    if (own != 0)
        atomic_compare_exchange_strong(&device->region.use->measuring_ns, &own, 0);
    free(before);
}

static uint64_t bytes_of(const struct look *look, unsigned pid)
{
    for (unsigned i = 0; i < look->count && i < MOST; i++)
        if (look->list[i].pid == pid)
            return look->list[i].bytes == ~0ull ? 0 : look->list[i].bytes;
    return 0;
}

static bool lists(const struct look *look, unsigned pid)
{
    for (unsigned i = 0; look->listed && i < look->count && i < MOST; i++)
        if (look->list[i].pid == pid)
            return true;
    return false;
}

/* Whether NVML's pid is another process's of the partition. */
static bool is_fellow(struct device *device, unsigned pid)
{
    struct berth_slot *own = processes_slot(device), *slots = device->region.use->slots;
    uint32_t seen = atomic_load(&device->region.use->slots_seen);
    bool own_numbers = processes_own_pid(device) != 0;
    for (uint32_t i = 0; own != NULL && i < seen && i < BERTH_SLOTS; i++) {
        struct berth_slot *slot = &slots[i];
        if (slot != own && atomic_load(&slot->state) == 1 &&
            (atomic_load(&slot->outer_pid) == pid ||
             (own_numbers && slot->pid == pid && slot->pid_namespace == own->pid_namespace)))
            return true;
    }
    return false;
}

/* Whether the partition has another living process. */
static bool has_fellows(struct device *device)
{
    struct berth_slot *own = processes_slot(device), *slots = device->region.use->slots;
    uint32_t seen = atomic_load(&device->region.use->slots_seen);
    for (uint32_t i = 0; i < seen && i < BERTH_SLOTS; i++)
        if (&slots[i] != own && atomic_load(&slots[i].state) == 1)
            return true;
    return false;
}

/* The one that came to hold memory between two looks; 0 where that was none, or several of which
   none can be told. One that is no longer listed afterwards has died: it may have been of the
   partition until a moment ago. */
static unsigned newcomer(struct device *device, const struct look *before, const struct look *after,
                         uint64_t *least)
{
    unsigned pids[MOST], found = 0, count = 0, outer = processes_outer_pid(),
                         own = processes_own_pid(device), told = 0;
    struct look later = { .count = 0 };
    *least = UINT64_MAX;
    for (unsigned i = 0; before->listed && after->listed && i < after->count && i < MOST; i++) {
        unsigned pid = after->list[i].pid;
        uint64_t bytes = bytes_of(after, pid);
        if (bytes >= LEAST_BYTES && bytes <= MOST_BYTES && bytes_of(before, pid) == 0 &&
            !is_fellow(device, pid))
            pids[found++] = pid;
    }
    if (found != 0)
        (void)read_list(device_nvml(device), &later);
    for (unsigned i = 0; i < found; i++) {
        uint64_t bytes = bytes_of(after, pids[i]);
        if (bytes_of(&later, pids[i]) == 0)
            continue;
        pids[count++] = pids[i];
        if (pids[i] == outer || (pids[i] == own && told == 0))
            told = pids[i];
        if (bytes < *least)
            *least = bytes;
    }
    if (count != 1 || told != 0)
        return told;
    /* Where a process goes by the own number that has nothing, either the numbers are others or a
       context is nothing: the newcomer may be another. */
    if (lists(before, own) && lists(after, own))
        return 0;
    /* Learned anew each time: a list that lagged may have shown another's start alone. */
    atomic_store(&device->region.use->renumbered, pids[0] != (unsigned)getpid());
    return pids[0];
}

static uint64_t above(uint64_t more, uint64_t less)
{
    return more > less ? more - less : 0;
}

/* How much more the others have, of those that were there before. */
static uint64_t others_growth(const struct look *before, const struct look *after, unsigned own)
{
    uint64_t growth = 0;
    for (unsigned i = 0; i < after->count && i < MOST; i++) {
        uint64_t had = bytes_of(before, after->list[i].pid),
                 has = bytes_of(after, after->list[i].pid);
        if (had != 0 && has > had && after->list[i].pid != own)
            growth += has - had;
    }
    return growth;
}

/* What is gone from the card beside what this partition was charged: a call cannot have taken more.
 */
static bool gone(struct device *device, const struct look *after, uint64_t reserved, uint64_t *all,
                 uint64_t *foreign)
{
    size_t total = 0;
    if (after->free_bytes == 0 || !HAVE(cuDeviceTotalMem_v2) ||
        real.cuDeviceTotalMem_v2(&total, device->handle) != CUDA_SUCCESS)
        return false;
    *all = above(total, after->free_bytes);
    *foreign = above(*all, above(after->charged, reserved));
    return true;
}

/* The most of several looks: what others were charged and have not had of the driver yet makes it
   less. `still`: no process of the partition was charged anything from the first of them to the
   last.
 */
static uint64_t most_foreign(struct device *device, const struct look *after, uint64_t reserved,
                             bool *still)
{
    struct look again = *after;
    uint64_t most = 0, all, foreign;
    for (int looks = 0; looks < 8; looks++) {
        if (again.steady && gone(device, &again, reserved, &all, &foreign) && foreign > most)
            most = foreign;
        *still = *still && again.steady && again.change == after->change;
        sched_yield();
        look_at_sums(device, &again);
    }
    return most;
}

static void tell(struct device *device, const char *what, uint64_t bytes, const char *way,
                 unsigned pid)
{
    static shared32 told;
    if (atomic_fetch_add(&told, 1) < 64) /* a program that makes contexts for ever fills no disk */
        log_line("%s on GPU %d: %llu MiB charged, by %s%.0u", what, device->ordinal,
                 (unsigned long long)(bytes >> 20), way, pid);
}

/* How much less they have, those that ended meanwhile included. */
static uint64_t others_shrink(const struct look *before, const struct look *after, unsigned own)
{
    uint64_t shrink = 0;
    for (unsigned i = 0; before->listed && after->listed && i < before->count && i < MOST; i++)
        if (before->list[i].pid != own)
            shrink +=
                above(bytes_of(before, before->list[i].pid), bytes_of(after, before->list[i].pid));
    return shrink;
}

/* Whether the list has memory for any process: in a container it may have none. */
static bool tells_bytes(const struct look *look)
{
    for (unsigned i = 0; i < look->count && i < MOST; i++)
        if (look->list[i].bytes != 0 && look->list[i].bytes != ~0ull)
            return true;
    return false;
}

/* This process where NVML tells of it, in both looks, that it holds nothing: among others that hold
   memory, or where the card as a whole lost nothing either, by two that agree to the byte. 0 where
   that is not so: a list that has nothing for any process tells nothing. */
static unsigned holds_nothing(struct device *device, const struct look *before,
                              const struct look *after, uint64_t all)
{
    unsigned outer = processes_outer_pid(),
             pid = outer != 0 && lists(after, outer) ? outer : processes_own_pid(device);
    if (pid == 0 || !lists(before, pid) || !lists(after, pid) || bytes_of(after, pid) != 0)
        return 0;
    bool still =
        before->totalled && after->totalled && after->total == before->total && after->total == all;
    return tells_bytes(after) || still ? pid : 0;
}

static uint64_t context_taken(struct device *device, const struct look *before,
                              const struct look *after, uint64_t reserved, enum told *how)
{
    struct berth_slot *slot = processes_slot(device);
    uint64_t least, all = 0, foreign = UINT64_MAX, bytes;
    unsigned pid = newcomer(device, before, after, &least);
    bool known_gone = gone(device, after, reserved, &all, &foreign);
    bool totals = before->totalled && after->totalled;
    uint64_t rise = totals ? above(after->total, before->total) : 0;
    rise += totals ? others_shrink(before, after, pid) : 0;
    if (pid != 0 && totals && bytes_of(after, pid) > rise + APART_BYTES)
        pid = 0; /* more than the card as a whole lost: not what it seems */
    if (pid != 0)
        processes_found(device, pid);
    unsigned known = slot != NULL ? atomic_load(&slot->outer_pid) : 0;
    uint64_t own = above(after->held, before->held);
    if (known != 0 && bytes_of(after, known) > bytes_of(before, known)) {
        bytes = above(bytes_of(after, known) - bytes_of(before, known), own);
        *how = TOLD_LIST;
        tell(device, "a context", bytes, "NVML's list, in which this process is ", known);
        return bytes;
    }
    if (least == UINT64_MAX &&
        (pid = holds_nothing(device, before, after, known_gone ? all : UINT64_MAX)) != 0) {
        processes_found(device, pid);
        *how = TOLD_LEAST; /* which another's list may contradict */
        return 0;
    }
    if (before->listed && after->listed && least != UINT64_MAX) {
        *how = TOLD_LEAST;
        tell(device, "a context", least, "the least of several that began at once", 0);
        return least;
    }
    /* Where no process of the partition allocated between the looks, and few were about to. */
    bool still = before->steady && after->steady && before->change == after->change;
    bytes = above(rise, before->listed && after->listed ? others_growth(before, after, known) : 0);
    if (totals && still && before->measuring != 0 && bytes >= LEAST_BYTES && bytes <= MOST_BYTES &&
        bytes <= foreign) {
        *how = TOLD_TOTAL;
        tell(device, "a context", bytes, "what the card as a whole lost meanwhile", 0);
        return bytes;
    }
    /* Nothing, by two that agree to the byte. */
    if (totals && known_gone && after->total == before->total && after->total == all)
        return 0;
    foreign = known_gone ? most_foreign(device, after, reserved, &still) : UINT64_MAX;
    /* What fellows were charged and have not had of the driver yet hides a context: a sum that is
       too small for one is believed of a process that is alone in its partition. */
    bool small = foreign < LEAST_BYTES;
    bytes = foreign < KNOWN_CONTEXT_BYTES && (!small || (still && !has_fellows(device)))
                ? foreign
                : KNOWN_CONTEXT_BYTES;
    bytes = bytes < reserved ? bytes : reserved;
    tell(device, "a context", bytes, "what a context is known to take: NVML does not tell", 0);
    return bytes;
}

/* Whether no process of the partition was charged or given back anything from before the call on,
   and for a moment after: what one frees is given back a little later. */
static bool was_still(struct device *device, const struct look *before, const struct look *after)
{
    struct look again = *after;
    for (int looks = 0; looks < 3; looks++) {
        if (!before->steady || !again.steady || again.change != before->change)
            return false;
        sched_yield();
        look_at_sums(device, &again);
    }
    return true;
}

/* Whether the driver has less of the card than the list explains: the list is older than the call.
 */
static bool lags(const struct look *before, const struct look *after)
{
    uint64_t had = 0, has = 0;
    for (unsigned i = 0; i < before->count && i < MOST; i++)
        had += bytes_of(before, before->list[i].pid);
    for (unsigned i = 0; i < after->count && i < MOST; i++)
        has += bytes_of(after, after->list[i].pid);
    return above(before->free_bytes, after->free_bytes) > above(has, had) + LEAST_BYTES;
}

/* What NVML has beside what was charged: what was charged before and is taken only now is not this
   module's, and what was taken since the last look without being charged (a kernel that was loaded
   by its launch) is counted now. */
static uint64_t module_taken(struct device *device, const struct look *before,
                             const struct look *after, uint64_t reserved, enum told *how)
{
    struct berth_slot *slot = processes_slot(device);
    unsigned known = slot != NULL ? atomic_load(&slot->outer_pid) : 0;
    uint64_t held = above(after->held, reserved);
    if (after->listed && bytes_of(after, known) < held)
        known = 0; /* it is not this process, or holds what the list does not tell of */
    bool told = known != 0 && before->listed && lists(after, known) && tells_bytes(after);
    uint64_t in_list = told ? bytes_of(after, known) - held : 0;
    *how = told ? TOLD_LIST : TOLD_NOTHING;
    if (told && !lags(before, after))
        return in_list;
    if (before->free_bytes == 0 || after->free_bytes == 0)
        return reserved;
    /* Of a process that is not known, what the others have more may be its own. */
    bool listed = before->listed && after->listed;
    uint64_t growth = !listed      ? above(after->charged, before->charged)
                      : known != 0 ? others_growth(before, after, known)
                                   : 0;
    uint64_t lost = before->free_bytes + others_shrink(before, after, known);
    uint64_t bytes = above(lost, after->free_bytes + growth);
    *how = was_still(device, before, after) ? TOLD_TOTAL : TOLD_LEAST;
    bytes = bytes > in_list ? bytes : in_list;
    if (bytes != 0)
        tell(device, "a module", bytes, "what the driver had less of afterwards", 0);
    return bytes;
}

uint64_t look_taken(struct device *device, struct look *before, uint64_t reserved, CUcontext made,
                    enum told *told)
{
    struct look *after = before != NULL ? calloc(1, sizeof *after) : NULL;
    uint64_t bytes = reserved;
    *told = TOLD_NOTHING;
    if (after != NULL) {
        CUcontext current = NULL;
        bool push = made != NULL && HAVE(cuCtxPushCurrent_v2) && HAVE(cuCtxPopCurrent_v2) &&
                    HAVE(cuCtxGetCurrent) && real.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
                    current != made && real.cuCtxPushCurrent_v2(made) == CUDA_SUCCESS;
        fill(device, after);
        bytes = made != NULL ? context_taken(device, before, after, reserved, told)
                             : module_taken(device, before, after, reserved, told);
        if (push) /* both may have looked again, for which the driver needs a context */
            real.cuCtxPopCurrent_v2(&current);
    }
    free(after);
    look_end(device, before);
    return bytes;
}

/* What a call made the driver take for itself, by what NVML or the driver says before it and after
   it.

   A pid proves nothing: in a container NVML may tell of the host's pids, among which the own number
   is another process's, or of the own pid with no memory. So a process is the one that comes to
   hold memory while its first context is made. */
#define _GNU_SOURCE
#include "nvml_delta.h"
#include "parts.h"
#include "settings.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- which process is this one ---- */

enum { SUSPECTS = 64 };

/* The pids that were seen to compute, each maybe this process, and what speaks against each. */
static struct turn turn; /* of the suspects */
static struct suspects {
    struct {
        unsigned pid, strikes, looks, apart;
        bool other;
    } list[SUSPECTS];
    unsigned count, agreed_pid, wrong, unseen;
    bool begun, by_list;
} suspects[MAX_DEVICES];

struct berth_slot *processes_slot(struct device *device)
{
    return device->region.slot < 0 ? NULL : &device->region.use->slots[device->region.slot];
}

static shared32 outer_asked, outer_known;

/* The own pid in the outermost namespace that /proc tells of; 0 where it tells of one only. */
static unsigned outer_pid_of_own(void)
{
    char line[256];
    unsigned outer = 0, inner = 0;
    if (atomic_load(&outer_asked))
        return atomic_load(&outer_known);
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "NSpid:", 6) == 0) {
            if (sscanf(line + 6, "%u %u", &outer, &inner) != 2)
                outer = 0;
            break;
        }
    if (file != NULL)
        fclose(file);
    atomic_store(&outer_known, outer);
    atomic_store(&outer_asked, 1);
    return outer;
}

/* The own pid where NVML may go by it; 0 where its pids are known to be others. */
static unsigned own_pid(struct device *device)
{
    return atomic_load(&device->region.use->renumbered) ? 0 : (unsigned)getpid();
}

/* NVML's list has told that this process is `pid` there. */
static void found_in_list(struct device *device, unsigned pid)
{
    struct berth_slot *slot = processes_slot(device);
    if (slot == NULL)
        return;
    atomic_store(&slot->outer_pid, pid);
    WITHIN(&turn, suspects[device->ordinal].by_list = true);
}

bool processes_wanted(struct device *device)
{
    struct berth_slot *slot = processes_slot(device);
    return slot != NULL && atomic_load(&slot->outer_pid) == 0;
}

#define EACH_SLOT(slot, region)                                                               \
    for (struct berth_slot *slot = (region)->use->slots, *const end =                         \
                                                             slot +                           \
                                                             atomic_load(                     \
                                                                 &(region)->use->slots_seen); \
         slot < end && slot < (region)->use->slots + BERTH_SLOTS; slot++)

bool processes_ours(struct berth_region *region, unsigned pid)
{
    EACH_SLOT (slot, region) {
        unsigned outer = atomic_load(&slot->outer_pid);
        if (outer == 0 && !atomic_load(&region->use->renumbered))
            outer = slot->pid;
        if (atomic_load(&slot->state) != 0 && outer == pid)
            return true;
    }
    return false;
}

bool processes_known(struct berth_region *region)
{
    EACH_SLOT (slot, region)
        if (atomic_load(&slot->state) != 0 && atomic_load(&slot->gpu_ns) != 0 &&
            atomic_load(&slot->outer_pid) == 0)
            return false;
    return true;
}

/* Whether the partition has another living process of this pid in NVML; 0: whether anything else
   is charged to it, be it of the dead. */
static bool has_fellow(struct device *device, unsigned pid)
{
    const struct berth_slot *own = processes_slot(device);
    bool own_numbers = own_pid(device) != 0;
    EACH_SLOT (slot, &device->region)
        if (slot != own && atomic_load(&slot->state) != BERTH_FREE &&
            (pid == 0 || (atomic_load(&slot->state) == BERTH_MEMBER &&
                          (atomic_load(&slot->outer_pid) == pid ||
                           (own != NULL && own_numbers && slot->pid == pid &&
                            slot->pid_namespace == own->pid_namespace)))))
            return true;
    return false;
}

static unsigned busy_pct(const NVutilization *samples, unsigned count, unsigned pid)
{
    for (unsigned i = 0; i < count; i++)
        if (samples[i].pid == pid)
            return samples[i].sm_pct;
    return 0;
}

/* Whether one that used so much cannot be a process that launched work for so much. What is
   launched may seem to take longer than it does, so using less says little. */
static bool cannot_be(unsigned busy, unsigned own_pct)
{
    return (own_pct >= 10 && busy == 0) || busy > own_pct * 3 / 2 + 10;
}

static void doubt(struct suspects *here, struct berth_slot *slot, unsigned busy, unsigned own_pct)
{
    bool wrong = here->by_list ? own_pct >= 20 && busy == 0 : cannot_be(busy, own_pct);
    here->wrong = wrong ? here->wrong + 1 : 0;
    if (here->wrong >= 3) { /* it was another process */
        atomic_store(&slot->outer_pid, 0);
        here->count = 0;
        here->wrong = 0;
        here->by_list = false;
    }
}

/* As far as there is room. */
static void suspect(struct suspects *here, unsigned pid)
{
    for (unsigned i = 0; i < here->count; i++)
        if (here->list[i].pid == pid)
            return;
    if (here->count == SUSPECTS)
        return;
    here->list[here->count] = (__typeof__(here->list[0])){
        .pid = pid,
        /* It computed before this process did, or after this one did and was not told of. */
        .other = !here->begun || here->unseen >= 2,
    };
    here->count++;
}

static bool claimed(struct berth_region *region, unsigned pid)
{
    EACH_SLOT (slot, region)
        if (atomic_load(&slot->state) != 0 && atomic_load(&slot->outer_pid) == pid)
            return true;
    return false;
}

/* With the turn. The pid that this process is found to be by now, 0 where that is not told. */
static unsigned watch(struct device *device, struct berth_slot *slot, const NVutilization *samples,
                      unsigned count, unsigned own_pct, unsigned outer)
{
    struct suspects *here = &suspects[device->ordinal];
    unsigned known = atomic_load(&slot->outer_pid);
    if (known != 0) {
        doubt(here, slot, busy_pct(samples, count, known), own_pct);
        return 0;
    }
    for (unsigned i = 0; i < count; i++)
        if (samples[i].sm_pct != 0)
            suspect(here, samples[i].pid);
    here->begun = true;
    here->unseen += count == 0 && own_pct >= 10;
    unsigned left = 0, pid = 0, reported = 0, best = UINT_MAX, second = UINT_MAX, nearest = 0;
    for (unsigned i = 0; i < here->count; i++) {
        __typeof__(&here->list[0]) one = &here->list[i];
        unsigned busy = busy_pct(samples, count, one->pid);
        one->strikes = cannot_be(busy, own_pct) ? one->strikes + 1 : 0;
        one->other = one->other || one->strikes >= 2 || (own_pct == 0 && busy >= 5);
        one->apart = one->apart / 2 + (busy > own_pct ? 4 * (busy - own_pct) : own_pct - busy);
        one->looks++;
        if (one->other || busy == 0)
            continue;
        left++;
        pid = one->pid;
        if (pid == outer || (pid == own_pid(device) && reported == 0))
            reported = pid;
        second = one->apart < best ? best : one->apart < second ? one->apart : second;
        nearest = one->apart < best && one->looks > 3 ? pid : nearest;
        best = one->apart < best ? one->apart : best;
    }
    if (left > 1) /* of several that may be it, the one that is called so; else the one that does by
                     far the nearest */
        pid = reported != 0 ? reported : best < second / 2 && second - best / 2 > 10 ? nearest : 0;
    bool found = pid != 0 && left != 0 && own_pct >= 5 && !claimed(&device->region, pid);
    bool agreed = found && here->agreed_pid == pid;
    here->agreed_pid = found ? pid : 0;
    if (agreed)
        atomic_store(&slot->outer_pid, pid);
    return agreed ? pid : 0;
}

void processes_watch(struct device *device, const NVutilization *samples, unsigned count,
                     unsigned own_pct)
{
    struct berth_slot *slot = processes_slot(device);
    if (slot == NULL)
        return;
    unsigned outer = atomic_load(&slot->outer_pid) == 0 ? outer_pid_of_own() : 0;
    unsigned pid = WITHIN(&turn, watch(device, slot, samples, count, own_pct, outer));
    if (pid != 0)
        log_line("this process is %u to NVML on GPU %d, by when it computes", pid, device->ordinal);
}

static void processes_forget(void)
{
    atomic_store(&outer_asked, 0);
    for (int i = 0; device_at(i) != NULL; i++) /* those in use: no other page is touched */
        memset(&suspects[i], 0, sizeof suspects[i]);
}

PART(.turn = &turn, .forget = processes_forget);

/* ---- what a call took ---- */

enum { MOST = 256, ATTEMPTS = 4 };
/* What a context takes on the cards of a data centre, with some to spare. */
enum { KNOWN_CONTEXT_BYTES = 512 << 20 };
#define LEAST_BYTES (1ull << 20)  /* no context is smaller */
#define MOST_BYTES (2ull << 30)   /* or larger */
#define APART_BYTES (16ull << 20) /* how far two of NVML's words may be apart */

struct nvml_snapshot {
    enum making making;
    NVprocess list[MOST];
    unsigned count;
    bool listed, totalled, steady; /* steady: no process of the partition allocated meanwhile */
    uint64_t total, free_bytes, charged, change, held;
};

static bool read_list(NVdevice handle, struct nvml_snapshot *look)
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
    bool said = REAL(cuMemGetInfo_v2)(&free_bytes, &total) == CUDA_SUCCESS;
    return said ? free_bytes : 0;
}

/* What all hold and what was charged; of one instant if, at one of `most` attempts, no process of
   the partition allocates meanwhile. */
static void read_sums(struct device *device, struct nvml_snapshot *look, int most)
{
    NVdevice handle = device_nvml(device);
    NVmemory memory;
    struct berth_use_file *use = device->region.use;
    look->steady = false;
    for (int attempts = 0; attempts < most && !look->steady; attempts++) {
        look->change = atomic_load(&use->total.tag);
        look->charged = atomic_load(&use->total.used);
        look->totalled =
            handle != NULL && REAL(nvmlDeviceGetMemoryInfo)(handle, &memory) == NV_SUCCESS;
        look->total = look->totalled ? memory.used : 0;
        look->free_bytes = driver_free();
        look->steady = atomic_load(&use->total.tag) == look->change;
    }
}

/* The sums of one instant tell what a context took only for a process alone in its partition. */
static void fill(struct device *device, struct nvml_snapshot *look)
{
    NVdevice handle = device_nvml(device);
    struct berth_slot *slot = processes_slot(device);
    uint64_t seq;
    /* Until no other thread of this process allocates meanwhile. */
    for (int attempts = 0; attempts < ATTEMPTS; attempts++) {
        seq = slot != NULL ? atomic_load(&slot->seq) : 0;
        look->listed = handle != NULL && read_list(handle, look);
        look->held = slot != NULL ? atomic_load(&slot->held) : 0;
        if (slot == NULL || atomic_load(&slot->seq) == seq)
            break;
    }
    read_sums(device, look, look->making != A_MODULE && has_fellow(device, 0) ? 1 : ATTEMPTS);
}

struct nvml_snapshot *snapshot_before(struct device *device, enum making making)
{
    struct nvml_snapshot *look = calloc(1, sizeof *look);
    if (look == NULL)
        return NULL;
    look->making = making;
    fill(device, look);
    return look;
}

static const NVprocess *process_of(const struct nvml_snapshot *look, unsigned pid)
{
    for (unsigned i = 0; i < look->count && i < MOST; i++)
        if (look->list[i].pid == pid)
            return &look->list[i];
    return NULL;
}

static uint64_t bytes_of(const struct nvml_snapshot *look, unsigned pid)
{
    const NVprocess *found = process_of(look, pid);
    return found == NULL || found->bytes == ~0ull ? 0 : found->bytes;
}

static bool lists(const struct nvml_snapshot *look, unsigned pid)
{
    return look->listed && process_of(look, pid) != NULL;
}

/* The one that came to hold memory between two looks; 0 where that was none, or several of which
   none can be told. One that is no longer listed afterwards has died: it may have been of the
   partition until a moment ago. */
static unsigned newcomer(struct device *device, const struct nvml_snapshot *before,
                         const struct nvml_snapshot *after, uint64_t *least)
{
    unsigned pids[MOST], found = 0, count = 0, outer = outer_pid_of_own(), own = own_pid(device),
                         reported = 0;
    struct nvml_snapshot later = { .count = 0 };
    *least = UINT64_MAX;
    for (unsigned i = 0; before->listed && after->listed && i < after->count && i < MOST; i++) {
        unsigned pid = after->list[i].pid;
        uint64_t bytes = bytes_of(after, pid);
        if (bytes >= LEAST_BYTES && bytes <= MOST_BYTES && bytes_of(before, pid) == 0 &&
            !has_fellow(device, pid))
            pids[found++] = pid;
    }
    if (found != 0)
        (void)read_list(device_nvml(device), &later);
    for (unsigned i = 0; i < found; i++) {
        uint64_t bytes = bytes_of(after, pids[i]);
        if (bytes_of(&later, pids[i]) == 0)
            continue;
        pids[count++] = pids[i];
        if (pids[i] == outer || (pids[i] == own && reported == 0))
            reported = pids[i];
        if (bytes < *least)
            *least = bytes;
    }
    if (count != 1 || reported != 0)
        return reported;
    /* Where a process goes by the own number that has nothing, either the numbers are others or a
       context is nothing: the newcomer may be another. */
    if (lists(before, own) && lists(after, own))
        return 0;
    /* Learned anew each time: a list that lagged may have shown another's start alone. */
    atomic_store(&device->region.use->renumbered, pids[0] != (unsigned)getpid());
    return pids[0];
}

/* How much more the others have, of those that were there before. */
static uint64_t others_growth(const struct nvml_snapshot *before, const struct nvml_snapshot *after,
                              unsigned own)
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

/* What is gone from the card beside what this partition was charged: no call has taken more. */
static bool gone(struct device *device, const struct nvml_snapshot *after, uint64_t reserved,
                 uint64_t *all, uint64_t *foreign)
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
   less. `still`: no process of the partition was charged anything from the first to the last. */
static uint64_t most_foreign(struct device *device, const struct nvml_snapshot *after,
                             uint64_t reserved, bool *still)
{
    struct nvml_snapshot again = *after;
    uint64_t most = 0, all, foreign;
    for (int looks = 0; looks < 8; looks++) {
        if (again.steady && gone(device, &again, reserved, &all, &foreign) && foreign > most)
            most = foreign;
        *still = *still && again.steady && again.change == after->change;
        sched_yield();
        read_sums(device, &again, ATTEMPTS);
    }
    return most;
}

static void tell(struct device *device, const char *what, uint64_t bytes, const char *way,
                 unsigned pid)
{
    static shared32 logged;
    if (atomic_fetch_add(&logged, 1) <
        64) /* a program that makes contexts for ever fills no disk */
        log_line("%s on GPU %d: %llu MiB charged, by %s%.0u", what, device->ordinal,
                 (unsigned long long)(bytes >> 20), way, pid);
}

/* How much less they have, those that ended meanwhile included. */
static uint64_t others_shrink(const struct nvml_snapshot *before, const struct nvml_snapshot *after,
                              unsigned own)
{
    uint64_t shrink = 0;
    for (unsigned i = 0; before->listed && after->listed && i < before->count && i < MOST; i++)
        if (before->list[i].pid != own)
            shrink +=
                above(bytes_of(before, before->list[i].pid), bytes_of(after, before->list[i].pid));
    return shrink;
}

/* Whether the list has memory for any process: in a container it may have none. */
static bool tells_bytes(const struct nvml_snapshot *look)
{
    for (unsigned i = 0; i < look->count && i < MOST; i++)
        if (look->list[i].bytes != 0 && look->list[i].bytes != ~0ull)
            return true;
    return false;
}

/* This process where NVML tells of it, in both looks, that it holds nothing: among others that hold
   memory, or where the card as a whole lost nothing either, by two that agree to the byte. 0 where
   that is not so: a list that has nothing for any process tells nothing. */
static unsigned holds_nothing(struct device *device, const struct nvml_snapshot *before,
                              const struct nvml_snapshot *after, uint64_t all)
{
    unsigned outer = outer_pid_of_own(),
             pid = outer != 0 && lists(after, outer) ? outer : own_pid(device);
    if (pid == 0 || !lists(before, pid) || !lists(after, pid) || bytes_of(after, pid) != 0)
        return 0;
    bool still =
        before->totalled && after->totalled && after->total == before->total && after->total == all;
    return tells_bytes(after) || still ? pid : 0;
}

static uint64_t context_taken(struct device *device, const struct nvml_snapshot *before,
                              const struct nvml_snapshot *after, uint64_t reserved,
                              enum evidence *how)
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
        found_in_list(device, pid);
    unsigned known = slot != NULL ? atomic_load(&slot->outer_pid) : 0;
    uint64_t own = above(after->held, before->held);
    if (known != 0 && bytes_of(after, known) > bytes_of(before, known)) {
        bytes = above(bytes_of(after, known) - bytes_of(before, known), own);
        *how = EVIDENCE_LIST;
        tell(device, "a context", bytes, "NVML's list, in which this process is ", known);
        return bytes;
    }
    if (least == UINT64_MAX &&
        (pid = holds_nothing(device, before, after, known_gone ? all : UINT64_MAX)) != 0) {
        found_in_list(device, pid);
        *how = EVIDENCE_LEAST; /* which another's list may contradict */
        return 0;
    }
    if (before->listed && after->listed && least != UINT64_MAX) {
        *how = EVIDENCE_LEAST;
        tell(device, "a context", least, "the least of several that began at once", 0);
        return least;
    }
    /* Of a process that is alone in its partition, where nothing was charged between the looks. */
    bool still = before->steady && after->steady && before->change == after->change;
    bytes = above(rise, before->listed && after->listed ? others_growth(before, after, known) : 0);
    if (totals && still && !has_fellow(device, 0) && bytes >= LEAST_BYTES && bytes <= MOST_BYTES &&
        bytes <= foreign) {
        *how = EVIDENCE_TOTAL;
        tell(device, "a context", bytes, "what the card as a whole lost meanwhile", 0);
        return bytes;
    }
    /* Nothing, by two that agree to the byte. */
    if (totals && known_gone && after->total == before->total && after->total == all)
        return 0;
    if (before->making == A_CONTEXT)
        return reserved; /* a size that is known is better than any that is measured less well */
    foreign = known_gone ? most_foreign(device, after, reserved, &still) : UINT64_MAX;
    /* What fellows were charged and have not had of the driver yet hides a context: a sum that is
       too small for one is believed of a process that is alone in its partition. */
    bool small = foreign < LEAST_BYTES;
    bytes = foreign < KNOWN_CONTEXT_BYTES && (!small || (still && !has_fellow(device, 0)))
                ? foreign
                : KNOWN_CONTEXT_BYTES;
    bytes = bytes < reserved ? bytes : reserved;
    tell(device, "a context", bytes, "what a context is known to take: NVML does not tell", 0);
    return bytes;
}

/* Whether nobody else of the partition can have changed what the card has: the driver takes back
   what a neighbour frees, or leaves behind when it is killed, before the account says so. */
static bool was_alone(struct device *device, const struct nvml_snapshot *before,
                      const struct nvml_snapshot *after)
{
    return before->steady && after->steady && after->change == before->change &&
           !has_fellow(device, 0);
}

/* Whether the driver has less of the card than the list explains: that is older than the call. */
static bool lags(const struct nvml_snapshot *before, const struct nvml_snapshot *after)
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
static uint64_t module_taken(struct device *device, const struct nvml_snapshot *before,
                             const struct nvml_snapshot *after, uint64_t reserved,
                             enum evidence *how)
{
    struct berth_slot *slot = processes_slot(device);
    unsigned known = slot != NULL ? atomic_load(&slot->outer_pid) : 0;
    uint64_t held = above(after->held, reserved);
    if (after->listed && bytes_of(after, known) < held)
        known = 0; /* it is not this process, or holds what the list does not tell of */
    bool reported = known != 0 && before->listed && lists(after, known) && tells_bytes(after);
    uint64_t in_list = reported ? bytes_of(after, known) - held : 0;
    *how = reported ? EVIDENCE_LIST : EVIDENCE_NONE;
    if (reported && !lags(before, after))
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
    *how = was_alone(device, before, after) ? EVIDENCE_TOTAL : EVIDENCE_LEAST;
    bytes = bytes > in_list ? bytes : in_list;
    if (bytes != 0)
        tell(device, "a module", bytes, "what the driver had less of afterwards", 0);
    return bytes;
}

uint64_t snapshot_delta(struct device *device, struct nvml_snapshot *before, uint64_t reserved,
                        CUcontext made, enum evidence *reported)
{
    struct nvml_snapshot *after = before != NULL ? calloc(1, sizeof *after) : NULL;
    uint64_t bytes = reserved;
    *reported = EVIDENCE_NONE;
    if (after != NULL) {
        bool entered = made != NULL && context_current() != made && context_enter(made);
        after->making = before->making;
        fill(device, after);
        bytes = made != NULL ? context_taken(device, before, after, reserved, reported)
                             : module_taken(device, before, after, reserved, reported);
        context_leave(entered); /* both may have looked again, for which it needs a context */
    }
    free(after);
    free(before);
    return bytes;
}

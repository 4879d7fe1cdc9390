/* Which of the processes that NVML tells of is this one: the one that came to hold memory with its
   first context (nvml_delta.c), or that computes when it computes and rests when it rests. */
#define _GNU_SOURCE
#include "processes.h"
#include "parts.h"
#include "settings.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SUSPECTS = 64 };

/* The pids that were seen to compute, any of which may be this process, and what speaks against
 * each.
 */
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

/* The own pid in the outermost namespace that /proc tells of; 0 where it tells of one only. */
unsigned processes_outer_pid(void)
{
    char line[256];
    unsigned outer = 0, inner = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "NSpid:", 6) == 0) {
            if (sscanf(line + 6, "%u %u", &outer, &inner) != 2)
                outer = 0;
            break;
        }
    if (file != NULL)
        fclose(file);
    return outer;
}

unsigned processes_own_pid(struct device *device)
{
    return atomic_load(&device->region.use->renumbered) ? 0 : (unsigned)getpid();
}

void processes_found(struct device *device, unsigned pid)
{
    struct berth_slot *slot = processes_slot(device);
    if (slot == NULL)
        return;
    atomic_store(&slot->outer_pid, pid);
    turn_take(&turn);
    suspects[device->ordinal].by_list = true;
    turn_leave(&turn);
}

bool processes_wanted(struct device *device)
{
    struct berth_slot *slot = processes_slot(device);
    return slot != NULL && atomic_load(&slot->outer_pid) == 0;
}

bool processes_ours(struct berth_region *region, unsigned pid)
{
    uint32_t seen = atomic_load(&region->use->slots_seen);
    for (uint32_t i = 0; i < seen && i < BERTH_SLOTS; i++) {
        struct berth_slot *slot = &region->use->slots[i];
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
    uint32_t seen = atomic_load(&region->use->slots_seen);
    for (uint32_t i = 0; i < seen && i < BERTH_SLOTS; i++) {
        struct berth_slot *slot = &region->use->slots[i];
        if (atomic_load(&slot->state) != 0 && atomic_load(&slot->gpu_ns) != 0 &&
            atomic_load(&slot->outer_pid) == 0)
            return false;
    }
    return true;
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

/* The place of a pid among the suspects; -1 where there is no room. */
static int suspect(struct suspects *here, unsigned pid)
{
    for (unsigned i = 0; i < here->count; i++)
        if (here->list[i].pid == pid)
            return (int)i;
    if (here->count == SUSPECTS)
        return -1;
    here->list[here->count].pid = pid;
    here->list[here->count].strikes = here->list[here->count].looks =
        here->list[here->count].apart = 0;
    /* It computed before this process did, or after this one did and was not told of. */
    here->list[here->count].other = !here->begun || here->unseen >= 2;
    return (int)here->count++;
}

static bool claimed(struct berth_region *region, unsigned pid)
{
    uint32_t seen = atomic_load(&region->use->slots_seen);
    for (uint32_t i = 0; i < seen && i < BERTH_SLOTS; i++)
        if (atomic_load(&region->use->slots[i].state) != 0 &&
            atomic_load(&region->use->slots[i].outer_pid) == pid)
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
    unsigned left = 0, pid = 0, told = 0, best = UINT_MAX, second = UINT_MAX, nearest = 0;
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
        if (pid == outer || (pid == processes_own_pid(device) && told == 0))
            told = pid;
        second = one->apart < best ? best : one->apart < second ? one->apart : second;
        nearest = one->apart < best && one->looks > 3 ? pid : nearest;
        best = one->apart < best ? one->apart : best;
    }
    if (left > 1) /* of several that may be it, the one that is called so; else the one that does by
                     far the nearest */
        pid = told != 0 ? told : best < second / 2 && second - best / 2 > 10 ? nearest : 0;
    bool found = pid != 0 && left != 0 && own_pct >= 5 && !claimed(&device->region, pid);
    bool agreed = found && here->agreed_pid == pid;
    here->agreed_pid = found ? pid : 0;
    return agreed ? pid : 0;
}

void processes_watch(struct device *device, const NVutilization *samples, unsigned count,
                     unsigned own_pct)
{
    struct berth_slot *slot = processes_slot(device);
    if (slot == NULL)
        return;
    unsigned outer = atomic_load(&slot->outer_pid) == 0 ? processes_outer_pid() : 0;
    turn_take(&turn);
    unsigned pid = watch(device, slot, samples, count, own_pct, outer);
    if (pid != 0)
        atomic_store(&slot->outer_pid, pid);
    turn_leave(&turn);
    if (pid != 0)
        log_line("this process is %u to NVML on GPU %d, by when it computes", pid, device->ordinal);
}

static void processes_forget(void)
{
    memset(suspects, 0, sizeof suspects);
    atomic_store(&turn.word, 0);
}

PART(.forget = processes_forget);

/* Who answers the wishes of a region: the other side of wish.c. It runs in an operator's process,
   one for each region at a time, which a lock shows. */
#define _GNU_SOURCE
#include "account.h"
#include "guard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct granter {
    struct berth_region region;
    struct berth_limit_file *limit;
    int lock; /* a descriptor */
    shared32 stopped;
};

struct wish {
    uint64_t bytes, held_bytes;
    uint32_t slot, number, pid, unused;
};

struct grants {
    uint64_t limit_bytes, used_bytes;
    uint32_t calls, unused;
};

EXPORT struct granter *berth_granter_open(const char *folder, const char *uuid, char *error,
                                          size_t size);
EXPORT void berth_granter_close(struct granter *granter);
EXPORT void berth_granter_stop(struct granter *granter);
EXPORT uint32_t berth_granter_wait(struct granter *granter, uint32_t seen);
EXPORT int berth_granter_allow(struct granter *granter, uint64_t promise, uint64_t most,
                               uint32_t ask_ms, int shows_max);
EXPORT int berth_granter_watch(struct granter *granter, uint32_t watch);
EXPORT int berth_granter_limit(struct granter *granter, uint64_t limit);
EXPORT int berth_granter_read(struct granter *granter, struct wish *wishes, uint32_t room,
                              struct grants *grants);
EXPORT int berth_granter_answer(struct granter *granter, uint32_t slot, uint32_t number,
                                int granted);

static struct granter *open_granter(const char *folder, const char *uuid, struct berth_error *why)
{
    unsigned char bytes[16];
    struct granter *granter = calloc(1, sizeof *granter);
    if (granter == NULL || !region_uuid_parse(uuid, bytes)) {
        region_fail(why, "not the UUID of a GPU");
        free(granter);
        return NULL;
    }
    if (!region_open(&granter->region, folder, bytes, why)) {
        if (why->text[0] == 0)
            region_fail(why, "there is no such partition");
        free(granter);
        return NULL;
    }
    granter->limit = region_limit(folder, bytes, why);
    granter->lock = granter->limit != NULL ? region_be_granter(&granter->region) : -1;
    if (granter->lock >= 0)
        return granter;
    if (granter->limit != NULL)
        region_fail(why, "%.200s: %s (%s)", granter->region.path,
                    errno == EAGAIN || errno == EACCES
                        ? "another process answers what this partition asks for"
                        : "cannot be locked",
                    strerror(errno));
    berth_granter_close(granter);
    return NULL;
}

/* Wakes all that wait for an answer. */
static void tell(struct granter *granter)
{
    atomic_fetch_add(&granter->limit->answers, 1);
    futex_wake(&granter->limit->answers);
}

struct granter *berth_granter_open(const char *folder, const char *uuid, char *error, size_t size)
{
    struct berth_error why = { "" };
    guard_begin();
    struct granter *granter = open_granter(folder, uuid, &why);
    if (granter != NULL)
        tell(granter);
    if (!guard_end() && granter != NULL) {
        berth_granter_close(granter);
        granter = NULL;
    }
    if (granter == NULL)
        snprintf(error, size, "%s", why.text[0] ? why.text : "was cut short while it was opened");
    return granter;
}

/* No thread may be in `berth_granter_wait`. */
void berth_granter_close(struct granter *granter)
{
    if (granter->lock >= 0)
        close(granter->lock);
    if (granter->limit != NULL)
        munmap(granter->limit, sizeof *granter->limit);
    region_close(&granter->region);
    free(granter);
}

void berth_granter_stop(struct granter *granter)
{
    atomic_store(&granter->stopped, 1);
    guard_begin();
    atomic_fetch_add(&granter->region.use->wishes, 1);
    (void)guard_end();
    futex_wake(&granter->region.use->wishes);
}

/* The count of wishes, once it is not `seen` any more or the granter was stopped. Without a look at
   it that could not be survived: the kernel compares. */
uint32_t berth_granter_wait(struct granter *granter, uint32_t seen)
{
    while (atomic_load(&granter->stopped) == 0) {
        if (futex_wait(&granter->region.use->wishes, seen, UINT32_MAX) == 0 || errno == EINTR ||
            errno == ETIMEDOUT)
            continue;
        if (errno != EAGAIN)
            break; /* the file was cut short */
        guard_begin();
        uint32_t now = atomic_load(&granter->region.use->wishes);
        if (!guard_end())
            break;
        return now;
    }
    return seen;
}

int berth_granter_allow(struct granter *granter, uint64_t promise, uint64_t most, uint32_t ask_ms,
                        int shows_max)
{
    guard_begin();
    atomic_store(&granter->limit->promise_bytes, promise);
    atomic_store(&granter->limit->max_bytes, most);
    atomic_store(&granter->limit->ask_ms, ask_ms);
    if (shows_max)
        atomic_fetch_or(&granter->limit->flags, BERTH_SHOWS_MAX);
    else
        atomic_fetch_and(&granter->limit->flags, ~BERTH_SHOWS_MAX);
    return guard_end() ? 0 : -1;
}

/* Whether calls are counted, or wait; those that wait look again. */
int berth_granter_watch(struct granter *granter, uint32_t watch)
{
    guard_begin();
    atomic_store(&granter->limit->watch, watch);
    tell(granter);
    return guard_end() ? 0 : -1;
}

int berth_granter_limit(struct granter *granter, uint64_t limit)
{
    guard_begin();
    atomic_store(&granter->limit->mem_bytes, limit);
    return guard_end() ? 0 : -1;
}

/* The wishes that are not answered, at most `room` of them: how many; -1 where the file was cut
   short. What dead processes held is given back first. */
int berth_granter_read(struct granter *granter, struct wish *wishes, uint32_t room,
                       struct grants *grants)
{
    struct berth_use_file *use = granter->region.use;
    uint32_t count = 0;
    guard_begin();
    region_reap(&granter->region);
    for (uint32_t i = 0; i < LOAD_ACQUIRE(use->slots_seen) && i < BERTH_SLOTS; i++) {
        struct berth_slot *slot = &use->slots[i];
        uint32_t number = LOAD_ACQUIRE(slot->wish);
        uint64_t bytes = LOAD(slot->wish_bytes);
        if (LOAD_ACQUIRE(slot->state) != BERTH_MEMBER || bytes == 0 ||
            LOAD(slot->answer) >> 1 == number || count == room)
            continue;
        wishes[count++] = (struct wish){ .bytes = bytes,
                                         .held_bytes = LOAD(slot->held),
                                         .slot = i,
                                         .number = number,
                                         .pid = LOAD(slot->pid) };
    }
    *grants = (struct grants){ .limit_bytes = LOAD(granter->limit->mem_bytes),
                               .used_bytes = LOAD(use->total.used),
                               .calls = atomic_load(&use->calls) };
    return guard_end() ? (int)count : -1;
}

int berth_granter_answer(struct granter *granter, uint32_t slot, uint32_t number, int granted)
{
    struct berth_use_file *use = granter->region.use;
    if (slot >= BERTH_SLOTS)
        return -1;
    guard_begin();
    if (granted)
        atomic_fetch_add(&use->granted, 1);
    STORE_RELEASE(use->slots[slot].answer, number << 1 | (granted != 0));
    tell(granter);
    return guard_end() ? 0 : -1;
}

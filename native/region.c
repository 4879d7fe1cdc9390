/* The account of a region: who takes, who gives back, who lives. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

__extension__ typedef unsigned __int128 u128;

enum {
    LOCK_BASE = 1 << 24,
    GLANCE_NS = 10 * 1000 * 1000,
    CROWD_NS = 2 * 1000 * 1000,
    EXEC_NS = 100 * 1000 * 1000
};

/* How far the clock of this process's time namespace is ahead of the host's, which is the one that
   all of a region go by. */
static shared64 time_namespace_ns;
static shared32 time_namespace_known;

static void ask_time_namespace(void)
{
    char text[256];
    long long seconds = 0, ns = 0;
    int error = errno, fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[size > 0 ? size : 0] = 0;
    const char *line = strstr(text, "monotonic");
    if (line != NULL && sscanf(line, "monotonic %lld %lld", &seconds, &ns) == 2)
        atomic_store(&time_namespace_ns, (uint64_t)(seconds * 1000000000 + ns));
    atomic_store(&time_namespace_known, 1);
    errno = error;
}

uint64_t clock_ns(void)
{
    struct timespec now;
    if (atomic_load_explicit(&time_namespace_known, memory_order_acquire) == 0)
        ask_time_namespace();
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec -
           atomic_load_explicit(&time_namespace_ns, memory_order_relaxed);
}

static uint64_t coarse_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#define LOAD(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define LOAD_ACQUIRE(x) atomic_load_explicit(&(x), memory_order_acquire)
#define STORE(x, v) atomic_store_explicit(&(x), (v), memory_order_relaxed)
#define STORE_RELEASE(x, v) atomic_store_explicit(&(x), (v), memory_order_release)

static void raise_to(shared64 *cell, uint64_t value)
{
    uint64_t seen = LOAD(*cell);
    while (seen < value && !atomic_compare_exchange_weak(cell, &seen, value)) { }
}

/* ---- the total ---- */

struct total {
    uint64_t used, tag;
};

static bool swap_total(struct berth_use_file *use, struct total from, struct total to)
{
    u128 old = ((u128)from.tag << 64) | from.used, new = ((u128)to.tag << 64) | to.used;
    return __sync_bool_compare_and_swap((u128 *)(void *)&use->total, old, new);
}

static struct total read_total(struct berth_use_file *use)
{
    struct total now;
    now.used =
        LOAD_ACQUIRE(use->total.used); /* the halves may be of two moments: the swap finds out */
    now.tag = LOAD_ACQUIRE(use->total.tag);
    return now;
}

static uint64_t limit_of(const struct berth_region *region)
{
    return LOAD(region->limit->mem_bytes);
}

enum outcome { DONE, FULL };

/* One change of `used` in the name of slot `index`: up by `up` below `limit`, then down by `down`.
 */
static enum outcome change(struct berth_use_file *use, uint32_t index, uint64_t up, uint64_t down,
                           uint64_t limit, uint64_t *left, bool estimate)
{
    struct berth_slot *slot = &use->slots[index];
    uint64_t seq = LOAD(slot->seq) + 1, held = LOAD(slot->held);
    uint64_t after = up ? held + up : (held > down ? held - down : 0);
    STORE(slot->next_held, after);
    STORE_RELEASE(slot->intent, seq);
    for (;;) {
        struct total now = read_total(use);
        if (up && (now.used > limit || up > limit - now.used)) {
            STORE_RELEASE(slot->intent, 0);
            if (left != NULL)
                *left = now.used < limit ? limit - now.used : 0;
            return FULL;
        }
        uint32_t last = (uint32_t)(now.tag & ((1u << BERTH_TAG_SLOT_BITS) - 1));
        if (last != 0 && last <= BERTH_SLOTS && last != index + 1)
            raise_to(&use->slots[last - 1].noted, now.tag >> BERTH_TAG_SLOT_BITS);
        struct total next = { up ? now.used + up : (now.used > down ? now.used - down : 0),
                              seq << BERTH_TAG_SLOT_BITS | (index + 1) };
        if (swap_total(use, now, next)) {
            STORE(slot->held, after);
            STORE(slot->seq, seq);
            STORE_RELEASE(slot->intent, 0);
            if (!estimate) { /* an estimate is no peak; what remains of it when it is corrected may
                                be one */
                if (LOAD(use->peak) < next.used)
                    raise_to(&use->peak, next.used);
                if (LOAD(slot->peak) < after)
                    STORE(slot->peak, after);
            }
            return DONE;
        }
    }
}

/* Completes the record of a dead slot: did its last change happen? The caller holds the slot's
   lock. */
static void settle(struct berth_use_file *use, uint32_t index)
{
    struct berth_slot *slot = &use->slots[index];
    uint64_t seq = LOAD_ACQUIRE(slot->intent);
    if (seq == 0)
        return;
    /* In this order: whoever overwrites the tag has noted it before. */
    bool done = atomic_load(&use->total.tag) == (seq << BERTH_TAG_SLOT_BITS | (index + 1));
    done = atomic_load(&slot->noted) >= seq || done;
    if (done) {
        STORE(slot->held, LOAD(slot->next_held));
        if (LOAD(slot->seq) < seq)
            STORE(slot->seq, seq);
    }
    STORE_RELEASE(slot->intent, 0);
}

/* ---- in this process's slot ---- */

static bool take_bytes(struct berth_region *region, uint64_t bytes, uint64_t *left, bool estimate)
{
    if (bytes == 0)
        return true;
    if (region->slot < 0) {
        *left = 0;
        return false;
    }
    turn_take(&region->turn);
    enum outcome outcome =
        change(region->use, (uint32_t)region->slot, bytes, 0, limit_of(region), left, estimate);
    turn_leave(&region->turn);
    return outcome == DONE;
}

bool region_take(struct berth_region *region, uint64_t bytes, uint64_t *left)
{
    return take_bytes(region, bytes, left, false);
}

uint64_t region_take_some(struct berth_region *region, uint64_t bytes)
{
    uint64_t left = 0;
    while (bytes != 0 && !take_bytes(region, bytes, &left, true))
        bytes = left < bytes ? left : bytes - 1;
    return bytes;
}

void region_give(struct berth_region *region, uint64_t bytes)
{
    if (bytes == 0 || region->slot < 0)
        return;
    turn_take(&region->turn);
    change(region->use, (uint32_t)region->slot, 0, bytes, 0, NULL, false);
    turn_leave(&region->turn);
}

/* ---- who lives ---- */

static int lock_byte(int fd, int command, uint32_t index)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE + (off_t)index, .l_len = 1
    };
    int answer = fcntl(fd, command, &lock);
    if (command == F_OFD_GETLK)
        return answer == 0 && lock.l_type == F_UNLCK;
    return answer == 0;
}

static uint64_t own_pid_namespace(void)
{
    struct stat file;
    return stat("/proc/self/ns/pid", &file) == 0 ? (uint64_t)file.st_ino : 0;
}

enum { EXITING = 4 }; /* the kernel's PF_EXITING */
struct life {
    char state;
    uint64_t flags, threads, start_ticks;
};

/* From /proc/PID/stat; false where it cannot be read. */
static bool read_life(const char *path, struct life *life)
{
    char text[1024];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return false;
    text[size] = 0;
    char *at = strrchr(text, ')');
    if (at == NULL || at[1] != ' ')
        return false;
    life->state = at[2];
    at += 2;
    for (int field = 3; field < 22; field++) {
        at = strchr(at, ' ');
        if (at == NULL)
            return false;
        at++;
        if (field + 1 == 9)
            life->flags = strtoull(at, NULL, 10);
        if (field + 1 == 20)
            life->threads = strtoull(at, NULL, 10);
    }
    life->start_ticks = strtoull(at, NULL, 10);
    return true;
}

/* Called when the lock of the slot is free, its memory gone: has its process also closed its files,
   the driver's among them? The kernel closes them before a process becomes a zombie, but its last
   thread may be another than the one that let go of the memory, and the first thread is a zombie
   before the others have ended. That is known only in the same pid namespace; elsewhere the lock
   decides, which a thread lets go of after the files that it closes itself. */
static bool is_gone(struct berth_slot *slot, uint64_t own_namespace)
{
    if (slot->pid_namespace == 0 || slot->pid_namespace != own_namespace)
        return true;
    if (kill((pid_t)slot->pid, 0) != 0 && errno == ESRCH)
        return true;
    char path[40];
    struct life life = { 0 };
    snprintf(path, sizeof path, "/proc/%u/stat", slot->pid);
    if (!read_life(path, &life))
        return true;
    bool ended = (life.state == 'Z' || life.state == 'X') && life.threads <= 1;
    if (ended || life.start_ticks != slot->start_ticks || slot->pid == (uint32_t)getpid())
        return true;
    if (life.state == 'Z' || life.state == 'X' || (life.flags & EXITING) != 0)
        return false;
    /* It lives and is not about to end: it has become another program. That closes the driver's
       files a moment after it lets go of the memory. */
    uint64_t now = clock_ns(), since = 0;
    if (atomic_compare_exchange_strong(&slot->unproven_ns, &since, now))
        since = now;
    return now - since > EXEC_NS;
}

static void bury(struct berth_use_file *use, uint32_t index)
{
    struct berth_slot *slot = &use->slots[index];
    settle(use, index);
    uint64_t held = LOAD(slot->held);
    if (held != 0)
        change(use, index, 0, held, 0, NULL, false);
    uint64_t measuring = LOAD(use->measuring_ns);
    if (measuring != 0 && (measuring & BERTH_MEASURING_SLOT) == index)
        atomic_compare_exchange_strong(&use->measuring_ns, &measuring, 0);
    STORE_RELEASE(slot->state, 0);
}

/* ---- the mapped file ---- */

static bool is_mapped_file(const struct berth_region *region, const struct stat *file)
{
    return (uint64_t)file->st_dev == region->disk && (uint64_t)file->st_ino == region->inode;
}

bool region_replaced(const struct berth_region *region)
{
    struct stat file;
    return stat(region->path, &file) == 0 && !is_mapped_file(region, &file);
}

/* A descriptor of the file that is mapped, or -1. By its path; where that leads nowhere any more,
   or to the file of another partition of the same name, by the mapping, which the kernel shows to
   root. */
static int open_mapped(const struct berth_region *region)
{
    struct stat file;
    char mapping[80];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)region->use,
              to = from + (sizeof *region->use + page - 1) / page * page;
    snprintf(mapping, sizeof mapping, "/proc/self/map_files/%lx-%lx", (unsigned long)from,
             (unsigned long)to);
    int fd = open(region->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW), error = errno;
    if (fd >= 0 && fstat(fd, &file) == 0 && is_mapped_file(region, &file))
        return fd;
    if (fd >= 0) {
        close(fd);
        error = ESTALE;
    }
    fd = open(mapping, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &file) == 0 && is_mapped_file(region, &file))
        return fd;
    if (fd >= 0)
        close(fd);
    errno = error;
    return -1;
}

/* ---- the dead ----

   Who buries says so first in the slot's state, so that no two do: one that may lock the slot's
   byte writes BY_LOCK, under that lock; one that has no descriptor of the file, since its path is
   gone, writes BY_SLOT and its own slot. A burial that a death interrupted is taken over from
   there. */
enum { BY_SLOT = 2, BY_LOCK = BY_SLOT + BERTH_SLOTS };

static void unlock_byte(int fd, uint32_t index)
{
    struct flock off = {
        .l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE + (off_t)index, .l_len = 1
    };
    fcntl(fd, F_OFD_SETLK, &off);
}

static bool bury_by_lock(struct berth_use_file *use, uint32_t index, int fd, uint64_t own_namespace)
{
    struct berth_slot *slot = &use->slots[index];
    if (!lock_byte(fd, F_OFD_GETLK, index) || !is_gone(slot, own_namespace))
        return false;
    if (!lock_byte(fd, F_OFD_SETLK, index))
        return false;
    uint32_t state = LOAD_ACQUIRE(slot->state);
    bool nobodys = state == 1 || state == BY_LOCK ||
                   (state > 1 && state < BY_LOCK && lock_byte(fd, F_OFD_GETLK, state - BY_SLOT));
    bool ours = nobodys && atomic_compare_exchange_strong(&slot->state, &state, BY_LOCK);
    if (ours)
        bury(use, index);
    unlock_byte(fd, index);
    return ours;
}

/* Without a lock to ask: known of processes of the same pid namespace only, by when they started.
   One that has become another program still looks alive. */
static bool has_ended(struct berth_slot *slot, uint64_t own_namespace)
{
    char path[40];
    struct life life = { 0 };
    if (own_namespace == 0 || slot->pid_namespace != own_namespace)
        return false;
    if (kill((pid_t)slot->pid, 0) != 0)
        return errno == ESRCH;
    snprintf(path, sizeof path, "/proc/%u/stat", slot->pid);
    if (!read_life(path, &life))
        return false;
    return life.start_ticks != slot->start_ticks ||
           ((life.state == 'Z' || life.state == 'X') && life.threads <= 1);
}

static bool bury_by_pid(struct berth_region *region, uint32_t index, uint64_t own_namespace)
{
    struct berth_use_file *use = region->use;
    struct berth_slot *slot = &use->slots[index];
    uint32_t state = LOAD_ACQUIRE(slot->state), ours = (uint32_t)(BY_SLOT + region->slot);
    if (region->slot < 0 || state == 0 || state >= BY_LOCK || !has_ended(slot, own_namespace))
        return false;
    if (state > 1 && !has_ended(&use->slots[state - BY_SLOT], own_namespace))
        return false;
    if (!atomic_compare_exchange_strong(&slot->state, &state, ours))
        return false;
    if (!has_ended(slot,
                   own_namespace)) { /* another has buried it meanwhile, and a third moved in */
        atomic_compare_exchange_strong(&slot->state, &ours, 1);
        return false;
    }
    bury(use, index);
    return true;
}

int region_reap(struct berth_region *region)
{
    struct berth_use_file *use = region->use;
    uint32_t seen = LOAD_ACQUIRE(use->slots_seen), dead = 0;
    uint64_t own_namespace = 0;
    bool looked = false;
    int fd = -1, error = errno;
    if (seen > BERTH_SLOTS)
        seen = BERTH_SLOTS;
    for (uint32_t index = 0; index < seen; index++) {
        if (LOAD_ACQUIRE(use->slots[index].state) == 0 || (int)index == region->slot)
            continue;
        if (!looked) {
            fd = open_mapped(region);
            own_namespace = own_pid_namespace();
            looked = true;
        }
        dead += fd >= 0 ? bury_by_lock(use, index, fd, own_namespace)
                        : bury_by_pid(region, index, own_namespace);
    }
    if (fd >= 0)
        close(fd);
    errno = error;
    return (int)dead;
}

void region_glance(struct berth_region *region)
{
    if (LOAD(region->use->slots_seen) <= 1 && region->slot == 0)
        return;
    uint64_t now = coarse_ns(), then = LOAD(region->looked_ns);
    if (now - then >= GLANCE_NS && atomic_compare_exchange_strong(&region->looked_ns, &then, now))
        region_reap(region);
}

bool region_join(struct berth_region *region, struct berth_error *error)
{
    if (region->slot >= 0)
        return true;
    /* Of many that start together one looks for the dead; each still does before it is ever
       refused. */
    uint64_t now = clock_ns(), then = LOAD(region->use->reaped_ns);
    if (now - then > CROWD_NS &&
        atomic_compare_exchange_strong(&region->use->reaped_ns, &then, now))
        region_reap(region);
    struct berth_use_file *use = region->use;
    int fd = open_mapped(region);
    if (fd < 0) {
        snprintf(error->text, sizeof error->text, "%s: cannot be opened to join it (%s); %s",
                 region->path, strerror(errno),
                 errno == ENOENT || errno == ESTALE
                     ? "the partition was removed while this program ran; start it again"
                     : "check its owner and mode");
        return false;
    }
    for (uint32_t index = 0; index < BERTH_SLOTS; index++) {
        struct berth_slot *slot = &use->slots[index];
        if (LOAD_ACQUIRE(slot->state) != 0)
            continue;
        if (!lock_byte(fd, F_OFD_SETLK, index)) {
            if (errno == EAGAIN || errno == EACCES)
                continue;
            snprintf(error->text, sizeof error->text,
                     "%s: its file system keeps no locks (%s), which tell who lives; name a folder "
                     "in memory or on a local disk",
                     region->path, strerror(errno));
            close(fd);
            return false;
        }
        if (LOAD_ACQUIRE(slot->state) !=
            0) { /* taken since we looked, and its owner died: the next to reap sees to it */
            unlock_byte(fd, index);
            continue;
        }
        void *proof = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        if (proof == MAP_FAILED || madvise(proof, 4096, MADV_DONTFORK) != 0) {
            snprintf(error->text, sizeof error->text, "%s: cannot be mapped (%s)", region->path,
                     strerror(errno));
            if (proof != MAP_FAILED)
                munmap(proof, 4096);
            close(fd);
            return false;
        }
        struct life life = { 0 };
        read_life("/proc/self/stat", &life);
        slot->pid = (uint32_t)getpid();
        slot->pid_namespace = own_pid_namespace();
        slot->start_ticks = life.start_ticks;
        memset(slot->command, 0, sizeof slot->command);
        strncpy(slot->command, program_invocation_short_name, sizeof slot->command - 1);
        STORE(slot->held, 0);
        STORE(slot->peak, 0);
        STORE(slot->gpu_ns, 0);
        STORE(slot->swapped, 0);
        STORE(slot->unproven_ns, 0);
        STORE(slot->outer_pid, 0);
        STORE_RELEASE(slot->state, 1);
        uint32_t seen = LOAD(use->slots_seen);
        while (seen < index + 1 &&
               !atomic_compare_exchange_weak(&use->slots_seen, &seen, index + 1)) { }
        region->proof = proof;
        region->slot = (int)index;
        close(fd);
        return true;
    }
    close(fd);
    snprintf(error->text, sizeof error->text,
             "%s: %d processes use this partition already, which is all it holds; end some or make "
             "another partition",
             region->path, (int)BERTH_SLOTS);
    return false;
}

void region_refuse(struct berth_region *region, const char *call, uint64_t asked, uint64_t left)
{
    struct berth_use_file *use = region->use;
    atomic_fetch_add(&use->refused, 1);
    atomic_fetch_add(&use->refused_bytes, asked);
    uint64_t number = atomic_fetch_add(&use->refusal_count, 1) + 1;
    struct berth_refusal *refusal = &use->refusals[number % BERTH_REFUSALS];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    /* Odd while it is written. One that is being written is left to its writer, unless he must have
       died long ago. */
    uint64_t seen = LOAD(refusal->number);
    if ((seen & 1) != 0 && number < (seen >> 1) + 16 * BERTH_REFUSALS)
        return;
    if (!atomic_compare_exchange_strong(&refusal->number, &seen, number * 2 + 1))
        return;
    refusal->time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    refusal->asked_bytes = asked;
    refusal->left_bytes = left;
    refusal->limit_bytes = limit_of(region);
    refusal->pid = (uint32_t)getpid();
    refusal->uid = (uint32_t)getuid();
    memset(refusal->command, 0, sizeof refusal->command);
    strncpy(refusal->command, program_invocation_short_name, sizeof refusal->command - 1);
    memset(refusal->call, 0, sizeof refusal->call);
    strncpy(refusal->call, call, sizeof refusal->call - 1);
    STORE_RELEASE(refusal->number, number * 2);
}

/* ---- the end ---- */

void region_close(struct berth_region *region)
{
    if (region->slot >= 0) {
        struct berth_use_file *use = region->use;
        uint32_t index = (uint32_t)region->slot;
        turn_take(&region->turn);
        bury(use, index);
        region->slot = -1;
        turn_leave(&region->turn);
        munmap(region->proof, 4096);
    }
    if (region->use != NULL)
        munmap(region->use, sizeof *region->use);
    if (region->limit != NULL)
        munmap((void *)(uintptr_t)region->limit, sizeof *region->limit);
    region->use = NULL;
    region->limit = NULL;
}

void region_forget(struct berth_region *region)
{
    region->slot = -1;
    region->proof = NULL;
    STORE(region->turn.word, 0);
    atomic_store(&time_namespace_known, 0); /* a child may begin in another */
}

/* The members of a region: joining it, finding those that have died, leaving it. */
#define _GNU_SOURCE
#include "account.h"

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

enum {
    LOCK_BASE = 1 << 24,
    GRANTER = BERTH_SLOTS, /* the byte that is locked by who answers wishes */
    GLANCE_NS = 10 * 1000 * 1000,
    CROWD_NS = 2 * 1000 * 1000,
    EXEC_NS = 100 * 1000 * 1000,
    CUT_NS = 1000 * 1000 * 1000
};

static uint64_t coarse_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- whether a member lives ---- */

static struct flock byte_of(uint32_t index, short type)
{
    return (struct flock){
        .l_type = type, .l_whence = SEEK_SET, .l_start = LOCK_BASE + (off_t)index, .l_len = 1
    };
}

static int lock_byte(int fd, int command, uint32_t index)
{
    struct flock lock = byte_of(index, F_WRLCK);
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
    CLOSED int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
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

/* What has become of a slot's process, which is known in its own pid namespace only. The first
   thread is a zombie before the others have ended. */
enum fate { UNKNOWN, LIVING, ENDING, ENDED };

static enum fate fate_of(struct berth_slot *slot, uint64_t own_namespace)
{
    char path[40];
    struct life life = { 0 };
    if (own_namespace == 0 || LOAD(slot->pid_namespace) != own_namespace)
        return UNKNOWN;
    if (kill((pid_t)LOAD(slot->pid), 0) != 0 && errno == ESRCH)
        return ENDED;
    snprintf(path, sizeof path, "/proc/%u/stat", LOAD(slot->pid));
    if (!read_life(path, &life))
        return UNKNOWN;
    bool zombie = life.state == 'Z' || life.state == 'X';
    if ((zombie && life.threads <= 1) || life.start_ticks != LOAD(slot->start_ticks))
        return ENDED;
    return zombie || (life.flags & EXITING) != 0 ? ENDING : LIVING;
}

/* Called when the lock of the slot is free, its memory gone: has its process also closed its files,
   the driver's among them? The kernel closes them before a process becomes a zombie, but its last
   thread may be another than the one that let go of the memory. Where its fate is not known, the
   lock decides, which a thread lets go of after the files that it closes itself. */
static bool is_gone(struct berth_slot *slot, uint64_t own_namespace)
{
    enum fate fate = fate_of(slot, own_namespace);
    if (fate == UNKNOWN || fate == ENDED || LOAD(slot->pid) == (uint32_t)getpid())
        return true;
    if (fate == ENDING)
        return false;
    /* It has become another program. That closes the driver's files a moment after it lets go of
       the memory. */
    uint64_t now = clock_ns(), since = 0;
    if (atomic_compare_exchange_strong(&slot->unproven_ns, &since, now))
        since = now;
    return now - since > EXEC_NS;
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
    int error = 0;
    for (int by_mapping = 0; by_mapping < 2; by_mapping++) {
        struct stat file;
        char mapping[80];
        uintptr_t from = (uintptr_t)region->use, page = (uintptr_t)sysconf(_SC_PAGESIZE);
        if (by_mapping)
            snprintf(mapping, sizeof mapping, "/proc/self/map_files/%lx-%lx", (unsigned long)from,
                     (unsigned long)(from + (sizeof *region->use + page - 1) / page * page));
        int fd = open(by_mapping ? mapping : region->path,
                      O_RDWR | O_CLOEXEC | (by_mapping ? 0 : O_NOFOLLOW));
        if (fd >= 0 && fstat(fd, &file) == 0 && is_mapped_file(region, &file))
            return fd;
        error = by_mapping ? error : fd >= 0 ? ESTALE : errno;
        if (fd >= 0)
            close(fd);
    }
    errno = error;
    return -1;
}

/* ---- the dead ----

   A process that clears the slot of a dead one first writes so in the slot's state, so that only
   one does: a process that can lock the slot's byte writes BY_LOCK, under that lock; a process
   without a descriptor of the file, because its path is gone, writes BY_SLOT and its own slot. If
   it dies before it is done, another takes over from that state. */
enum { BY_SLOT = 2, BY_LOCK = BY_SLOT + BERTH_SLOTS };
_Static_assert((int)BY_LOCK < (int)BERTH_LENDS, "the states of a slot are apart");

static void unlock_byte(int fd, uint32_t index)
{
    struct flock off = byte_of(index, F_UNLCK);
    fcntl(fd, F_OFD_SETLK, &off);
}

/* Launches that were running when a process was killed were never measured. They are charged the
   time until now, because it is not known when the GPU ended them, but at most twice the longest
   recent launch or CUT_NS, whichever is larger: a dead process that is found late must not use up
   much of the partition's time. */
static void charge_cut(const struct berth_region *region, const struct berth_slot *slot)
{
    struct berth_use_file *use = region->use;
    uint64_t since = LOAD(slot->open_since_ns), charged = LOAD(slot->open_charged_ns);
    uint64_t pct = LOAD(region->limit->core_pct), now = clock_ns(), longest = LOAD(use->longest_ns);
    if (since == 0 || now <= since || pct == 0 || pct >= 100)
        return;
    uint64_t most = longest > CUT_NS / 2 ? 2 * longest : CUT_NS,
             took = now - since < most ? now - since : most;
    if (took <= charged)
        return;
    atomic_fetch_add(&use->paid_until_ns, (took - charged) * 100 / pct);
    atomic_fetch_add(&use->gpu_ns, took - charged);
}

static void clear(const struct berth_region *region, uint32_t index)
{
    charge_cut(region, &region->use->slots[index]);
    STORE(region->use->slots[index].open_since_ns, 0);
    account_end(region->use, index);
}

static bool clear_by_lock(struct berth_region *region, uint32_t index, int fd,
                          uint64_t own_namespace)
{
    struct berth_use_file *use = region->use;
    struct berth_slot *slot = &use->slots[index];
    bool lends = LOAD_ACQUIRE(slot->state) == BERTH_LENDS;
    if (!lock_byte(fd, F_OFD_GETLK, index) || (!lends && !is_gone(slot, own_namespace)))
        return false;
    if (!lock_byte(fd, F_OFD_SETLK, index))
        return false;
    uint32_t state = LOAD_ACQUIRE(slot->state);
    if (state == BERTH_LENDS && account_is_borrowed(use, index)) {
        unlock_byte(fd, index);
        return false;
    }
    bool free_to_clear =
        state == BERTH_MEMBER || state == BERTH_LENDS || state == BY_LOCK ||
        (state > 1 && state < BY_LOCK && lock_byte(fd, F_OFD_GETLK, state - BY_SLOT));
    bool ours = free_to_clear && atomic_compare_exchange_strong(&slot->state, &state, BY_LOCK);
    if (ours)
        clear(region, index);
    unlock_byte(fd, index);
    return ours;
}

/* Without a lock to ask: one that has become another program still looks alive. */
static bool clear_by_pid(struct berth_region *region, uint32_t index, uint64_t own_namespace)
{
    struct berth_use_file *use = region->use;
    struct berth_slot *slot = &use->slots[index];
    uint32_t state = LOAD_ACQUIRE(slot->state), ours = (uint32_t)(BY_SLOT + region->slot);
    if (region->slot < 0 || state == 0 || state >= BY_LOCK || fate_of(slot, own_namespace) != ENDED)
        return false;
    if (state > 1 && fate_of(&use->slots[state - BY_SLOT], own_namespace) != ENDED)
        return false;
    if (!atomic_compare_exchange_strong(&slot->state, &state, ours))
        return false;
    /* Cleared by another process meanwhile, and taken by a third? */
    if (fate_of(slot, own_namespace) != ENDED) {
        atomic_compare_exchange_strong(&slot->state, &ours, 1);
        return false;
    }
    clear(region, index);
    return true;
}

int region_reap(struct berth_region *region)
{
    struct berth_use_file *use = region->use;
    uint32_t seen = LOAD_ACQUIRE(use->slots_seen), dead = 0;
    uint64_t own_namespace = 0;
    bool looked = false;
    KEEPS_ERRNO;
    CLOSED int fd = -1;
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
        dead += fd >= 0 ? clear_by_lock(region, index, fd, own_namespace)
                        : clear_by_pid(region, index, own_namespace);
    }
    return (int)dead;
}

bool region_has_granter(const struct berth_region *region)
{
    KEEPS_ERRNO;
    CLOSED int fd = open_mapped(region);
    return fd >= 0 && !lock_byte(fd, F_OFD_GETLK, GRANTER);
}

int region_be_granter(const struct berth_region *region)
{
    int fd = open_mapped(region);
    if (fd >= 0 && !lock_byte(fd, F_OFD_SETLK, GRANTER)) {
        int error = errno;
        close(fd);
        errno = error;
        fd = -1;
    }
    return fd;
}

void region_glance(struct berth_region *region)
{
    if (LOAD(region->use->slots_seen) <= 1 && region->slot == 0)
        return;
    uint64_t now = coarse_ns(), then = LOAD(region->looked_ns);
    if (now - then >= GLANCE_NS && atomic_compare_exchange_strong(&region->looked_ns, &then, now))
        region_reap(region);
}

static struct turn joining; /* while a descriptor is open that holds a lock */
static _Thread_local bool joins;

/* One that forks in a signal handler amid its own joining must not wait for itself. */
void region_fork_begins(void)
{
    if (!joins)
        turn_take(&joining);
}

void region_fork_ended(void)
{
    if (!joins)
        turn_leave(&joining);
}

void region_fork_child(void)
{
    joins = false;
    turn_leave(&joining);
}

static bool join(struct berth_region *region, struct berth_error *error);

bool region_join(struct berth_region *region, struct berth_error *error)
{
    if (region->slot >= 0)
        return true;
    turn_take(&joining);
    joins = true;
    bool joined = join(region, error);
    joins = false;
    turn_leave(&joining);
    return joined;
}

static void clear_words(struct berth_slot *slot, size_t from, size_t to)
{
    for (size_t at = from; at < to; at += sizeof(shared64))
        STORE(*(shared64 *)(void *)((char *)slot + at), 0);
}

/* A free slot, whose lock is held: as one that nothing happened in. */
static void reset(struct berth_slot *slot)
{
    memset(slot->command, 0, sizeof slot->command);
    strncpy(slot->command, program_invocation_short_name, sizeof slot->command - 1);
    clear_words(slot, offsetof(struct berth_slot, held), offsetof(struct berth_slot, noted));
    clear_words(slot, offsetof(struct berth_slot, open_since_ns), sizeof *slot);
}

static bool join(struct berth_region *region, struct berth_error *error)
{
    /* Of many that start together, one looks for dead members; each does before it is refused. */
    uint64_t now = clock_ns(), then = LOAD(region->use->reaped_ns);
    if (now - then > CROWD_NS &&
        atomic_compare_exchange_strong(&region->use->reaped_ns, &then, now))
        region_reap(region);
    struct berth_use_file *use = region->use;
    CLOSED int fd = open_mapped(region);
    if (fd < 0)
        return region_fail(error, "%s: cannot be opened to join it (%s); %s", region->path,
                           strerror(errno),
                           errno == ENOENT || errno == ESTALE
                               ? "the partition was removed while this program ran; start it again"
                               : "check its owner and mode");
    for (uint32_t index = 0; index < BERTH_SLOTS; index++) {
        struct berth_slot *slot = &use->slots[index];
        if (LOAD_ACQUIRE(slot->state) != 0)
            continue;
        if (!lock_byte(fd, F_OFD_SETLK, index)) {
            if (errno == EAGAIN || errno == EACCES)
                continue;
            return region_fail(error,
                               "%s: its file system keeps no locks (%s), which tell whether a "
                               "process lives; name a folder in memory or on a local disk",
                               region->path, strerror(errno));
        }
        /* Taken meanwhile by a process that has died: the next region_reap clears it. */
        if (LOAD_ACQUIRE(slot->state) != 0) {
            unlock_byte(fd, index);
            continue;
        }
        void *proof = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        if (proof == MAP_FAILED || madvise(proof, 4096, MADV_DONTFORK) != 0) {
            region_fail(error, "%s: cannot be mapped (%s)", region->path, strerror(errno));
            if (proof != MAP_FAILED)
                munmap(proof, 4096);
            return false;
        }
        struct life life = { 0 };
        read_life("/proc/self/stat", &life);
        reset(slot);
        region->pid = (uint32_t)getpid();
        region->pid_namespace = own_pid_namespace();
        region->start_ticks = life.start_ticks;
        account_sign(region, index);
        see_slot(use, index);
        region->held = 0;
        region->proof = proof;
        region->slot = (int)index;
        return true;
    }
    return region_fail(error,
                       "%s: %d processes use this partition already, which is all it holds; end "
                       "some or make another partition",
                       region->path, (int)BERTH_SLOTS);
}

bool region_lend(struct berth_region *region, uint64_t bytes)
{
    struct berth_use_file *use = region->use;
    KEEPS_ERRNO;
    CLOSED int fd = region->slot >= 0 ? open_mapped(region) : -1;
    bool lent = false;
    for (uint32_t index = 0; fd >= 0 && index < BERTH_SLOTS && !lent; index++) {
        struct berth_slot *slot = &use->slots[index];
        if (LOAD_ACQUIRE(slot->state) != BERTH_FREE || !lock_byte(fd, F_OFD_SETLK, index))
            continue;
        if (LOAD_ACQUIRE(slot->state) == BERTH_FREE) {
            reset(slot);
            STORE(slot->pid, (uint32_t)getpid());
            STORE(slot->exported_bytes, bytes);
            STORE_RELEASE(slot->state, BERTH_LENDS);
            see_slot(use, index);
            turn_take(&region->turn);
            account_move(use, (uint32_t)region->slot, index, bytes);
            region->held -= bytes < region->held ? bytes : region->held;
            turn_leave(&region->turn);
            lent = true;
        }
        unlock_byte(fd, index);
    }
    return lent;
}

/* ---- the end ---- */

void region_close(struct berth_region *region)
{
    if (region->slot >= 0) {
        struct berth_use_file *use = region->use;
        uint32_t index = (uint32_t)region->slot;
        turn_take(&region->turn);
        account_end(use, index);
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
    STORE(region->asking.word, 0);
    clock_forget();
}

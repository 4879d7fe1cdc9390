/* The fake card: what libcuda.so.1 and libnvidia-ml.so.1 of this folder share, and the ledger by
   which they judge.

   The ledger is the driver's own truth: what each process holds, in a cell of its own. A watched
   group of processes (BERTH_FAKE_WATCH=group:bytes) is checked at every instant at which anything
   is taken: the sum of what its living processes hold must not pass `bytes`. On a watched card
   every cell changes under one lock, so that a sum is that of one instant; the lock is the kernel's
   to give on when its holder is killed, and since a sum is made of the cells anew, a holder that
   was killed at any instruction leaves nothing to repair.

   A process holds its memory until the kernel has closed its files, as with the real driver: that
   is when the lock of its slot is free. A request for more than there is, and a sum that passes the
   bound, looks for dead processes first: their files were closed before another process could have
   been given what they held.

   BERTH_FAKE_NVML says what NVML is like for the process that it is set for; words, separated by
   commas:

   - host: its lists and utilisation have pids of the host, each process's own plus FAKE_HOST_PIDS
   - own: its lists hold this process alone, by its own pid, with 0 bytes (driver 560 under Docker);
     utilisation has pids of the host
   - hidden: neither its lists nor its utilisation hold this process
   - next: each process goes by the pid that follows its own, which may be a neighbour's
   - old: it is of an older version: of the lists only the first, no utilisation by process
   - missing: it does not start
   - total: it knows of no process, only what the card as a whole uses
   - lies: memory and utilisation of this process are 1 byte and 1 per cent, and no other process
     uses the card
   - slow: samples of utilisation come every 0.9 s, and in between there is none that is newer
   - ghost: the second list that a process asks for has 15 MiB of one that has died since the first
   - lags: what its lists say is up to 50 ms old
   - lost: the last GPU has fallen off the bus
   - limits: it keeps limits of cgroups; also deaf, full (fake_nvml.c) */
#ifndef BERTH_FAKE_H
#define BERTH_FAKE_H

#define _GNU_SOURCE
#include "../cu.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FAKE_LAYOUT = 5 }; /* of struct fake_card; it rises with each change */
enum { FAKE_HOST_PIDS = 1 << 22 };
enum { FAKE_SHARED = 256, FAKE_HOLDERS = 32 };
enum { FAKE_LIMITS = 32 };
enum { FAKE_GPUS = 64, FAKE_PROCESSES = 1024, FAKE_BUCKETS = 64, FAKE_LOCKS = 1 << 24 };
#define FAKE_BUCKET_NS 100000000ull
#define FAKE_EXPORT __attribute__((visibility("default")))

/* A process's state for cuCheckpointProcessGetState. */
enum fake_checkpoint { FAKE_RUNNING, FAKE_LOCKED, FAKE_CHECKPOINTED, FAKE_FAILED };

/* What the checkpoint calls refuse or do to a process. `FAKE_ONCE` shifts a word's bit to that of
   the same word for the first time only. */
enum fake_unkind {
    FAKE_NO_LOCK = 1,
    FAKE_NO_CHECKPOINT = 2,
    FAKE_NO_RESTORE = 4,
    FAKE_NO_UNLOCK = 8,
    FAKE_FAILS = 16,
    FAKE_SHARES = 32,
    FAKE_SLOW = 64,
    FAKE_DIES = 128,
    FAKE_ONCE = 8 /* bits further up */
};

struct fake_process {
    _Atomic uint32_t state;
    uint32_t pid, group;
    _Atomic uint32_t checkpoint;        /* enum fake_checkpoint */
    _Atomic uint32_t unkind;            /* bits of enum fake_unkind */
    _Atomic uint64_t parked[FAKE_GPUS]; /* what is in the host's memory while it is checkpointed */
    uint64_t cgroup;                    /* of its path; 0: not known yet */
    _Atomic uint64_t bytes[FAKE_GPUS], busy_ns[FAKE_GPUS];
};

/* When a process computed. Apart from the rest, so that a look at many processes touches few pages.
 */
struct fake_busy {
    struct {
        _Atomic uint64_t number, busy_ns;
    } bucket[FAKE_GPUS][FAKE_BUCKETS];
};

struct fake_gpu {
    uint64_t total_bytes;
    CUuuid uuid;
    _Atomic uint64_t used, busy_until_ns, violations, worst_bytes;
};

/* Memory that was exported to a file: it lives while a process holds it, or the file is open
   anywhere, which a lock of the file's shows. It is in the cell of one of its holders; in nobody's
   while a file alone holds it. Under the ledger's lock. */
struct fake_shared {
    uint64_t number; /* of its file; 0: a free place */
    uint64_t bytes;
    uint32_t gpu, owner;            /* a process's place plus one; 0: nobody */
    uint32_t holders[FAKE_HOLDERS]; /* as places plus one */
};

/* Limits of a cgroup (nvmlDeviceSetMemoryLimits_v1). */
struct fake_limits {
    char path[248];  /* empty: a free place */
    uint64_t cgroup; /* a number of its path below the mount */
    uint64_t inode, soft_bytes, hard_bytes;
    uint32_t gpu;
};

struct fake_card {
    _Atomic uint64_t ready;
    uint32_t gpu_count, driver_version;
    uint64_t context_bytes, module_bytes, pool_step_bytes;
    struct fake_gpu gpus[FAKE_GPUS];
    _Atomic uint32_t seen, watched;
    pthread_mutex_t ledger; /* robust; on a watched card every change of `bytes` is made under it */
    _Atomic uint32_t limits_count; /* places in use, from the first */
    struct fake_limits limits[FAKE_LIMITS];
    uint64_t shared_count;
    struct fake_shared shared[FAKE_SHARED];
    struct fake_process processes[FAKE_PROCESSES];
    struct fake_busy busy[FAKE_PROCESSES]; /* of the same */
};

/* A number for the path of a cgroup. */
static inline uint64_t fake_cgroup_number(const char *path)
{
    uint64_t number = 14695981039346656037u;
    for (; *path != 0; path++)
        number = (number ^ (unsigned char)*path) * 1099511628211u;
    return number | 1;
}

static inline uint64_t fake_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != 0 ? strtoull(text, NULL, 0) : otherwise;
}

/* How far the clock of this time namespace is ahead of the host's. */
static inline uint64_t fake_namespace_ns(void)
{
    static _Atomic uint64_t ahead_ns;
    static _Atomic int known;
    if (!atomic_load(&known)) {
        char line[80];
        long long seconds, ns;
        FILE *file = fopen("/proc/self/timens_offsets", "re");
        while (file != NULL && fgets(line, sizeof line, file) != NULL)
            if (sscanf(line, "monotonic %lld %lld", &seconds, &ns) == 2)
                atomic_store(&ahead_ns, (uint64_t)(seconds * 1000000000 + ns));
        if (file != NULL)
            fclose(file);
        atomic_store(&known, 1);
    }
    return atomic_load(&ahead_ns);
}

/* The card's own clock: no step or jump of the machine's (BERTH_TEST_CLOCK_JUMP) is seen on it. */
static inline uint64_t fake_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec - fake_namespace_ns();
}

static inline const char *fake_path(void)
{
    static char path[200];
    const char *named = getenv("BERTH_FAKE_CARD");
    if (named != NULL && *named != 0)
        return named;
    snprintf(path, sizeof path, "/dev/shm/berth-fake-card-%u-%d", (unsigned)getuid(), FAKE_LAYOUT);
    return path;
}

/* A file outlives the version that made it, so that each layout has names of its own. Parts may
   move while the whole keeps its size. A lock's size is the machine's. */
enum { FAKE_LOCK = sizeof(pthread_mutex_t) };
_Static_assert(
    FAKE_LAYOUT == 5 && sizeof(struct fake_card) - FAKE_LOCK == 68766272 &&
        offsetof(struct fake_card, processes) - FAKE_LOCK == 51776 &&
        offsetof(struct fake_card, busy) - FAKE_LOCK == 1657408,
    "another layout: raise FAKE_LAYOUT, and FAKE_CARD in src/berth/live/local/places.py");

/* Why there is no fake card, to the file where the library tells its reasons too. */
static inline void fake_complain(const char *what, int why)
{
    const char *log = getenv("BERTH_LOG");
    char line[400];
    int size = snprintf(line, sizeof line,
                        "no GPU: the fake card %.200s %s (%s); free some room there or name "
                        "another file with BERTH_FAKE_CARD\n",
                        fake_path(), what, strerror(why));
    int fd =
        log != NULL && *log != 0
            ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644)
            : -1;
    if (fd >= 0) {
        ssize_t ignored =
            write(fd, line, (size_t)size < sizeof line ? (size_t)size : sizeof line - 1);
        (void)ignored;
        close(fd);
    }
}

/* Room for a part of the card, which is sparse: a full file system must be an error now and no
   SIGBUS later. */
static inline int fake_reserve(int fd, size_t from, size_t size)
{
    if (fallocate(fd, 0, (off_t)from, (off_t)size) == 0 || errno == EOPNOTSUPP)
        return 0;
    return errno;
}

/* Maps the card, making it by the environment if it is not there. */
static inline struct fake_card *fake_attach(void)
{
    const char *path = fake_path();
    for (int tries = 0; tries < 1000; tries++) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0) {
            char draft[256];
            snprintf(draft, sizeof draft, "%s.%d.%llu", path, (int)getpid(),
                     (unsigned long long)fake_now());
            fd = open(draft, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            int failed = fd < 0 || ftruncate(fd, sizeof(struct fake_card)) != 0
                             ? errno
                             : fake_reserve(fd, 0, offsetof(struct fake_card, processes));
            struct fake_card *card = MAP_FAILED;
            if (failed == 0 && (card = mmap(NULL, sizeof *card, PROT_READ | PROT_WRITE, MAP_SHARED,
                                            fd, 0)) == MAP_FAILED)
                failed = errno;
            if (fd >= 0) {
                fchmod(fd, 0666);
                close(fd);
            }
            if (failed != 0) {
                if (fd >= 0)
                    unlink(draft);
                fake_complain("cannot be made", failed);
                return NULL;
            }
            card->gpu_count = (uint32_t)fake_number("BERTH_FAKE_GPUS", 1);
            card->driver_version = (uint32_t)fake_number("BERTH_FAKE_VERSION", 13050);
            card->context_bytes = fake_number("BERTH_FAKE_CONTEXT_MIB", 0) << 20;
            card->module_bytes = fake_number("BERTH_FAKE_MODULE_KIB", 0) << 10;
            card->pool_step_bytes = fake_number("BERTH_FAKE_POOL_MIB", 32) << 20;
            for (uint32_t i = 0; i < FAKE_GPUS; i++) {
                card->gpus[i].total_bytes = fake_number("BERTH_FAKE_MEM_MIB", 16384) << 20;
                for (int b = 0; b < 16; b++)
                    card->gpus[i].uuid.bytes[b] =
                        (unsigned char)(0xb0 + b * 7 + (int)(i * 16 + i / 16));
            }
            pthread_mutexattr_t kind;
            pthread_mutexattr_init(&kind);
            pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
            pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
            pthread_mutex_init(&card->ledger, &kind);
            pthread_mutexattr_destroy(&kind);
            atomic_store(&card->ready, 1);
            munmap(card, sizeof *card);
            if (link(draft, path) != 0 && errno != EEXIST) {
                fake_complain("cannot be made", errno);
                unlink(draft);
                return NULL;
            }
            unlink(draft);
            continue;
        }
        struct stat file;
        struct fake_card *card = MAP_FAILED;
        if (fstat(fd, &file) == 0 && (size_t)file.st_size >= sizeof *card)
            card = mmap(NULL, sizeof *card, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        return card == MAP_FAILED ? NULL : card;
    }
    return NULL;
}

static inline bool fake_lock(int fd, int command, uint32_t index)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = FAKE_LOCKS + (off_t)index, .l_len = 1
    };
    int answer = fcntl(fd, command, &lock);
    return command == F_OFD_GETLK ? answer == 0 && lock.l_type == F_UNLCK : answer == 0;
}

static inline void fake_lock_ledger(struct fake_card *card)
{
    if (pthread_mutex_lock(&card->ledger) == EOWNERDEAD)
        pthread_mutex_consistent(&card->ledger);
}

static inline void fake_unlock_ledger(struct fake_card *card)
{
    pthread_mutex_unlock(&card->ledger);
}

static inline void fake_shared_path(char path[300], uint64_t number)
{
    snprintf(path, 300, "%s.share.%llu", fake_path(), (unsigned long long)number);
}

/* Whether a description of the file is open, in this process or another. */
static inline bool fake_shared_is_open(const struct fake_shared *shared)
{
    char path[300];
    fake_shared_path(path, shared->number);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool is_open = fd >= 0 && !fake_lock(fd, F_OFD_GETLK, 0);
    if (fd >= 0)
        close(fd);
    return is_open;
}

/* Frees what no process holds and no file. */
static inline void fake_shared_settle(struct fake_card *card, struct fake_shared *shared)
{
    char path[300];
    if (shared->number == 0 || shared->owner != 0 || fake_shared_is_open(shared))
        return;
    atomic_fetch_sub(&card->gpus[shared->gpu].used, shared->bytes);
    fake_shared_path(path, shared->number);
    unlink(path);
    shared->number = 0;
}

/* A process holds it no more; its cell is told so unless it is dead, when the cell is empty. */
static inline void fake_shared_leave(struct fake_card *card, struct fake_shared *shared,
                                     uint32_t process, bool dead)
{
    uint32_t next = 0;
    for (int i = 0; i < FAKE_HOLDERS; i++) {
        if (shared->holders[i] == process + 1)
            shared->holders[i] = 0;
        if (shared->holders[i] != 0)
            next = shared->holders[i];
    }
    if (shared->owner != process + 1)
        return;
    if (!dead)
        atomic_fetch_sub(&card->processes[process].bytes[shared->gpu], shared->bytes);
    else
        atomic_fetch_add(&card->gpus[shared->gpu].used, shared->bytes);
    if (next != 0)
        atomic_fetch_add(&card->processes[next - 1].bytes[shared->gpu], shared->bytes);
    shared->owner = next;
    fake_shared_settle(card, shared);
}

/* Frees what dead processes held, as a driver does when their files are closed. The caller holds
   the ledger of a watched card. The process that holds the lock of a dead one's slot frees it; if
   it is killed, the next goes on. */
static inline void fake_reap_locked(struct fake_card *card)
{
    int fd = open(fake_path(), O_RDWR | O_CLOEXEC);
    uint32_t seen = atomic_load(&card->seen);
    for (uint32_t i = 0; fd >= 0 && i < seen && i < FAKE_PROCESSES; i++) {
        struct fake_process *process = &card->processes[i];
        if (atomic_load(&process->state) == 0 || !fake_lock(fd, F_OFD_SETLK, i))
            continue;
        atomic_store(&process->state, 2);
        for (int g = 0; g < FAKE_GPUS; g++)
            atomic_fetch_sub(&card->gpus[g].used, atomic_exchange(&process->bytes[g], 0));
        for (int s = 0; s < FAKE_SHARED; s++)
            if (card->shared[s].number != 0)
                fake_shared_leave(card, &card->shared[s], i, true);
        atomic_store(&process->state, 0);
    }
    for (int s = 0; fd >= 0 && s < FAKE_SHARED; s++)
        fake_shared_settle(card, &card->shared[s]);
    if (fd >= 0)
        close(fd);
}

/* The same for one without the ledger, unless another process holds it: a look waits for no lock.
 */
static inline void fake_try_reap(struct fake_card *card)
{
    bool watched = atomic_load(&card->watched);
    int got = watched ? pthread_mutex_trylock(&card->ledger) : 0;
    if (got == EOWNERDEAD)
        pthread_mutex_consistent(&card->ledger);
    else if (got != 0)
        return;
    fake_reap_locked(card);
    if (watched)
        fake_unlock_ledger(card);
}

enum { FAKE_ALL = ~0u };

/* What the living processes of a group hold together: of one instant where the ledger is held. */
static inline uint64_t fake_group_bytes(struct fake_card *card, uint32_t group, uint32_t gpu)
{
    uint64_t sum = 0;
    uint32_t seen = atomic_load(&card->seen);
    for (uint32_t i = 0; i < seen && i < FAKE_PROCESSES; i++)
        if (atomic_load(&card->processes[i].state) == 1 &&
            (group == (uint32_t)FAKE_ALL || card->processes[i].group == group))
            sum += atomic_load(&card->processes[i].bytes[gpu]);
    return sum;
}

static inline uint64_t fake_used_of(struct fake_card *card, uint32_t gpu)
{
    return atomic_load(&card->watched)
               ? fake_group_bytes(card, FAKE_ALL, gpu)
               : atomic_load_explicit(&card->gpus[gpu].used, memory_order_relaxed);
}

#endif

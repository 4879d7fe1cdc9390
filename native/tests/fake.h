/* The fake card: what libcuda.so.1 and libnvidia-ml.so.1 of this folder share, and the ledger by which they judge.

   The ledger is the driver's own truth. A watched group of processes (BERTH_FAKE_WATCH=group:bytes) is checked
   at every instant at which anything is taken: the sum of what its living processes hold must not pass `bytes`. */
#ifndef BERTH_FAKE_H
#define BERTH_FAKE_H

#define _GNU_SOURCE
#include "../cu.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FAKE_GPUS = 8, FAKE_PROCESSES = 1024, FAKE_BUCKETS = 64, FAKE_LOCKS = 1 << 24 };
#define FAKE_BUCKET_NS 100000000ull
#define FAKE_EXPORT __attribute__((visibility("default")))

struct fake_process {
    _Atomic uint32_t state;
    uint32_t pid, group;
    uint64_t start_ticks, pid_namespace;
    _Atomic uint64_t bytes[FAKE_GPUS], busy_ns[FAKE_GPUS];
    struct { _Atomic uint64_t number, busy_ns; } bucket[FAKE_GPUS][FAKE_BUCKETS];
};

struct fake_gpu {
    uint64_t total_bytes;
    CUuuid uuid;
    _Atomic uint64_t used, busy_until_ns, violations, worst_bytes;
};

struct fake_card {
    _Atomic uint64_t ready;
    uint32_t gpu_count, driver_version;
    uint64_t context_bytes, module_bytes, pool_step_bytes;
    struct fake_gpu gpus[FAKE_GPUS];
    _Atomic uint32_t seen;
    struct fake_process processes[FAKE_PROCESSES];
};

static inline uint64_t fake_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != 0 ? strtoull(text, NULL, 0) : otherwise;
}

static inline uint64_t fake_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline const char *fake_path(void)
{
    static char path[200];
    const char *named = getenv("BERTH_FAKE_CARD");
    if (named != NULL && *named != 0)
        return named;
    snprintf(path, sizeof path, "/dev/shm/berth-fake-card-%u", (unsigned)getuid());
    return path;
}

/* Maps the card, making it by the environment if it is not there. */
static inline struct fake_card *fake_attach(void)
{
    const char *path = fake_path();
    for (int tries = 0; tries < 1000; tries++) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0) {
            char draft[256];
            snprintf(draft, sizeof draft, "%s.%d.%llu", path, (int)getpid(), (unsigned long long)fake_now());
            fd = open(draft, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            if (fd < 0 || ftruncate(fd, sizeof(struct fake_card)) != 0)
                return NULL;
            fchmod(fd, 0666);
            struct fake_card *card = mmap(NULL, sizeof *card, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            close(fd);
            if (card == MAP_FAILED)
                return NULL;
            card->gpu_count = (uint32_t)fake_number("BERTH_FAKE_GPUS", 1);
            card->driver_version = (uint32_t)fake_number("BERTH_FAKE_VERSION", 13050);
            card->context_bytes = fake_number("BERTH_FAKE_CONTEXT_MIB", 0) << 20;
            card->module_bytes = fake_number("BERTH_FAKE_MODULE_KIB", 0) << 10;
            card->pool_step_bytes = fake_number("BERTH_FAKE_POOL_MIB", 32) << 20;
            for (uint32_t i = 0; i < FAKE_GPUS; i++) {
                card->gpus[i].total_bytes = fake_number("BERTH_FAKE_MEM_MIB", 16384) << 20;
                for (int b = 0; b < 16; b++)
                    card->gpus[i].uuid.bytes[b] = (unsigned char)(0xb0 + b * 7 + (int)i * 16);
            }
            atomic_store(&card->ready, 1);
            munmap(card, sizeof *card);
            if (link(draft, path) != 0 && errno != EEXIST) {
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

static inline bool fake_stat(const char *path, char *state, uint64_t *ticks)
{
    char text[1024];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (size <= 0)
        return false;
    text[size] = 0;
    char *at = strrchr(text, ')');
    if (at == NULL)
        return false;
    *state = at[2];
    at += 2;
    for (int field = 3; field < 22 && at != NULL; field++)
        at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
    *ticks = at != NULL ? strtoull(at, NULL, 10) : 0;
    return at != NULL;
}

static inline bool fake_lock(int fd, int command, uint32_t index)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = FAKE_LOCKS + (off_t)index, .l_len = 1 };
    int answer = fcntl(fd, command, &lock);
    return command == F_OFD_GETLK ? answer == 0 && lock.l_type == F_UNLCK : answer == 0;
}

/* Frees what dead processes held, as a driver does when their files are closed. */
static inline void fake_reap(struct fake_card *card)
{
    int fd = open(fake_path(), O_RDWR | O_CLOEXEC);
    uint32_t seen = atomic_load(&card->seen);
    struct stat space = { 0 };
    stat("/proc/self/ns/pid", &space);
    for (uint32_t i = 0; fd >= 0 && i < seen && i < FAKE_PROCESSES; i++) {
        struct fake_process *process = &card->processes[i];
        if (atomic_load(&process->state) != 1)
            continue;
        bool dead = fake_lock(fd, F_OFD_GETLK, i);
        if (!dead && process->pid_namespace == (uint64_t)space.st_ino) {
            char path[40], state = 0;
            uint64_t ticks = 0;
            snprintf(path, sizeof path, "/proc/%u/stat", process->pid);
            dead = !fake_stat(path, &state, &ticks) || ticks != process->start_ticks;
        }
        uint32_t alive = 1;
        if (dead && atomic_compare_exchange_strong(&process->state, &alive, 2)) {
            for (int g = 0; g < FAKE_GPUS; g++)
                atomic_fetch_sub(&card->gpus[g].used, atomic_exchange(&process->bytes[g], 0));
            atomic_store(&process->state, 0);
        }
    }
    if (fd >= 0)
        close(fd);
}

static inline uint64_t fake_group_bytes(struct fake_card *card, uint32_t group, uint32_t gpu)
{
    uint64_t sum = 0;
    uint32_t seen = atomic_load(&card->seen);
    for (uint32_t i = 0; i < seen && i < FAKE_PROCESSES; i++)
        if (atomic_load(&card->processes[i].state) == 1 && card->processes[i].group == group)
            sum += atomic_load(&card->processes[i].bytes[gpu]);
    return sum;
}

#endif

/* The card that driver.c and nvml.c share: the file APART_CARD. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
enum { PROCESSES = 16, PARTS = 4, HOST_PIDS = 70000 };

struct process {
    _Atomic unsigned pid;
    unsigned part;
    _Atomic uint64_t bytes, tail_ns, used_ns;
};
static struct card {
    _Atomic int lock;
    uint64_t most[PARTS]; /* that the processes of a part ever held together */
    struct process processes[PROCESSES];
} *card;

static const unsigned char uuid[16] = { 7, 1, 3, 9, 2, 8, 4, 6, 5, 0, 11, 12, 13, 14, 15, 16 };
static const uint64_t card_bytes = 16384 * MIB;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
static void lock(void)
{
    for (int free = 0; !atomic_compare_exchange_weak(&card->lock, &free, 1); free = 0)
        sched_yield();
}
static void unlock(void) { atomic_store(&card->lock, 0); }
static bool open_card(void)
{
    const char *path = getenv("APART_CARD");
    int fd = path == NULL || card != NULL ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *card) != 0)
        return card != NULL;
    void *memory = mmap(NULL, sizeof *card, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    card = memory == MAP_FAILED ? NULL : memory;
    return card != NULL;
}
static uint64_t held(int part) /* of all parts if it is negative; with the lock */
{
    uint64_t sum = 0;
    for (int i = 0; i < PROCESSES; i++)
        sum += part < 0 || card->processes[i].part == (unsigned)part ? card->processes[i].bytes : 0;
    return sum;
}

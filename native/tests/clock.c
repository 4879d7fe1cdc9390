/* A clock for tests, preloaded before the library: time passes only while every process sleeps, and
   then at once.

   Programs, library and fake driver all see it, in every process that names the same file
   (BERTH_TEST_CLOCK), so that what a share comes to does not depend on how busy the machine is.
   Time stands still until BERTH_TEST_CLOCK_PARTIES threads have looked at it; when all that did are
   asleep, it jumps to the first that wants to be woken.

   BERTH_TEST_CLOCK_JUMP=AT_MS:BY_MS sets CLOCK_MONOTONIC on or back at an instant, as a machine
   that was restarted or resumed does; CLOCK_MONOTONIC_RAW goes on, by which the fake card and the
   tests judge. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 64 };
#define START_NS 1000000000000ull
#define EXPORT __attribute__((visibility("default")))

struct thread {
    bool here;
    uint64_t wakes_ns;
};
struct clock {
    pthread_mutex_t turn;
    pthread_cond_t moved;
    _Atomic uint64_t now_ns;
    uint32_t parties, joined;
    struct thread threads[THREADS];
};

static struct clock *shared;
static _Thread_local struct thread *self;
static struct thread *of_this_process[THREADS];
static _Atomic uint32_t own_count;

static struct clock *open_clock(void)
{
    const char *path = getenv("BERTH_TEST_CLOCK"), *parties = getenv("BERTH_TEST_CLOCK_PARTIES");
    int fd = path != NULL ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    struct stat file;
    struct clock *clock = MAP_FAILED;
    if (fd < 0)
        return NULL;
    flock(fd, LOCK_EX);
    bool fresh = fstat(fd, &file) == 0 && file.st_size == 0;
    if (!fresh || ftruncate(fd, sizeof *clock) == 0)
        clock = mmap(NULL, sizeof *clock, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (clock != MAP_FAILED && fresh) {
        pthread_mutexattr_t mutex;
        pthread_condattr_t condition;
        pthread_mutexattr_init(&mutex);
        pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(&clock->turn, &mutex);
        pthread_condattr_init(&condition);
        pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
        pthread_cond_init(&clock->moved, &condition);
        atomic_store(&clock->now_ns, START_NS);
        clock->parties = parties != NULL ? (uint32_t)atoi(parties) : 1;
    }
    flock(fd, LOCK_UN); /* the mapping would keep it */
    close(fd);
    return clock == MAP_FAILED ? NULL : clock;
}

__attribute__((constructor)) static void begin(void)
{
    shared = open_clock();
}

/* With the turn held: if no thread is awake, time moves to the first that wants to be. */
static void move(void)
{
    uint64_t now = atomic_load(&shared->now_ns), first = UINT64_MAX;
    if (shared->joined < shared->parties)
        return;
    for (int i = 0; i < THREADS; i++) {
        if (!shared->threads[i].here)
            continue;
        if (shared->threads[i].wakes_ns <= now)
            return;
        first = shared->threads[i].wakes_ns < first ? shared->threads[i].wakes_ns : first;
    }
    if (first != UINT64_MAX)
        atomic_store(&shared->now_ns, first);
    pthread_cond_broadcast(&shared->moved);
}

static void join(void)
{
    pthread_mutex_lock(&shared->turn);
    for (int i = 0; i < THREADS && self == NULL; i++)
        if (!shared->threads[i].here)
            self = &shared->threads[i];
    if (self == NULL)
        abort(); /* more threads than a test has */
    *self = (struct thread){ .here = true };
    of_this_process[atomic_fetch_add(&own_count, 1) % THREADS] = self;
    shared->joined++;
    move();
    pthread_mutex_unlock(&shared->turn);
}

__attribute__((destructor)) static void leave(void)
{
    if (shared == NULL)
        return;
    pthread_mutex_lock(&shared->turn);
    for (uint32_t i = 0; i < atomic_load(&own_count); i++)
        of_this_process[i]->here = false;
    move();
    pthread_mutex_unlock(&shared->turn);
}

static void sleep_to(uint64_t ns)
{
    if (self == NULL)
        join();
    pthread_mutex_lock(&shared->turn);
    self->wakes_ns = ns;
    move();
    while (atomic_load(&shared->now_ns) < ns)
        pthread_cond_wait(&shared->moved, &shared->turn);
    pthread_mutex_unlock(&shared->turn);
}

/* How far CLOCK_MONOTONIC is from the clock at an instant. */
static int64_t jumped_ns(clockid_t clock, uint64_t now)
{
    static int64_t at_ms, by_ms;
    static _Atomic int known;
    if (atomic_load(&known) == 0) {
        const char *text = getenv("BERTH_TEST_CLOCK_JUMP");
        long long at = 0, by = 0;
        if (text != NULL && sscanf(text, "%lld:%lld", &at, &by) == 2) {
            at_ms = at;
            by_ms = by;
        }
        atomic_store(&known, 1);
    }
    return clock != CLOCK_MONOTONIC_RAW && by_ms != 0 &&
                   now >= START_NS + (uint64_t)at_ms * 1000000u
               ? by_ms * 1000000
               : 0;
}

static bool is_simulated(clockid_t clock)
{
    return shared != NULL && (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE ||
                              clock == CLOCK_MONOTONIC_RAW);
}

static uint64_t ns_of(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec;
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (!is_simulated(clock))
        return (int)syscall(SYS_clock_gettime, clock, time);
    if (self == NULL)
        join();
    uint64_t now = atomic_load(&shared->now_ns);
    now += (uint64_t)jumped_ns(clock, now);
    *time = (struct timespec){ (time_t)(now / 1000000000u), (long)(now % 1000000000u) };
    return 0;
}

EXPORT int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time,
                           struct timespec *left)
{
    if (!is_simulated(clock))
        return syscall(SYS_clock_nanosleep, clock, flags, time, left) == 0 ? 0 : errno;
    uint64_t now = atomic_load(&shared->now_ns);
    sleep_to(ns_of(time) + (flags & TIMER_ABSTIME ? (uint64_t)-jumped_ns(clock, now) : now));
    return 0;
}

EXPORT int nanosleep(const struct timespec *time, struct timespec *left)
{
    if (shared == NULL)
        return (int)syscall(SYS_nanosleep, time, left);
    sleep_to(ns_of(time) + atomic_load(&shared->now_ns));
    return 0;
}

EXPORT int usleep(useconds_t us)
{
    return nanosleep(&(struct timespec){ (time_t)(us / 1000000u), (long)(us % 1000000u) * 1000 },
                     NULL);
}

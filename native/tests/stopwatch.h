/* How long a call kept its thread: time spent on a CPU, be it turning in a circle, and time asleep.

   On a busy machine a call may take long because the thread was given no CPU, or the machine
   itself had none; that is not the callee's doing. So time in line for a CPU does not count, nor
   what is missing while it never slept. */
#ifndef BERTH_STOPWATCH_H
#define BERTH_STOPWATCH_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct stopwatch {
    uint64_t wall_ns, cpu_ns, line_ns;
    long sleeps;
};

static inline uint64_t stopwatch_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Time that this thread has stood in line for a CPU; 0 where the kernel does not count it. Not for
   use across fork. */
static inline uint64_t stopwatch_line_ns(void)
{
    static _Thread_local int fd = -2;
    char text[96];
    if (fd == -2)
        fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (size <= 0)
        return 0;
    text[size] = 0;
    const char *second = strchr(text, ' ');
    return second != NULL ? strtoull(second, NULL, 10) : 0;
}

static inline long stopwatch_sleeps(void)
{
    struct rusage use;
    return getrusage(RUSAGE_THREAD, &use) == 0 ? use.ru_nvcsw : 0;
}

static inline void stopwatch_start(struct stopwatch *watch)
{
    watch->sleeps = stopwatch_sleeps();
    watch->line_ns = stopwatch_line_ns();
    watch->wall_ns = stopwatch_clock(CLOCK_MONOTONIC);
    watch->cpu_ns = stopwatch_clock(CLOCK_THREAD_CPUTIME_ID);
}

static inline uint64_t stopwatch_kept_ns(const struct stopwatch *watch)
{
    uint64_t cpu = stopwatch_clock(CLOCK_THREAD_CPUTIME_ID) - watch->cpu_ns,
             wall = stopwatch_clock(CLOCK_MONOTONIC) - watch->wall_ns;
    uint64_t line = stopwatch_line_ns() - watch->line_ns;
    bool slept = stopwatch_sleeps() != watch->sleeps;
    return slept && wall > cpu + line ? wall - line : cpu;
}

#endif

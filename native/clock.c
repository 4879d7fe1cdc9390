/* The one clock of a region's processes, in whatever time namespace each of them is. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How far the clock of this process's time namespace is ahead of the host's, which is the one that
   all of a region go by. */
static shared64 time_namespace_ns;
static shared32 time_namespace_known;

static void ask_time_namespace(void)
{
    char text[256];
    long long seconds = 0, ns = 0;
    KEEPS_ERRNO;
    CLOSED int fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    text[size > 0 ? size : 0] = 0;
    const char *line = strstr(text, "monotonic");
    if (line != NULL && sscanf(line, "monotonic %lld %lld", &seconds, &ns) == 2)
        atomic_store(&time_namespace_ns, (uint64_t)(seconds * 1000000000 + ns));
    atomic_store(&time_namespace_known, 1);
}

uint64_t clock_ns(void)
{
    struct timespec now;
    if (LOAD_ACQUIRE(time_namespace_known) == 0)
        ask_time_namespace();
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec - LOAD(time_namespace_ns);
}

/* After a fork: a child may begin in another time namespace. */
void clock_forget(void)
{
    atomic_store(&time_namespace_known, 0);
}

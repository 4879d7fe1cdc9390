/* Preloaded: a mapping of a region is inherited by children for a while longer before it is said
   not to be; `slow_reached` says that this is so now. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT atomic_int slow_reached;
EXPORT int madvise(void *at, size_t size, int advice);

static int holds_region(void)
{
    char path[40], to[300];
    for (int fd = 3; fd < 64; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, to, sizeof to - 1);
        to[length > 0 ? length : 0] = 0;
        if (strstr(to, ".use") != NULL)
            return 1;
    }
    return 0;
}

int madvise(void *at, size_t size, int advice)
{
    if (advice == MADV_DONTFORK && holds_region()) {
        atomic_store(&slow_reached, 1);
        usleep(100 * 1000);
    }
    return (int)syscall(SYS_madvise, at, size, advice);
}

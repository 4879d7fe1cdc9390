/* A region's file may be cut short under the operator's hands by any process that may write it.
   What is mapped is then no longer there, and touching it is SIGBUS. The operator's tools go on:
   while they look, a page that has gone is replaced by an empty one, and what they saw is not
   believed. Only they do that: a guest's signals are the guest's. */
#define _GNU_SOURCE
#include "guard.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before;
static _Thread_local volatile sig_atomic_t guarded, gone;

static void replace(int number, siginfo_t *info, void *context)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    (void)context;
    if (guarded && info->si_code == BUS_ADRERR) {
        void *at = (void *)((uintptr_t)info->si_addr & ~(page - 1));
        gone = 1;
        if (mmap(at, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) != MAP_FAILED)
            return;
    }
    sigaction(number, &before, NULL); /* not ours: it comes again, for the program's own handler */
    if (info->si_code <= 0)
        raise(number);
}

void guard_begin(void)
{
    struct sigaction action = { .sa_sigaction = replace, .sa_flags = SA_SIGINFO };
    pthread_mutex_lock(&one_at_a_time);
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
    gone = 0;
    guarded = 1;
}

bool guard_end(void)
{
    bool whole = !gone;
    guarded = 0;
    sigaction(SIGBUS, &before, NULL);
    pthread_mutex_unlock(&one_at_a_time);
    return whole;
}

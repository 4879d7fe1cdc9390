/* How this process's threads take turns: a lock without a system call where none waits. One that
   waits yields its core, then sleeps ever longer, up to 1 ms: a holder that is stopped costs the
   others nothing, and is not waited for by other processes, of which each has its own turns. */
#ifndef BERTH_TURN_H
#define BERTH_TURN_H

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

struct turn {
    _Atomic uint32_t word;
};

/* The C library's word that this process has one thread, from glibc 2.32 on. */
extern char __libc_single_threaded __attribute__((weak));

/* Held across system calls only where threads cannot go on without each other: at the start
   (devices.c, routes.c), while a process joins its region (members.c), where tables grow, where the
   files of exported memory are looked at (vmm.c), and while NVML is asked about a region that this
   process has not joined (nvml.c). Never held across a call of CUDA. */
static inline void turn_take(struct turn *turn)
{
    if (&__libc_single_threaded != NULL && __libc_single_threaded &&
        atomic_load_explicit(&turn->word, memory_order_relaxed) == 0) {
        atomic_store_explicit(&turn->word, 1, memory_order_relaxed); /* there is no other thread */
        return;
    }
    for (unsigned tries = 0;; tries++) {
        uint32_t free_turn = 0;
        if (atomic_load_explicit(&turn->word, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_weak_explicit(&turn->word, &free_turn, 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return;
        if (tries < 64)
            continue;
        int error = errno;
        if (tries < 96)
            sched_yield();
        else
            nanosleep(&(struct timespec){ 0, tries < 128 ? 50000 : 1000000 }, NULL);
        errno = error;
    }
}

static inline bool turn_try(struct turn *turn)
{
    uint32_t free_turn = 0;
    return atomic_compare_exchange_strong_explicit(&turn->word, &free_turn, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void turn_leave(struct turn *turn)
{
    atomic_store_explicit(&turn->word, 0, memory_order_release);
}

/* Takes a turn until the end of the block. */
static inline struct turn *turn_taken(struct turn *turn)
{
    turn_take(turn);
    return turn;
}

static inline void turn_ends(struct turn *const *turn)
{
    turn_leave(*turn);
}
#define IN_TURN(of)                                                                         \
    __attribute__((cleanup(turn_ends), unused)) struct turn *const in_turn = turn_taken(of)
/* The value of an expression, or what it does, in a turn. */
#define WITHIN(of, ...) \
    ({                  \
        IN_TURN(of);    \
        (__VA_ARGS__);  \
    })

/* Leaves a guest's errno as it was at the end of the block; declared before what may change it. */
static inline void errno_again(const int *kept)
{
    errno = *kept;
}
#define KEEPS_ERRNO __attribute__((cleanup(errno_again), unused)) const int kept_errno = errno

/* A descriptor that is closed at the end of the block; -1: none. */
static inline void descriptor_closed(const int *fd)
{
    if (*fd >= 0)
        close(*fd);
}
#define CLOSED __attribute__((cleanup(descriptor_closed)))

#endif

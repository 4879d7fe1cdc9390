/* What every part of libberth.so knows: its wrappers, and the driver's own entry points behind
   them. */
#ifndef BERTH_H
#define BERTH_H

#include "cu.h"
#include "region.h"

#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* What is more than `less`; 0: nothing. */
static inline uint64_t above(uint64_t more, uint64_t less)
{
    return more > less ? more - less : 0;
}

/* A list with room for twice as many, or as it is where there is no memory for that. */
static inline void *list_grown(void *list, size_t *space, size_t size)
{
    size_t twice = *space != 0 ? *space * 2 : 64;
    void *moved = realloc(list, twice * size);
    *space = moved != NULL ? twice : *space;
    return moved != NULL ? moved : list;
}

/* The exported wrappers, under the driver's own names. */
#define HOOK(name, params) EXPORT CUresult name params;
#define NVHOOK(name, params) EXPORT int name params;
#include "hooks.h"

/* The driver's own entry points; NULL where it has none. Plain pointers, which cost a call nothing:
   each is written once, or again with the same address, and read whole. */
struct real {
#define HOOK(name, params) CUresult(*name) params;
#define NVHOOK(name, params) int(*name) params;
#define NEED(name, params) CUresult(*name) params;
#define NVNEED(name, params) int(*name) params;
#include "hooks.h"
    void *(*find)(const char *name); /* the driver's own, which may have been loaded only now */
};
extern struct real real;

/* Before the driver is called (idle.c): counts the call if somebody wants to know, and waits while
   this process is suspended, since calls of a suspended process hang in the driver. */
extern shared32 watched;
extern void (*arriving)(void);
static inline void arrive(void)
{
    if (UNLIKELY(LOAD(watched) != 0))
        arriving();
}

/* Calls the driver; an entry point that it lacks answers CUDA_ERROR_NOT_FOUND. NVML answers
   whatever has become of this process, and is no call of CUDA. */
#define NVHAVE(name) (real.name != NULL)
#define NVREAL(name) (LIKELY(NVHAVE(name)) ? real.name : (__typeof__(real.name))real.find(#name))
#define HAVE(name) (arrive(), NVHAVE(name))
#define REAL(name) (arrive(), NVREAL(name))

/* A call and its twin whose default stream is the thread's own: what each answers, by `per_thread`,
   which REAL_TWIN calls the one of. */
#define DEFINE_TWINS(name, params, answer) \
    CUresult name params                   \
    {                                      \
        const bool per_thread = false;     \
        (void)per_thread;                  \
        return answer;                     \
    }                                      \
    CUresult name##_ptsz params            \
    {                                      \
        const bool per_thread = true;      \
        (void)per_thread;                  \
        return answer;                     \
    }
#define REAL_TWIN(name) (per_thread ? REAL(name##_ptsz) : REAL(name))
/* The same for a driver that may lack the twin. */
#define REAL_EITHER(name) (per_thread && HAVE(name##_ptsz) ? real.name##_ptsz : REAL(name))

enum { MAX_DEVICES = 64 };

#endif

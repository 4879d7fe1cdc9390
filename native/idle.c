/* Idle tenants: one that does not call the driver for long may be suspended for others, and comes
   back with its next call. That call is counted and, while the process is away, asks to be resumed
   (wish.c) and waits, before the driver sees it. Calls that are counted by nothing else, copies
   above all, pass through here. */
#define _GNU_SOURCE
#include "devices.h"

#include <errno.h>
#include <time.h>

shared32 watched;

/* Counted first, then looked: who suspends writes first that it is away, then looks at the count.
   So one of the two sees the other. */
static void count_and_wait(void)
{
    struct device *device;
    KEEPS_ERRNO;
    for (int i = 0; (device = device_at(i)) != NULL; i++) {
        struct berth_region *region = &device->region;
        if (!device->limited || region->slot < 0)
            continue;
        atomic_fetch_add(&region->use->calls, 1);
        while (atomic_load(&region->limit->watch) == BERTH_AWAY)
            if (!region_ask(region, BERTH_COMES_BACK, clock_ns()))
                nanosleep(&(struct timespec){ 0, 10000000 }, NULL);
    }
}
void (*arriving)(void) = count_and_wait;

#define PASSES(name, thread, params, args) \
    CUresult name params                   \
    {                                      \
        return REAL(name) args;            \
    }                                      \
    CUresult name##_##thread params        \
    {                                      \
        return REAL(name##_##thread) args; \
    }
#include "hooks.h"

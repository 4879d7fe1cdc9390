#define _GNU_SOURCE
#include "parts.h"
#include "turn.h"

#include <stddef.h>

extern const struct part __start_berth_parts[] __attribute__((visibility("hidden")));
extern const struct part __stop_berth_parts[] __attribute__((visibility("hidden")));

_Atomic uint32_t parts_dirty;

void parts_mark_dirty(void)
{
    atomic_store_explicit(&parts_dirty, 1, memory_order_relaxed);
}

void parts_fork_begins(void)
{
    for (const struct part *part = __start_berth_parts; part < __stop_berth_parts; part++)
        if (part->fork_begins != NULL)
            part->fork_begins();
}

void parts_fork_ended(void)
{
    for (const struct part *part = __start_berth_parts; part < __stop_berth_parts; part++)
        if (part->fork_ended != NULL)
            part->fork_ended();
}

void parts_forget(void)
{
    atomic_store(&parts_dirty, 0);
    for (const struct part *part = __start_berth_parts; part < __stop_berth_parts; part++)
        if (part->turn != NULL)
            turn_leave(part->turn);
    for (const struct part *part = __start_berth_parts; part < __stop_berth_parts; part++)
        if (part->forget != NULL)
            part->forget();
}

void parts_reclaim(struct device *device)
{
    atomic_store(&parts_dirty, 0);
    for (const struct part *part = __start_berth_parts; part < __stop_berth_parts; part++)
        if (part->reclaim != NULL)
            part->reclaim(device);
}

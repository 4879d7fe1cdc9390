/* The process's one driver and NVML, as they are loaded. */
#ifndef BERTH_DRIVERS_H
#define BERTH_DRIVERS_H

#include "berth.h"
#include "elf.h"

/* Takes an object up if it is a driver or NVML: its entry points are read, and their names led to
   the wrappers. The caller has a turn. */
void drivers_consider(const struct elf *elf);
extern struct drivers {
    shared32 driver, nvml;  /* found */
    shared32 edited;        /* the driver's names lead to the wrappers */
    shared32 copies;        /* how many others were led to it */
    _Atomic uintptr_t base; /* where the driver is; 0: not yet */
} drivers;
void *drivers_own(const char *name);                     /* the driver's own; NULL: none */
void *drivers_wrapper(const char *name);                 /* NULL: not hooked */
bool drivers_wraps(const char *name, const void *found); /* that is the driver's own */
/* What a lookup of the driver's is answered with. */
void *drivers_exchange(const char *name, void *found, int version, uint64_t flags);

#endif

/* Which of the processes that NVML tells of is this one, and what a call made the driver take for
   it. */
#ifndef BERTH_PROCESSES_H
#define BERTH_PROCESSES_H

#include "devices.h"

/* This process's slot in a device's region; NULL where it has none. */
struct berth_slot *processes_slot(struct device *device);
/* The own pid in the outermost namespace that /proc tells of; 0 where it tells of one only. */
unsigned processes_outer_pid(void);
/* The own pid where NVML may go by it; 0 where its pids are known to be others. */
unsigned processes_own_pid(struct device *device);
/* NVML's list has told that this process is `pid` there. */
void processes_found(struct device *device, unsigned pid);
/* Whether this process is still to be found among those that NVML tells of. */
bool processes_wanted(struct device *device);

/* Watches which pids compute, until one alone can be this process, where its memory did not tell.
 */
void processes_watch(struct device *device, const NVutilization *samples, unsigned count,
                     unsigned own_pct);
/* Whether a pid of NVML's is one of the partition's. */
bool processes_ours(struct berth_region *region, unsigned pid);
/* Whether every process of the partition that computes is known by its pid in NVML. */
bool processes_known(struct berth_region *region);

#endif

/* What a call made the driver take for itself, by NVML or the driver; and which of the processes
   that NVML tells of is this one. */
#ifndef BERTH_NVML_DELTA_H
#define BERTH_NVML_DELTA_H

#include "devices.h"

/* The card at one instant: what each process holds, what all hold, what the partition was charged.
 */
struct nvml_snapshot;

/* What a call is to make: the size of contexts is known from the second on. */
enum making { A_MODULE, A_FIRST_CONTEXT, A_CONTEXT };
/* Before a call that makes the driver take memory for itself; NULL where there is no room for a
   look. It is freed by `snapshot_delta`, or by free() where the call failed. */
struct nvml_snapshot *snapshot_before(struct device *device, enum making making);
/* How well it is known what a call took: what is known of contexts, the least of several that began
   to hold memory at once or what the card lost while others allocated, what it lost while none did,
   what NVML tells of this process. */
enum evidence { EVIDENCE_NONE, EVIDENCE_LEAST, EVIDENCE_TOTAL, EVIDENCE_LIST };
/* What the call took, never 0 where it made a context and that cannot be measured. `reserved` was
   charged before it; `made` is the context, NULL for a call that made a module. */
uint64_t snapshot_delta(struct device *device, struct nvml_snapshot *before, uint64_t reserved,
                        CUcontext made, enum evidence *reported);
/* What the card has free; 0 where the driver does not say, as without a context. */
uint64_t driver_free(void);

/* This process's slot in a device's region; NULL where it has none. */
struct berth_slot *processes_slot(struct device *device);
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

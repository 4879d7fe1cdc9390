/* What a call made the driver take for itself. */
#ifndef BERTH_NVML_DELTA_H
#define BERTH_NVML_DELTA_H

#include "devices.h"

/* The card at one instant: what each process holds, what all hold, what the partition was charged.
 */
struct look;

/* Before a call that makes the driver take memory for itself; NULL where there is no room for a
   look. Each look is ended by one of the two calls below. */
struct look *look_before(struct device *device);
/* How well it is known what a call took: what is known of contexts, the least of several that began
   to hold memory at once or what the card lost while others allocated, what it lost while none did,
   what NVML tells of this process. */
enum told { TOLD_NOTHING, TOLD_LEAST, TOLD_TOTAL, TOLD_LIST };
/* What the call took, never 0 where it made a context and that cannot be measured. `reserved` was
   charged before it; `made` is the context, NULL for a call that made a module. */
uint64_t look_taken(struct device *device, struct look *before, uint64_t reserved, CUcontext made,
                    enum told *told);
/* What the card has free; 0 where the driver does not say, as without a context. */
uint64_t driver_free(void);
/* The call failed. */
void look_end(struct device *device, struct look *before);

#endif

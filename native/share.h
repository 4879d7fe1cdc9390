/* The partition's time: what is charged, when a launch may begin, and what NVML says of both. */
#ifndef BERTH_SHARE_H
#define BERTH_SHARE_H

#include "devices.h"

/* Whether the partition's compute is limited at all. */
bool share_limits(const struct device *device);
/* Buys GPU time and waits until it begins. */
void share_buy(struct device *device, uint64_t ns);
/* How much GPU time the partition gets in `wall_ns`. */
uint64_t share_within(const struct device *device, uint64_t wall_ns);
/* Charges the difference to what was charged; does not wait. */
void share_correct(struct device *device, int64_t ns);
/* What a launch is charged that was measured to take `ns`. */
uint64_t share_scaled(const struct device *device, uint64_t ns);
/* Whether others compute on the card, so that a launch may seem longer than it is. */
bool share_contended(const struct device *device);
/* Whether NVML told that no other computes, at its last look, which was at `looked_ns`. */
bool share_alone(const struct device *device, uint64_t *looked_ns);
/* Whether NVML tells what this partition computes, so that a launch may be left out that others may
   have kept. */
bool share_knows(const struct device *device);
/* Whether the least that launches seem to take may be what they all take, since NVML would tell
   otherwise. */
bool share_may_trim(const struct device *device);
/* Work was on its way to the GPU for `took_ns`, from `begun_ns` on. */
void share_backlog(struct device *device, uint64_t begun_ns, uint64_t took_ns);
/* Compares with NVML, now and then. */
void share_check(struct device *device);
void share_sleep(uint64_t ns);
/* Whether the driver has what launches are measured by. */
bool share_measures(void);

#endif

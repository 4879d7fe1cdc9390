/* Physical memory, and what holds it beside handles and mappings. */
#ifndef BERTH_VMM_H
#define BERTH_VMM_H

#include "devices.h"

void vmm_array_gone(const void *array); /* what was mapped into it */
/* Which device's memory it is; NULL where it is none's. */
struct device *device_at_location(const CUlocation *location, int type);

#endif

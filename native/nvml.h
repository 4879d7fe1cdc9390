/* NVML, as this process is shown it and as it is asked. */
#ifndef BERTH_NVML_H
#define BERTH_NVML_H

#include "devices.h"

bool nvml_own_bytes(struct device *device, uint64_t *bytes);
NVdevice nvml_handle(struct device *device);

#endif

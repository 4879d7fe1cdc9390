/* NVML, as this process is shown it and as it is asked. */
#ifndef BERTH_NVML_H
#define BERTH_NVML_H

#include "devices.h"

NVdevice nvml_handle(struct device *device);

#endif

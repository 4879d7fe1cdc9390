/* What the driver and NVML say of the devices. */
#ifndef BERTH_CARDS_H
#define BERTH_CARDS_H

#include "berth.h"

struct card {
    CUdevice handle;
    unsigned char uuid[16];
    size_t bytes;
    int position;
    bool pageable; /* it reaches the memory of the system by itself */
    NVdevice nvml;
};
/* How many there are; an error where one cannot be told from others. The driver is called: with no
   lock held. */
int cards_ask(struct card cards[MAX_DEVICES], struct berth_error *error);
NVdevice
nvml_named(const unsigned char uuid[16]); /* NULL where there is no NVML, or none of that name */

#endif

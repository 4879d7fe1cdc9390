/* Physical memory, and what holds it. */
#ifndef BERTH_VMM_H
#define BERTH_VMM_H

#include "devices.h"

struct record; /* of one piece of physical memory */
/* The record of a handle, or of what is mapped at an address, held by one mapping more; NULL where
   it is not known. */
struct record *vmm_hold(CUhandle handle);
struct record *vmm_hold_at(CUdeviceptr address);
void vmm_hold_again(struct record *record); /* one mapping more of what a mapping holds */
/* One handle or mapping less, after the driver did it. */
void vmm_drop(struct record *record, uint32_t handles, uint32_t maps);
/* The same of a handle of which `bytes` are to be used. Where its size was not known when it was
   imported, they are charged now; false where they do not fit, and nothing is held. */
bool vmm_hold_grown(CUhandle handle, uint64_t bytes, const char *call, struct record **record);
bool vmm_is_last(struct record *record);          /* one mapping alone holds it */
CUdevice vmm_device(const struct record *record); /* -1: nothing is counted for it */
/* A multicast object was made: what to tell with its record when that is gone. */
void vmm_keep_object(CUhandle object, void (*when_gone)(const void *record));
/* Whose memory it is: NULL for the host's alone, and where nothing is limited. */
struct device *device_at_location(const CUlocation *location, int type);

#endif

/* The devices that this process sees, each with its region. */
#ifndef BERTH_DEVICES_H
#define BERTH_DEVICES_H

#include "berth.h"

struct device {
    int ordinal;
    CUdevice handle;
    unsigned char uuid[16];
    bool limited; /* has a region */
    struct berth_region region;
    _Atomic(NVdevice) nvml;
    shared32 exact; /* the driver does not round up what is allocated (steps.c) */
};
extern shared32 limiting;           /* some device has a limit */
static inline bool limits_any(void) /* the wrappers' one question */
{
    return LOAD(limiting) != 0;
}
extern shared32 pacing;  /* some device has a compute limit */
extern shared32 several; /* there is more than one device */
/* The calling thread's context; NULL where there is none or the driver does not tell. */
CUcontext context_current(void);
/* Makes a context current around a question to the driver; false where that cannot be. */
bool context_enter(CUcontext context);
void context_leave(bool entered);
struct device *
device_current(void); /* of the calling thread's context; NULL where there is no limit */
CUcontext device_context(
    void); /* that context, as the last call of `device_current` on this thread found it */
/* Where memory counts that a call without a stream allocates: on the current context's GPU; without
   a context on the first that has a limit, since no call passes uncounted. NULL: nothing is
   limited. */
struct device *device_for_memory(void);
/* The GPU of a stream, whatever context is current. NULL where nothing is limited, or where the
   driver does not tell (`known` is false then): such a call is refused. */
struct device *device_of_stream(CUstream stream, bool *known);
struct device *device_of(CUdevice handle);
struct device *device_by_uuid(const unsigned char uuid[16]);
struct device *device_at(int position);      /* NULL past the last */
NVdevice device_nvml(struct device *device); /* NULL where NVML does not know it */
CUresult devices_start(CUresult started);
void devices_changed(void); /* a context is gone: forget which device it was on */
bool devices_none(void);    /* limits cannot be known: there is no GPU */

/* Takes the bytes for a call. Where they do not fit: looks for dead processes and for memory that
   is not used, asks for room and waits for the answer, and else records the refusal. Not to be
   called with a turn. */
bool obtain(struct device *device, uint64_t bytes, const char *call);
/* The same of `bytes` for a call that asked for `asked`: that is what a refusal tells. */
bool obtain_for(struct device *device, uint64_t bytes, uint64_t asked, const char *call);
/* Takes without asking and without a record: for a part that can do with less. */
bool take_quietly(struct device *device, uint64_t bytes, uint64_t *left);
void give(struct device *device, uint64_t bytes);
/* The driver has answered a call that these bytes are taken for. Where hardware keeps the memory,
   its refusals are recorded, and what it gave may be the peak. */
void witness_answered(struct device *device, uint64_t bytes, const char *call, CUresult result);
static inline void driver_answered(struct device *device, uint64_t bytes, const char *call,
                                   CUresult result)
{
    if (UNLIKELY(region_is_witness(&device->region)))
        witness_answered(device, bytes, call, result);
}
/* Records the refusal of what no room could help. */
void refuse(struct device *device, uint64_t bytes, uint64_t left, const char *call);

#endif

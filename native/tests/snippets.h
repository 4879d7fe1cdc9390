/* Each hook's snippet, by its name. */
#ifndef BERTH_SNIPPETS_H
#define BERTH_SNIPPETS_H
#include "claims.h"

#define HOOK(name, params) void snippet_##name(void);
#define NVHOOK(name, params)   \
    void snippet_##name(void); \
    int name params;
#define NEED(name, params)
#define NVNEED(name, params) int name params;
#include "../hooks.h"
#undef HOOK
#undef NVHOOK
#undef NEED
#undef NVNEED
int nvmlDeviceGetHandleByIndex_v2(unsigned index, NVdevice *device);

#define SNIPPET(name) void snippet_##name(void)

/* `allocate` of `bytes` a time: as often as it fits, once more in vain, and once again after a
   free. */
#define ALLOCATES(type, bytes, allocate, release)    \
    do {                                             \
        type made[64], *at;                          \
        unsigned fits = (unsigned)(LIMIT / (bytes)); \
        start();                                     \
        for (unsigned i = 0; i < fits; i++) {        \
            at = &made[i];                           \
            OK(allocate);                            \
            HELD((i + 1) * (uint64_t)(bytes));       \
        }                                            \
        at = &made[63];                              \
        OOM(allocate);                               \
        HELD(fits * (uint64_t)(bytes));              \
        OK(release(made[0]));                        \
        HELD((fits - 1) * (uint64_t)(bytes));        \
        at = &made[0];                               \
        OK(allocate);                                \
        HELD(fits * (uint64_t)(bytes));              \
        for (unsigned i = 0; i < fits; i++)          \
            OK(release(made[i]));                    \
        HELD(0);                                     \
    } while (0)
#define ONE_BLOCK 1, 1, 1, 1, 1, 1, 0, NULL

void neighbour(void); /* computes until it is told to end */

static inline void nvml_device(NVdevice *device)
{
    CHECK(nvmlInit_v2() == NV_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, device) == NV_SUCCESS);
}

#endif

/* The part of the fake NVML that cuts a GPU up (BERTH_FAKE_MIG=1): seven slices of an eighth of its
   memory each. */
#include "fake_mig.h"

enum { NOT_SUPPORTED = 3, IN_USE = 19, INSUFFICIENT = 23 };

/* As on a card of 80 GiB: slices of the GPU's cores, and eighths of its memory. */
static const struct {
    uint32_t id, slices, eighths;
} profiles[] = {
    { 19, 1, 1 }, { 20, 1, 2 }, { 14, 2, 2 }, { 9, 3, 4 }, { 5, 4, 4 }, { 0, 7, 8 },
};
enum { PROFILES = sizeof profiles / sizeof *profiles, EIGHTHS = 8 };

struct placement {
    unsigned start, size;
};

struct profile_info {
    unsigned version, id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg,
        ofa;
    unsigned long long mem_mib;
    char name[96];
};
struct compute_profile_info {
    unsigned id, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
};
struct instance_info {
    NVdevice device;
    unsigned id, profile;
    struct placement at;
};
struct compute_info {
    NVdevice device;
    void *instance;
    unsigned id, profile, start, size;
};

static bool is_on(void)
{
    return fake_number("BERTH_FAKE_MIG", 0) != 0;
}

static int gpu_of(NVdevice device)
{
    uintptr_t number = (uintptr_t)device;
    return number >= 1 && number <= FAKE_GPUS ? (int)number - 1 : -1;
}

static uint64_t total_of(int gpu)
{
    struct fake_card *card = fake_attach();
    return card == NULL ? 0 : card->gpus[gpu].total_bytes;
}

static uint64_t eighth_mib(int gpu)
{
    return (total_of(gpu) >> 20) / 8;
}

FAKE_EXPORT int nvmlDeviceGetMigMode(NVdevice device, unsigned *now, unsigned *pending)
{
    if (gpu_of(device) < 0 || getenv("BERTH_FAKE_MIG") == NULL)
        return NOT_SUPPORTED;
    *now = *pending = is_on();
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetMinorNumber(NVdevice device, unsigned *minor)
{
    *minor = (unsigned)gpu_of(device);
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetGpuInstanceProfileInfoV(NVdevice device, unsigned number,
                                                     struct profile_info *info)
{
    int gpu = gpu_of(device);
    if (gpu < 0 || !is_on() || number >= PROFILES)
        return NOT_SUPPORTED;
    if (info->version != (sizeof *info | 2u << 24))
        return 25; /* the argument's version */
    uint64_t mib = eighth_mib(gpu) * profiles[number].eighths;
    info->id = profiles[number].id;
    info->slices = profiles[number].slices;
    info->mem_mib = mib;
    snprintf(info->name, sizeof info->name, "MIG %ug.%llugb", profiles[number].slices,
             (unsigned long long)mib / 1024);
    return NV_SUCCESS;
}

static uint32_t profile_of(unsigned id)
{
    uint32_t at = 0;
    while (at < PROFILES && profiles[at].id != id)
        at++;
    return at;
}

/* Where the instances of a profile may begin: at multiples of their eighths, as far as the cores
   suffice. Returns how many places there are. */
static unsigned places_of(uint32_t profile, struct placement *places)
{
    uint32_t size = profiles[profile].eighths, most = FAKE_MIG_SLICES / profiles[profile].slices;
    unsigned count = 0;
    for (uint32_t start = 0; start + size <= EIGHTHS && count < most; start += size)
        places[count++] = (struct placement){ start, size };
    return count;
}

FAKE_EXPORT int nvmlDeviceGetGpuInstancePossiblePlacements_v2(NVdevice device, unsigned id,
                                                              struct placement *places,
                                                              unsigned *count)
{
    struct placement found[EIGHTHS];
    uint32_t profile = profile_of(id);
    if (gpu_of(device) < 0 || !is_on() || profile == PROFILES)
        return NOT_SUPPORTED;
    unsigned there = places_of(profile, found), room = *count;
    *count = there;
    if (places == NULL)
        return NV_SUCCESS;
    if (room < there)
        return 7; /* the room is too small */
    memcpy(places, found, there * sizeof *places);
    return NV_SUCCESS;
}

static bool is_free(const struct fake_mig_instance *instances, uint32_t profile,
                    struct placement place)
{
    uint32_t slices = profiles[profile].slices;
    for (int i = 0; i < FAKE_MIG_INSTANCES; i++) {
        const struct fake_mig_instance *seen = &instances[i];
        if (atomic_load(&seen->state) == 0)
            continue;
        slices += seen->slices;
        if (place.start < seen->start + seen->size && seen->start < place.start + place.size)
            return false;
    }
    return slices <= FAKE_MIG_SLICES;
}

/* Makes an instance in the first free place at or after one, up to another. */
static int create_in(NVdevice device, unsigned id, unsigned first, unsigned last, void **made)
{
    int gpu = gpu_of(device);
    struct fake_mig *mig = fake_mig_attach();
    struct placement places[EIGHTHS];
    uint32_t profile = profile_of(id);
    if (gpu < 0 || !is_on() || mig == NULL)
        return NOT_SUPPORTED;
    if (profile == PROFILES)
        return NV_INVALID_ARGUMENT;
    struct fake_mig_instance *instances = mig->instances[gpu], *one = NULL;
    for (int i = FAKE_MIG_INSTANCES - 1; i >= 0; i--)
        if (atomic_load(&instances[i].state) == 0)
            one = &instances[i];
    unsigned count = places_of(profile, places), at = 0;
    while (at < count && (places[at].start < first || !is_free(instances, profile, places[at])))
        at++;
    if (one == NULL || at == count || places[at].start > last)
        return INSUFFICIENT;
    uint64_t now = fake_now();
    int slot = (int)(one - instances);
    one->profile = id;
    one->slices = profiles[profile].slices;
    one->start = places[at].start;
    one->size = places[at].size;
    one->bytes = (eighth_mib(gpu) * profiles[profile].eighths) << 20;
    for (int b = 0; b < 16; b++)
        one->uuid[b] =
            (unsigned char)(now >> (b % 8 * 8)) ^ (unsigned char)(b * 29 + slot * 7 + gpu);
    atomic_store(&one->state, 1);
    *made = one;
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceCreateGpuInstance(NVdevice device, unsigned id, void **made)
{
    return create_in(device, id, 0, EIGHTHS, made);
}

FAKE_EXPORT int nvmlDeviceCreateGpuInstanceWithPlacement(NVdevice device, unsigned id,
                                                         const struct placement *place, void **made)
{
    return create_in(device, id, place->start, place->start, made);
}

FAKE_EXPORT int nvmlDeviceGetGpuInstances(NVdevice device, unsigned id, void **instances,
                                          unsigned *count)
{
    int gpu = gpu_of(device);
    struct fake_mig *mig = fake_mig_attach();
    if (gpu < 0 || !is_on() || mig == NULL)
        return NOT_SUPPORTED;
    *count = 0;
    for (int i = 0; i < FAKE_MIG_INSTANCES; i++) {
        struct fake_mig_instance *seen = &mig->instances[gpu][i];
        if (atomic_load(&seen->state) != 0 && seen->profile == id)
            instances[(*count)++] = seen;
    }
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlGpuInstanceGetInfo(struct fake_mig_instance *made, struct instance_info *info)
{
    ptrdiff_t at = made - fake_mig_attach()->instances[0];
    *info = (struct instance_info){ (NVdevice)(uintptr_t)(at / FAKE_MIG_INSTANCES + 1),
                                    (unsigned)(at % FAKE_MIG_INSTANCES + 1),
                                    made->profile,
                                    { made->start, made->size } };
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlGpuInstanceGetComputeInstanceProfileInfo(struct fake_mig_instance *made,
                                                             unsigned number, unsigned engine,
                                                             struct compute_profile_info *info)
{
    static const unsigned slices[] = { 1, 2, 3, 4, 7 };
    (void)engine;
    if (number >= sizeof slices / sizeof *slices || slices[number] > made->slices)
        return NOT_SUPPORTED;
    *info = (struct compute_profile_info){ .id = number, .slices = slices[number] };
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlGpuInstanceCreateComputeInstance(struct fake_mig_instance *made, unsigned id,
                                                     void **compute)
{
    if (fake_number("BERTH_FAKE_MIG_FAILS", 0) != 0 || atomic_load(&made->state) != 1)
        return INSUFFICIENT;
    (void)id;
    atomic_store(&made->state, 2);
    *compute = made;
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlComputeInstanceGetInfo_v2(struct fake_mig_instance *made,
                                              struct compute_info *info)
{
    uintptr_t at = (uintptr_t)(made - fake_mig_attach()->instances[0]);
    *info = (struct compute_info){ (NVdevice)(at + FAKE_MIG_HANDLES), made, 0, 0, 0, made->slices };
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetGpuInstanceById(NVdevice device, unsigned id, void **made)
{
    int gpu = gpu_of(device);
    struct fake_mig *mig = fake_mig_attach();
    if (!is_on())
        return NOT_SUPPORTED;
    if (gpu < 0 || mig == NULL || id < 1 || id > FAKE_MIG_INSTANCES)
        return NV_INVALID_ARGUMENT;
    *made = &mig->instances[gpu][id - 1];
    return atomic_load(&mig->instances[gpu][id - 1].state) != 0 ? NV_SUCCESS : NV_NOT_FOUND;
}

FAKE_EXPORT int nvmlGpuInstanceGetComputeInstanceById(struct fake_mig_instance *made, unsigned id,
                                                      void **compute)
{
    *compute = made;
    return id == 0 && atomic_load(&made->state) == 2 ? NV_SUCCESS : NV_NOT_FOUND;
}

FAKE_EXPORT int nvmlGpuInstanceGetComputeInstances(struct fake_mig_instance *made, unsigned id,
                                                   void **computes, unsigned *count)
{
    (void)id;
    *count = atomic_load(&made->state) == 2;
    if (*count != 0)
        computes[0] = made;
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlComputeInstanceDestroy(struct fake_mig_instance *made)
{
    if (fake_number("BERTH_FAKE_MIG_BUSY", 0) != 0)
        return IN_USE;
    atomic_store(&made->state, 1);
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlGpuInstanceDestroy(struct fake_mig_instance *made)
{
    if (atomic_load(&made->state) == 2)
        return IN_USE;
    memset(made->uuid, 0, sizeof made->uuid);
    atomic_store(&made->state, 0);
    return NV_SUCCESS;
}

/* libnvidia-ml.so.1 over the fake card. */
#include "fake_mig.h"

static struct fake_card *card;

static int gpu_of(NVdevice device)
{
    return (int)(uintptr_t)device - 1;
}

#define GIVEN(device, pointer)                                                    \
    do {                                                                          \
        if (card == NULL)                                                         \
            return NV_UNINITIALIZED;                                              \
        if (gpu_of(device) < 0 || gpu_of(device) >= (int)card->gpu_count || (pointer) == NULL) \
            return NV_INVALID_ARGUMENT;                                           \
    } while (0)

FAKE_EXPORT int nvmlInit_v2(void)
{
    if (card == NULL)
        card = fake_attach();
    return card != NULL ? NV_SUCCESS : 9;
}

FAKE_EXPORT int nvmlInit(void) { return nvmlInit_v2(); }
FAKE_EXPORT int nvmlShutdown(void) { return NV_SUCCESS; }
FAKE_EXPORT const char *nvmlErrorString(int error) { return error == NV_SUCCESS ? "success" : "error of the fake NVML"; }

FAKE_EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    snprintf(text, size, "fake");
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = card->gpu_count;
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, NVdevice *device)
{
    if (index >= card->gpu_count)
        return 2;
    *device = (NVdevice)(uintptr_t)(index + 1);
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetIndex(NVdevice device, unsigned *index)
{
    *index = (unsigned)gpu_of(device);
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetName(NVdevice device, char *name, unsigned size)
{
    (void)device;
    snprintf(name, size, "berth fake GPU");
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetUUID(NVdevice device, char *text, unsigned size)
{
    if (fake_mig_of_handle(device) != NULL) {
        char named[48];
        fake_mig_uuid_text(fake_mig_of_handle(device)->uuid, named);
        snprintf(text, size, "%s", named);
        return NV_SUCCESS;
    }
    const unsigned char *b = card->gpus[gpu_of(device)].uuid.bytes;
    snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7],
             b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetHandleByUUID(const char *wanted, NVdevice *device)
{
    char text[48];
    for (unsigned i = 0; i < card->gpu_count; i++) {
        *device = (NVdevice)(uintptr_t)(i + 1);
        nvmlDeviceGetUUID(*device, text, sizeof text);
        if (strcmp(text, wanted) == 0)
            return NV_SUCCESS;
    }
    uint32_t gpu;
    struct fake_mig_instance *instance = fake_mig_named(wanted, strlen(wanted), &gpu);
    if (instance != NULL)
        *device = (NVdevice)(uintptr_t)(instance - fake_mig_attach()->instances[0] + FAKE_MIG_HANDLES);
    return instance != NULL ? NV_SUCCESS : NV_NOT_FOUND;
}

FAKE_EXPORT int nvmlDeviceGetMemoryInfo(NVdevice device, NVmemory *memory)
{
    if (fake_mig_of_handle(device) != NULL) {
        *memory = (NVmemory){ .total = fake_mig_of_handle(device)->bytes };
        memory->free = memory->total;
        return NV_SUCCESS;
    }
    GIVEN(device, memory);
    fake_reap(card);
    struct fake_gpu *gpu = &card->gpus[gpu_of(device)];
    memory->total = gpu->total_bytes;
    memory->used = fake_used_of(card, (uint32_t)gpu_of(device));
    memory->free = memory->total - memory->used;
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetMemoryInfo_v2(NVdevice device, NVmemory_v2 *memory)
{
    NVmemory plain;
    GIVEN(device, memory);
    int result = nvmlDeviceGetMemoryInfo(device, &plain);
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return result;
}

static unsigned list_processes(NVdevice device, NVprocess *list, unsigned most)
{
    unsigned count = 0;
    uint32_t seen = atomic_load(&card->seen);
    for (uint32_t i = 0; i < seen && i < FAKE_PROCESSES; i++) {
        struct fake_process *process = &card->processes[i];
        if (atomic_load(&process->state) != 1)
            continue;
        if (count < most)
            list[count] = (NVprocess){ process->pid, atomic_load(&process->bytes[gpu_of(device)]), ~0u, ~0u };
        count++;
    }
    return count;
}

static int list_with_ids(NVdevice device, unsigned *count, NVprocess *list)
{
    GIVEN(device, count);
    if (*count != 0 && list == NULL)
        return NV_INVALID_ARGUMENT;
    unsigned most = *count;
    *count = list_processes(device, list, most);
    return *count <= most ? NV_SUCCESS : NV_INSUFFICIENT_SIZE;
}

static int list_without_ids(NVdevice device, unsigned *count, NVprocess_v1 *list)
{
    NVprocess all[FAKE_PROCESSES];
    GIVEN(device, count);
    if (*count != 0 && list == NULL)
        return NV_INVALID_ARGUMENT;
    unsigned found = list_processes(device, all, FAKE_PROCESSES), most = *count;
    for (unsigned i = 0; i < found && i < most; i++)
        list[i] = (NVprocess_v1){ all[i].pid, all[i].bytes };
    *count = found;
    return found <= most ? NV_SUCCESS : NV_INSUFFICIENT_SIZE;
}

/* This card's processes compute, draw and are clients of MPS all at once. */
#define LISTS(name, type, list_of)                                                \
    FAKE_EXPORT int name(NVdevice device, unsigned *count, type *list) { return list_of(device, count, list); }
LISTS(nvmlDeviceGetComputeRunningProcesses, NVprocess_v1, list_without_ids)
LISTS(nvmlDeviceGetComputeRunningProcesses_v2, NVprocess, list_with_ids)
LISTS(nvmlDeviceGetComputeRunningProcesses_v3, NVprocess, list_with_ids)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, NVprocess_v1, list_without_ids)
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v2, NVprocess, list_with_ids)
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v3, NVprocess, list_with_ids)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, NVprocess_v1, list_without_ids)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v2, NVprocess, list_with_ids)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v3, NVprocess, list_with_ids)

FAKE_EXPORT int nvmlDeviceGetProcessUtilization(NVdevice device, NVutilization *samples, unsigned *count, unsigned long long since_us)
{
    uint64_t now = fake_now() / FAKE_BUCKET_NS; /* this bucket is not complete */
    uint64_t from = since_us * 1000 / FAKE_BUCKET_NS, most = *count;
    if (now - from > FAKE_BUCKETS - 2)
        from = now - (FAKE_BUCKETS - 2);
    *count = 0;
    if (from >= now)
        return NV_NOT_FOUND;
    for (uint32_t i = 0; i < atomic_load(&card->seen) && i < FAKE_PROCESSES; i++) {
        struct fake_process *process = &card->processes[i];
        uint64_t busy = 0;
        if (atomic_load(&process->state) != 1)
            continue;
        for (uint64_t bucket = from; bucket < now; bucket++)
            if (atomic_load(&process->bucket[gpu_of(device)][bucket % FAKE_BUCKETS].number) == bucket)
                busy += atomic_load(&process->bucket[gpu_of(device)][bucket % FAKE_BUCKETS].busy_ns);
        if (busy == 0)
            continue;
        if (*count < most)
            samples[*count] = (NVutilization){ .pid = process->pid, .time_us = now * FAKE_BUCKET_NS / 1000,
                                               .sm_pct = (unsigned)(busy * 100 / ((now - from) * FAKE_BUCKET_NS)) };
        ++*count;
    }
    return *count <= most ? NV_SUCCESS : NV_INSUFFICIENT_SIZE;
}

FAKE_EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return nvmlInit_v2();
}

struct fake_rates { unsigned gpu, memory; };

/* What nvidia-smi shows: busy time of all processes in the last second. */
FAKE_EXPORT int nvmlDeviceGetUtilizationRates(NVdevice device, struct fake_rates *rates)
{
    uint64_t now = fake_now() / FAKE_BUCKET_NS, busy = 0;
    for (uint32_t i = 0; i < atomic_load(&card->seen) && i < FAKE_PROCESSES; i++)
        for (uint64_t bucket = now - 10; bucket < now; bucket++)
            if (atomic_load(&card->processes[i].state) == 1
                && atomic_load(&card->processes[i].bucket[gpu_of(device)][bucket % FAKE_BUCKETS].number) == bucket)
                busy += atomic_load(&card->processes[i].bucket[gpu_of(device)][bucket % FAKE_BUCKETS].busy_ns);
    rates->gpu = busy >= 10 * FAKE_BUCKET_NS ? 100 : (unsigned)(busy / (FAKE_BUCKET_NS / 10));
    rates->memory = 0;
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetPowerUsage(NVdevice device, unsigned *milliwatt)
{
    (void)device;
    *milliwatt = 100000;
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetPcieThroughput(NVdevice device, unsigned counter, unsigned *kbps)
{
    (void)device;
    *kbps = counter == 0 ? 1000 : 500;
    return NV_SUCCESS;
}

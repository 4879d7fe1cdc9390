/* libnvidia-ml.so.1 over the fake card. */
#include "fake_mig.h"

enum { SLOW_BUCKETS = 9 }; /* FAKE_BUCKET_NS each, between two samples of utilisation */

static struct fake_card *card;

static int gpu_of(NVdevice device)
{
    return (int)(uintptr_t)device - 1;
}

/* Whether BERTH_FAKE_NVML has a word in it (fake.h). */
static bool is(const char *word)
{
    const char *words = getenv("BERTH_FAKE_NVML"), *at;
    size_t size = strlen(word);
    while (words != NULL && (at = strstr(words, word)) != NULL) {
        if (at[size] == 0 || at[size] == ',')
            return true;
        words = at + size;
    }
    return false;
}

/* What is wrong with a call for a device that is to fill something in. */
static int refused(NVdevice device, const void *pointer)
{
    if (card == NULL)
        return NV_UNINITIALIZED;
    if (gpu_of(device) < 0 || gpu_of(device) >= (int)card->gpu_count || pointer == NULL)
        return NV_INVALID_ARGUMENT;
    return is("lost") && gpu_of(device) == (int)card->gpu_count - 1
               ? 15 /* NVML_ERROR_GPU_IS_LOST */
               : NV_SUCCESS;
}

FAKE_EXPORT int nvmlInit_v2(void)
{
    if (is("missing"))
        return 12;
    if (card == NULL)
        card = fake_attach();
    return card != NULL ? NV_SUCCESS : 9;
}

FAKE_EXPORT int nvmlInit(void)
{
    return nvmlInit_v2();
}
FAKE_EXPORT int nvmlShutdown(void)
{
    return NV_SUCCESS;
}
FAKE_EXPORT const char *nvmlErrorString(int error)
{
    return error == NV_SUCCESS ? "success" : "error of the fake NVML";
}

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

/* The first versions of both, by which older programs ask. */
FAKE_EXPORT int nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

FAKE_EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, NVdevice *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
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
    snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
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
        *device =
            (NVdevice)(uintptr_t)(instance - fake_mig_attach()->instances[0] + FAKE_MIG_HANDLES);
    return instance != NULL ? NV_SUCCESS : NV_NOT_FOUND;
}

FAKE_EXPORT int nvmlDeviceGetMemoryInfo(NVdevice device, NVmemory *memory)
{
    if (fake_mig_of_handle(device) != NULL) {
        *memory = (NVmemory){ .total = fake_mig_of_handle(device)->bytes };
        memory->free = memory->total;
        return NV_SUCCESS;
    }
    int wrong = refused(device, memory);
    if (wrong != NV_SUCCESS)
        return wrong;
    fake_try_reap(card);
    struct fake_gpu *gpu = &card->gpus[gpu_of(device)];
    memory->total = gpu->total_bytes;
    memory->used = is("lies") ? 0 : fake_used_of(card, (uint32_t)gpu_of(device));
    memory->free = memory->total - memory->used;
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetMemoryInfo_v2(NVdevice device, NVmemory_v2 *memory)
{
    NVmemory plain;
    int wrong = refused(device, memory);
    if (wrong != NV_SUCCESS)
        return wrong;
    int result = nvmlDeviceGetMemoryInfo(device, &plain);
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return result;
}

static bool is_own(const struct fake_process *process)
{
    return process->pid == (uint32_t)getpid();
}

/* The pid that a process goes by in what NVML tells. */
static unsigned shown_pid(uint32_t index, bool outside)
{
    if (outside)
        return card->processes[index].pid + FAKE_HOST_PIDS;
    return card->processes[index].pid + is("next");
}

/* What a process holds, as of the last time that the list was made. */
static uint64_t lagging_bytes(unsigned gpu, uint32_t index)
{
    static uint64_t made_ns[FAKE_GPUS], bytes[FAKE_GPUS][FAKE_PROCESSES];
    uint64_t now = fake_now();
    if (now - made_ns[gpu] > 50 * 1000000u) {
        made_ns[gpu] = now;
        for (uint32_t i = 0; i < FAKE_PROCESSES; i++)
            bytes[gpu][i] = atomic_load(&card->processes[i].bytes[gpu]);
    }
    return bytes[gpu][index];
}

static unsigned list_processes(NVdevice device, NVprocess *list, unsigned most)
{
    fake_try_reap(card); /* what has died is in no list, as in NVIDIA's */
    unsigned count = 0;
    uint32_t seen = atomic_load(&card->seen);
    bool alone = is("own"), hidden = is("hidden"), lies = is("lies"), host = is("host");
    for (uint32_t i = 0; i < seen && i < FAKE_PROCESSES && !is("total"); i++) {
        struct fake_process *process = &card->processes[i];
        if (atomic_load(&process->state) != 1 || (alone && !is_own(process)) ||
            (hidden && is_own(process)))
            continue;
        uint64_t bytes = is("lags") ? lagging_bytes((unsigned)gpu_of(device), i)
                                    : atomic_load(&process->bytes[gpu_of(device)]);
        bytes = alone ? 0 : lies && is_own(process) && bytes != 0 ? 1 : bytes;
        if (count < most)
            list[count] = (NVprocess){ shown_pid(i, host), bytes, ~0u, ~0u };
        count++;
    }
    return count;
}

/* One that has died, and is in the second list that this process asks for. */
static unsigned add_ghost(NVprocess *list, unsigned most, unsigned count)
{
    static unsigned lists;
    if (!is("ghost") || ++lists != 2)
        return count;
    if (count < most)
        list[count] = (NVprocess){ FAKE_HOST_PIDS - 1, 15u << 20, ~0u, ~0u };
    return count + 1;
}

static int list_with_ids(NVdevice device, unsigned *count, NVprocess *list)
{
    int wrong = refused(device, count);
    if (wrong != NV_SUCCESS)
        return wrong;
    if (is("old"))
        return NV_FUNCTION_NOT_FOUND;
    if (*count != 0 && list == NULL)
        return NV_INVALID_ARGUMENT;
    unsigned most = *count;
    *count = add_ghost(list, most, list_processes(device, list, most));
    return *count <= most ? NV_SUCCESS : NV_INSUFFICIENT_SIZE;
}

static int list_without_ids(NVdevice device, unsigned *count, NVprocess_v1 *list)
{
    NVprocess all[FAKE_PROCESSES];
    int wrong = refused(device, count);
    if (wrong != NV_SUCCESS)
        return wrong;
    if (*count != 0 && list == NULL)
        return NV_INVALID_ARGUMENT;
    unsigned found = list_processes(device, all, FAKE_PROCESSES), most = *count;
    for (unsigned i = 0; i < found && i < most; i++)
        list[i] = (NVprocess_v1){ all[i].pid, all[i].bytes };
    *count = found;
    return found <= most ? NV_SUCCESS : NV_INSUFFICIENT_SIZE;
}

/* This card's processes compute, draw and are clients of MPS all at once. */
#define LISTS(name, type, list_of)                                     \
    FAKE_EXPORT int name(NVdevice device, unsigned *count, type *list) \
    {                                                                  \
        return list_of(device, count, list);                           \
    }
LISTS(nvmlDeviceGetComputeRunningProcesses, NVprocess_v1, list_without_ids)
LISTS(nvmlDeviceGetComputeRunningProcesses_v2, NVprocess, list_with_ids)
LISTS(nvmlDeviceGetComputeRunningProcesses_v3, NVprocess, list_with_ids)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, NVprocess_v1, list_without_ids)
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v2, NVprocess, list_with_ids)
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v3, NVprocess, list_with_ids)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, NVprocess_v1, list_without_ids)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v2, NVprocess, list_with_ids)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v3, NVprocess, list_with_ids)

/* The processes that were busy from `since_us` to the last whole bucket, at most `most` of them;
   returns how many there are. */
static unsigned list_busy(NVdevice device, NVutilization *samples, unsigned most,
                          unsigned long long since_us)
{
    uint64_t now = fake_now() / FAKE_BUCKET_NS; /* this bucket is not complete */
    uint64_t from = since_us * 1000 / FAKE_BUCKET_NS;
    if (is("slow"))
        now -= now % SLOW_BUCKETS;
    bool host = is("host") || is("own"), hidden = is("hidden"), lies = is("lies");
    unsigned count = 0;
    if (from < now && now - from > FAKE_BUCKETS - 2)
        from = now - (FAKE_BUCKETS - 2);
    for (uint32_t i = 0;
         from < now && !is("total") && i < atomic_load(&card->seen) && i < FAKE_PROCESSES; i++) {
        struct fake_process *process = &card->processes[i];
        uint64_t busy = 0;
        if (atomic_load(&process->state) != 1 || (is_own(process) ? hidden : lies))
            continue;
        for (uint64_t bucket = from; bucket < now; bucket++)
            if (atomic_load(&card->busy[i].bucket[gpu_of(device)][bucket % FAKE_BUCKETS].number) ==
                bucket)
                busy += atomic_load(
                    &card->busy[i].bucket[gpu_of(device)][bucket % FAKE_BUCKETS].busy_ns);
        if (busy == 0)
            continue;
        if (count < most)
            samples[count] = (NVutilization){
                .pid = shown_pid(i, host),
                .time_us = now * FAKE_BUCKET_NS / 1000,
                .sm_pct = lies ? 1 : (unsigned)(busy * 100 / ((now - from) * FAKE_BUCKET_NS))
            };
        count++;
    }
    return count;
}

FAKE_EXPORT int nvmlDeviceGetProcessUtilization(NVdevice device, NVutilization *samples,
                                                unsigned *count, unsigned long long since_us)
{
    int wrong = refused(device, count);
    if (wrong != NV_SUCCESS)
        return wrong;
    if (is("old"))
        return NV_FUNCTION_NOT_FOUND;
    unsigned most = samples != NULL ? *count : 0;
    *count = list_busy(device, samples, most, since_us);
    return *count == 0 ? NV_NOT_FOUND : *count <= most ? NV_SUCCESS : NV_INSUFFICIENT_SIZE;
}

FAKE_EXPORT int nvmlDeviceGetProcessesUtilizationInfo(NVdevice device, NVutilizations *all)
{
    NVutilization samples[FAKE_PROCESSES];
    int wrong = refused(device, all);
    if (wrong != NV_SUCCESS)
        return wrong;
    if (is("old"))
        return NV_FUNCTION_NOT_FOUND;
    if (all->version != NV_UTILIZATIONS_V1)
        return NV_ARGUMENT_VERSION_MISMATCH;
    unsigned found = list_busy(device, samples, FAKE_PROCESSES, all->since_us),
             most = all->list != NULL ? all->count : 0;
    for (unsigned i = 0; i < found && i < most; i++)
        all->list[i] = (NVutilization_v1){ .time_us = samples[i].time_us,
                                           .pid = samples[i].pid,
                                           .sm_pct = samples[i].sm_pct };
    all->count = found;
    return found == 0 ? NV_NOT_FOUND : found <= most ? NV_SUCCESS : NV_INSUFFICIENT_SIZE;
}

FAKE_EXPORT int nvmlDeviceGetRunningProcessDetailList(NVdevice device, NVdetails *all)
{
    NVprocess list[FAKE_PROCESSES];
    int wrong = refused(device, all);
    if (wrong != NV_SUCCESS)
        return wrong;
    if (is("old"))
        return NV_FUNCTION_NOT_FOUND;
    if (all->version != NV_DETAILS_V1)
        return NV_ARGUMENT_VERSION_MISMATCH;
    unsigned found = list_processes(device, list, FAKE_PROCESSES),
             most = all->list != NULL ? all->count : 0;
    for (unsigned i = 0; i < found && i < most; i++)
        all->list[i] = (NVdetail){
            .pid = list[i].pid, .bytes = list[i].bytes, .gpu_instance = ~0u, .compute_instance = ~0u
        };
    all->count = found;
    return found <= most ? NV_SUCCESS : NV_INSUFFICIENT_SIZE;
}

/* Accounting, as a card that keeps it for all of its processes. */
FAKE_EXPORT int nvmlDeviceGetAccountingPids(NVdevice device, unsigned *count, unsigned *pids)
{
    NVprocess list[FAKE_PROCESSES];
    int wrong = refused(device, count);
    if (wrong != NV_SUCCESS)
        return wrong;
    unsigned found = list_processes(device, list, FAKE_PROCESSES), most = pids != NULL ? *count : 0;
    for (unsigned i = 0; i < found && i < most; i++)
        pids[i] = list[i].pid;
    *count = found;
    return found <= most ? NV_SUCCESS : NV_INSUFFICIENT_SIZE;
}

FAKE_EXPORT int nvmlDeviceGetAccountingStats(NVdevice device, unsigned pid, NVaccount *account)
{
    NVprocess list[FAKE_PROCESSES];
    int wrong = refused(device, account);
    if (wrong != NV_SUCCESS)
        return wrong;
    unsigned found = list_processes(device, list, FAKE_PROCESSES);
    for (unsigned i = 0; i < found; i++)
        if (list[i].pid == pid) {
            *account = (NVaccount){ .peak_bytes = list[i].bytes };
            return NV_SUCCESS;
        }
    return NV_NOT_FOUND;
}

FAKE_EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return nvmlInit_v2();
}

struct fake_rates {
    unsigned gpu, memory;
};

/* What nvidia-smi shows: busy time of all processes in the last second. */
FAKE_EXPORT int nvmlDeviceGetUtilizationRates(NVdevice device, struct fake_rates *rates)
{
    uint64_t now = fake_now() / FAKE_BUCKET_NS, busy = 0;
    if (is("old") || is("lies")) {
        *rates = (struct fake_rates){ 0, 0 };
        return is("old") ? NV_FUNCTION_NOT_FOUND : NV_SUCCESS;
    }
    for (uint32_t i = 0; i < atomic_load(&card->seen) && i < FAKE_PROCESSES; i++)
        for (uint64_t bucket = now - 10; bucket < now; bucket++)
            if (atomic_load(&card->processes[i].state) == 1 &&
                atomic_load(&card->busy[i].bucket[gpu_of(device)][bucket % FAKE_BUCKETS].number) ==
                    bucket)
                busy += atomic_load(
                    &card->busy[i].bucket[gpu_of(device)][bucket % FAKE_BUCKETS].busy_ns);
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

/* Errors of GPUs: the file that BERTH_FAKE_XIDS names has a line for each, its GPU's index and the
   XID. A line that is there when the first set of events is made is news, too. */
struct fake_event {
    NVdevice device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};
enum { FAKE_XID_EVENT = 8 };
static _Atomic unsigned xids_told;

FAKE_EXPORT int nvmlEventSetCreate(void **set)
{
    *set = &xids_told;
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceRegisterEvents(NVdevice device, unsigned long long types, void *set)
{
    const int wrong = refused(device, set);
    if (wrong != NV_SUCCESS)
        return wrong;
    return types == FAKE_XID_EVENT ? NV_SUCCESS : NV_INVALID_ARGUMENT;
}

FAKE_EXPORT int nvmlEventSetWait_v2(void *set, struct fake_event *event, unsigned limit_ms)
{
    (void)set;
    for (unsigned waited_ms = 0;; waited_ms += 20) {
        const char *path = getenv("BERTH_FAKE_XIDS");
        FILE *file = path != NULL ? fopen(path, "re") : NULL;
        unsigned line = 0, gpu, found = 0;
        unsigned long long xid;
        while (file != NULL && fscanf(file, "%u %llu", &gpu, &xid) == 2)
            if (line++ == atomic_load(&xids_told)) {
                *event = (struct fake_event){ (NVdevice)(uintptr_t)(gpu + 1), FAKE_XID_EVENT, xid,
                                              0, 0 };
                found = 1;
                break;
            }
        if (file != NULL)
            fclose(file);
        if (found) {
            atomic_fetch_add(&xids_told, 1);
            return NV_SUCCESS;
        }
        if (waited_ms >= limit_ms)
            return 10; /* NVML_ERROR_TIMEOUT */
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
}

/* Limits of a cgroup, from driver 615 on (BERTH_FAKE_VERSION 13040), where BERTH_FAKE_NVML says
   `limits`. By NVIDIA's "MPS v3 Memory Partitioning", a limit goes with its cgroup, but what a soft
   limit has added to those of all cgroups above it stays there until the soft limit is lowered.
   With `deaf` limits are accepted and not kept; with `full` there is no place for more. */
enum { NV_LIMITS_VERSION = 13040, NV_INSUFFICIENT_RESOURCES = 23, MOST_DEEP = 16 };
struct fake_given_limits {
    const char *path;
    unsigned long long soft_bytes, hard_bytes, used_bytes;
};

/* Of a folder below the hierarchy's mount, which is /sys/fs/cgroup or /sys/fs/cgroup/unified. */
static const char *inside_of(const char *path)
{
    const char *at = strstr(path, "/cgroup/unified"), *plain = strstr(path, "/cgroup");
    return at != NULL ? at + 15 : plain != NULL ? plain + 7 : path;
}

/* The limits of a cgroup; NULL if it has none. A cgroup that was made anew has none either. */
static struct fake_limits *limits_of(NVdevice device, const char *path)
{
    struct stat there;
    for (uint32_t i = 0; i < atomic_load(&card->limits_count); i++) {
        struct fake_limits *limits = &card->limits[i];
        if (limits->path[0] == 0 || limits->gpu != (uint32_t)gpu_of(device) ||
            strcmp(limits->path, path) != 0)
            continue;
        if (stat(path, &there) == 0 && there.st_ino == limits->inode)
            return limits;
        limits->path[0] = 0;
    }
    return NULL;
}

/* The same, with a place for those that have none; NULL if there is no place. */
static struct fake_limits *place_for(NVdevice device, const char *path)
{
    struct fake_limits *limits = limits_of(device, path);
    struct stat there;
    if (limits != NULL || stat(path, &there) != 0)
        return limits;
    uint32_t at = 0;
    while (at < FAKE_LIMITS && card->limits[at].path[0] != 0 &&
           access(card->limits[at].path, F_OK) == 0)
        at++;
    if (at == FAKE_LIMITS || is("full"))
        return NULL;
    limits = &card->limits[at];
    *limits = (struct fake_limits){
        .cgroup = fake_cgroup_number(inside_of(path)),
        .inode = there.st_ino,
        .hard_bytes = ~0ull,
        .gpu = (uint32_t)gpu_of(device),
    };
    snprintf(limits->path, sizeof limits->path, "%s", path);
    if (at >= atomic_load(&card->limits_count))
        atomic_store(&card->limits_count, at + 1);
    return limits;
}

static int no_limits(NVdevice device, const struct fake_given_limits *given)
{
    int wrong = refused(device, given);
    if (wrong == NV_SUCCESS && (card->driver_version < NV_LIMITS_VERSION || !is("limits")))
        wrong = NV_FUNCTION_NOT_FOUND;
    if (wrong == NV_SUCCESS && (given->path == NULL || access(given->path, F_OK) != 0))
        wrong = NV_INVALID_ARGUMENT;
    return wrong;
}

FAKE_EXPORT int nvmlDeviceSetMemoryLimits_v1(NVdevice device, struct fake_given_limits *given)
{
    const int wrong = no_limits(device, given);
    if (wrong != NV_SUCCESS || is("deaf"))
        return wrong;
    if (geteuid() != 0)
        return 4; /* NVML_ERROR_NO_PERMISSION */
    /* The cgroup and those above it, but for the hierarchy's root. */
    struct fake_limits *chain[MOST_DEEP];
    int depth = 0;
    char path[248];
    snprintf(path, sizeof path, "%s", given->path);
    for (; depth < MOST_DEEP && inside_of(path)[0] == '/'; *strrchr(path, '/') = 0) {
        chain[depth] = place_for(device, path);
        if (chain[depth++] == NULL)
            return NV_INSUFFICIENT_RESOURCES;
    }
    if (depth == 0)
        return NV_INVALID_ARGUMENT;
    const uint64_t more = given->soft_bytes - chain[0]->soft_bytes;
    chain[0]->hard_bytes = given->hard_bytes;
    for (int i = 0; i < depth; i++)
        chain[i]->soft_bytes += more;
    for (int i = 0; i < depth; i++)
        if (chain[i]->soft_bytes == 0 && chain[i]->hard_bytes == ~0ull)
            chain[i]->path[0] = 0;
    return NV_SUCCESS;
}

FAKE_EXPORT int nvmlDeviceGetMemoryLimits_v1(NVdevice device, struct fake_given_limits *given)
{
    const int wrong = no_limits(device, given);
    if (wrong != NV_SUCCESS)
        return wrong;
    struct fake_limits *limits = limits_of(device, given->path);
    given->soft_bytes = limits != NULL ? limits->soft_bytes : 0;
    given->hard_bytes = limits != NULL ? limits->hard_bytes : ~0ull;
    given->used_bytes = 0;
    return NV_SUCCESS;
}

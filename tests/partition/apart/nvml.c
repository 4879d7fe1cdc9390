/* The NVML of driver.c's card. APART_NVML says what it tells: `true`, `host` pids, `own` pid with no
   memory and utilisation by the host's pids (driver 560 under Docker), or `none`. */
#include "card.h"

typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, compute; } Process;
typedef struct { unsigned pid; unsigned long long us; unsigned sm, mem, enc, dec; } Sample;
static unsigned kind(void) /* the first letter */
{
    const char *word = getenv("APART_NVML");
    return word != NULL ? (unsigned)word[0] : 't';
}
static unsigned told_pid(unsigned pid) { return kind() == 'h' ? pid + HOST_PIDS : pid; }
int nvmlInit_v2(void) { return kind() != 'n' && open_card() ? 0 : 9; }
int nvmlDeviceGetHandleByUUID(const char *name, void **device)
{
    char own[48] = "GPU-";
    for (int i = 0; i < 16; i++)
        sprintf(own + strlen(own), i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
    *device = card;
    return strcmp(name, own) == 0 ? 0 : 6;
}
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = 0; return device != card; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3])
{
    (void)device;
    lock();
    memory[2] = held(-1);
    unlock();
    memory[0] = card_bytes;
    memory[1] = card_bytes - memory[2];
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *list)
{
    unsigned room = *count;
    (void)device;
    *count = 0;
    for (int i = 0; i < PROCESSES; i++) {
        unsigned pid = card->processes[i].pid;
        if (pid == 0 || card->processes[i].bytes == 0 || (kind() == 'o' && pid != (unsigned)getpid()))
            continue;
        if (*count == room)
            return 7;
        uint64_t bytes = kind() == 'o' ? 0 : card->processes[i].bytes;
        list[(*count)++] = (Process){ told_pid(pid), bytes, ~0u, ~0u };
    }
    return 0;
}
int nvmlDeviceGetProcessUtilization(void *device, Sample *list, unsigned *count, unsigned long long after)
{
    static struct { uint64_t at_ns, used_ns; unsigned sm; } seen[PROCESSES];
    uint64_t now = now_ns();
    unsigned room = *count;
    (void)device;
    (void)after;
    *count = 0;
    for (int i = 0; i < PROCESSES && *count < room; i++) {
        uint64_t used = card->processes[i].used_ns, past = now - seen[i].at_ns;
        if (card->processes[i].pid == 0)
            continue;
        if (past > 200000000) {
            uint64_t pct = seen[i].at_ns == 0 ? 0 : (used - seen[i].used_ns) * 100 / past;
            seen[i].sm = pct < 100 ? (unsigned)pct : 100;
            seen[i].at_ns = now;
            seen[i].used_ns = used;
        }
        if (seen[i].sm != 0) /* by the host's pids wherever lists do not tell the truth */
            list[(*count)++] = (Sample){ card->processes[i].pid + (kind() == 't' ? 0 : HOST_PIDS),
                                         now / 1000, seen[i].sm, 0, 0, 0 };
    }
    return *count != 0 ? 0 : 6;
}

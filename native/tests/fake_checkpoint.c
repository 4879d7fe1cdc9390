/* The fake driver's checkpoint calls: what a process holds leaves its cards for the host's memory,
   and comes back. A process is named by its pid, as another process sees it.

   BERTH_FAKE_CHECKPOINT, of the process that is to be checkpointed, is a list of words:

   - no-lock, no-checkpoint, no-restore, no-unlock: that call fails, and nothing has changed; with
     -once the first time only
   - fails, fails-once: cuCheckpointProcessRestore leaves the process failed for ever
   - dies: the process is killed while cuCheckpointProcessRestore is under way
   - shares: it counts as one that shares memory, as those do that exported or imported some or have
     managed memory
   - slow: each call takes 30 ms

   BERTH_FAKE_HOST_MIB, of the process that calls, is how much all checkpointed processes may hold
   in the host's memory. */
#include "fake_inside.h"

#include <sched.h>

enum { ILLEGAL_STATE = 401 };
typedef struct {
    unsigned timeout_ms, reserved0;
    uint64_t reserved[7];
} lock_args;

static const struct {
    const char *word;
    uint32_t bit;
} words[] = {
    { "no-lock", FAKE_NO_LOCK },
    { "no-checkpoint", FAKE_NO_CHECKPOINT },
    { "no-restore", FAKE_NO_RESTORE },
    { "no-unlock", FAKE_NO_UNLOCK },
    { "fails", FAKE_FAILS },
    { "shares", FAKE_SHARES },
    { "slow", FAKE_SLOW },
    { "dies", FAKE_DIES },
};

void fake_checkpoint_begins(void)
{
    uint32_t unkind = 0;
    char list[200] = "";
    const char *told = getenv("BERTH_FAKE_CHECKPOINT");
    snprintf(list, sizeof list, "%s", told != NULL ? told : "");
    char *rest = NULL;
    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest))
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            size_t size = strlen(words[i].word);
            if (strncmp(word, words[i].word, size) == 0 && word[size] == 0)
                unkind |= words[i].bit;
            else if (strncmp(word, words[i].word, size) == 0 && strcmp(word + size, "-once") == 0)
                unkind |= words[i].bit << FAKE_ONCE;
        }
    for (int g = 0; g < FAKE_GPUS; g++)
        atomic_store(&fake_self->parked[g], 0);
    atomic_store(&fake_self->checkpoint, FAKE_RUNNING);
    atomic_store(&fake_self->unkind, unkind);
}

void fake_shares_memory(void)
{
    atomic_fetch_or(&fake_self->unkind, FAKE_SHARES);
}

void fake_wait_unlocked(void)
{
    struct timespec moment = { .tv_nsec = 1000000 };
    while (atomic_load(&fake_self->checkpoint) != FAKE_RUNNING)
        nanosleep(&moment, NULL);
}

/* The living process of a pid; NULL if it has none that uses the card. */
static struct fake_process *process_of(int pid)
{
    fake_reap_dead();
    uint32_t seen = atomic_load(&fake_card->seen);
    for (uint32_t i = 0; i < seen && i < FAKE_PROCESSES; i++)
        if (atomic_load(&fake_card->processes[i].state) == 1 &&
            fake_card->processes[i].pid == (uint32_t)pid)
            return &fake_card->processes[i];
    return NULL;
}

static bool is_unkind(struct fake_process *process, uint32_t bit)
{
    uint32_t once = bit << FAKE_ONCE;
    if (atomic_load(&process->unkind) & bit)
        return true;
    return (atomic_fetch_and(&process->unkind, ~once) & once) != 0;
}

static void kill_and_reap(struct fake_process *process)
{
    kill((pid_t)process->pid, SIGKILL);
    while (atomic_load(&process->state) != 0) {
        sched_yield();
        fake_reap_dead();
    }
}

/* Whether a process was stopped by a signal: the driver moves only what runs. */
static bool is_stopped(int pid)
{
    char path[40], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    size_t size = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[size] = 0;
    const char *state = strrchr(line, ')');
    return state != NULL && state[1] == ' ' && state[2] == 'T';
}

/* What each step begins with: the process, which must be in this state. */
static CUresult step(const char *name, int pid, uint32_t state, struct fake_process **process)
{
    if (!fake_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult wrong = fake_injected(name);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *process = process_of(pid);
    if (*process == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&(*process)->unkind) & FAKE_SLOW)
        nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
    if (is_stopped(pid))
        return CUDA_ERROR_NOT_READY;
    return atomic_load(&(*process)->checkpoint) == state ? CUDA_SUCCESS : ILLEGAL_STATE;
}

DO cuCheckpointProcessGetState(int pid, int *state)
{
    if (!fake_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    struct fake_process *process = process_of(pid);
    if (process == NULL || state == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *state = (int)atomic_load(&process->checkpoint);
    return CUDA_SUCCESS;
}

DO cuCheckpointProcessLock(int pid, lock_args *args)
{
    struct fake_process *process;
    CUresult wrong = step(__func__, pid, FAKE_RUNNING, &process);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (is_unkind(process, FAKE_NO_LOCK))
        return args != NULL && args->timeout_ms != 0 ? CUDA_ERROR_NOT_READY
                                                     : CUDA_ERROR_NOT_SUPPORTED;
    uint32_t running = FAKE_RUNNING;
    if (!atomic_compare_exchange_strong(&process->checkpoint, &running, FAKE_LOCKED))
        return ILLEGAL_STATE;
    nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL); /* the calls under way end */
    return CUDA_SUCCESS;
}

DO cuCheckpointProcessCheckpoint(int pid, void *args)
{
    (void)args;
    struct fake_process *process;
    CUresult wrong = step(__func__, pid, FAKE_LOCKED, &process);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (is_unkind(process, FAKE_SHARES) || is_unkind(process, FAKE_NO_CHECKPOINT))
        return CUDA_ERROR_NOT_SUPPORTED;
    fake_lock_ledger(fake_card);
    uint64_t sum = 0;
    uint32_t seen = atomic_load(&fake_card->seen);
    for (uint32_t i = 0; i < seen && i < FAKE_PROCESSES; i++)
        for (int g = 0; g < FAKE_GPUS && atomic_load(&fake_card->processes[i].state) == 1; g++)
            sum += atomic_load(&fake_card->processes[i].parked[g]) +
                   (&fake_card->processes[i] == process ? atomic_load(&process->bytes[g]) : 0);
    uint32_t locked = FAKE_LOCKED;
    if (sum > fake_number("BERTH_FAKE_HOST_MIB", 1 << 30) << 20)
        wrong = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!atomic_compare_exchange_strong(&process->checkpoint, &locked, FAKE_CHECKPOINTED))
        wrong = ILLEGAL_STATE;
    for (int g = 0; g < FAKE_GPUS && wrong == CUDA_SUCCESS; g++) {
        uint64_t bytes = atomic_exchange(&process->bytes[g], 0);
        atomic_fetch_add(&process->parked[g], bytes);
        if (!atomic_load(&fake_card->watched))
            atomic_fetch_sub(&fake_card->gpus[g].used, bytes);
    }
    fake_unlock_ledger(fake_card);
    return wrong;
}

DO cuCheckpointProcessRestore(int pid, void *args)
{
    (void)args;
    struct fake_process *process;
    CUresult wrong = step(__func__, pid, FAKE_CHECKPOINTED, &process);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (is_unkind(process, FAKE_NO_RESTORE))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (is_unkind(process, FAKE_FAILS)) {
        atomic_store(&process->checkpoint, FAKE_FAILED);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (is_unkind(process, FAKE_DIES))
        kill_and_reap(process);
    fake_lock_ledger(fake_card);
    fake_reap_locked(fake_card);
    for (uint32_t g = 0; g < fake_card->gpu_count && wrong == CUDA_SUCCESS; g++)
        if (fake_used_of(fake_card, g) + atomic_load(&process->parked[g]) >
            fake_card->gpus[g].total_bytes)
            wrong = CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t checkpointed = FAKE_CHECKPOINTED;
    if (wrong == CUDA_SUCCESS &&
        !atomic_compare_exchange_strong(&process->checkpoint, &checkpointed, FAKE_LOCKED))
        wrong = ILLEGAL_STATE;
    for (int g = 0; g < FAKE_GPUS && wrong == CUDA_SUCCESS; g++) {
        uint64_t bytes = atomic_exchange(&process->parked[g], 0);
        atomic_fetch_add(&process->bytes[g], bytes);
        if (!atomic_load(&fake_card->watched))
            atomic_fetch_add(&fake_card->gpus[g].used, bytes);
    }
    /* A process killed meanwhile may have been reaped already, and must hold nothing. */
    if (atomic_load(&process->state) != 1)
        wrong = CUDA_ERROR_INVALID_VALUE;
    for (int g = 0; g < FAKE_GPUS && wrong == CUDA_ERROR_INVALID_VALUE; g++) {
        uint64_t bytes = atomic_exchange(&process->bytes[g], 0);
        if (!atomic_load(&fake_card->watched))
            atomic_fetch_sub(&fake_card->gpus[g].used, bytes);
    }
    fake_unlock_ledger(fake_card);
    return wrong;
}

DO cuCheckpointProcessUnlock(int pid, void *args)
{
    (void)args;
    struct fake_process *process;
    CUresult wrong = step(__func__, pid, FAKE_LOCKED, &process);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (is_unkind(process, FAKE_NO_UNLOCK))
        return CUDA_ERROR_NOT_READY;
    uint32_t locked = FAKE_LOCKED;
    return atomic_compare_exchange_strong(&process->checkpoint, &locked, FAKE_RUNNING)
               ? CUDA_SUCCESS
               : ILLEGAL_STATE;
}

/* The fake card's ledger, which bytes are whose, and the addresses that are given out. */
#include "fake_inside.h"
#include "stopwatch.h"

#include <sched.h>

struct fake_card *fake_card;
struct fake_process *fake_self;
uint32_t fake_watch_group;
uint64_t fake_watch_bytes;
struct node *fake_nodes;
size_t fake_node_space;
_Thread_local uint64_t fake_kept_ns;

static _Atomic uint32_t spin;
static size_t node_count;
static uint64_t heap_base, heap_next, heap_end;
static struct {
    uint64_t *list;
    size_t count, space;
} free_list[48];
static _Thread_local bool measuring;

void fake_books(void)
{
    for (unsigned tries = 0; atomic_exchange_explicit(&spin, 1, memory_order_acquire) != 0; tries++)
        if (tries > 64)
            sched_yield();
}

void fake_books_done(void)
{
    atomic_store_explicit(&spin, 0, memory_order_release);
}

/* ---- the ledger ---- */

/* On a watched fake_card, with the ledger held: the sum after the change is that of this instant.
 */
static bool charge_watched(uint32_t gpu, uint64_t bytes)
{
    struct fake_gpu *device = &fake_card->gpus[gpu];
    if (fake_group_bytes(fake_card, FAKE_ALL, gpu) + bytes > device->total_bytes) {
        fake_reap_locked(fake_card);
        if (fake_group_bytes(fake_card, FAKE_ALL, gpu) + bytes > device->total_bytes)
            return false;
    }
    atomic_fetch_add(&fake_self->bytes[gpu], bytes);
    if (fake_watch_bytes == 0 ||
        fake_group_bytes(fake_card, fake_watch_group, gpu) <= fake_watch_bytes)
        return true;
    fake_reap_locked(fake_card);
    uint64_t sum = fake_group_bytes(fake_card, fake_watch_group, gpu);
    if (sum > fake_watch_bytes) {
        atomic_fetch_add(&device->violations, 1);
        if (atomic_load(&device->worst_bytes) < sum)
            atomic_store(&device->worst_bytes, sum);
    }
    return true;
}

static void lock_ledger(void)
{
    int got = measuring ? pthread_mutex_trylock(&fake_card->ledger) : EBUSY;
    if (got == EOWNERDEAD)
        pthread_mutex_consistent(&fake_card->ledger);
    if (got == 0 || got == EOWNERDEAD)
        return;
    if (!measuring) {
        fake_lock_ledger(fake_card);
        return;
    }
    struct stopwatch watch;
    stopwatch_start(&watch);
    fake_lock_ledger(fake_card);
    fake_kept_ns += stopwatch_kept_ns(&watch);
}

void fake_reap_dead(void)
{
    bool watched = atomic_load(&fake_card->watched);
    if (watched)
        lock_ledger();
    fake_reap_locked(fake_card);
    if (watched)
        fake_unlock_ledger(fake_card);
}

/* This process's cgroup of version 2, which it is in before it starts. */
static uint64_t own_cgroup(void)
{
    char line[300], path[300] = "";
    if (fake_self->cgroup != 0)
        return fake_self->cgroup;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "0::", 3) == 0)
            snprintf(path, sizeof path, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    if (file != NULL)
        fclose(file);
    return fake_self->cgroup = fake_cgroup_number(path);
}

/* Whether the limits of this process's cgroup leave room, as of an instant. */
static bool within_cgroup(uint32_t gpu, uint64_t bytes)
{
    uint32_t count = atomic_load(&fake_card->limits_count);
    for (uint32_t i = 0; i < count; i++) {
        struct fake_limits *limits = &fake_card->limits[i];
        uint64_t held = bytes;
        if (limits->path[0] == 0 || limits->gpu != gpu || limits->cgroup != own_cgroup())
            continue;
        for (uint32_t at = 0; at < atomic_load(&fake_card->seen) && at < FAKE_PROCESSES; at++)
            if (atomic_load(&fake_card->processes[at].state) != 0 &&
                fake_card->processes[at].cgroup == limits->cgroup)
                held += atomic_load(&fake_card->processes[at].bytes[gpu]);
        if (held > limits->hard_bytes)
            return false;
    }
    return true;
}

bool fake_charge(uint32_t gpu, uint64_t bytes)
{
    struct fake_gpu *device = &fake_card->gpus[gpu];
    if (bytes > device->total_bytes || !within_cgroup(gpu, bytes) ||
        bytes > fake_instance_bytes(gpu) - atomic_load(&fake_self->bytes[gpu]))
        return false;
    if (atomic_load_explicit(&fake_card->watched, memory_order_relaxed)) {
        lock_ledger();
        bool had = charge_watched(gpu, bytes);
        fake_unlock_ledger(fake_card);
        return had;
    }
    if (atomic_fetch_add(&device->used, bytes) + bytes > device->total_bytes) {
        atomic_fetch_sub(&device->used, bytes);
        fake_reap_dead();
        if (atomic_fetch_add(&device->used, bytes) + bytes > device->total_bytes) {
            atomic_fetch_sub(&device->used, bytes);
            return false;
        }
    }
    atomic_fetch_add(&fake_self->bytes[gpu], bytes);
    return true;
}

void fake_refund(uint32_t gpu, uint64_t bytes)
{
    if (atomic_load_explicit(&fake_card->watched, memory_order_relaxed)) {
        lock_ledger();
        atomic_fetch_sub(&fake_self->bytes[gpu], bytes);
        fake_unlock_ledger(fake_card);
        return;
    }
    atomic_fetch_sub(&fake_self->bytes[gpu], bytes);
    atomic_fetch_sub(&fake_card->gpus[gpu].used, bytes);
}

bool fake_like(const char *word)
{
    const char *list = getenv("BERTH_FAKE_LIKE"), *at = list != NULL ? strstr(list, word) : NULL;
    return at != NULL;
}

/* BERTH_FAKE_ERRORS: each call counts for itself. */
CUresult fake_injected(const char *name)
{
    static struct {
        char name[64];
        int calls;
    } seen[16];
    const char *at = getenv("BERTH_FAKE_ERRORS");
    for (int i = 0; at != NULL && *at != 0 && i < 16; i++) {
        char wanted[64];
        int nth, code;
        if (sscanf(at, "%63[^:]:%d:%d", wanted, &nth, &code) != 3)
            break;
        if (strcmp(wanted, name) == 0) {
            seen[i].calls++;
            if (nth == 0 || seen[i].calls == nth) {
                if (code < 0)
                    raise(-code);
                return code;
            }
        }
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    return CUDA_SUCCESS;
}

/* For tests: what the driver knows, from its side. */
FAKE_EXPORT uint64_t fake_violations(int gpu)
{
    return atomic_load(&fake_card->gpus[gpu].violations);
}
FAKE_EXPORT uint64_t fake_worst_bytes(int gpu)
{
    return atomic_load(&fake_card->gpus[gpu].worst_bytes);
}
FAKE_EXPORT uint64_t fake_own_bytes(int gpu)
{
    fake_populate();
    fake_drop_unmapped();
    fake_drop_closed();
    return atomic_load(&fake_self->bytes[gpu]);
}
FAKE_EXPORT uint64_t fake_own_busy_ns(int gpu)
{
    return atomic_load(&fake_self->busy_ns[gpu]);
}
FAKE_EXPORT uint64_t fake_used_bytes(int gpu)
{
    fake_reap_dead();
    return fake_group_bytes(fake_card, FAKE_ALL, (uint32_t)gpu);
}

/* How long this thread was kept waiting by others at the ledger, from the first call on: the fake's
   wait and not a guest's. */
FAKE_EXPORT uint64_t fake_waited_ns(void)
{
    measuring = true;
    return fake_kept_ns;
}

/* ---- addresses ---- */

static size_t slot_of(uint64_t va)
{
    return (size_t)((va >> 9) * 0x9e3779b97f4a7c15ull >> 24) & (fake_node_space - 1);
}

struct node *fake_node_at(uint64_t va)
{
    if (fake_node_space == 0)
        return NULL;
    for (size_t at = slot_of(va);; at = (at + 1) & (fake_node_space - 1)) {
        if (fake_nodes[at].what == FREE)
            return NULL;
        if (fake_nodes[at].va == va)
            return &fake_nodes[at];
    }
}

struct node *fake_node_holding(uint64_t va)
{
    for (size_t i = 0; i < fake_node_space; i++)
        if (fake_nodes[i].what != FREE && va - fake_nodes[i].va < fake_nodes[i].bytes)
            return &fake_nodes[i];
    return NULL;
}

void fake_node_put(struct node node)
{
    if ((node_count + 1) * 2 > fake_node_space) {
        struct node *old = fake_nodes;
        size_t old_space = fake_node_space;
        fake_node_space = fake_node_space ? fake_node_space * 2 : 4096;
        fake_nodes = calloc(fake_node_space, sizeof *fake_nodes);
        node_count = 0;
        for (size_t i = 0; i < old_space; i++)
            if (old[i].what != FREE)
                fake_node_put(old[i]);
        free(old);
    }
    size_t at = slot_of(node.va);
    while (fake_nodes[at].what != FREE)
        at = (at + 1) & (fake_node_space - 1);
    fake_nodes[at] = node;
    node_count++;
}

void fake_node_drop(struct node *gone)
{
    size_t hole = (size_t)(gone - fake_nodes), at = hole;
    node_count--;
    for (;;) {
        at = (at + 1) & (fake_node_space - 1);
        if (fake_nodes[at].what == FREE)
            break;
        size_t ideal = slot_of(fake_nodes[at].va);
        if (((at - ideal) & (fake_node_space - 1)) >= ((at - hole) & (fake_node_space - 1))) {
            fake_nodes[hole] = fake_nodes[at];
            hole = at;
        }
    }
    fake_nodes[hole].what = FREE;
}

static unsigned size_class(uint64_t bytes)
{
    unsigned class = 9;
    while (class < 47 && (1ull << class) < bytes)
        class++;
    return class;
}

uint64_t fake_address(uint64_t bytes)
{
    unsigned class = size_class(bytes);
    if (free_list[class].count != 0)
        return free_list[class].list[--free_list[class].count];
    if (heap_base == 0) {
        for (uint64_t size = fake_number("BERTH_FAKE_HEAP_GIB", 4096) << 30;
             size >= 1ull << 30 && heap_base == 0; size >>= 1) {
            void *space = mmap(NULL, size, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (space != MAP_FAILED) {
                madvise(space, size, MADV_DONTDUMP);
                heap_base = ((uint64_t)(uintptr_t)space + (2 << 20) - 1) & ~((2ull << 20) - 1);
                heap_next = heap_base;
                heap_end = (uint64_t)(uintptr_t)space + size;
            }
        }
    }
    uint64_t align = (1ull << class) < (2ull << 20) ? 1ull << class : 2ull << 20;
    uint64_t at = (heap_next + align - 1) & ~(align - 1);
    if ((uint32_t)at == 0)
        at += align; /* the calls of CUDA 2 have the lower half, in which it is NULL */
    if (heap_base == 0 || at + (1ull << class) > heap_end)
        return 0;
    heap_next = at + (1ull << class);
    return at;
}

uint64_t fake_blocks(uint64_t va, uint64_t bytes, int by)
{
    enum { USERS = 1 << 22 };
    static uint64_t step = 1;
    static uint16_t *users; /* of each step of the heap */
    if (users == NULL && step == 1) {
        step = fake_number("BERTH_FAKE_STEP_KIB", 0) << 10;
        if (step != 0)
            users = mmap(NULL, USERS * sizeof *users, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (__builtin_expect(step == 0, 1) || va == 0 || bytes == 0)
        return bytes;
    uint64_t first = (va - heap_base) / step, last = (va - heap_base + bytes - 1) / step, sum = 0;
    for (uint64_t at = first; at <= last; at++) {
        sum += by > 0 ? users[at % USERS] == 0 : users[at % USERS] == 1;
        users[at % USERS] = (uint16_t)(users[at % USERS] + by);
    }
    return sum * step;
}

void fake_address_back(uint64_t va, uint64_t bytes)
{
    unsigned class = size_class(bytes);
    if (free_list[class].count == free_list[class].space) {
        free_list[class].space = free_list[class].space ? free_list[class].space * 2 : 64;
        free_list[class].list =
            realloc(free_list[class].list, free_list[class].space * sizeof(uint64_t));
    }
    free_list[class].list[free_list[class].count++] = va;
}

void fake_books_forget(void)
{
    atomic_store(&spin, 0);
}

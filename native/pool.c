/* Stream-ordered memory. What counts is what a pool has reserved from the driver, used or kept for
   later.

   A pool grows in steps that only the driver knows, and shrinks when a stream or the program says
   so. Each call that may make it grow goes through these states, of which a pool has as many as
   there are calls under way (`busy`):

   - begun: `asked` holds the call's bytes, so that no other call counts on the same room in the
   pool
   - taken: the usual step is held for it in the region (take_for): the whole of it, or, where that
     does not fit, what the pool has no room for; then the call is a debtor, which may need what
     others give back
   - called: the driver has grown the pool, or used the room in it, or refused; on success `live`
     holds the bytes
   - settled: the driver was asked what is reserved; `charged` is that, and what was taken beyond it
     is given back
   - ended: the call's bytes are in `asked` no more

   The driver's answer may be old by the time it is used: another call may have made the pool grow
   since. One that is still under way holds what it took for that; one that was settled since counts
   with all that it may have grown by (`ended`). So `charged` is never too little; it may be too
   much (`exact` is false), until all calls have ended and one looks again: the pool is dirty until
   then. It is dirty too while it keeps more than is in use, since the driver may let go of that at
   any end of a stream. Where the driver cannot tell, the bytes in use count in whole steps; of a
   pool that is gone, all it had until the last pointer is freed.

   The memory of a device's graphs is a pool without a handle. Nothing in it is known to be free for
   a graph that has none yet, so `live` is 0, its room is never counted on, and graph.c remembers
   which graphs have theirs. */
#define _GNU_SOURCE
#include "pool.h"
#include "parts.h"
#include "settings.h"

enum { FIRST_STEP_BYTES = 32 << 20 };

/* UNNAMED: `handle` is not one of the driver's, which cannot be asked. */
enum standing { NAMED, UNNAMED, GONE };
enum sharing { NOT_SEEN, TOGETHER, APART };

struct pool {
    CUpool handle;          /* NULL for the memory of a device's graphs */
    struct device *device;  /* NULL: the host's memory */
    uint64_t live, charged; /* in use; held for it beside what calls under way have taken */
    uint64_t asked;         /* by calls under way */
    uint64_t ended;         /* by how much all calls that have ended may have made it grow */
    uint32_t busy, debtors; /* calls under way; those of them that took less, because the pool has
                               room for them */
    enum standing standing;
    enum sharing sharing; /* of steps, by a graph's nodes */
    bool exact;           /* `charged` is what the driver said was reserved */
    bool doubles;         /* it was seen to grow by more than it needed, by as much as it had */
    uint32_t trims;       /* of graphs: how often memory was taken from them */
};

static struct turn pools_turn; /* of all pools: never across a call of the driver */

struct device *pool_device(const struct pool *pool)
{
    return pool->device;
}

void pool_begin(struct pool *pool, uint64_t asks)
{
    IN_TURN(&pools_turn);
    pool->busy++;
    pool->asked += asks;
}

void pool_end(struct pool *pool, uint64_t asked, bool debtor)
{
    IN_TURN(&pools_turn);
    pool->busy--;
    pool->asked -= asked;
    pool->debtors -= debtor;
}

void pool_called(struct pool *pool, uint64_t bytes)
{
    IN_TURN(&pools_turn);
    pool->live += bytes;
    pool->asked -= bytes;
}

void pool_emptied(struct pool *pool, uint64_t bytes)
{
    IN_TURN(&pools_turn);
    pool->live -= bytes;
}

bool pool_is_unreported(struct pool *pool)
{
    IN_TURN(&pools_turn);
    return pool->standing != NAMED;
}

/* Looks at what the driver has reserved by now, for no call. */
static void look_again(struct pool *pool)
{
    pool_begin(pool, 0);
    pool_settle(pool, 0, false, NULL);
    pool_end(pool, 0, false);
}

/* A pool of that device; NULL: of any. */
static bool keeps_more(const struct pool *pool, const struct device *device)
{
    IN_TURN(&pools_turn);
    return pool->device != NULL && pool->charged != pool->live &&
           (device == NULL || pool->device == device);
}

static struct pool pools[MAX_POOLS];
static _Atomic int pool_count;

/* With the turn. */
static struct pool *seek(CUpool handle, const struct device *device)
{
    for (int i = 0; i < pool_count; i++)
        if (pools[i].handle == handle && pools[i].standing != GONE &&
            (handle != NULL || pools[i].device == device))
            return &pools[i];
    return NULL;
}

struct pool *pool_known(CUpool handle)
{
    IN_TURN(&pools_turn);
    return seek(handle, NULL);
}

struct pool *pool_find(CUpool handle, struct device *device)
{
    IN_TURN(&pools_turn);
    struct pool *found = seek(handle, device);
    if (found != NULL)
        return found;
    for (int i = 0; i < pool_count && found == NULL; i++)
        if (pools[i].standing == GONE && pools[i].live == 0 && pools[i].charged == 0 &&
            pools[i].busy == 0)
            found = &pools[i];
    if (found == NULL && pool_count < MAX_POOLS)
        found = &pools[pool_count++];
    if (found != NULL)
        *found = (struct pool){ .handle = handle, .device = device, .exact = true };
    return found;
}

static bool reserved_bytes(const struct pool *pool, uint64_t *bytes)
{
    *bytes = 0;
    if (pool->standing != NAMED)
        return false;
    if (pool->handle != NULL)
        return REAL(cuMemPoolGetAttribute)(pool->handle, CU_POOL_RESERVED_CURRENT, bytes) ==
               CUDA_SUCCESS;
    return REAL(cuDeviceGetGraphMemAttribute)(pool->device->handle, CU_GRAPH_MEM_RESERVED_CURRENT,
                                              bytes) == CUDA_SUCCESS;
}

/* A pool grows by whole steps: the largest power of two that divides every growth seen. */
static void learn_step(struct device *device, uint64_t growth)
{
    shared64 *cell = &device->region.use->pool_step_bytes;
    uint64_t known = LOAD(*cell), step = growth & -growth;
    if (known == 0 || step < known)
        STORE(*cell, step);
}

static uint64_t step_of(const struct device *device)
{
    uint64_t learned = LOAD(device->region.use->pool_step_bytes);
    return learned ? learned : FIRST_STEP_BYTES;
}

static uint64_t whole_steps(uint64_t bytes, uint64_t step)
{
    return bytes <= UINT64_MAX - step ? (bytes + step - 1) / step * step : bytes;
}

/* What the driver says of a pool. */
enum answer {
    REPORTED,     /* how much is reserved */
    SILENT,       /* nothing, though it can: what is held stays held until it does */
    UNREPORTABLE, /* nothing, ever: what is in use counts in whole steps */
    ORPHANED,     /* the pool is gone: all it had is held until the last of it is freed */
    EMPTY         /* nothing of it is in use any more, and it is gone or unreportable */
};

/* With the turn. */
static enum answer answer_of(const struct pool *pool, bool reported)
{
    if (reported && pool->standing != GONE)
        return REPORTED;
    if (pool->standing == NAMED && (pool->handle == NULL || HAVE(cuMemPoolGetAttribute)))
        return SILENT;
    if (pool->live == 0)
        return EMPTY;
    return pool->standing == GONE ? ORPHANED : UNREPORTABLE;
}

/* With the turn: what is to be charged by what the driver says, which is `held` now. Calls that
   were settled since it was asked may have made the pool grow by `since`. */
static uint64_t target_of(const struct pool *pool, enum answer answer, uint64_t reserved,
                          uint64_t since, uint64_t held)
{
    uint64_t whole;
    switch (answer) {
    case REPORTED:
        return reserved + since > pool->live ? reserved + since : pool->live;
    case UNREPORTABLE:
        whole = whole_steps(pool->live, step_of(pool->device));
        return whole < held ? whole : held;
    case EMPTY:
        return 0;
    default:
        return held;
    }
}

/* Which other calls of the pool a settlement must leave something to. */
enum company {
    ALONE,
    AMONG_OTHERS, /* what the pool grew by beyond what is held, another call took for and settles */
    OWED          /* what this call did not need, one that took less may need yet */
};

/* With the turn. */
static enum company company_of(const struct pool *pool, uint64_t since, bool debtor)
{
    if (pool->debtors > (uint32_t)debtor)
        return OWED;
    return pool->busy <= 1 && since == 0 ? ALONE : AMONG_OTHERS;
}

/* With the turn: what a pool's growth shows of how the driver makes it grow. */
static void learn_growth(struct pool *pool)
{
    if (pool->handle == NULL && pool->sharing == NOT_SEEN)
        pool->sharing = APART;
    pool->doubles = pool->doubles || (pool->handle != NULL && pool->charged != 0);
}

/* Where the driver grew the pool by more than may be had, all that is left is charged, and the rest
   when the next call looks again. */
bool pool_settle(struct pool *pool, uint64_t taken, bool debtor, const char *call)
{
    uint64_t reserved, ended = WITHIN(&pools_turn, pool->ended);
    bool reported = reserved_bytes(pool, &reserved);
    turn_take(&pools_turn);
    enum answer answer = answer_of(pool, reported);
    uint64_t before = pool->charged, since = pool->ended - ended, held = before + taken;
    uint64_t target = target_of(pool, answer, reserved, since, held);
    enum company company = company_of(pool, since, debtor);
    bool was_exact = pool->exact;
    if (company == OWED || (company == AMONG_OTHERS && target > held))
        target = held;
    if (answer == SILENT || (answer == REPORTED && target > reserved))
        parts_mark_dirty();
    if (pool->handle == NULL && target < before)
        pool->trims++; /* some graph has its memory no more */
    if (company == ALONE && answer == REPORTED && taken != 0 && reserved > held)
        learn_growth(pool);
    bool exact = answer == REPORTED && target == reserved;
    pool->charged = target < held ? target : held; /* what is not taken yet, nobody may give back */
    pool->ended += taken + (debtor ? before : 0);
    pool->exact = exact && target <= held;
    if (company == ALONE && exact && was_exact && reserved > before)
        learn_step(pool->device, reserved - before);
    turn_leave(&pools_turn);
    if (target <= held) {
        give(pool->device, held - target);
        return true;
    }
    uint64_t left, lacks = target - held;
    bool had = call != NULL ? obtain(pool->device, lacks, call)
                            : region_take(&pool->device->region, lacks, &left);
    uint64_t got = had ? lacks : region_take_some(&pool->device->region, lacks);
    turn_take(&pools_turn);
    pool->charged += got;
    pool->ended += lacks;
    pool->exact = exact && pool->charged == target; /* unless others settled meanwhile */
    if (!pool->exact)
        parts_mark_dirty();
    turn_leave(&pools_turn);
    return had;
}

/* A pool that keeps more than is in use may let go of it at any end of a stream: it stays dirty
   until it has. */
static void true_up(struct device *device)
{
    for (int i = 0; i < atomic_load(&pool_count); i++) {
        struct pool *pool = &pools[i];
        if (keeps_more(pool, device))
            look_again(pool);
        if (keeps_more(pool, NULL))
            parts_mark_dirty();
    }
}

void pools_free(const struct entry *entry)
{
    struct pool *pool = entry->owner;
    if (WITHIN(&pools_turn, (pool->live -= entry->bytes, pool->standing == GONE)))
        look_again(pool);
    parts_mark_dirty();
}

static void pools_forget(void)
{
    pool_count = 0;
}

PART(.turn = &pools_turn, .forget = pools_forget, .reclaim = true_up);

void pool_trim(struct pool *pool, bool debtor)
{
    if (pool->handle != NULL && pool->standing != UNNAMED && HAVE(cuMemPoolTrimTo))
        real.cuMemPoolTrimTo(pool->handle, 0);
    else if (pool->handle == NULL && HAVE(cuDeviceGraphMemTrim))
        real.cuDeviceGraphMemTrim(pool->device->handle);
    pool_settle(pool, 0, debtor, NULL);
}

bool pool_can_ever_fit(struct device *device, uint64_t bytes, uint64_t *left)
{
    if (LIKELY(bytes <= region_most(&device->region)))
        return true;
    if (!take_quietly(device, bytes, left))
        return false;
    give(device, bytes); /* resized meanwhile */
    return true;
}

uint64_t pools_whole_steps(const struct device *device, uint64_t bytes)
{
    return whole_steps(bytes, step_of(device));
}

/* What it may grow by if it must by `bytes`. */
static uint64_t most_growth(const struct pool *pool, uint64_t bytes)
{
    IN_TURN(&pools_turn);
    uint64_t doubled = pool->doubles ? pool->charged : 0;
    uint64_t whole = whole_steps(bytes, step_of(pool->device));
    return whole > doubled ? whole : doubled;
}

/* Takes what growing by `bytes` may need, which `taken` says; asks for it last. */
bool pool_take_for(struct pool *pool, uint64_t bytes, uint64_t *taken, bool *debtor,
                   const char *call)
{
    struct device *device = pool->device;
    uint64_t left;
    *taken = most_growth(pool, bytes);
    *debtor = false;
    if (take_quietly(device, *taken, &left))
        return true;
    bool roomy = WITHIN(&pools_turn, pool->charged > pool->live);
    if (roomy) {
        pool_trim(pool, false);
        *taken = most_growth(pool, bytes);
        if (take_quietly(device, *taken, &left))
            return true;
    }
    if (roomy && pool->handle != NULL) {
        /* What the pool has room for need not be taken; `asked` holds this call's bytes too. */
        turn_take(&pools_turn);
        uint64_t others = pool->live + pool->asked - bytes,
                 spare = (pool->exact || pool->standing == UNNAMED) && pool->charged > others
                             ? pool->charged - others
                             : 0;
        *debtor = spare != 0;
        pool->debtors += *debtor;
        turn_leave(&pools_turn);
        *taken = spare < bytes ? most_growth(pool, bytes - spare) : 0;
        if (*debtor && (*taken == 0 || take_quietly(device, *taken, &left)))
            return true;
        WITHIN(&pools_turn, pool->debtors -= *debtor);
        *debtor = false;
    }
    *taken = most_growth(pool, bytes);
    return obtain_for(device, *taken, bytes, call);
}

/* One of the same name that was there before says nothing of it. */
void pool_made(struct pool *pool, struct device *device)
{
    IN_TURN(&pools_turn);
    if (pool != NULL && pool->live == 0 && pool->charged == 0)
        pool->device = device;
}

void pool_gone(struct pool *pool)
{
    IN_TURN(&pools_turn);
    pool->standing = GONE;
}

struct pool *pool_unnamed(struct device *device)
{
    struct pool *pool = pool_find((CUpool)device, device);
    IN_TURN(&pools_turn);
    if (pool != NULL)
        pool->standing = UNNAMED;
    return pool;
}

/* ---- graphs ---- */

uint32_t pools_graph_trims(struct device *device)
{
    IN_TURN(&pools_turn);
    struct pool *pool = seek(NULL, device);
    return pool != NULL ? pool->trims : 0;
}

void pools_graph_trimmed(struct device *device)
{
    IN_TURN(&pools_turn);
    struct pool *pool = device != NULL ? seek(NULL, device) : NULL;
    if (pool != NULL)
        pool->trims++;
}

/* Takes what a graph's nodes may need apart, unless they were seen to share steps; together where
   that does not fit and they were not seen not to. What graphs have that do not run now is trimmed
   before it is refused. */
static bool take_for_graph(struct pool *pool, uint64_t bytes, uint64_t apart, const char *call,
                           struct growth *growth)
{
    struct device *device = pool->device;
    uint64_t left;
    enum sharing sharing = WITHIN(&pools_turn, pool->sharing);
    bool kept = WITHIN(&pools_turn, pool->charged != 0);
    growth->taken = sharing == TOGETHER ? whole_steps(bytes, step_of(device)) : apart;
    if (take_quietly(device, growth->taken, &left))
        return true;
    if (kept) {
        if (HAVE(cuCtxSynchronize))
            (void)real.cuCtxSynchronize();
        pool_trim(pool, false);
        if (take_quietly(device, growth->taken, &left))
            return true;
    }
    if (sharing == NOT_SEEN)
        return pool_take_for(pool, bytes, &growth->taken, &growth->debtor, call);
    return obtain_for(device, growth->taken, bytes, call);
}

struct pool *pools_begin_graph(struct device *device, uint64_t bytes, uint64_t apart,
                               const char *call, struct growth *growth, CUresult *refused)
{
    *refused = CUDA_SUCCESS;
    *growth = (struct growth){ .bytes = bytes };
    struct pool *pool = pool_find(NULL, device);
    uint64_t left = 0;
    if (pool == NULL || !pool_can_ever_fit(device, bytes, &left)) {
        refuse(device, bytes, left, call);
        *refused = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    pool_begin(pool, bytes);
    if (!take_for_graph(pool, bytes, apart, call, growth)) {
        pool_end(pool, bytes, false);
        *refused = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    turn_take(&pools_turn);
    growth->trims = pool->trims;
    growth->charged = pool->charged;
    growth->alone = pool->busy == 1;
    turn_leave(&pools_turn);
    return pool;
}

void pools_end_graph(struct pool *pool, const struct growth *growth)
{
    if (!pool_settle(pool, growth->taken, growth->debtor, NULL))
        pool_trim(pool, growth->debtor);
    turn_take(&pools_turn);
    uint64_t most = whole_steps(growth->bytes, step_of(pool->device));
    if (growth->alone && pool->busy == 1 && pool->exact && pool->charged > growth->charged &&
        growth->taken > most && pool->charged - growth->charged <= most)
        pool->sharing = TOGETHER;
    turn_leave(&pools_turn);
    pool_end(pool, growth->bytes, growth->debtor);
}

/* Stream-ordered memory. What counts is what a pool has reserved from the driver, used or kept for
   later.

   A pool grows in steps that only the driver knows, and shrinks when a stream or the program says
   so. Each call that may make it grow goes through these states, of which a pool has as many as
   there are calls under way (`busy`):

   - begun: `asked` holds the call's bytes, so that nobody else counts on the same room in the pool
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
   with all that it may have grown by
   (`ended`). So `charged` is never too little; it may be too much (`exact` is false), until all
   calls have ended and somebody looks again: the pool is dirty until then. It is dirty too while it
   keeps more than is in use, since the driver may let go of that at any end of a stream. Where the
   driver cannot tell, the bytes in use count in whole steps; of a pool that is gone, all it had
   until the last pointer is freed.

   The memory of a device's graphs is a pool without a handle. Nothing in it is known to be free for
   a graph that has none yet, so `live` is 0, its room is never counted on, and graph.c remembers
   which graphs have theirs. */
#define _GNU_SOURCE
#include "pool.h"
#include "capture.h"
#include "measure.h"
#include "parts.h"
#include "settings.h"
#include "swap.h"
#include "vmm.h"

enum { MAX_POOLS = 4096, FIRST_STEP_BYTES = 32 << 20 };

struct pool {
    CUpool handle;          /* NULL for the memory of a device's graphs */
    struct device *device;  /* NULL: the host's memory */
    uint64_t live, charged; /* in use; held for it beside what calls under way have taken */
    uint64_t asked;         /* by calls under way */
    uint64_t ended;         /* by how much all calls that have ended may have made it grow */
    uint32_t busy, debtors; /* calls under way; those of them that took less, because the pool has
                               room for them */
    bool gone, exact;       /* exact: `charged` is what the driver said was reserved */
    bool together, apart;   /* a graph's nodes were seen to share steps, or not to */
    uint32_t trims;         /* of graphs: how often memory was taken from them */
};

static struct turn turn;
static struct pool pools[MAX_POOLS];
static _Atomic int pool_count;

/* With the turn. */
static struct pool *seek(CUpool handle, const struct device *device)
{
    for (int i = 0; i < pool_count; i++)
        if (pools[i].handle == handle && !pools[i].gone &&
            (handle != NULL || pools[i].device == device))
            return &pools[i];
    return NULL;
}

static struct pool *known(CUpool handle)
{
    turn_take(&turn);
    struct pool *found = seek(handle, NULL);
    turn_leave(&turn);
    return found;
}

/* The pool of that name, which is put down with its device where it is new; NULL where there is no
   room to. */
static struct pool *find(CUpool handle, struct device *device)
{
    turn_take(&turn);
    struct pool *found = seek(handle, device);
    bool is_new = found == NULL;
    for (int i = 0; i < pool_count && found == NULL; i++)
        if (pools[i].gone && pools[i].live == 0 && pools[i].charged == 0 && pools[i].busy == 0)
            found = &pools[i];
    if (found == NULL && pool_count < MAX_POOLS)
        found = &pools[pool_count++];
    if (found != NULL && is_new)
        *found = (struct pool){ .handle = handle, .device = device, .exact = true };
    turn_leave(&turn);
    return found;
}

static bool reserved_bytes(const struct pool *pool, uint64_t *bytes)
{
    *bytes = 0;
    if (pool->gone)
        return false;
    if (pool->handle != NULL)
        return HAVE(cuMemPoolGetAttribute) &&
               real.cuMemPoolGetAttribute(pool->handle, CU_POOL_RESERVED_CURRENT, bytes) ==
                   CUDA_SUCCESS;
    return HAVE(cuDeviceGetGraphMemAttribute) &&
           real.cuDeviceGetGraphMemAttribute(pool->device->handle, CU_GRAPH_MEM_RESERVED_CURRENT,
                                             bytes) == CUDA_SUCCESS;
}

/* A driver that can tell did not, this time: what is held stays held until it does. */
static bool silent(const struct pool *pool, bool told)
{
    return !told && !pool->gone && (pool->handle == NULL || HAVE(cuMemPoolGetAttribute));
}

static void begin(struct pool *pool, uint64_t asks)
{
    turn_take(&turn);
    pool->busy++;
    pool->asked += asks;
    turn_leave(&turn);
}

static void end(struct pool *pool, uint64_t asked, bool debtor)
{
    turn_take(&turn);
    pool->busy--;
    pool->asked -= asked;
    pool->debtors -= debtor;
    turn_leave(&turn);
}

/* A pool grows by whole steps: the largest power of two that divides every growth seen. */
static void learn_step(struct device *device, uint64_t growth)
{
    shared64 *cell = &device->region.use->pool_step_bytes;
    uint64_t known = atomic_load_explicit(cell, memory_order_relaxed), step = growth & -growth;
    if (known == 0 || step < known)
        atomic_store_explicit(cell, step, memory_order_relaxed);
}

static uint64_t step_of(const struct device *device)
{
    uint64_t learned =
        atomic_load_explicit(&device->region.use->pool_step_bytes, memory_order_relaxed);
    return learned ? learned : FIRST_STEP_BYTES;
}

static uint64_t whole_steps(uint64_t bytes, uint64_t step)
{
    return bytes <= UINT64_MAX - step ? (bytes + step - 1) / step * step : bytes;
}

/* Makes what is charged what is reserved; `taken` is held for it besides. False where the driver
   grew the pool by more than may be had: then all that is left is charged, and the rest when
   somebody looks again. */
static bool settle(struct pool *pool, uint64_t taken, bool debtor)
{
    uint64_t reserved;
    turn_take(&turn);
    uint64_t ended = pool->ended;
    turn_leave(&turn);
    bool told = reserved_bytes(pool, &reserved);
    turn_take(&turn);
    uint64_t before = pool->charged, since = pool->ended - ended;
    uint64_t target = told && reserved + since > pool->live ? reserved + since : pool->live;
    if ((pool->gone && pool->live != 0) || silent(pool, told))
        target = before +
                 taken; /* nobody tells any more: it is all held until the last of it is freed */
    else if (!told && !pool->gone && pool->live != 0) {
        uint64_t whole = whole_steps(pool->live, step_of(pool->device));
        target = whole > before + taken ? before + taken : whole; /* nobody ever tells */
    }
    bool alone = pool->busy <= 1 && since == 0, was_exact = pool->exact;
    if (!alone && target > before + taken)
        target = before + taken; /* the rest is growth that another call took for and will settle */
    if (pool->debtors > (uint32_t)debtor && target < before + taken)
        target = before + taken; /* what this call did not need, one that took less may need yet */
    if ((told && target > reserved) || silent(pool, told))
        atomic_store(&parts_dirty, 1);
    if (pool->handle == NULL && target < before)
        pool->trims++; /* some graph has its memory no more */
    if (pool->handle == NULL && alone && told && taken != 0 && reserved > before + taken)
        pool->apart = true;
    pool->charged = target;
    pool->ended += taken + (debtor ? before : 0);
    pool->exact = told && target == reserved;
    if (alone && pool->exact && was_exact && reserved > before)
        learn_step(pool->device, reserved - before);
    turn_leave(&turn);
    if (target <= before + taken) {
        give(pool->device, before + taken - target);
        return true;
    }
    uint64_t left, lacks = target - before - taken;
    if (region_take(&pool->device->region, lacks, &left))
        return true;
    lacks -= region_take_some(&pool->device->region, lacks);
    turn_take(&turn);
    pool->charged -= lacks;
    pool->exact = false;
    turn_leave(&turn);
    atomic_store(&parts_dirty, 1);
    return false;
}

/* A pool that keeps more than is in use may let go of it at any end of a stream: it stays dirty
   until it has. */
static void true_up(struct device *device)
{
    for (int i = 0; i < atomic_load(&pool_count); i++) {
        struct pool *pool = &pools[i];
        turn_take(&turn);
        bool keeps = pool->device != NULL && pool->charged != pool->live,
             ours = device == NULL || pool->device == device;
        turn_leave(&turn);
        if (!keeps)
            continue;
        if (ours) {
            begin(pool, 0);
            settle(pool, 0, false);
            end(pool, 0, false);
            turn_take(&turn);
            keeps = pool->charged != pool->live;
            turn_leave(&turn);
        }
        if (keeps)
            atomic_store(&parts_dirty, 1);
    }
}

void pools_free(const struct entry *entry)
{
    struct pool *pool = entry->owner;
    turn_take(&turn);
    pool->live -= entry->bytes;
    bool gone = pool->gone;
    turn_leave(&turn);
    if (gone) {
        begin(pool, 0);
        settle(pool, 0, false);
        end(pool, 0, false);
    }
    atomic_store_explicit(&parts_dirty, 1, memory_order_relaxed);
}

static void pools_forget(void)
{
    atomic_store(&turn.word, 0);
    pool_count = 0;
}

PART(.forget = pools_forget, .reclaim = true_up);

/* What is kept for later is returned to the driver. */
static void trim(struct pool *pool)
{
    if (pool->handle != NULL && HAVE(cuMemPoolTrimTo))
        real.cuMemPoolTrimTo(pool->handle, 0);
    else if (pool->handle == NULL && HAVE(cuDeviceGraphMemTrim))
        real.cuDeviceGraphMemTrim(pool->device->handle);
    settle(pool, 0, false);
}

/* More than the limit never fits, and must not get into the sums of what is asked. */
static bool can_ever_fit(struct device *device, uint64_t bytes, uint64_t *left)
{
    if (LIKELY(bytes <=
               atomic_load_explicit(&device->region.limit->mem_bytes, memory_order_relaxed)))
        return true;
    if (!take_quietly(device, bytes, left))
        return false;
    give(device, bytes); /* resized meanwhile */
    return true;
}

static void refuse(struct device *device, uint64_t bytes, uint64_t left, const char *call)
{
    region_refuse(&device->region, call, bytes, left);
    log_line("refused %s of %llu bytes on GPU %d: %llu left", call, (unsigned long long)bytes,
             device->ordinal, (unsigned long long)left);
}

uint64_t pools_whole_steps(const struct device *device, uint64_t bytes)
{
    return whole_steps(bytes, step_of(device));
}

/* Takes what growing by `bytes` may need; `taken` says how much, or `left` how much there was. */
static bool take_for(struct pool *pool, uint64_t bytes, uint64_t *taken, bool *debtor,
                     uint64_t *left)
{
    struct device *device = pool->device;
    uint64_t step = step_of(device), want = whole_steps(bytes, step);
    *taken = want;
    *debtor = false;
    if (take_quietly(device, want, left))
        return true;
    turn_take(&turn);
    bool roomy = pool->charged > pool->live;
    turn_leave(&turn);
    if (roomy) {
        trim(pool);
        if (take_quietly(device, want, left))
            return true;
    }
    if (roomy && pool->handle != NULL) {
        /* What the pool has room for need not be taken; `asked` holds this call's bytes too. */
        turn_take(&turn);
        uint64_t others = pool->live + pool->asked - bytes,
                 spare = pool->exact && pool->charged > others ? pool->charged - others : 0;
        *debtor = spare != 0;
        pool->debtors += *debtor;
        turn_leave(&turn);
        *taken = spare < bytes ? (bytes - spare + step - 1) / step * step : 0;
        if (*debtor && (*taken == 0 || take_quietly(device, *taken, left)))
            return true;
        turn_take(&turn);
        pool->debtors -= *debtor;
        turn_leave(&turn);
        *debtor = false;
    }
    return false;
}

/* The device of a stream, whatever context is current; NULL where it has no limit. */
static struct device *device_of_stream(CUstream stream)
{
    struct device *device = device_current();
    CUcontext context = NULL, own = NULL;
    struct entry entry;
    if ((uintptr_t)stream <= 2 || !HAVE(cuStreamGetCtx) ||
        (device != NULL && !atomic_load_explicit(&several, memory_order_relaxed)))
        return device;
    if (HAVE(cuCtxGetCurrent))
        real.cuCtxGetCurrent(&own);
    if (real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context == own)
        return device;
    return ledger_get(CONTEXT, (uint64_t)(uintptr_t)context, &entry) ? device_at(entry.device)
                                                                     : device;
}

static struct pool *pool_of_stream(CUstream stream)
{
    CUpool handle = NULL;
    struct device *device = device_of_stream(stream);
    if (device == NULL || !device->limited || !HAVE(cuDeviceGetMemPool) ||
        real.cuDeviceGetMemPool(&handle, device->handle) != CUDA_SUCCESS)
        return NULL;
    return find(handle, device);
}

/* A pool that was not made before our eyes, a default one above all: by what the driver says of it.
   It is not put down where it cannot be told whose it is: what a call that fails leaves behind must
   not make it the host's for ever. */
static struct pool *pool_named(CUpool handle, CUstream stream)
{
    struct pool *pool = known(handle);
    int type = 0, id = 0, kind = CU_ALLOCATION_MANAGED;
    if (pool != NULL)
        return pool;
    bool told = HAVE(cuMemPoolGetAttribute) &&
                real.cuMemPoolGetAttribute(handle, CU_POOL_LOCATION_TYPE, &type) == CUDA_SUCCESS &&
                real.cuMemPoolGetAttribute(handle, CU_POOL_LOCATION_ID, &id) == CUDA_SUCCESS;
    if (told)
        (void)real.cuMemPoolGetAttribute(handle, CU_POOL_ALLOCATION_TYPE, &kind);
    /* Managed memory moves to the card when it is used, wherever it prefers to be. */
    if (told && type >= CU_LOCATION_HOST && type <= CU_LOCATION_HOST_LAST &&
        kind != CU_ALLOCATION_MANAGED)
        return find(handle, NULL);
    struct device *device =
        told && type != 0 ? device_at_location(&(CUlocation){ type, id }, kind) : NULL;
    if (device == NULL)
        device = device_of_stream(stream);
    return device != NULL ? find(handle, device) : NULL;
}

static CUresult ask(CUdeviceptr *ptr, size_t bytes, CUpool from, CUstream stream, bool per_thread)
{
    if (from != NULL)
        return per_thread ? REAL(cuMemAllocFromPoolAsync_ptsz)(ptr, bytes, from, stream)
                          : REAL(cuMemAllocFromPoolAsync)(ptr, bytes, from, stream);
    return per_thread ? REAL(cuMemAllocAsync_ptsz)(ptr, bytes, stream)
                      : REAL(cuMemAllocAsync)(ptr, bytes, stream);
}

static CUresult free_async(CUdeviceptr ptr, CUstream stream, bool per_thread)
{
    return per_thread ? REAL(cuMemFreeAsync_ptsz)(ptr, stream) : REAL(cuMemFreeAsync)(ptr, stream);
}

static CUresult allocate(CUdeviceptr *ptr, size_t bytes, CUpool from, CUstream stream,
                         bool per_thread)
{
    struct pool *pool = NULL;
    bool counting = atomic_load_explicit(&limiting, memory_order_relaxed) && ptr != NULL &&
                    !capturing(stream, per_thread);
    const char *call = from != NULL ? "cuMemAllocFromPoolAsync" : "cuMemAllocAsync";
    if (counting)
        pool = from != NULL ? pool_named(from, stream) : pool_of_stream(stream);
    if (pool == NULL && counting && HAVE(cuMemAllocAsync) && device_of_stream(stream) != NULL) {
        static shared32 told;
        if (atomic_exchange(&told, 1) == 0)
            log_line("refused %s of %llu bytes: the driver does not name the pool, or there are "
                     "more than %d",
                     call, (unsigned long long)bytes, (int)MAX_POOLS);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (pool == NULL || pool->device == NULL)
        return ask(ptr, bytes, from, stream, per_thread);
    uint64_t taken = 0, left = 0;
    bool debtor = false;
    if (UNLIKELY(!can_ever_fit(pool->device, bytes, &left)))
        return swap_allocate(pool->device, ptr, bytes, left, call);
    begin(pool, bytes);
    if (UNLIKELY(!take_for(pool, bytes, &taken, &debtor, &left))) {
        end(pool, bytes, false);
        return swap_allocate(pool->device, ptr, bytes, left, call);
    }
    CUresult result = ask(ptr, bytes, from, stream, per_thread);
    if (result != CUDA_SUCCESS) {
        settle(pool, taken, debtor);
        end(pool, bytes, debtor);
        return result;
    }
    turn_take(&turn);
    pool->live += bytes;
    pool->asked -= bytes;
    turn_leave(&turn);
    if (!settle(pool, taken, debtor)) {
        region_refuse(&pool->device->region, call, bytes, 0);
        free_async(*ptr, stream, per_thread);
        turn_take(&turn);
        pool->live -= bytes;
        turn_leave(&turn);
        if (per_thread ? HAVE(cuStreamSynchronize_ptsz) : HAVE(cuStreamSynchronize))
            (void)(per_thread ? real.cuStreamSynchronize_ptsz(stream)
                              : real.cuStreamSynchronize(stream));
        trim(pool);
        end(pool, 0, debtor);
        *ptr = 0;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    ledger_put((struct entry){ .key = *ptr,
                               .bytes = bytes,
                               .owner = pool,
                               .kind = POOLED,
                               .device = (uint16_t)pool->device->ordinal });
    end(pool, 0, debtor);
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
    return allocate(ptr, bytes, NULL, stream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUstream stream)
{
    return allocate(ptr, bytes, NULL, stream, true);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t bytes, CUpool pool, CUstream stream)
{
    return allocate(ptr, bytes, pool, stream, false);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUpool pool, CUstream stream)
{
    return allocate(ptr, bytes, pool, stream, true);
}

static bool is_gone(const struct pool *pool)
{
    turn_take(&turn);
    bool gone = pool->gone;
    turn_leave(&turn);
    return gone;
}

static CUresult wait_for(CUstream stream, bool per_thread)
{
    return per_thread ? REAL(cuStreamSynchronize_ptsz)(stream) : REAL(cuStreamSynchronize)(stream);
}

static CUresult release(CUdeviceptr ptr, CUstream stream, bool per_thread)
{
    struct entry entry;
    bool known =
        atomic_load_explicit(&limiting, memory_order_relaxed) && !capturing(stream, per_thread);
    known = known && (ledger_take(POOLED, ptr, &entry) || ledger_take(LINEAR, ptr, &entry) ||
                      ledger_take(SWAPPED, ptr, &entry));
    if (known && entry.kind == SWAPPED) { /* of no pool, whatever it was asked of */
        (void)wait_for(stream, per_thread);
        CUresult result = REAL(cuMemFree_v2)(ptr);
        if (result == CUDA_SUCCESS)
            swap_give(device_at(entry.device), entry.bytes);
        else
            ledger_put(entry);
        return result;
    }
    CUresult result = free_async(ptr, stream, per_thread);
    if (!known)
        return result;
    if (result == CUDA_SUCCESS && entry.kind == POOLED &&
        is_gone(entry.owner)) /* nobody tells any more when it is free */
        (void)wait_for(stream, per_thread);
    if (result != CUDA_SUCCESS) {
        ledger_put(entry);
    } else if (entry.kind == POOLED) {
        pools_free(&entry);
    } else { /* freed when the stream gets there */
        (void)wait_for(stream, per_thread);
        give(device_at(entry.device), entry.bytes);
    }
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
    return release(ptr, stream, false);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
    return release(ptr, stream, true);
}

CUresult cuMemPoolCreate(CUpool *handle, const CUpool_props *props)
{
    CUresult result = REAL(cuMemPoolCreate)(handle, props);
    if (result == CUDA_SUCCESS && atomic_load_explicit(&limiting, memory_order_relaxed)) {
        struct device *device = device_at_location(&props->location, props->type);
        struct pool *pool = find(*handle, device);
        turn_take(&turn);
        if (pool != NULL && pool->live == 0 && pool->charged == 0)
            pool->device =
                device; /* one of the same name that was there before says nothing of it */
        turn_leave(&turn);
    }
    return result;
}

CUresult cuMemPoolDestroy(CUpool handle)
{
    struct pool *pool = atomic_load_explicit(&limiting, memory_order_relaxed) && handle != NULL
                            ? known(handle)
                            : NULL;
    bool counted = pool != NULL && pool->device != NULL;
    if (pool != NULL)
        begin(pool, 0);
    if (counted)
        trim(pool); /* what is not in use goes now, while the driver can still be asked */
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    if (result == CUDA_SUCCESS && pool != NULL) {
        turn_take(&turn);
        pool->gone = true;
        turn_leave(&turn);
        if (counted)
            settle(pool, 0, false);
    }
    if (pool != NULL)
        end(pool, 0, false);
    return result;
}

CUresult cuMemPoolTrimTo(CUpool handle, size_t keep)
{
    CUresult result = REAL(cuMemPoolTrimTo)(handle, keep);
    if (atomic_load_explicit(&limiting, memory_order_relaxed))
        parts_reclaim(NULL);
    return result;
}

/* A stream that has come to its end may have let a pool shrink, and what was measured is done. */
static inline CUresult synchronized(CUresult result)
{
    if (UNLIKELY(atomic_load_explicit(&measure_open, memory_order_relaxed)))
        measure_settle();
    if (UNLIKELY(atomic_load_explicit(&parts_dirty, memory_order_relaxed)))
        parts_reclaim(NULL);
    return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    return synchronized(REAL(cuStreamSynchronize)(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return synchronized(REAL(cuStreamSynchronize_ptsz)(stream));
}

CUresult cuEventSynchronize(CUevent event)
{
    return synchronized(REAL(cuEventSynchronize)(event));
}

CUresult cuCtxSynchronize(void)
{
    return synchronized(REAL(cuCtxSynchronize)());
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    return synchronized(REAL(cuCtxSynchronize_v2)(context));
}

/* ---- graphs ---- */

uint32_t pools_graph_trims(struct device *device)
{
    turn_take(&turn);
    struct pool *pool = seek(NULL, device);
    uint32_t trims = pool != NULL ? pool->trims : 0;
    turn_leave(&turn);
    return trims;
}

void pools_graph_trimmed(struct device *device)
{
    turn_take(&turn);
    struct pool *pool = device != NULL ? seek(NULL, device) : NULL;
    if (pool != NULL)
        pool->trims++;
    turn_leave(&turn);
}

/* Takes what a graph's nodes may need apart, unless they were seen to share steps; together where
   that does not fit and they were not seen not to. What graphs have that do not run now is trimmed
   before it is refused. */
static bool take_for_graph(struct pool *pool, uint64_t bytes, uint64_t apart, const char *call,
                           struct growth *growth)
{
    struct device *device = pool->device;
    uint64_t left;
    turn_take(&turn);
    bool together = pool->together, known_apart = pool->apart, kept = pool->charged != 0;
    turn_leave(&turn);
    growth->taken = together ? whole_steps(bytes, step_of(device)) : apart;
    if (take_quietly(device, growth->taken, &left))
        return true;
    if (kept) {
        if (HAVE(cuCtxSynchronize))
            (void)real.cuCtxSynchronize();
        trim(pool);
        if (take_quietly(device, growth->taken, &left))
            return true;
    }
    if (!together && !known_apart && take_for(pool, bytes, &growth->taken, &growth->debtor, &left))
        return true;
    refuse(device, bytes, left, call);
    return false;
}

struct pool *pools_begin_graph(struct device *device, uint64_t bytes, uint64_t apart,
                               const char *call, struct growth *growth, CUresult *refused)
{
    *refused = CUDA_SUCCESS;
    *growth = (struct growth){ .bytes = bytes };
    struct pool *pool = find(NULL, device);
    uint64_t left = 0;
    if (pool == NULL || !can_ever_fit(device, bytes, &left)) {
        refuse(device, bytes, left, call);
        *refused = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    begin(pool, bytes);
    if (!take_for_graph(pool, bytes, apart, call, growth)) {
        end(pool, bytes, false);
        *refused = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    turn_take(&turn);
    growth->trims = pool->trims;
    growth->charged = pool->charged;
    growth->alone = pool->busy == 1;
    turn_leave(&turn);
    return pool;
}

void pools_end_graph(struct pool *pool, const struct growth *growth)
{
    if (!settle(pool, growth->taken, growth->debtor))
        trim(pool);
    turn_take(&turn);
    uint64_t most = whole_steps(growth->bytes, step_of(pool->device));
    if (growth->alone && pool->busy == 1 && pool->exact && pool->charged > growth->charged &&
        growth->taken > most && pool->charged - growth->charged <= most)
        pool->together = true;
    turn_leave(&turn);
    end(pool, growth->bytes, growth->debtor);
}

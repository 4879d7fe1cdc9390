/* Stream-ordered memory, and that of graphs. */
#ifndef BERTH_POOL_H
#define BERTH_POOL_H

#include "devices.h"
#include "ledger.h"

enum { MAX_POOLS = 4096 };

struct pool {
    CUpool handle;          /* NULL for the memory of a device's graphs */
    struct device *device;  /* NULL: the host's memory */
    uint64_t live, charged; /* in use; held for it beside what calls under way have taken */
    uint64_t asked;         /* by calls under way */
    uint64_t ended;         /* by how much all calls that have ended may have made it grow */
    uint32_t busy, debtors; /* calls under way; those of them that took less, because the pool has
                               room for them */
    bool unnamed;           /* `handle` is not one of the driver's, which cannot be asked */
    bool gone, exact;       /* exact: `charged` is what the driver said was reserved */
    bool together, apart;   /* a graph's nodes were seen to share steps, or not to */
    bool doubles;           /* it was seen to grow by more than it needed, by as much as it had */
    uint32_t trims;         /* of graphs: how often memory was taken from them */
};

extern struct turn pools_turn; /* of all pools: never across a call of the driver */

/* Around a call that asks for `bytes` bytes. */
static inline void pool_begin(struct pool *pool, uint64_t asks)
{
    turn_take(&pools_turn);
    pool->busy++;
    pool->asked += asks;
    turn_leave(&pools_turn);
}

static inline void pool_end(struct pool *pool, uint64_t asked, bool debtor)
{
    turn_take(&pools_turn);
    pool->busy--;
    pool->asked -= asked;
    pool->debtors -= debtor;
    turn_leave(&pools_turn);
}

/* The driver has given them. */
static inline void pool_called(struct pool *pool, uint64_t bytes)
{
    turn_take(&pools_turn);
    pool->live += bytes;
    pool->asked -= bytes;
    turn_leave(&pools_turn);
}

/* They were freed again. */
static inline void pool_emptied(struct pool *pool, uint64_t bytes)
{
    turn_take(&pools_turn);
    pool->live -= bytes;
    turn_leave(&pools_turn);
}

/* Whether the driver does not report what is reserved for it. */
static inline bool pool_is_untold(struct pool *pool)
{
    turn_take(&pools_turn);
    bool untold = pool->gone || pool->unnamed;
    turn_leave(&pools_turn);
    return untold;
}

/* The pool of a handle, NULL where none was put down. */
struct pool *pool_known(CUpool handle);
/* The same, put down with its device where it is new; NULL where there is no room to. */
struct pool *pool_find(CUpool handle, struct device *device);
/* The pool that a device's streams allocate from, by a driver that does not name it. */
struct pool *pool_unnamed(struct device *device);
/* Takes what growing by `bytes` may need; `taken` says how much, or `left` how much there was. */
bool pool_take_for(struct pool *pool, uint64_t bytes, uint64_t *taken, bool *debtor,
                   uint64_t *left);
/* Makes what is charged what is reserved; `taken` is held for it besides. False where the driver
   grew the pool by more than may be had. */
bool pool_settle(struct pool *pool, uint64_t taken, bool debtor);
/* What is kept for later is returned to the driver. */
void pool_trim(struct pool *pool);
void pool_made(struct pool *pool, struct device *device);
void pool_gone(struct pool *pool);
/* More than the limit never fits, and must not get into the sums of what is asked. */
bool pool_can_ever_fit(struct device *device, uint64_t bytes, uint64_t *left);

void pools_free(const struct entry *entry); /* a pooled pointer was freed */
uint64_t pools_whole_steps(const struct device *device, uint64_t bytes);
/* Around a call that may make a graph's memory real: `bytes` in all, `apart` where each node takes
   whole steps. */
struct growth {
    uint64_t bytes, taken, charged;
    uint32_t trims;
    bool debtor, alone;
};
struct pool *pools_begin_graph(struct device *device, uint64_t bytes, uint64_t apart,
                               const char *call, struct growth *growth, CUresult *refused);
void pools_end_graph(struct pool *pool, const struct growth *growth);
uint32_t pools_graph_trims(struct device *device); /* how often graphs of it have lost memory */
void pools_graph_trimmed(struct device *device);

#endif

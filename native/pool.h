/* Stream-ordered memory, and that of graphs. */
#ifndef BERTH_POOL_H
#define BERTH_POOL_H

#include "devices.h"
#include "ledger.h"

enum { MAX_POOLS = 4096 };

struct pool; /* its calls go through these states; see pool.c */
struct device *pool_device(const struct pool *pool); /* NULL: the host's memory */

/* Around a call that asks for `bytes` bytes. */
void pool_begin(struct pool *pool, uint64_t asks);
void pool_end(struct pool *pool, uint64_t asked, bool debtor);
void pool_called(struct pool *pool, uint64_t bytes);  /* the driver has given them */
void pool_emptied(struct pool *pool, uint64_t bytes); /* they were freed again */
/* Whether the driver does not report what is reserved for it. */
bool pool_is_unreported(struct pool *pool);

/* The pool of a handle, NULL where none was put down. */
struct pool *pool_known(CUpool handle);
/* The same, put down with its device where it is new; NULL where there is no room to. */
struct pool *pool_find(CUpool handle, struct device *device);
/* The pool that a device's streams allocate from, by a driver that does not name it. */
struct pool *pool_unnamed(struct device *device);
/* Takes what growing by `bytes` may need, which `taken` says. False: it is refused. */
bool pool_take_for(struct pool *pool, uint64_t bytes, uint64_t *taken, bool *debtor,
                   const char *call);
/* Makes what is charged what is reserved; `taken` is held for it besides. False where the driver
   grew the pool by more than may be had, which is refused where `call` names who asks for it. */
bool pool_settle(struct pool *pool, uint64_t taken, bool debtor, const char *call);
/* What is kept for later is returned to the driver. */
void pool_trim(struct pool *pool, bool debtor);
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

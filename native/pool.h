/* Stream-ordered memory, and that of graphs. */
#ifndef BERTH_POOL_H
#define BERTH_POOL_H

#include "devices.h"
#include "ledger.h"

void pools_true_up(struct device *device);  /* NULL: all */
void pools_free(const struct entry *entry); /* a pooled pointer was freed */
extern shared32 pools_dirty;
/* Around a call that may make a graph's memory real. */
struct growth {
    uint64_t bytes, taken;
    bool debtor;
};
struct pool *pools_begin_graph(struct device *device, uint64_t bytes, const char *call,
                               struct growth *growth, CUresult *refused);
void pools_end_graph(struct pool *pool, const struct growth *growth);

#endif

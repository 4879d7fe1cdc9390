/* Stream-ordered memory, and that of graphs. */
#ifndef BERTH_POOL_H
#define BERTH_POOL_H

#include "devices.h"
#include "ledger.h"

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

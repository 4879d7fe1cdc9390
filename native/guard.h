/* For the operator's tools: a region that is cut short while they look at it ends none of them. */
#ifndef BERTH_GUARD_H
#define BERTH_GUARD_H

#include <stdbool.h>

/* From here on this thread survives it; one thread at a time. */
void guard_begin(void);
/* False where it happened: what was read since is worth nothing. */
bool guard_end(void);

#endif

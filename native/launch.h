/* A launch is charged, and waits its turn. */
#ifndef BERTH_LAUNCH_H
#define BERTH_LAUNCH_H

#include "berth.h"

struct probe; /* measure.h */
/* Before a launch: charges it, waits its turn, and perhaps begins to measure it. */
struct probe *pace(void *what, uint64_t blocks, CUstream stream, bool per_thread);

#endif

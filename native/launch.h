/* A launch is charged, and waits its turn. */
#ifndef BERTH_LAUNCH_H
#define BERTH_LAUNCH_H

#include "berth.h"

struct probe;
/* Before a launch: charges it, waits its turn, and perhaps begins to measure it. */
struct probe *pace(void *what, uint64_t blocks, CUstream stream, bool per_thread);
void pace_measured(struct probe *probe, CUstream stream, bool per_thread, CUresult result);
/* A context is gone, or is about to go: what was made in it must not be used again. */
void pace_context_ends(CUcontext context, bool gone);

#endif

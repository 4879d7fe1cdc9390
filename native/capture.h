/* Streams that are being captured into a graph. */
#ifndef BERTH_CAPTURE_H
#define BERTH_CAPTURE_H

#include "berth.h"

/* From the first capture on, a stream is asked before its allocations are counted: captured ones
   are graph nodes. */
void capture_begins(void);
void capture_began(void);
void capture_ended(void);
/* Whether any stream is being captured: what waits meanwhile may spoil it. */
bool capture_under_way(void);
bool capturing(CUstream stream, bool per_thread);
/* Around calls of our own that another thread's capture would not allow the guest: they are none of
   its business. */
int capture_relax(void);
void capture_restore(int mode);

#endif

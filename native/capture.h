/* Streams that are being captured into a graph. */
#ifndef BERTH_CAPTURE_H
#define BERTH_CAPTURE_H

#include "berth.h"

/* From the first capture on, a stream is asked before its allocations are counted: captured ones
   are graph nodes. */
void capture_begins(void);
void capture_began(void);
/* Around what ends a capture, if it did. */
void capture_ends(void);
void capture_ended(bool did);
/* Around an allocation on a captured stream: whether no capture can have ended meanwhile, so that
   it is a node and no memory yet. */
uint32_t capture_watch(void);
bool capture_held(uint32_t watched);
/* Whether any stream is being captured: what waits meanwhile may spoil it. */
bool capture_under_way(void);
bool capturing(CUstream stream, bool per_thread);
/* Around calls of our own that another thread's capture would not allow the guest: they are none of
   its business. */
int capture_relax(void);
void capture_restore(int mode);

#endif

/* What a context sets aside for its kernels: heap, buffer of printf and stacks. */
#ifndef BERTH_CONTEXT_LIMITS_H
#define BERTH_CONTEXT_LIMITS_H

#include "devices.h"

/* Charges what the current context's stacks grow by for a function's launches, before it is handed
   out; false where that does not fit. */
bool stack_grows(struct device *device, CUfunction function, const char *call);

#endif

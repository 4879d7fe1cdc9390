/* What contexts set aside for their kernels. */
#ifndef BERTH_CONTEXT_H
#define BERTH_CONTEXT_H

#include "devices.h"

/* Charges what the current context's stacks grow by for a function's launches, before it is handed
   out; false where that does not fit. */
bool stack_grows(struct device *device, CUfunction function, const char *call);

#endif

/* How the driver is found: once it is loaded, `real` holds its entry points. */
#ifndef BERTH_ROUTES_H
#define BERTH_ROUTES_H

#include "berth.h"

void routes_look(void);      /* has a driver been loaded since? */
bool routes_have_nvml(void); /* loads it if it is there */

#endif

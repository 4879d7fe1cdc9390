/* Memory that passes to other processes by a file. A tag on the file says whose it is and how
   large; the region says whether its exporter is still charged for it. */
#ifndef BERTH_EXPORTS_H
#define BERTH_EXPORTS_H

#include "devices.h"

struct export_tag {
    uint64_t region; /* a hash of its counters' file */
    uint32_t slot, serial;
    uint64_t bytes; /* 0: no memory of a card, as of a multicast object */
};

/* This process is charged for it, and exports it: a serial number, by which it is known. */
struct export_tag exports_begin(struct device *device, uint64_t bytes);
/* Nothing here holds it any more: it is given back, unless another process of the partition may
   still hold it. */
void exports_end(struct device *device, const struct export_tag *tag);
void exports_tag_file(int fd, const struct export_tag *tag);
bool exports_read_tag(int fd, struct export_tag *tag);
bool exports_is_own(const struct export_tag *tag);
/* Counts one import more of what another process of the partition is charged for: that stays
   charged until it is returned, whatever becomes of the exporter. NULL where no other is charged.
 */
struct device *exports_borrow(const struct export_tag *tag);
void exports_return(struct device *device);

#endif

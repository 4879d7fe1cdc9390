/* How much more than its limit a partition may have, of the host's memory: set by whoever may write
   the limit. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bool in_use(const struct berth_region *region)
{
    bool used = false;
    for (uint32_t i = 0; i < atomic_load(&region->use->slots_seen) && i < BERTH_SLOTS; i++)
        used = used || atomic_load(&region->use->slots[i].state) != 0;
    return used;
}

bool region_oversubscribe(const char *folder, const unsigned char uuid[16], uint64_t bytes,
                          bool anyway, struct berth_error *error)
{
    struct berth_region region;
    char text[37], path[300];
    if (!region_open(&region, folder, uuid, error))
        return false;
    region_reap(&region);
    bool keep = atomic_load(&region.limit->swap_bytes) == bytes ||
                (!anyway && (in_use(&region) || (atomic_load(&region.limit->flags) & BERTH_AGENT)));
    region_close(&region);
    if (keep)
        return true;
    region_uuid_text(uuid, text);
    snprintf(path, sizeof path, "%s/%s.limit", folder, text);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct berth_limit_file *limit =
        fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *limit, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int why = errno;
    if (fd >= 0)
        close(fd);
    if (limit == MAP_FAILED) {
        snprintf(error->text, sizeof error->text,
                 "%.200s: cannot be written (%s); only its maker may change it", path,
                 strerror(why));
        return false;
    }
    atomic_store(&limit->swap_bytes, bytes);
    munmap(limit, sizeof *limit);
    return true;
}

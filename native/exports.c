/* Memory that passes to other processes by a file.

   A driver's files look all the same. The tag is a read lock on the exported file's description,
   far behind its end: its place is the region, slot and serial number, its length the size. It
   travels with the descriptor, and /proc/self/fdinfo shows it to whoever has that.

   An importer first says in its own slot that it borrows, and then looks whether the exporter is
   still charged. An exporter first takes its mark away, and then looks whether any process borrows.
   So of two that do both at once, one at least sees the other, and the memory is charged. Where any
   borrows, the charge passes to a slot without a process (BERTH_LENDS), which is cleared when none
   borrows any more; the slot of an exporter that dies becomes one. */
#define _GNU_SOURCE
#include "exports.h"
#include "account.h"
#include "parts.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REGION_BITS = 20, SLOT_BITS = 10, SERIAL_BITS = 32, UNIT_BITS = 16 };
#define TAG_MARK (1ull << 62)

static uint32_t next_serial[MAX_DEVICES];
static struct turn turn;

static uint64_t hash_of(const struct berth_region *region)
{
    uint64_t mixed = (region->inode ^ region->disk << 32) * 0x9e3779b97f4a7c15ull;
    return mixed >> (64 - REGION_BITS);
}

static struct berth_slot *own_slot(struct device *device)
{
    return device->region.slot >= 0 ? &device->region.use->slots[device->region.slot] : NULL;
}

static void mark(struct berth_slot *slot, uint32_t serial, bool charged)
{
    shared64 *word = &slot->export_marks[serial / 64 % BERTH_EXPORT_WORDS];
    if (charged)
        atomic_fetch_or(word, 1ull << serial % 64);
    else
        atomic_fetch_and(word, ~(1ull << serial % 64));
}

/* Serial numbers begin anywhere, so that a slot's next process has others. Those that fell out of
   the window are taken for not charged by later importers, which then are. */
struct export_tag exports_begin(struct device *device, uint64_t bytes)
{
    struct berth_slot *slot = own_slot(device);
    if (slot == NULL)
        return (struct export_tag){ .bytes = bytes };
    turn_take(&turn);
    uint32_t *next = &next_serial[device->ordinal];
    if (*next == 0) {
        *next = (uint32_t)(clock_ns() * 0x9e3779b97f4a7c15ull >> 32) | 1;
        atomic_store(&slot->first_serial, *next);
    }
    uint32_t serial = (*next)++;
    *next += *next == 0;
    if (serial - atomic_load(&slot->first_serial) >= BERTH_EXPORT_WORDS * 64)
        atomic_store(&slot->first_serial, serial - (BERTH_EXPORT_WORDS * 64 - 1));
    mark(slot, serial, true);
    turn_leave(&turn);
    atomic_fetch_add(&slot->exported_bytes, bytes);
    return (struct export_tag){ hash_of(&device->region), (uint32_t)device->region.slot, serial,
                                bytes };
}

static bool is_in_window(const struct berth_slot *slot, uint32_t serial)
{
    return serial - atomic_load(&slot->first_serial) < BERTH_EXPORT_WORDS * 64;
}

void exports_end(struct device *device, const struct export_tag *tag)
{
    struct berth_slot *slot = own_slot(device);
    if (slot == NULL)
        return;
    turn_take(&turn);
    if (is_in_window(slot, tag->serial))
        mark(slot, tag->serial, false);
    turn_leave(&turn);
    if (!account_is_borrowed(device->region.use, tag->slot))
        give(device, tag->bytes);
    else
        region_lend(&device->region, tag->bytes); /* where that fails, it stays charged here */
    atomic_fetch_sub(&slot->exported_bytes, tag->bytes);
}

/* ---- the tag ---- */

void exports_tag_file(int fd, const struct export_tag *tag)
{
    uint64_t place = TAG_MARK | tag->region << (SLOT_BITS + SERIAL_BITS) |
                     (uint64_t)tag->slot << SERIAL_BITS | tag->serial;
    struct flock lock = { .l_type = F_RDLCK,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)place,
                          .l_len = (off_t)(tag->bytes >> UNIT_BITS) + 1 };
    /* Without it importers are charged on their own. */
    (void)fcntl(fd, F_OFD_SETLK, &lock);
}

bool exports_read_tag(int fd, struct export_tag *tag)
{
    char path[40], line[256];
    bool found = false;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        unsigned long long from = 0, to = 0;
        const char *kind = strstr(line, "OFDLCK");
        if (strncmp(line, "lock:", 5) != 0 || kind == NULL ||
            sscanf(kind, "%*s %*s %*s %*s %*s %llu %llu", &from, &to) != 2 || from < TAG_MARK ||
            to < from)
            continue;
        *tag = (struct export_tag){
            .region = from >> (SLOT_BITS + SERIAL_BITS) & ((1u << REGION_BITS) - 1),
            .slot = from >> SERIAL_BITS & ((1u << SLOT_BITS) - 1),
            .serial = (uint32_t)from,
            .bytes = (to - from) << UNIT_BITS,
        };
        found = true;
    }
    if (file != NULL)
        fclose(file);
    return found;
}

/* ---- imports ---- */

static struct device *device_of_tag(const struct export_tag *tag)
{
    struct device *device;
    for (int i = 0; (device = device_at(i)) != NULL; i++)
        if (own_slot(device) != NULL && hash_of(&device->region) == tag->region)
            return device;
    return NULL;
}

bool exports_is_own(const struct export_tag *tag)
{
    struct device *device = device_of_tag(tag);
    return device != NULL && (uint32_t)device->region.slot == tag->slot;
}

static bool is_charged(const struct berth_slot *slot, uint32_t serial)
{
    uint32_t state = atomic_load(&slot->state);
    return (state == BERTH_MEMBER || state == BERTH_LENDS) && is_in_window(slot, serial) &&
           (atomic_load(&slot->export_marks[serial / 64 % BERTH_EXPORT_WORDS]) >> serial % 64 &
            1) &&
           is_in_window(slot, serial) && atomic_load(&slot->state) == state;
}

struct device *exports_borrow(const struct export_tag *tag)
{
    struct device *device = device_of_tag(tag);
    if (device == NULL || tag->slot >= BERTH_SLOTS)
        return NULL;
    struct berth_slot *own = own_slot(device);
    atomic_fetch_add(&own->borrowed, 1);
    if (is_charged(&device->region.use->slots[tag->slot], tag->serial))
        return device;
    atomic_fetch_sub(&own->borrowed, 1);
    return NULL;
}

void exports_return(struct device *device)
{
    struct berth_slot *own = own_slot(device);
    if (own != NULL && atomic_fetch_sub(&own->borrowed, 1) == 1)
        region_reap(&device->region); /* what only this process has held is free now */
}

static void exports_forget(void)
{
    memset(next_serial, 0, sizeof next_serial);
}

PART(.turn = &turn, .forget = exports_forget);

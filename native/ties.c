/* What holds physical memory beside handles and mappings, for sparse.c and vmm.c. */
#define _GNU_SOURCE
#include "ties.h"
#include "parts.h"

#include <stdlib.h>
#include <string.h>

static struct turn turn;
static struct tie *ties;
static size_t tie_count, tie_space;

/* Without memory for it the record stays counted until the process ends. */
void ties_add(struct tie new)
{
    turn_take(&turn);
    if (tie_count == tie_space) {
        size_t space = tie_space ? tie_space * 2 : 64;
        struct tie *larger = realloc(ties, space * sizeof *larger);
        if (larger != NULL) {
            ties = larger;
            tie_space = space;
        }
    }
    if (tie_count < tie_space)
        ties[tie_count++] = new;
    turn_leave(&turn);
}

struct record *ties_take(const void *holder, const CUmap_info *part, CUdevice dev, size_t from,
                         size_t bytes)
{
    struct record *record = NULL;
    turn_take(&turn);
    for (size_t i = 0; i < tie_count && record == NULL; i++) {
        struct tie *tie = &ties[i];
        if (tie->holder != holder)
            continue;
        bool same = part == NULL ? (dev < 0 || tie->dev < 0 || tie->dev == dev) &&
                                       tie->offset >= from && tie->offset - from < bytes
                                 : tie->part.part_type == part->part_type &&
                                       memcmp(&tie->part.part, &part->part, sizeof part->part) == 0;
        if (!same)
            continue;
        record = tie->record;
        *tie = ties[--tie_count];
    }
    turn_leave(&turn);
    return record;
}

static void ties_forget(void)
{
    atomic_store(&turn.word, 0);
    ties = NULL; /* which may be amid its growth */
    tie_count = tie_space = 0;
}

PART(.forget = ties_forget);

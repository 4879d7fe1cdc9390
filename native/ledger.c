/* What this process holds: pointer or handle -> bytes. Open addressing, backward-shift deletion. */
#define _GNU_SOURCE
#include "ledger.h"
#include "parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* One pointer leads to all of it, so that a fork in the middle of a change finds either what was or
   what is. */
struct table {
    size_t slots, used;
    struct entry entries[];
};
static struct turn turn;
static struct table *_Atomic here;

/* Pointers are one map, whatever allocated them; handles of each kind have names of their own. */
static unsigned names_of(unsigned kind)
{
    return kind == POOLED ? LINEAR : kind;
}

static size_t home(const struct table *table, uint64_t key, unsigned kind)
{
    uint64_t mixed = (key ^ (uint64_t)names_of(kind) << 56) * 0x9e3779b97f4a7c15ull;
    return (size_t)(mixed >> 20) & (table->slots - 1);
}

/* Where an entry is, or would go, whose kind is 0 then. */
static struct entry *seek(struct table *table, unsigned kind, uint64_t key)
{
    size_t at = home(table, key, kind);
    while (table->entries[at].kind != 0 &&
           !(table->entries[at].key == key && names_of(table->entries[at].kind) == names_of(kind)))
        at = (at + 1) & (table->slots - 1);
    return &table->entries[at];
}

static void insert(struct table *table, struct entry entry)
{
    struct entry *at = seek(table, entry.kind, entry.key);
    table->used += at->kind == 0;
    *at = entry;
}

static size_t bytes_for(size_t slots)
{
    return sizeof(struct table) + slots * sizeof(struct entry);
}

/* The table with room for one more; NULL where there is no memory for it. The old one is unmapped
   after the new one has taken its place. */
static struct table *roomy(void)
{
    struct table *old = LOAD(here);
    if (old != NULL && LIKELY((old->used + 1) * 4 <= old->slots * 3))
        return old;
    size_t slots = old != NULL ? old->slots * 2 : 1024;
    struct table *larger =
        mmap(NULL, bytes_for(slots), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (larger == MAP_FAILED)
        return old != NULL && old->used + 1 < old->slots ? old : NULL;
    larger->slots = slots;
    for (size_t i = 0; old != NULL && i < old->slots; i++)
        if (old->entries[i].kind != 0)
            insert(larger, old->entries[i]);
    atomic_store(&here, larger);
    if (old != NULL)
        munmap(old, bytes_for(old->slots));
    return larger;
}

static void erase(struct entry *gone)
{
    struct table *table = LOAD(here);
    size_t hole = (size_t)(gone - table->entries), at = hole, last = table->slots - 1;
    table->used--;
    for (;;) {
        at = (at + 1) & last;
        if (table->entries[at].kind == 0)
            break;
        size_t ideal = home(table, table->entries[at].key, table->entries[at].kind);
        if (((at - ideal) & last) >= ((at - hole) & last)) {
            table->entries[hole] = table->entries[at];
            hole = at;
        }
    }
    table->entries[hole].kind = 0;
}

/* With the turn. */
static struct entry *find(enum kind kind, uint64_t key)
{
    struct table *table = LOAD(here);
    struct entry *at = table != NULL ? seek(table, kind, key) : NULL;
    return at != NULL && at->kind != 0 ? at : NULL;
}

void ledger_put(struct entry entry)
{
    IN_TURN(&turn);
    /* Without memory for the table the bytes stay held until the process ends: never too little is
       counted. */
    struct table *table = roomy();
    if (table != NULL)
        insert(table, entry);
}

bool ledger_add(struct entry *entry)
{
    IN_TURN(&turn);
    struct entry *found = find(entry->kind, entry->key);
    struct table *table = found == NULL ? roomy() : NULL;
    if (table != NULL)
        insert(table, *entry);
    if (found != NULL && found->bytes < entry->bytes) {
        uint64_t less = found->bytes;
        found->bytes = entry->bytes;
        entry->bytes = less;
    }
    return found == NULL;
}

bool ledger_get(enum kind kind, uint64_t key, struct entry *entry)
{
    IN_TURN(&turn);
    struct entry *found = find(kind, key);
    if (found != NULL)
        *entry = *found;
    return found != NULL;
}

bool ledger_count(enum kind kind, uint64_t key, int by)
{
    IN_TURN(&turn);
    struct entry *found = find(kind, key);
    if (found == NULL || (int64_t)found->count + by < 0)
        return false;
    found->count = (uint32_t)((int64_t)found->count + by);
    return true;
}

bool ledger_share(enum kind kind, uint64_t key, int by)
{
    IN_TURN(&turn);
    struct entry *found = find(kind, key);
    struct table *table = found == NULL && by > 0 ? roomy() : NULL;
    bool alone = found == NULL || (by < 0 && found->count == 1);
    if (table != NULL)
        insert(table, (struct entry){ .key = key, .kind = (uint16_t)kind, .count = 1 });
    else if (found != NULL && alone)
        erase(found);
    else if (found != NULL)
        found->count = (uint32_t)((int64_t)found->count + by);
    return alone;
}

bool ledger_charge(struct entry entry)
{
    IN_TURN(&turn);
    struct entry *found = find(entry.kind, entry.key);
    struct table *table = found == NULL ? roomy() : NULL;
    if (table != NULL)
        insert(table, entry);
    if (found == NULL)
        return true;
    if (found->bytes == 0) {
        found->owner = entry.owner;
        found->device = entry.device;
    }
    if (found->device != entry.device)
        return false;
    found->bytes += entry.bytes;
    return true;
}

bool ledger_take(enum kind kind, uint64_t key, struct entry *entry)
{
    IN_TURN(&turn);
    struct entry *found = find(kind, key);
    if (found == NULL)
        return false;
    *entry = *found;
    erase(found);
    return true;
}

struct entry *ledger_take_owned(void *owner, size_t *count)
{
    IN_TURN(&turn);
    struct table *table = LOAD(here);
    size_t slots = table != NULL ? table->slots : 0, owned = 0;
    *count = 0;
    for (size_t i = 0; i < slots; i++)
        owned += table->entries[i].kind != 0 && table->entries[i].owner == owner;
    struct entry *list = owned != 0 ? malloc(owned * sizeof *list) : NULL;
    for (size_t i = 0; list != NULL && i < slots; i++)
        if (table->entries[i].kind != 0 && table->entries[i].owner == owner)
            list[(*count)++] = table->entries[i];
    for (size_t i = 0; i < *count; i++)
        erase(find(list[i].kind, list[i].key));
    return list;
}

static void ledger_forget(void)
{
    struct table *gone = atomic_exchange(&here, NULL);
    if (gone != NULL)
        munmap(gone, bytes_for(gone->slots));
}

PART(.turn = &turn, .forget = ledger_forget);

/* What this process holds: pointer or handle -> bytes. Open addressing, backward-shift deletion. */
#define _GNU_SOURCE
#include "ledger.h"
#include "parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct turn turn;
static struct entry *table;
static size_t slots, used;

static size_t home(uint64_t key, unsigned kind)
{
    uint64_t mixed = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15ull;
    return (size_t)(mixed >> 20) & (slots - 1);
}

static struct entry *seek(unsigned kind, uint64_t key)
{
    if (slots == 0)
        return NULL;
    for (size_t at = home(key, kind);; at = (at + 1) & (slots - 1)) {
        if (table[at].kind == 0)
            return NULL;
        if (table[at].key == key && table[at].kind == kind)
            return &table[at];
    }
}

static void insert(struct entry entry)
{
    size_t at = home(entry.key, entry.kind);
    while (table[at].kind != 0 && !(table[at].key == entry.key && table[at].kind == entry.kind))
        at = (at + 1) & (slots - 1);
    used += table[at].kind == 0;
    table[at] = entry;
}

static void *fresh(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static bool grow(void)
{
    size_t old_slots = slots;
    struct entry *old = table, *larger = fresh((slots ? slots * 2 : 1024) * sizeof *larger);
    if (larger == NULL)
        return false;
    slots = slots ? slots * 2 : 1024;
    table = larger;
    used = 0;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].kind != 0)
            insert(old[i]);
    if (old != NULL)
        munmap(old, old_slots * sizeof *old);
    return true;
}

static void erase(struct entry *gone)
{
    size_t hole = (size_t)(gone - table), at = hole;
    used--;
    for (;;) {
        at = (at + 1) & (slots - 1);
        if (table[at].kind == 0)
            break;
        size_t ideal = home(table[at].key, table[at].kind);
        if (((at - ideal) & (slots - 1)) >= ((at - hole) & (slots - 1))) {
            table[hole] = table[at];
            hole = at;
        }
    }
    table[hole].kind = 0;
}

void ledger_put(struct entry entry)
{
    turn_take(&turn);
    /* Without memory for the table the bytes stay held until the process ends: never too little is counted. */
    if ((used + 1) * 4 <= slots * 3 || grow() || used + 1 < slots)
        insert(entry);
    turn_leave(&turn);
}

bool ledger_add(struct entry entry)
{
    turn_take(&turn);
    bool fresh_key = seek(entry.kind, entry.key) == NULL;
    if (fresh_key && ((used + 1) * 4 <= slots * 3 || grow() || used + 1 < slots))
        insert(entry);
    turn_leave(&turn);
    return fresh_key;
}

bool ledger_get(enum kind kind, uint64_t key, struct entry *entry)
{
    turn_take(&turn);
    struct entry *found = seek(kind, key);
    if (found != NULL)
        *entry = *found;
    turn_leave(&turn);
    return found != NULL;
}

bool ledger_count(enum kind kind, uint64_t key, int by)
{
    turn_take(&turn);
    struct entry *found = seek(kind, key);
    bool counted = found != NULL && (int64_t)found->count + by >= 0;
    if (counted)
        found->count = (uint32_t)((int64_t)found->count + by);
    turn_leave(&turn);
    return counted;
}

bool ledger_take(enum kind kind, uint64_t key, struct entry *entry)
{
    turn_take(&turn);
    struct entry *found = seek(kind, key);
    if (found != NULL) {
        *entry = *found;
        erase(found);
    }
    turn_leave(&turn);
    return found != NULL;
}

struct entry *ledger_take_owned(void *owner, size_t *count)
{
    struct entry *list = NULL;
    *count = 0;
    turn_take(&turn);
    for (size_t i = 0; i < slots; i++)
        *count += table[i].kind != 0 && table[i].owner == owner;
    if (*count != 0)
        list = malloc(*count * sizeof *list);
    if (list == NULL) {
        *count = 0;
        turn_leave(&turn);
        return NULL;
    }
    size_t at = 0;
    for (size_t i = 0; i < slots; i++)
        if (table[i].kind != 0 && table[i].owner == owner)
            list[at++] = table[i];
    for (size_t i = 0; i < *count; i++)
        erase(seek(list[i].kind, list[i].key));
    turn_leave(&turn);
    return list;
}

static void ledger_forget(void)
{
    atomic_store(&turn.word, 0);
    if (table != NULL)
        munmap(table, slots * sizeof *table);
    table = NULL;
    slots = used = 0;
}

PART(.forget = ledger_forget);

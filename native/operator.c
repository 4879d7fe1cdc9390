/* What the operator's tools call: make, resize and read a region. They run in their own process,
   never in a guest's. */
#define _GNU_SOURCE
#include "berth.h"
#include "guard.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

EXPORT int berth_make(const char *folder, const char *uuid, const char *name, uint64_t mem_bytes,
                      uint32_t core_pct, uint32_t flags, char *error, size_t size);
EXPORT int berth_resize(const char *folder, const char *uuid, uint64_t mem_bytes, uint32_t core_pct,
                        uint32_t flags, char *error, size_t size);
EXPORT int berth_describe(const char *folder, const char *uuid, char *json, size_t size);

static int fail(char *text, size_t size, const char *why)
{
    snprintf(text, size, "%s", why);
    return -1;
}

static int fail_cut_short(char *text, size_t size, const char *folder, const char *uuid)
{
    snprintf(text, size,
             "%.200s/%.40s.use: was cut short while it was looked at; stop its processes, remove "
             "it and make the partition anew",
             folder, uuid);
    return -1;
}

int berth_make(const char *folder, const char *uuid, const char *name, uint64_t mem_bytes,
               uint32_t core_pct, uint32_t flags, char *error, size_t size)
{
    unsigned char bytes[16];
    struct berth_region region;
    struct berth_error why = { "" };
    if (!region_uuid_parse(uuid, bytes))
        return fail(error, size, "not the UUID of a GPU");
    guard_begin();
    bool made = region_make(&region, folder, bytes, name, mem_bytes, core_pct, flags, &why);
    if (made)
        region_close(&region);
    if (!guard_end())
        return fail_cut_short(error, size, folder, uuid);
    return made ? 0 : fail(error, size, why.text);
}

static int resize(const char *folder, const char *uuid, uint64_t mem_bytes, uint32_t core_pct,
                  uint32_t flags, char *error, size_t size)
{
    unsigned char bytes[16];
    struct berth_region region;
    struct berth_error why = { "" };
    if (!region_uuid_parse(uuid, bytes))
        return fail(error, size, "not the UUID of a GPU");
    if (!region_open(&region, folder, bytes, &why))
        return fail(error, size, why.text[0] ? why.text : "there is no such partition");
    region_close(&region);
    struct berth_limit_file *limit = region_limit(folder, bytes, &why);
    if (limit == NULL)
        return fail(error, size, why.text[0] ? why.text : "there is no such partition");
    atomic_store(&limit->mem_bytes, mem_bytes);
    atomic_store(&limit->core_pct, core_pct);
    uint32_t kept = atomic_load(&limit->flags) & BERTH_SHOWS_MAX;
    atomic_store(&limit->flags, (flags & ~BERTH_STOPPED) | kept);
    if (flags & BERTH_STOPPED)
        atomic_fetch_add(&limit->stops, 1);
    munmap(limit, sizeof *limit);
    return 0;
}

struct text {
    char *at, *end;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int size = vsnprintf(text->at, (size_t)(text->end - text->at), format, list);
    va_end(list);
    text->at = size < 0 || size >= text->end - text->at ? text->end : text->at + size;
}

static void add_name(struct text *text, const char *name, size_t size)
{
    add(text, "\"");
    for (size_t i = 0; i < size && name[i] != 0; i++)
        if ((unsigned char)name[i] >= ' ' && (unsigned char)name[i] < 0x7f && name[i] != '"' &&
            name[i] != '\\')
            add(text, "%c", name[i]);
    add(text, "\"");
}

int berth_resize(const char *folder, const char *uuid, uint64_t mem_bytes, uint32_t core_pct,
                 uint32_t flags, char *error, size_t size)
{
    guard_begin();
    int result = resize(folder, uuid, mem_bytes, core_pct, flags, error, size);
    return guard_end() ? result : fail_cut_short(error, size, folder, uuid);
}

#define U(x) ((unsigned long long)atomic_load(&(x)))

static unsigned long long lent_bytes(struct berth_use_file *use)
{
    unsigned long long sum = 0;
    for (uint32_t i = 0; i < BERTH_SLOTS; i++)
        if (atomic_load(&use->slots[i].state) == BERTH_LENDS)
            sum += U(use->slots[i].held);
    return sum;
}

static unsigned long long promise_bytes(const struct berth_limit_file *limit)
{
    unsigned long long promise = U(limit->promise_bytes), now = U(limit->mem_bytes);
    return promise != 0 && promise < now ? promise : now;
}

static unsigned long long most_bytes(const struct berth_limit_file *limit)
{
    unsigned long long most = U(limit->max_bytes), now = U(limit->mem_bytes);
    return most > now ? most : now;
}

static int describe(const char *folder, const char *uuid, char *json, size_t size)
{
    unsigned char bytes[16];
    struct berth_region region;
    struct berth_error why = { "" };
    struct text text = { json, json + size };
    if (!region_uuid_parse(uuid, bytes))
        return fail(json, size, "not the UUID of a GPU");
    if (!region_open(&region, folder, bytes, &why))
        return fail(json, size, why.text[0] ? why.text : "there is no such partition");
    region_reap(&region);
    struct berth_use_file *use = region.use;
    add(&text, "{\"name\": ");
    add_name(&text, region.limit->name, sizeof region.limit->name);
    uint32_t flags = atomic_load(&region.limit->flags);
    add(&text,
        ", \"limit_bytes\": %llu, \"promise_bytes\": %llu, \"max_bytes\": %llu, \"core_pct\": %u, "
        "\"burst\": %s, \"priority\": \"%s\", "
        "\"used_bytes\": %llu, "
        "\"peak_bytes\": %llu, \"refused\": %llu, "
        "\"refused_bytes\": %llu, \"asked\": %u, \"granted\": %u, \"gpu_ns\": %llu, "
        "\"lent_bytes\": %llu, \"mended\": %u, "
        "\"processes\": [",
        U(region.limit->mem_bytes), promise_bytes(region.limit), most_bytes(region.limit),
        atomic_load(&region.limit->core_pct), flags & BERTH_BURST ? "true" : "false",
        flags & BERTH_HIGH  ? "high"
        : flags & BERTH_LOW ? "low"
                            : "normal",
        U(use->total.used), U(use->peak), U(use->refused), U(use->refused_bytes),
        atomic_load(&use->asked), atomic_load(&use->granted), U(use->gpu_ns), lent_bytes(use),
        atomic_load(&use->mended));
    const char *comma = "";
    for (uint32_t i = 0; i < atomic_load(&use->slots_seen) && i < BERTH_SLOTS; i++) {
        struct berth_slot *slot = &use->slots[i];
        if (atomic_load(&slot->state) == BERTH_FREE || atomic_load(&slot->state) == BERTH_LENDS)
            continue;
        add(&text,
            "%s{\"pid\": %u, \"pid_namespace\": %llu, \"held_bytes\": %llu, \"peak_bytes\": %llu, "
            "\"gpu_ns\": %llu, \"outer_pid\": %u, \"command\": ",
            comma, atomic_load(&slot->pid), U(slot->pid_namespace), U(slot->held), U(slot->peak),
            U(slot->gpu_ns), atomic_load(&slot->outer_pid));
        add_name(&text, slot->command, sizeof slot->command);
        add(&text, "}");
        comma = ", ";
    }
    add(&text, "], \"refusals\": [");
    comma = "";
    uint64_t last = atomic_load(&use->refusal_count);
    for (uint64_t number = last > BERTH_REFUSALS - 1 ? last - (BERTH_REFUSALS - 2) : 1;
         number <= last; number++) {
        struct berth_refusal *shared = &use->refusals[number % BERTH_REFUSALS];
        if (atomic_load(&shared->number) != number * 2)
            continue;
        struct berth_refusal refusal;
        memcpy(&refusal, (const void *)shared, sizeof refusal);
        if (atomic_load(&shared->number) != number * 2)
            continue; /* overwritten meanwhile */
        add(&text,
            "%s{\"time_ns\": %llu, \"pid\": %u, \"uid\": %u, \"asked_bytes\": %llu, "
            "\"left_bytes\": %llu, \"limit_bytes\": %llu, \"command\": ",
            comma, (unsigned long long)refusal.time_ns, refusal.pid, refusal.uid,
            (unsigned long long)refusal.asked_bytes, (unsigned long long)refusal.left_bytes,
            (unsigned long long)refusal.limit_bytes);
        add_name(&text, refusal.command, sizeof refusal.command);
        add(&text, ", \"call\": ");
        add_name(&text, refusal.call, sizeof refusal.call);
        add(&text, "}");
        comma = ", ";
    }
    add(&text, "]}");
    region_close(&region);
    struct stat file; /* what is left of a page that the end has gone from reads as zeros */
    if (stat(region.path, &file) == 0 && (size_t)file.st_size < sizeof *use)
        return fail_cut_short(json, size, folder, uuid);
    return text.at == text.end ? fail(json, size, "the description does not fit") : 0;
}

int berth_describe(const char *folder, const char *uuid, char *json, size_t size)
{
    guard_begin();
    int result = describe(folder, uuid, json, size);
    return guard_end() ? result : fail_cut_short(json, size, folder, uuid);
}

/* Which of what is loaded is a driver, and its symbol table: its names are led to the wrappers. */
#define _GNU_SOURCE
#include "drivers.h"

#include "settings.h"

#include <dlfcn.h>
#include <string.h>

struct hook {
    const char *name;
    void *wrapper;
    void **slot;
};
static const struct hook hooks[] = {
#define HOOK(name, params) { #name, (void *)name, (void **)(void *)&real.name },
#define NEED(name, params) { #name, NULL, (void **)(void *)&real.name },
#include "hooks.h"
#define NVHOOK(name, params) { #name, (void *)name, (void **)(void *)&real.name },
#define NVNEED(name, params) { #name, NULL, (void **)(void *)&real.name },
#include "hooks.h"
};
enum {
#define HOOK(name, params) AT_##name,
#define NEED(name, params) AT_##name,
#include "hooks.h"
    DRIVER_HOOKS, /* the others are NVML's */
    HOOKS = sizeof hooks / sizeof *hooks
};

struct drivers drivers;
static struct elf driver_elf;
static struct {
    const unsigned char *bytes;
    size_t size;
} driver_id;

/* Reads the addresses of a library's entry points, then points their names at the wrappers. */
static bool adopt(const struct elf *elf, int from, int to)
{
    ElfW(Sym) * symbols[HOOKS];
    const ElfW(Sym) *first = NULL, *last = NULL;
    for (int i = from; i < to; i++) {
        ElfW(Sym) *symbol = symbols[i] = elf_symbol(elf, hooks[i].name, NULL);
        if (symbol == NULL)
            continue;
        if (elf->base + symbol->st_value != (uintptr_t)hooks[i].wrapper)
            *hooks[i].slot = (void *)(elf->base + symbol->st_value);
        if (hooks[i].wrapper == NULL)
            continue;
        if (first == NULL || symbol < first)
            first = symbol;
        if (last == NULL || symbol > last)
            last = symbol;
    }
    if (!settings.active || first == NULL || !elf_unlock(elf, first, last, true))
        return false;
    for (int i = from; i < to; i++)
        if (symbols[i] != NULL && hooks[i].wrapper != NULL) {
            symbols[i]->st_value = (uintptr_t)hooks[i].wrapper - elf->base;
            symbols[i]->st_info = ELF64_ST_INFO(ELF64_ST_BIND(symbols[i]->st_info), STT_FUNC);
        }
    elf_unlock(elf, first, last, false);
    return true;
}

/* What drivers define, by the published headers: one line for each version of a name. */
static const struct {
    const char *name;
    int version, per_thread;
    const char *symbol;
} entry_points[] = {
#define ENTRY(name, version, per_thread, symbol) { #name, version, per_thread, #symbol },
#include "entry_points.h"
#undef ENTRY
};
enum { ENTRY_POINTS = sizeof entry_points / sizeof *entry_points };

static const struct hook *hook_named(const char *name)
{
    for (int i = 0; i < HOOKS; i++)
        if (hooks[i].wrapper != NULL && strcmp(hooks[i].name, name) == 0)
            return &hooks[i];
    return NULL;
}

enum { DRIVER_NAMES = 300 };

/* A driver by its contents, whatever its file and it are called: it defines most of what drivers
   define. */
static bool defines_a_driver(const struct elf *elf)
{
    int count = 0;
    for (size_t i = 0; i < ENTRY_POINTS && count < DRIVER_NAMES; i++) {
        const ElfW(Sym) *symbol = elf_symbol(elf, entry_points[i].symbol, NULL);
        count += symbol != NULL && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC;
    }
    return count >= DRIVER_NAMES;
}

/* Another copy of the process's driver, or another driver: all its names lead to the first one's,
   and so to the wrappers. */
static void redirect(const struct elf *elf)
{
    const ElfW(Sym) *first = NULL, *last = NULL;
    for (size_t i = 0; i < ENTRY_POINTS; i++) {
        const ElfW(Sym) *symbol = elf_symbol(elf, entry_points[i].symbol, NULL);
        if (symbol == NULL || symbol->st_shndx == SHN_ABS)
            continue;
        first = first == NULL || symbol < first ? symbol : first;
        last = last == NULL || symbol > last ? symbol : last;
    }
    if (first == NULL || !elf_unlock(elf, first, last, true))
        return;
    for (size_t i = 0; i < ENTRY_POINTS; i++) {
        ElfW(Sym) *symbol = elf_symbol(elf, entry_points[i].symbol, NULL);
        const struct hook *hook = hook_named(entry_points[i].symbol);
        const ElfW(Sym) *firsts = elf_symbol(&driver_elf, entry_points[i].symbol, NULL);
        uintptr_t to = hook != NULL     ? (uintptr_t)hook->wrapper
                       : firsts != NULL ? driver_elf.base + firsts->st_value
                                        : 0;
        if (symbol != NULL && to != 0)
            symbol->st_value = to - elf->base;
    }
    elf_unlock(elf, first, last, false);
    atomic_fetch_add(&drivers.copies, 1);
}

/* It defines what every driver does, and is not this library. */
static bool may_be_a_driver(const struct elf *elf)
{
    const ElfW(Sym) *symbol = elf_symbol(elf, "cuInit", NULL);
    return symbol != NULL && elf->base + symbol->st_value != (uintptr_t)cuInit;
}

static void consider_copy(const struct elf *elf)
{
    size_t size = 0;
    const unsigned char *id;
    if (!settings.active || elf->base == atomic_load(&drivers.base) || !may_be_a_driver(elf))
        return;
    id = elf_build_id(elf, &size);
    bool same_id = id != NULL && driver_id.bytes != NULL && size == driver_id.size &&
                   memcmp(id, driver_id.bytes, size) == 0;
    if (same_id || strncmp(elf->soname, "libcuda.so", 10) == 0 || defines_a_driver(elf))
        redirect(elf);
}

void drivers_consider(const struct elf *elf)
{
    if (atomic_load(&drivers.driver))
        consider_copy(elf);
    if (!atomic_load(&drivers.driver) && may_be_a_driver(elf) &&
        (strncmp(elf->soname, "libcuda.so", 10) == 0 || defines_a_driver(elf))) {
        bool patched = adopt(elf, 0, DRIVER_HOOKS);
        atomic_store(&drivers.base, elf->base);
        driver_elf = *elf;
        driver_id.bytes = elf_build_id(elf, &driver_id.size);
        atomic_store(&drivers.edited, patched);
        atomic_store(&drivers.driver, 1);
        if (settings.active && !patched)
            log_line("the driver's symbol table cannot be edited; dlsym is answered one call at a "
                     "time instead");
    } else if (strncmp(elf->soname, "libnvidia-ml.so", 15) == 0 && !atomic_load(&drivers.nvml)) {
        adopt(elf, DRIVER_HOOKS, HOOKS);
        atomic_store(&drivers.nvml, 1);
    }
}

static const struct hook *hook_at(const void *address)
{
    for (int i = 0; i < DRIVER_HOOKS; i++)
        if (hooks[i].wrapper != NULL && *hooks[i].slot == address)
            return &hooks[i];
    return NULL;
}

/* The hook for a lookup by the published table: for a driver whose lookups return addresses that it
   does not export. */
static const struct hook *hook_by_table(const char *name, int version, bool per_thread)
{
    const char *best = NULL;
    for (int i = 0, best_rank = -1; i < ENTRY_POINTS; i++) {
        int rank = entry_points[i].per_thread << 24 | entry_points[i].version;
        if (entry_points[i].version <= version && entry_points[i].per_thread <= per_thread &&
            rank > best_rank && strcmp(entry_points[i].name, name) == 0) {
            best = entry_points[i].symbol;
            best_rank = rank;
        }
    }
    return best != NULL ? hook_named(best) : NULL;
}

void *drivers_exchange(const char *name, void *found, int version, uint64_t flags)
{
    const struct hook *hook = hook_at(found);
    if (hook != NULL)
        return hook->wrapper;
    Dl_info info;
    if (dladdr(found, &info) != 0 && info.dli_saddr == found && info.dli_sname != NULL &&
        strncmp(info.dli_sname, "cu", 2) == 0)
        return found; /* an entry point with a name of its own that is not hooked */
    hook = hook_by_table(name, version, (flags & CU_LOOKUP_PER_THREAD) != 0);
    if (hook == NULL)
        return found;
    if (*hook->slot == NULL)
        *hook->slot = found;
    return hook->wrapper;
}

bool drivers_wraps(const char *name, const void *found)
{
    const struct hook *hook = hook_named(name);
    return hook != NULL && *hook->slot == found;
}

void *drivers_wrapper(const char *name)
{
    const struct hook *hook = hook_named(name);
    return hook != NULL ? hook->wrapper : NULL;
}

void *drivers_own(const char *name)
{
    for (int i = 0; i < HOOKS; i++)
        if (strcmp(hooks[i].name, name) == 0 && *hooks[i].slot != NULL)
            return *hooks[i].slot;
    return NULL;
}

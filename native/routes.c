/* The routes by which a program gets to the driver, and how each ends at a wrapper.

   A program linked to the driver finds the wrappers first, because this library is preloaded and
   exports them. For everything that asks by name, the loaded driver's own symbol table is edited in
   this process's memory, so that the loader itself answers with the wrapper: dlsym on any handle,
   RTLD_NEXT, dlvsym, RTLD_DEEPBIND, a dlsym that was fetched from libc. dlsym therefore stays what
   it is, with the caller that it is asked by; it is only intercepted to notice that a driver has
   been loaded. cuGetProcAddress answers from inside the driver, and is asked through a wrapper. */
#define _GNU_SOURCE
#include "routes.h"

#include "elf.h"
#include "parts.h"
#include "settings.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A wrapper must end in a jump, so that libc sees its real caller. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define BARE __attribute__((no_sanitize("thread", "address", "undefined"), optimize("O2")))
#else
#define BARE
#endif

struct real real;

struct hook {
    const char *name;
    void *wrapper;
    void **slot;
};
static const struct hook driver_hooks[] = {
#define HOOK(name, params) { #name, (void *)name, (void **)(void *)&real.name },
#define NVHOOK(name, params)
#define NEED(name, params) { #name, NULL, (void **)(void *)&real.name },
#define NVNEED(name, params)
#include "hooks.h"
#undef HOOK
#undef NVHOOK
#undef NEED
#undef NVNEED
};
static const struct hook nvml_hooks[] = {
#define HOOK(name, params)
#define NVHOOK(name, params) { #name, (void *)name, (void **)(void *)&real.name },
#define NEED(name, params)
#define NVNEED(name, params) { #name, NULL, (void **)(void *)&real.name },
#include "hooks.h"
#undef HOOK
#undef NVHOOK
#undef NEED
#undef NVNEED
};
enum {
    DRIVER_HOOKS = sizeof driver_hooks / sizeof *driver_hooks,
    NVML_HOOKS = sizeof nvml_hooks / sizeof *nvml_hooks
};

typedef void *dlsym_call(void *, const char *);
typedef void *dlvsym_call(void *, const char *, const char *);
typedef void *dlopen_call(const char *, int);
typedef void *dlmopen_call(Lmid_t, const char *, int);

EXPORT void *dlsym(void *restrict handle, const char *restrict name);
EXPORT void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version);
EXPORT void *dlopen(const char *name, int flags);
EXPORT void *dlmopen(Lmid_t space, const char *name, int flags);

static dlsym_call *libc_dlsym;
static dlvsym_call *libc_dlvsym;
static dlopen_call *libc_dlopen;
static dlmopen_call *libc_dlmopen;
static shared32 started, driver_known, nvml_known, driver_patched;
static shared32 opened; /* something was loaded, by its name no driver */
static struct turn turn;
static _Atomic unsigned long long objects_seen;
static _Atomic uintptr_t driver_base; /* where the process's one driver is */
static struct elf driver_elf;
static struct {
    const unsigned char *bytes;
    size_t size;
} driver_id;

/* address in the driver -> hook, sorted, for cuGetProcAddress */
static struct {
    void *address;
    const struct hook *hook;
} by_address[DRIVER_HOOKS];
static int by_address_count;

/* In place: the loader's lock is held, and qsort may call the program's malloc. */
static void remember(void *address, const struct hook *hook)
{
    int at = by_address_count++;
    for (; at > 0 && (uintptr_t)by_address[at - 1].address > (uintptr_t)address; at--)
        by_address[at] = by_address[at - 1];
    by_address[at].address = address;
    by_address[at].hook = hook;
}

/* Reads the addresses of a library's entry points, then points their names at the wrappers. */
static bool adopt(const struct elf *elf, const struct hook *hooks, int count, bool is_driver)
{
    const ElfW(Sym) *first = NULL, *last = NULL;
    if (is_driver)
        by_address_count = 0; /* a fork may have cut this short in the parent */
    for (int i = 0; i < count; i++) {
        const ElfW(Sym) *symbol = elf_symbol(elf, hooks[i].name, NULL);
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
        if (is_driver)
            remember(*hooks[i].slot, &hooks[i]);
    }
    if (!settings.active || first == NULL || !elf_unlock(elf, first, last, true))
        return false;
    for (int i = 0; i < count; i++) {
        ElfW(Sym) *symbol = hooks[i].wrapper == NULL ? NULL : elf_symbol(elf, hooks[i].name, NULL);
        if (symbol != NULL) {
            symbol->st_value = (uintptr_t)hooks[i].wrapper - elf->base;
            symbol->st_info = ELF64_ST_INFO(ELF64_ST_BIND(symbol->st_info), STT_FUNC);
        }
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
    for (int i = 0; i < DRIVER_HOOKS; i++)
        if (driver_hooks[i].wrapper != NULL && strcmp(driver_hooks[i].name, name) == 0)
            return &driver_hooks[i];
    for (int i = 0; i < NVML_HOOKS; i++)
        if (nvml_hooks[i].wrapper != NULL && strcmp(nvml_hooks[i].name, name) == 0)
            return &nvml_hooks[i];
    return NULL;
}

enum { DRIVER_NAMES = 300 };

static int copies;

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
    copies++;
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
    if (!settings.active || elf->base == atomic_load(&driver_base) || !may_be_a_driver(elf))
        return;
    id = elf_build_id(elf, &size);
    bool same_id = id != NULL && driver_id.bytes != NULL && size == driver_id.size &&
                   memcmp(id, driver_id.bytes, size) == 0;
    if (same_id || strncmp(elf->soname, "libcuda.so", 10) == 0 || defines_a_driver(elf))
        redirect(elf);
}

static void consider(const struct elf *elf)
{
    if (atomic_load(&driver_known))
        consider_copy(elf);
    if (!atomic_load(&driver_known) && may_be_a_driver(elf) &&
        (strncmp(elf->soname, "libcuda.so", 10) == 0 || defines_a_driver(elf))) {
        bool patched = adopt(elf, driver_hooks, DRIVER_HOOKS, true);
        atomic_store(&driver_base, elf->base);
        driver_elf = *elf;
        driver_id.bytes = elf_build_id(elf, &driver_id.size);
        atomic_store(&driver_patched, patched);
        atomic_store(&driver_known, 1);
        if (settings.active && !patched)
            log_line("the driver's symbol table cannot be edited; dlsym is answered one call at a "
                     "time instead");
    } else if (strncmp(elf->soname, "libnvidia-ml.so", 15) == 0 && !atomic_load(&nvml_known)) {
        adopt(elf, nvml_hooks, NVML_HOOKS, false);
        atomic_store(&nvml_known, 1);
    }
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    struct elf elf;
    (void)size;
    if (*(bool *)data) {
        *(bool *)data = false;
        if (info->dlpi_adds == objects_seen)
            return 1;
        objects_seen = info->dlpi_adds;
    }
    if (elf_view(&elf, info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum))
        consider(&elf);
    return 0;
}

static int count_objects(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    *(unsigned long long *)data = info->dlpi_adds;
    return 1;
}

/* Something may have been loaded that is a driver and is not called one: found without the turn
   where there is none. */
static bool nothing_new(void)
{
    unsigned long long now = 0;
    if (!atomic_load_explicit(&opened, memory_order_relaxed) || !settings.active)
        return true;
    dl_iterate_phdr(count_objects, &now);
    return now == atomic_load_explicit(&objects_seen, memory_order_relaxed);
}

void routes_look(void)
{
    bool first = true;
    if (atomic_load(&driver_known) && atomic_load(&nvml_known) && nothing_new())
        return;
    int copies_before = copies;
    int error = errno;
    uint32_t known = atomic_load(&driver_known) + 2 * atomic_load(&nvml_known);
    turn_take(&turn);
    dl_iterate_phdr(visit, &first);
    turn_leave(&turn);
    errno = error;
    uint32_t found = atomic_load(&driver_known) + 2 * atomic_load(&nvml_known) - known;
    if (copies != copies_before)
        log_line(
            "a second driver is in this process, under whatever name: its calls go to the first");
    if (libc_dlopen == NULL)
        return;
    /* They must not go away under the wrappers. Not while walking: the loader's locks have an
       order. */
    if (found & 1)
        libc_dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    if (found & 2)
        libc_dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static void take_name(const struct elf *elf, const char *name, void **slot, void *wrapper,
                      bool edit)
{
    for (ElfW(Sym) *symbol = NULL; (symbol = elf_symbol(elf, name, symbol)) != NULL;) {
        void *found = (void *)(elf->base + symbol->st_value);
        if (found == wrapper)
            continue;
        if (*slot == NULL)
            *slot = found;
        if (edit && elf_unlock(elf, symbol, symbol, true)) {
            symbol->st_value = (uintptr_t)wrapper - elf->base;
            elf_unlock(elf, symbol, symbol, false);
        }
    }
}

/* Finds libc's own dlsym and its like, and if asked to has later lookups of them end here too. */
static void take_libc(const struct elf *elf, bool edit)
{
    if (!elf_begins(elf->soname, "libc.so") && !elf_begins(elf->soname, "libc.musl") &&
        !elf_begins(elf->soname, "libdl.so"))
        return;
    take_name(elf, "dlsym", (void **)&libc_dlsym, (void *)dlsym, edit);
    take_name(elf, "dlvsym", (void **)&libc_dlvsym, (void *)dlvsym, edit);
    take_name(elf, "dlopen", (void **)&libc_dlopen, (void *)dlopen, edit);
    take_name(elf, "dlmopen", (void **)&libc_dlmopen, (void *)dlmopen, edit);
}

/* A sanitizer or allocator asks for symbols before any constructor has run and before libc may be
   called: only what an answer needs is found then, with the loader's list alone. */
__attribute__((noinline)) static void find_libc(void)
{
    struct elf elf;
    for (const struct link_map *map = _r_debug.r_map; map != NULL; map = map->l_next)
        if (map->l_ld != NULL && elf_view_early(&elf, map->l_addr, map->l_ld))
            take_libc(&elf, false);
}

static int visit_libc(struct dl_phdr_info *info, size_t size, void *data)
{
    struct elf elf;
    (void)size;
    (void)data;
    if (!elf_view(&elf, info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum))
        return 0;
    take_libc(&elf, settings.active);
    return 0;
}

static void after_fork(void)
{
    atomic_store(&turn.word, 0);
    atomic_store(
        &opened,
        0); /* the loader's list may have been held by a thread that is not here any more */
}

PART(.forget = after_fork);

static void start(void)
{
    int error = errno;
    turn_take(&turn);
    if (!atomic_load(&started)) {
        pthread_atfork(NULL, NULL, parts_forget);
        settings_read();
        dl_iterate_phdr(visit_libc, NULL);
        atomic_store(&started, 1);
    }
    turn_leave(&turn);
    errno = error;
    routes_look();
}

__attribute__((constructor(101))) static void begin(void)
{
    if (!atomic_load(&started))
        start();
}

static CUresult missing(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

void *routes_find(const char *name)
{
    if (!atomic_load(&started))
        start();
    routes_look();
    const struct hook *tables[] = { driver_hooks, nvml_hooks };
    int counts[] = { DRIVER_HOOKS, NVML_HOOKS };
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < counts[t]; i++)
            if (strcmp(tables[t][i].name, name) == 0 && *tables[t][i].slot != NULL)
                return *tables[t][i].slot;
    return (void *)missing;
}

bool routes_have_nvml(void)
{
    static shared32 asked;
    if (!atomic_load(&nvml_known) && libc_dlopen != NULL && atomic_exchange(&asked, 1) == 0) {
        libc_dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
        routes_look();
    }
    return atomic_load(&nvml_known) != 0;
}

static const struct hook *hook_at(void *address)
{
    int low = 0, high = by_address_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if ((uintptr_t)by_address[middle].address < (uintptr_t)address)
            low = middle + 1;
        else
            high = middle;
    }
    return low < by_address_count && by_address[low].address == address ? by_address[low].hook
                                                                        : NULL;
}

/* Only the wrapper is there, not the driver: the loader says so, as it says it of what comes after
   this library. */
__attribute__((noinline)) static void *nowhere(const char *name)
{
    void *volatile found =
        libc_dlsym(RTLD_NEXT, name); /* no tail call: the caller must be seen to be here */
    return found;
}

/* A name of the driver's is asked for. True where only the wrapper is there. */
__attribute__((noinline)) static bool notice(const void *handle, const char *name)
{
    if (!atomic_load(&started))
        start();
    if (!atomic_load(name[0] == 'c' ? &driver_known : &nvml_known) ||
        atomic_load_explicit(&opened, memory_order_relaxed))
        routes_look(); /* a walk through the loader's list, under its lock: not where it can find
                          nothing new */
    if (handle != RTLD_DEFAULT)
        return false;
    const struct hook *hook = hook_named(name);
    return hook != NULL && *hook->slot == NULL;
}

/* Where the symbol table could not be edited: the loader's answer, exchanged afterwards. */
__attribute__((noinline)) static void *answer(void *handle, const char *name)
{
    void *found = libc_dlsym(handle, name);
    const struct hook *hook = settings.active && found != NULL ? hook_named(name) : NULL;
    return hook != NULL && found == *hook->slot ? hook->wrapper : found;
}

static inline bool is_drivers(const char *name)
{
    return name != NULL &&
           ((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v'));
}

BARE void *dlsym(void *restrict handle, const char *restrict name)
{
    if (UNLIKELY(libc_dlsym == NULL))
        find_libc();
    if (UNLIKELY(is_drivers(name))) {
        if (notice(handle, name))
            return nowhere(name);
        if (atomic_load(&driver_known) && !atomic_load(&driver_patched) && settings.active)
            return answer(handle, name);
    }
    return libc_dlsym(handle, name);
}

BARE void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
    if (UNLIKELY(libc_dlvsym == NULL))
        find_libc();
    if (UNLIKELY(is_drivers(name)) && notice(handle, name))
        return nowhere(name);
    if (UNLIKELY(libc_dlvsym ==
                 NULL)) /* a libc without it, such as musl: one without versions too */
        return dlsym(handle, name);
    return libc_dlvsym(handle, name, version);
}

static const char *file_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static bool is_driver_file(const char *name)
{
    if (name == NULL)
        return false;
    name = file_of(name);
    return strncmp(name, "libcuda.so", 10) == 0 || strncmp(name, "libnvidia-ml.so", 15) == 0;
}

/* One process, one driver: a second copy of it, from another folder or in a namespace of its own,
   would know nothing of the first's memory. Whoever opens one gets the first. */
__attribute__((noinline)) static void *open_driver(const char *name, int flags)
{
    void *handle = libc_dlopen(name, flags & ~RTLD_DEEPBIND);
    struct link_map *map = NULL;
    routes_look();
    uintptr_t first = atomic_load(&driver_base);
    if (!settings.active || handle == NULL || first == 0 ||
        dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map->l_addr == first ||
        strncmp(file_of(name), "libcuda.so", 10) != 0)
        return handle;
    void *one = libc_dlopen("libcuda.so.1", flags & ~RTLD_DEEPBIND);
    if (one == NULL || dlinfo(one, RTLD_DI_LINKMAP, &map) != 0 || map->l_addr != first) {
        log_line("%s is a second driver in this process, whose calls cannot be limited", name);
        return handle;
    }
    dlclose(handle);
    return one;
}

/* What is bound deeply finds its own dependencies before the wrappers: have the driver's table
   edited by then. */
__attribute__((noinline)) static void open_driver_first(void)
{
    if (settings.active && !atomic_load(&driver_known) &&
        libc_dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL)
        routes_look();
}

BARE void *dlopen(const char *name, int flags)
{
    if (UNLIKELY(!atomic_load_explicit(&started, memory_order_acquire)))
        start();
    if (UNLIKELY(is_driver_file(name)))
        return open_driver(name, flags);
    if (UNLIKELY(flags & RTLD_DEEPBIND))
        open_driver_first();
    if (!atomic_load_explicit(&opened, memory_order_relaxed))
        atomic_store_explicit(&opened, 1, memory_order_relaxed);
    return libc_dlopen(name, flags);
}

void *dlmopen(Lmid_t space, const char *name, int flags)
{
    if (!atomic_load(&started))
        start();
    if (libc_dlmopen == NULL)
        return NULL;
    if (settings.active && space != LM_ID_BASE && is_driver_file(name) && libc_dlopen != NULL)
        return open_driver(name, flags);
    void *handle = libc_dlmopen(space, name, flags);
    struct link_map *map = NULL;
    if (settings.active && handle != NULL && space != LM_ID_BASE &&
        dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0) {
        while (map != NULL && map->l_prev != NULL)
            map = map->l_prev;
        for (; map != NULL; map = map->l_next)
            if (is_driver_file(map->l_name))
                log_line("%s was loaded into a linker namespace of its own, where its calls cannot "
                         "be limited",
                         map->l_name);
    }
    return handle;
}

/* ---- cuGetProcAddress ---- */

/* The hook for a lookup by the published table: for a driver whose lookups return addresses that it
   does not export. */
static const struct hook *hook_by_table(const char *name, int version, bool per_thread)
{
    const char *best = NULL;
    int best_version = -1, best_thread = -1;
    for (size_t i = 0; i < ENTRY_POINTS; i++) {
        if (entry_points[i].version > version || entry_points[i].per_thread > per_thread ||
            strcmp(entry_points[i].name, name) != 0)
            continue;
        if (entry_points[i].per_thread > best_thread ||
            (entry_points[i].per_thread == best_thread && entry_points[i].version > best_version)) {
            best = entry_points[i].symbol;
            best_version = entry_points[i].version;
            best_thread = entry_points[i].per_thread;
        }
    }
    return best != NULL ? hook_named(best) : NULL;
}

static void *exchange(const char *name, void *found, int version, uint64_t flags)
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

CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{
    CUresult result = REAL(cuGetProcAddress)(name, found, version, flags);
    if (settings.active && result == CUDA_SUCCESS && name != NULL && found != NULL &&
        *found != NULL)
        *found = exchange(name, *found, version, flags);
    return result;
}

CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags,
                             int *status)
{
    CUresult result = REAL(cuGetProcAddress_v2)(name, found, version, flags, status);
    if (settings.active && result == CUDA_SUCCESS && name != NULL && found != NULL &&
        *found != NULL)
        *found = exchange(name, *found, version, flags);
    return result;
}

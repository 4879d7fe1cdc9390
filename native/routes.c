/* The routes by which a program gets to the driver, and how each ends at a wrapper.

   A program linked to the driver finds the wrappers first, because this library is preloaded and
   exports them. For everything that asks by name, the loaded driver's own symbol table is edited in
   this process's memory, so that the loader itself answers with the wrapper: dlsym on any handle,
   RTLD_NEXT, dlvsym, RTLD_DEEPBIND, a dlsym that was fetched from libc. dlsym therefore stays what
   it is, with the caller that it is asked by; it is only intercepted to notice that a driver has
   been loaded. cuGetProcAddress answers from inside the driver, and is asked through a wrapper. */
#define _GNU_SOURCE
#include "routes.h"

#include "drivers.h"
#include "parts.h"
#include "settings.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* A wrapper must end in a jump, so that libc sees its real caller. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define BARE __attribute__((no_sanitize("thread", "address", "undefined"), optimize("O2")))
#else
#define BARE
#endif

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
static shared32 started;
static shared32 opened; /* something was loaded, by its name no driver */
static struct turn turn;
static _Atomic unsigned long long objects_seen;

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
        drivers_consider(&elf);
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
    if (!LOAD(opened) || !settings.active)
        return true;
    dl_iterate_phdr(count_objects, &now);
    return now == LOAD(objects_seen);
}

void routes_look(void)
{
    bool first = true;
    if (drivers.driver && drivers.nvml && nothing_new())
        return;
    uint32_t copies_before = drivers.copies;
    KEEPS_ERRNO;
    uint32_t known = drivers.driver + 2u * drivers.nvml;
    WITHIN(&turn, dl_iterate_phdr(visit, &first));
    uint32_t found = drivers.driver + 2u * drivers.nvml - known;
    if (drivers.copies != copies_before)
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
    (void)size, (void)data;
    if (elf_view(&elf, info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum))
        take_libc(&elf, settings.active);
    return 0;
}

static void after_fork(void)
{
    /* The loader's list may have been held by a thread that is not here any more. */
    atomic_store(&opened, 0);
}

PART(.turn = &turn, .forget = after_fork);

static void start(void)
{
    KEEPS_ERRNO;
    turn_take(&turn);
    if (!atomic_load(&started)) {
        pthread_atfork(parts_fork_begins, parts_fork_ended, parts_forget);
        settings_read();
        dl_iterate_phdr(visit_libc, NULL);
        atomic_store(&started, 1);
    }
    turn_leave(&turn);
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

static void *find(const char *name)
{
    if (!atomic_load(&started))
        start();
    routes_look();
    void *own = drivers_own(name);
    return own != NULL ? own : (void *)missing;
}

struct real real = { .find = find };

bool routes_have_nvml(void)
{
    static shared32 asked;
    if (!drivers.nvml && libc_dlopen != NULL && atomic_exchange(&asked, 1) == 0) {
        libc_dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
        routes_look();
    }
    return drivers.nvml != 0;
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
    if (!(name[0] == 'c' ? drivers.driver : drivers.nvml) || LOAD(opened))
        routes_look(); /* a walk through the loader's list, under its lock: not where it can find
                          nothing new */
    if (handle != RTLD_DEFAULT)
        return false;
    return drivers_wraps(name, NULL);
}

/* Where the symbol table could not be edited: the loader's answer, exchanged afterwards. */
__attribute__((noinline)) static void *wrapper_of(const char *name, void *found)
{
    return found != NULL && drivers_wraps(name, found) ? drivers_wrapper(name) : found;
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
        if (drivers.driver && !drivers.edited && settings.active)
            return wrapper_of(name, libc_dlsym(handle, name));
    }
    return libc_dlsym(handle, name);
}

BARE void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
    if (UNLIKELY(libc_dlvsym == NULL))
        find_libc();
    if (UNLIKELY(libc_dlvsym == NULL)) /* a libc without versions, such as musl */
        return dlsym(handle, name);
    if (UNLIKELY(is_drivers(name))) {
        if (notice(handle, name))
            return nowhere(name);
        if (drivers.driver && !drivers.edited && settings.active)
            return wrapper_of(name, libc_dlvsym(handle, name, version));
    }
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
   would know nothing of the first's memory. A program that opens one gets the first. */
__attribute__((noinline)) static void *open_driver(const char *name, int flags)
{
    void *handle = libc_dlopen(name, flags & ~RTLD_DEEPBIND);
    struct link_map *map = NULL;
    routes_look();
    uintptr_t first = drivers.base;
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
    if (settings.active && !drivers.driver &&
        libc_dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL)
        routes_look();
}

BARE void *dlopen(const char *name, int flags)
{
    if (UNLIKELY(!LOAD_ACQUIRE(started)))
        start();
    if (UNLIKELY(is_driver_file(name)))
        return open_driver(name, flags);
    if (UNLIKELY(flags & RTLD_DEEPBIND))
        open_driver_first();
    if (!LOAD(opened))
        STORE(opened, 1);
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

#define LOOKS_UP(hook, params, args)                                                      \
    CUresult hook params                                                                  \
    {                                                                                     \
        CUresult result = REAL(hook) args;                                                \
        if (settings.active && result == CUDA_SUCCESS && name != NULL && found != NULL && \
            *found != NULL)                                                               \
            *found = drivers_exchange(name, *found, version, flags);                      \
        return result;                                                                    \
    }
LOOKS_UP(cuGetProcAddress, (const char *name, void **found, int version, uint64_t flags),
         (name, found, version, flags))
LOOKS_UP(cuGetProcAddress_v2,
         (const char *name, void **found, int version, uint64_t flags, int *status),
         (name, found, version, flags, status))

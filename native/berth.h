/* What the parts of libberth.so know of each other. */
#ifndef BERTH_H
#define BERTH_H

#include "cu.h"
#include "region.h"

#define EXPORT __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* The exported wrappers, under the driver's own names. */
#define HOOK(name, params) EXPORT CUresult name params;
#define NVHOOK(name, params) EXPORT int name params;
#define NEED(name, params)
#define NVNEED(name, params)
#include "hooks.h"
#undef HOOK
#undef NVHOOK
#undef NEED
#undef NVNEED

/* The driver's own entry points; NULL where it has none. */
struct real {
#define HOOK(name, params) CUresult (*name) params;
#define NVHOOK(name, params) int (*name) params;
#define NEED(name, params) CUresult (*name) params;
#define NVNEED(name, params) int (*name) params;
#include "hooks.h"
#undef HOOK
#undef NVHOOK
#undef NEED
#undef NVNEED
};
extern struct real real;

/* Calls the driver; an entry point that it lacks answers CUDA_ERROR_NOT_FOUND. */
#define REAL(name) (LIKELY(real.name != NULL) ? real.name : (__typeof__(real.name))routes_find(#name))
#define HAVE(name) (real.name != NULL)

/* ---- routes.c ---- */
void *routes_find(const char *name);
void routes_look(void);    /* has a driver been loaded since? */
bool routes_have_nvml(void);  /* loads it if it is there */

/* ---- settings.c ---- */
enum { MAX_DEVICES = 64 };
struct setting { bool given; bool per_device; int count; struct { int index; unsigned char uuid[16]; bool by_uuid; uint64_t value; } items[MAX_DEVICES]; uint64_t value; };
struct settings {
    bool active;         /* anything is limited at all */
    char wrong[512];     /* why the limits cannot be known; then there is no GPU */
    char folder[256];    /* of the region */
    bool made_by_agent;  /* its limits are the agent's, and a GPU without one has none */
    bool burst;
    uint32_t priority;   /* BERTH_HIGH, BERTH_LOW, or 0 */
    struct setting mem_mib, core_pct;
    char log_path[256];
};
extern struct settings settings;
void settings_read(void);
bool settings_parse(struct setting *setting, const char *variable, const char *text, uint64_t most, char *wrong, size_t wrong_size);
/* The value for a device; false where a list names others only. */
bool settings_for(const struct setting *setting, int index, const unsigned char uuid[16], uint64_t *value);
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- cards.c ---- */
struct card { CUdevice handle; unsigned char uuid[16]; size_t bytes; int position; NVdevice nvml; };
/* How many there are; an error where one cannot be told from others. The driver is called: with no lock held. */
int cards_ask(struct card cards[MAX_DEVICES], struct berth_error *error);

/* ---- devices.c ---- */
struct device {
    int ordinal;
    CUdevice handle;
    unsigned char uuid[16];
    bool limited;            /* has a region */
    struct berth_region region;
    _Atomic(NVdevice) nvml;
    shared64 overhead;       /* held for contexts and modules */
};
extern shared32 limiting;    /* some device has a limit: the wrappers' one question */
extern shared32 pacing;      /* some device has a compute limit */
extern shared32 several;     /* there is more than one device */
struct device *device_current(void);       /* of the calling thread's context; NULL where there is no limit */
struct device *device_of(CUdevice handle);
struct device *device_by_uuid(const unsigned char uuid[16]);
struct device *device_at(int position);    /* NULL past the last */
CUresult devices_start(CUresult started);
void devices_changed(void);                /* a context is gone: forget which device it was on */
bool devices_none(void);                   /* limits cannot be known: there is no GPU */

/* Takes, after looking for dead processes and unused pool memory where it does not fit; records a refusal. */
bool take(struct device *device, uint64_t bytes, const char *call);
/* The same without recording. */
bool take_quietly(struct device *device, uint64_t bytes, uint64_t *left);
void give(struct device *device, uint64_t bytes);

/* ---- ledger.c: what this process holds ---- */
enum kind { LINEAR = 1, ARRAY, MIPMAP, POOLED, HANDLE, CONTEXT, MODULE, LIBRARY, GRAPH };
struct entry { uint64_t key, bytes; void *owner; uint16_t kind, device; uint32_t count; };
void ledger_put(struct entry entry);
/* Puts an entry in unless there is one of its kind and key. */
bool ledger_add(struct entry entry);
bool ledger_take(enum kind kind, uint64_t key, struct entry *entry);
bool ledger_get(enum kind kind, uint64_t key, struct entry *entry);
/* Adds to the count of an entry; false where there is none or the count would pass below 0. */
bool ledger_count(enum kind kind, uint64_t key, int by);
/* Takes out everything that belongs to a context; the caller frees the list. */
struct entry *ledger_take_owned(void *owner, size_t *count);
/* After a fork: the child holds nothing. */
void ledger_forget(void);

/* ---- pool.c ---- */
void pools_true_up(struct device *device);   /* NULL: all */
void pools_free(const struct entry *entry);  /* a pooled pointer was freed */
void pools_forget(void);
extern shared32 pools_dirty;
/* Around a call that may make a graph's memory real. */
struct growth { uint64_t bytes, taken; bool debtor; };
struct pool *pools_begin_graph(struct device *device, uint64_t bytes, const char *call, struct growth *growth, CUresult *refused);
void pools_end_graph(struct pool *pool, const struct growth *growth);

/* ---- graph.c ---- */
bool capturing(CUstream stream, bool per_thread);
/* Around calls of our own that another thread's capture would not allow the guest: they are none of its business. */
int capture_relax(void);
void capture_restore(int mode);

/* ---- vmm.c ---- */
void vmm_forget(void);

/* ---- context.c ---- */
void context_forget(void);

/* ---- launch.c ---- */
struct probe;
/* Before a launch: charges it, waits its turn, and perhaps begins to measure it. */
struct probe *pace(void *what, uint64_t blocks, CUstream stream, bool per_thread);
void pace_measured(struct probe *probe, CUstream stream, bool per_thread, CUresult result);
/* A context is gone, or is about to go: what was made in it must not be used again. */
void pace_context_ends(CUcontext context, bool gone);
void pace_forget(void);

/* ---- nvml.c ---- */
void nvml_forget(void);
NVdevice nvml_named(const unsigned char uuid[16]); /* NULL where there is no NVML, or none of that name */
NVdevice nvml_handle(struct device *device);

#endif

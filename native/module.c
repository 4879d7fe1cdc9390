/* Modules and libraries: loaded, measured, and unloaded again where they do not fit. */
#define _GNU_SOURCE
#include "overhead.h"
#include "image.h"
#include "nvml_delta.h"
#include "settings.h"
#include "steps.h"

#include <stdlib.h>

enum { FIRST_MODULE_BYTES = 64 << 20 };

/* One attempt to load: `overhead.device` is NULL where nothing is counted. */
struct load {
    struct overhead overhead;
    uint64_t bytes;
    int attempts;
};

/* What its image says that it takes at least is held before the driver loads it: what does not fit
   is never on the card, not even where it could not be unloaded again. */
static CUresult load_begin(struct load *load, const char *call, const void *out, const void *image,
                           const char *path)
{
    struct device *device = out != NULL ? device_current() : NULL;
    *load = (struct load){ .attempts = 0 };
    if (device == NULL)
        return CUDA_SUCCESS;
    if (!overhead_begin(&load->overhead, device, &device->region.use->module_bytes,
                        FIRST_MODULE_BYTES, call))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct overhead *overhead = &load->overhead;
    uint64_t least = path != NULL ? image_file_least_bytes(path) : image_least_bytes(image),
             lacks = above(least, overhead->reserved);
    if (lacks != 0 && !obtain(device, lacks, call)) {
        overhead_cancel(overhead);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    overhead->reserved += lacks;
    return CUDA_SUCCESS;
}

/* What was loaded, is too much and cannot be unloaded: it stays counted until its context ends, as
   far as there is room for it; the rest is the hole. */
static void keep_loaded(struct overhead *overhead, enum kind kind, const void *key, uint64_t bytes)
{
    struct device *device = overhead->device;
    overhead_learn(overhead, bytes);
    uint64_t counted = overhead_count(overhead, bytes);
    overhead_note(kind, key, context_current(), device, counted);
    log_line("refused %s on GPU %d, whose %llu bytes are loaded and cannot be unloaded; %llu of "
             "them count",
             overhead->call, device->ordinal, (unsigned long long)bytes,
             (unsigned long long)counted);
}

/* What became of an attempt; it is made anew where true. NVML tells what this process holds, and is
   believed whatever it says. Without it only the card as a whole can be asked, where another's
   allocation may have got in between: what is implausible or does not fit is unloaded, and believed
   where the card has about as much more free then. */
static bool load_again(struct load *load, CUresult *result, enum kind kind, const void *out)
{
    struct overhead *overhead = &load->overhead;
    if (*result == CUDA_SUCCESS && out != NULL)
        overhead_renamed(*(void *const *)out); /* another had its name before */
    if (overhead->device == NULL)
        return false;
    if (*result == CUDA_SUCCESS && overhead_end(overhead, NULL, &load->bytes)) {
        overhead_note(kind, *(void *const *)out, context_current(), overhead->device, load->bytes);
        return false;
    }
    if (*result != CUDA_SUCCESS) {
        overhead_cancel(overhead);
        return false;
    }
    uint64_t loaded_free = driver_free();
    if ((kind == MODULE ? REAL(cuModuleUnload)(*(CUmodule const *)out)
                        : REAL(cuLibraryUnload)(*(CUlibrary const *)out)) != CUDA_SUCCESS) {
        free(overhead->before);
        keep_loaded(overhead, kind, *(void *const *)out, load->bytes);
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        return false;
    }
    uint64_t unloaded_free = driver_free();
    if (overhead->doubtful && ++load->attempts < 4) {
        overhead->trusted =
            unloaded_free > loaded_free && unloaded_free - loaded_free >= load->bytes / 2;
        overhead->before = snapshot_before(overhead->device, A_MODULE);
        return true;
    }
    overhead_cancel(overhead);
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    return false;
}

/* A wrapper that loads `*made` from an image or a file. */
#define LOADS(name, kind, image, path, params, args)                   \
    CUresult name params                                               \
    {                                                                  \
        struct load load;                                              \
        CUresult result = load_begin(&load, #name, made, image, path); \
        if (result != CUDA_SUCCESS)                                    \
            return result;                                             \
        do                                                             \
            result = REAL(name) args;                                  \
        while (load_again(&load, &result, kind, made));                \
        return result;                                                 \
    }
#include "hooks.h"

#define UNLOADS(name, kind, type)                                                  \
    CUresult name(type loaded)                                                     \
    {                                                                              \
        struct entry entry;                                                        \
        overhead_renamed(loaded);                                                  \
        bool known = limits_any() && ledger_take(kind, (uintptr_t)loaded, &entry); \
        return steps_freed(known, &entry, REAL(name)(loaded));                     \
    }
UNLOADS(cuModuleUnload, MODULE, CUmodule)
UNLOADS(cuLibraryUnload, LIBRARY, CUlibrary)

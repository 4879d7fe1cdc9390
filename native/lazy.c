/* What a driver loads only when it is first asked for: functions, and the variables of a module.

   Each is measured around the call that loads it. What was loaded and is too much cannot be
   unloaded: the call is refused and all that is left is taken for it. */
#define _GNU_SOURCE
#include "capture.h"
#include "context_limits.h"
#include "overhead.h"
#include "settings.h"

enum { FIRST_MODULE_BYTES = 64 << 20 };

/* Whether all of a module came when it was loaded. */
static bool eager(enum kind kind)
{
    int mode = CU_LOADING_LAZY;
    return kind == MODULE && REAL(cuModuleGetLoadingMode)(&mode) == CUDA_SUCCESS &&
           mode == CU_LOADING_EAGER;
}

/* Of what may bring as much as the largest before it. */
static bool whole_begin(struct overhead *overhead, struct device *device, shared64 *learned,
                        const char *call)
{
    bool begun = overhead_begin(overhead, device, learned, FIRST_MODULE_BYTES, call);
    overhead->trusted = true; /* it cannot be unloaded to see whether the card has more then */
    return begun;
}

/* Of what most often brings nothing. */
static void part_begin(struct overhead *overhead, struct device *device, shared64 *learned,
                       const char *call)
{
    overhead_begin_part(overhead, device, learned, call);
    overhead->trusted = true;
}

/* After the call: what was loaded counts with its module or library (`owner`), else under `part`
   with the context. A call that failed may have loaded something first. */
static CUresult lazy_end(struct overhead *overhead, const void *part, enum kind kind,
                         const void *owner, CUresult result)
{
    struct device *device = overhead->device;
    CUcontext context = context_current();
    uint64_t bytes = 0;
    bool failed = result != CUDA_SUCCESS, fits = true;
    if (failed)
        overhead_failed(overhead, &bytes);
    else
        fits = overhead_end(overhead, NULL, &bytes);
    if (!fits) {
        bytes = overhead_count(overhead, bytes);
        log_line("refused %s on GPU %d: what it loaded is too large and cannot be unloaded",
                 overhead->call, device->ordinal);
    }
    if (failed && bytes == 0)
        return result;
    struct entry charged = entry_of(kind, (uintptr_t)owner, bytes, context, device->ordinal);
    if ((owner == NULL || !ledger_charge(charged)) && bytes != 0)
        overhead_note(MODULE, part, context, device, bytes);
    if (failed)
        return result;
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* All that it can bring is loaded in the current context. */
static void put_asked(const void *what, const struct device *device)
{
    ledger_put(entry_of(ASKED, (uintptr_t)what, 0, device_context(), device->ordinal));
}

/* ---- functions ---- */

/* Before a function is asked for, which some drivers load then. The first of a module or library
   may bring as much as the largest did; those after it, and those of an owner that is not known,
   most often nothing. */
static bool asked_begin(struct overhead *overhead, struct device *device, enum kind kind,
                        const void *owner, const char *call)
{
    shared64 *learned = &device->region.use->function_bytes;
    struct entry entry;
    if (owner != NULL && (!ledger_get(kind, (uintptr_t)owner, &entry) || entry.count == 0))
        return whole_begin(overhead, device, learned, call);
    part_begin(overhead, device, learned, call);
    return true;
}

static bool is_loaded(CUfunction function)
{
    int loaded = 0;
    return !HAVE(cuFuncLoad) || (REAL(cuFuncIsLoaded)(&loaded, function) == CUDA_SUCCESS && loaded);
}

/* What a loaded function needs besides. */
static CUresult function_ready(struct device *device, CUfunction function, CUresult loaded,
                               const char *call)
{
    if (loaded != CUDA_SUCCESS || stack_grows(device, function, call))
        return loaded;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* After it was asked for: loads it now, so that what it brings is in the same measurement, and
   refused where it does not fit. `function` is NULL where none was handed out. */
static CUresult asked_end(struct overhead *overhead, CUfunction function, enum kind kind,
                          const void *owner, CUresult result)
{
    struct device *device = overhead->device;
    if (result == CUDA_SUCCESS && function != NULL && !is_loaded(function)) {
        int mode = capture_relax();
        result = real.cuFuncLoad(function);
        capture_restore(mode);
    }
    bool loaded = result == CUDA_SUCCESS;
    result = lazy_end(overhead, function, kind, owner, result);
    if (loaded && owner != NULL)
        ledger_count(kind, (uintptr_t)owner, 1);
    return function == NULL ? result : function_ready(device, function, result, overhead->call);
}

/* A function that is at hand. */
static CUresult load_function(struct device *device, CUfunction function, enum kind kind,
                              const void *owner, const char *call)
{
    struct overhead overhead;
    if (is_loaded(function))
        return function_ready(device, function, CUDA_SUCCESS, call);
    bool begun = owner != NULL
                     ? asked_begin(&overhead, device, kind, owner, call)
                     : whole_begin(&overhead, device, &device->region.use->function_bytes, call);
    return begun ? asked_end(&overhead, function, kind, owner, CUDA_SUCCESS)
                 : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuFuncLoad(CUfunction function)
{
    struct device *device = function != NULL && HAVE(cuFuncLoad) ? device_current() : NULL;
    CUmodule module = NULL;
    if (device == NULL)
        return REAL(cuFuncLoad)(function);
    if (!HAVE(cuFuncGetModule) || real.cuFuncGetModule(&module, function) != CUDA_SUCCESS)
        module = NULL;
    return load_function(device, function, MODULE, module, "cuFuncLoad");
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    static const char call[] = "cuModuleGetFunction";
    struct device *device = function != NULL ? device_current() : NULL;
    struct overhead overhead;
    if (device == NULL)
        return REAL(cuModuleGetFunction)(function, module, name);
    if (eager(MODULE)) {
        CUresult result = REAL(cuModuleGetFunction)(function, module, name);
        return result == CUDA_SUCCESS ? load_function(device, *function, MODULE, module, call)
                                      : result;
    }
    if (!asked_begin(&overhead, device, MODULE, module, call))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuModuleGetFunction)(function, module, name);
    return asked_end(&overhead, result == CUDA_SUCCESS ? *function : NULL, MODULE, module, result);
}

/* A library may be asked without a context: then the kernel is loaded by cuKernelGetFunction, or by
   its first launch, which is counted when the next is measured and NVML's list tells. */
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    struct device *device = kernel != NULL && HAVE(cuKernelGetFunction) ? device_current() : NULL;
    struct overhead overhead;
    CUfunction function = NULL;
    if (device != NULL && !asked_begin(&overhead, device, LIBRARY, library, "cuLibraryGetKernel"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuLibraryGetKernel)(kernel, library, name);
    if (result == CUDA_SUCCESS && kernel != NULL)
        overhead_renamed(*kernel);
    if (device == NULL)
        return result;
    if (result == CUDA_SUCCESS && real.cuKernelGetFunction(&function, *kernel) != CUDA_SUCCESS)
        function = NULL;
    return asked_end(&overhead, function, LIBRARY, library, result);
}

/* What it brings counts with its library where the driver tells it, else until the context ends.
   Runtimes ask for one kernel often: only the first call in a context is measured. */
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    static const char call[] = "cuKernelGetFunction";
    struct device *device = function != NULL ? device_current() : NULL;
    struct overhead overhead;
    struct entry asked;
    CUlibrary library = NULL;
    if (device == NULL)
        return REAL(cuKernelGetFunction)(function, kernel);
    bool again = ledger_get(ASKED, (uintptr_t)kernel, &asked) && asked.owner == device_context();
    if (!HAVE(cuKernelGetLibrary) || real.cuKernelGetLibrary(&library, kernel) != CUDA_SUCCESS)
        library = NULL;
    if (!again && !asked_begin(&overhead, device, LIBRARY, library, call))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuKernelGetFunction)(function, kernel);
    if (again)
        return result == CUDA_SUCCESS ? load_function(device, *function, LIBRARY, library, call)
                                      : result;
    result =
        asked_end(&overhead, result == CUDA_SUCCESS ? *function : NULL, LIBRARY, library, result);
    if (result == CUDA_SUCCESS)
        put_asked(kernel, device);
    return result;
}

/* ---- variables, and modules of libraries ----

   The variables of a module or library come all together, in each context the first time that any
   of them is asked for; later calls bring nothing and are not measured. */

/* False where what the module brings can not fit. `overhead->device` is NULL where nothing is to be
   measured. */
static bool data_begin(struct overhead *overhead, enum kind kind, const void *owner,
                       const char *call)
{
    struct device *device = owner != NULL ? device_current() : NULL;
    struct entry asked, loaded;
    *overhead = (struct overhead){ .device = NULL };
    if (device == NULL ||
        (ledger_get(ASKED, (uintptr_t)owner, &asked) && asked.owner == device_context()))
        return true;
    if (eager(kind))
        return true;
    shared64 *learned = &device->region.use->data_bytes;
    /* Where nothing of it was loaded, it may bring as much as the largest before it; else most
       often nothing. */
    if (!ledger_get(kind, (uintptr_t)owner, &loaded) || loaded.bytes == 0)
        return whole_begin(overhead, device, learned, call);
    part_begin(overhead, device, learned, call);
    return true;
}

static CUresult data_end(struct overhead *overhead, enum kind kind, const void *owner,
                         CUresult result)
{
    if (overhead->device == NULL)
        return result;
    result = lazy_end(overhead, owner, kind, owner, result);
    if (result == CUDA_SUCCESS)
        put_asked(owner, overhead->device);
    return result;
}

/* A wrapper that measures what the variables of `owner` bring. */
#define BRINGS(name, kind, params, args)                                      \
    CUresult name params                                                      \
    {                                                                         \
        struct overhead overhead;                                             \
        bool begun = data_begin(&overhead, kind, owner, #name);               \
        CUresult result = begun ? REAL(name) args : CUDA_ERROR_OUT_OF_MEMORY; \
        return begun ? data_end(&overhead, kind, owner, result) : result;     \
    }
#include "hooks.h"

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    struct overhead overhead;
    if (!data_begin(&overhead, LIBRARY, library, "cuLibraryGetModule"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result =
        data_end(&overhead, LIBRARY, library, REAL(cuLibraryGetModule)(module, library));
    if (result == CUDA_SUCCESS && module != NULL)
        overhead_renamed(*module);
    return result;
}

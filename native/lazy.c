/* What a driver loads only when it is first asked for: functions, and the variables of a module.

   Each is measured around the call that loads it. What was loaded and is too much cannot be
   unloaded: the call is refused and all that is left is taken for it. */
#define _GNU_SOURCE
#include "capture.h"
#include "aside.h"
#include "overhead.h"
#include "settings.h"

enum { FIRST_MODULE_BYTES = 64 << 20 };

/* ---- functions ---- */

static bool function_begin(struct overhead *overhead, struct device *device, const char *call)
{
    bool begun = overhead_begin(overhead, device, &device->region.use->function_bytes,
                                FIRST_MODULE_BYTES, call);
    overhead->believed = true; /* it cannot be unloaded to see whether the card has more then */
    return begun;
}

static void part_begin(struct overhead *overhead, struct device *device, const char *call)
{
    overhead_begin_part(overhead, device, &device->region.use->function_bytes, call);
    overhead->believed = true;
}

/* The same by a driver without cuFuncLoad (before CUDA 12.4), which loads a function when it is
   asked for and does not tell whether it is loaded: a module's first may bring all that the largest
   did, those after it most often nothing. */
static bool asked_begin(struct overhead *overhead, struct device *device, enum kind kind,
                        const void *owner, const char *call)
{
    struct entry entry;
    if (!ledger_get(kind, (uint64_t)(uintptr_t)owner, &entry) || entry.count == 0)
        return function_begin(overhead, device, call);
    part_begin(overhead, device, call);
    return true;
}

/* After the call: what was loaded counts with its module or library (`owner`), else under `part`
   with the context. */
static CUresult function_end(struct overhead *overhead, const void *part, enum kind kind,
                             const void *owner, CUresult result)
{
    struct device *device = overhead->device;
    CUcontext context = NULL;
    uint64_t bytes = 0;
    if (result != CUDA_SUCCESS) {
        overhead_cancel(overhead);
        return result;
    }
    bool fits = overhead_end(overhead, NULL, &bytes);
    if (!fits) {
        uint64_t more = bytes > overhead->reserved ? bytes - overhead->reserved : 0;
        bytes = overhead->reserved + region_take_some(&device->region, more);
        log_line("refused %s on GPU %d: what it loaded is too large and cannot be unloaded",
                 overhead->call, device->ordinal);
    }
    if (HAVE(cuCtxGetCurrent))
        real.cuCtxGetCurrent(&context);
    if (bytes == 0) /* most functions fit into what the driver holds already */
        return result;
    if (owner == NULL || !ledger_grow(kind, (uint64_t)(uintptr_t)owner, (int64_t)bytes))
        overhead_note(MODULE, part, context, device, bytes);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* What a loaded function needs besides. */
static CUresult function_ready(struct device *device, CUfunction function, CUresult loaded,
                               const char *call)
{
    if (loaded != CUDA_SUCCESS || stack_grows(device, function, call))
        return loaded;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Loads a function now, so that what it brings is counted, and refused where it does not fit. */
static CUresult load_function(struct device *device, CUfunction function, enum kind kind,
                              void *owner, const char *call)
{
    struct overhead overhead;
    int is_loaded = 0;
    if (HAVE(cuFuncIsLoaded) && real.cuFuncIsLoaded(&is_loaded, function) == CUDA_SUCCESS &&
        is_loaded)
        return function_ready(device, function, CUDA_SUCCESS, call);
    if (!function_begin(&overhead, device, call))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int mode = capture_relax();
    CUresult result = real.cuFuncLoad(function);
    capture_restore(mode);
    result = function_end(&overhead, function, kind, owner, result);
    return function_ready(device, function, result, call);
}

CUresult cuFuncLoad(CUfunction function)
{
    struct device *device = function != NULL && HAVE(cuFuncLoad) ? device_current() : NULL;
    if (device == NULL)
        return REAL(cuFuncLoad)(function);
    return load_function(device, function, MODULE, NULL, "cuFuncLoad");
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    static const char call[] = "cuModuleGetFunction";
    struct device *device = function != NULL ? device_current() : NULL;
    struct overhead overhead;
    if (device == NULL)
        return REAL(cuModuleGetFunction)(function, module, name);
    if (HAVE(cuFuncLoad)) {
        CUresult result = REAL(cuModuleGetFunction)(function, module, name);
        return result == CUDA_SUCCESS ? load_function(device, *function, MODULE, module, call)
                                      : result;
    }
    if (!asked_begin(&overhead, device, MODULE, module, call))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuModuleGetFunction)(function, module, name);
    ledger_count(MODULE, (uint64_t)(uintptr_t)module, result == CUDA_SUCCESS);
    result =
        function_end(&overhead, result == CUDA_SUCCESS ? *function : NULL, MODULE, module, result);
    return function_ready(device, *function, result, call);
}

/* A library may be asked without a context: then the kernel is loaded by its first launch, which is
   not counted until the next module or function is measured. */
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    static const char call[] = "cuLibraryGetKernel";
    struct overhead overhead;
    CUfunction function = NULL;
    CUresult result = REAL(cuLibraryGetKernel)(kernel, library, name);
    struct device *device = result == CUDA_SUCCESS && kernel != NULL && HAVE(cuKernelGetFunction)
                                ? device_current()
                                : NULL;
    if (device == NULL)
        return result;
    if (HAVE(cuFuncLoad))
        return real.cuKernelGetFunction(&function, *kernel) == CUDA_SUCCESS
                   ? load_function(device, function, LIBRARY, library, call)
                   : result;
    if (!asked_begin(&overhead, device, LIBRARY, library, call))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (real.cuKernelGetFunction(&function, *kernel) != CUDA_SUCCESS) {
        overhead_cancel(&overhead);
        return result;
    }
    ledger_count(LIBRARY, (uint64_t)(uintptr_t)library, 1);
    result = function_end(&overhead, function, LIBRARY, library, CUDA_SUCCESS);
    return function_ready(device, function, result, call);
}

/* What it brings is counted until the context ends, because not every driver tells its library. */
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    static const char call[] = "cuKernelGetFunction";
    struct device *device = function != NULL ? device_current() : NULL;
    struct overhead overhead;
    if (device == NULL)
        return REAL(cuKernelGetFunction)(function, kernel);
    if (HAVE(cuFuncLoad)) {
        CUresult result = REAL(cuKernelGetFunction)(function, kernel);
        return result == CUDA_SUCCESS ? load_function(device, *function, MODULE, NULL, call)
                                      : result;
    }
    part_begin(&overhead, device, call);
    CUresult result = REAL(cuKernelGetFunction)(function, kernel);
    result =
        function_end(&overhead, result == CUDA_SUCCESS ? *function : NULL, MODULE, NULL, result);
    return function_ready(device, *function, result, call);
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
    int mode = CU_LOADING_LAZY;
    *overhead = (struct overhead){ .device = NULL };
    if (device == NULL ||
        (ledger_get(ASKED, (uint64_t)(uintptr_t)owner, &asked) && asked.owner == device_context()))
        return true;
    if (kind == MODULE && HAVE(cuModuleGetLoadingMode) &&
        real.cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS && mode == CU_LOADING_EAGER)
        return true;
    /* Where nothing of it was loaded, it may bring as much as the largest before it; else most
       often nothing. */
    if (!ledger_get(kind, (uint64_t)(uintptr_t)owner, &loaded) || loaded.bytes == 0)
        return function_begin(overhead, device, call);
    part_begin(overhead, device, call);
    return true;
}

static CUresult data_end(struct overhead *overhead, enum kind kind, const void *owner,
                         CUresult result)
{
    if (overhead->device == NULL)
        return result;
    CUcontext context = device_context();
    result = function_end(overhead, owner, kind, owner, result);
    if (result == CUDA_SUCCESS)
        ledger_put((struct entry){ .key = (uint64_t)(uintptr_t)owner,
                                   .owner = context,
                                   .kind = ASKED,
                                   .device = (uint16_t)overhead->device->ordinal });
    return result;
}

CUresult cuModuleGetGlobal(unsigned *ptr, unsigned *bytes, CUmodule module, const char *name)
{
    struct overhead overhead;
    if (!data_begin(&overhead, MODULE, module, "cuModuleGetGlobal"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return data_end(&overhead, MODULE, module, REAL(cuModuleGetGlobal)(ptr, bytes, module, name));
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes, CUmodule module, const char *name)
{
    struct overhead overhead;
    if (!data_begin(&overhead, MODULE, module, "cuModuleGetGlobal"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return data_end(&overhead, MODULE, module,
                    REAL(cuModuleGetGlobal_v2)(ptr, bytes, module, name));
}

CUresult cuModuleGetTexRef(CUtexture *texture, CUmodule module, const char *name)
{
    struct overhead overhead;
    if (!data_begin(&overhead, MODULE, module, "cuModuleGetTexRef"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return data_end(&overhead, MODULE, module, REAL(cuModuleGetTexRef)(texture, module, name));
}

CUresult cuModuleGetSurfRef(CUsurface *surface, CUmodule module, const char *name)
{
    struct overhead overhead;
    if (!data_begin(&overhead, MODULE, module, "cuModuleGetSurfRef"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return data_end(&overhead, MODULE, module, REAL(cuModuleGetSurfRef)(surface, module, name));
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    struct overhead overhead;
    if (!data_begin(&overhead, LIBRARY, library, "cuLibraryGetModule"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return data_end(&overhead, LIBRARY, library, REAL(cuLibraryGetModule)(module, library));
}

CUresult cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *bytes, CUlibrary library, const char *name)
{
    struct overhead overhead;
    if (!data_begin(&overhead, LIBRARY, library, "cuLibraryGetGlobal"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return data_end(&overhead, LIBRARY, library,
                    REAL(cuLibraryGetGlobal)(ptr, bytes, library, name));
}

CUresult cuLibraryGetManaged(CUdeviceptr *ptr, size_t *bytes, CUlibrary library, const char *name)
{
    struct overhead overhead;
    if (!data_begin(&overhead, LIBRARY, library, "cuLibraryGetManaged"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return data_end(&overhead, LIBRARY, library,
                    REAL(cuLibraryGetManaged)(ptr, bytes, library, name));
}

CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name)
{
    struct overhead overhead;
    if (!data_begin(&overhead, LIBRARY, library, "cuLibraryGetUnifiedFunction"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return data_end(&overhead, LIBRARY, library,
                    REAL(cuLibraryGetUnifiedFunction)(function, library, name));
}

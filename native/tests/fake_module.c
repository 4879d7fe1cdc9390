/* Modules, libraries and their functions. */
#include "fake_inside.h"

#include <elf.h>

static struct CUmod_st *modules, *spare;

/* With the books. What was unloaded last is the next one's handle. */
static struct CUmod_st *new_module(void)
{
    struct CUmod_st *made = spare;
    if (made == NULL)
        return calloc(1, sizeof *made);
    spare = made->next;
    return made;
}

static void recycle(struct CUmod_st *module)
{
    struct CUmod_st *inner = module->module;
    *module = (struct CUmod_st){ .next = spare };
    spare = module;
    if (inner != NULL)
        recycle(inner);
}

/* What a cubin's global variables take, beside its code. */
static uint64_t cubin_bytes(const char *image)
{
    const Elf64_Ehdr *head = (const void *)image;
    const Elf64_Shdr *sections = (const void *)(image + head->e_shoff);
    const char *names = image + sections[head->e_shstrndx].sh_offset;
    uint64_t sum = 0;
    for (unsigned i = 0; i < head->e_shnum; i++)
        if (strncmp(names + sections[i].sh_name, ".nv.global", 10) == 0)
            sum += sections[i].sh_size;
    return sum;
}

/* An image that begins "mib=N" is that large on the card. */
static CUresult load(CUmodule *module, const void *image)
{
    CUresult wrong = fake_given(fake_in_context(__func__), module);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    uint64_t bytes = fake_card->module_bytes;
    if (image != NULL && strncmp(image, "mib=", 4) == 0)
        bytes = strtoull((const char *)image + 4, NULL, 10) << 20;
    if (image != NULL && strncmp(image, ELFMAG, SELFMAG) == 0)
        bytes += cubin_bytes(image);
    CUresult kept = fake_promises_kept(fake_context);
    if (kept != CUDA_SUCCESS)
        return kept;
    if (!fake_like_lazy && !fake_charge(fake_context->gpu, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    fake_books();
    struct CUmod_st *made = new_module();
    *made = (struct CUmod_st){ .gpu = fake_context->gpu,
                               .bytes = fake_like_lazy ? 0 : bytes,
                               .pending = fake_like_lazy ? bytes : 0,
                               .context = fake_owner(),
                               .next = modules };
    modules = made;
    fake_books_done();
    *module = made;
    return CUDA_SUCCESS;
}

/* What the first use of a lazy module brings with it. */
static CUresult load_rest(struct CUmod_st *module)
{
    fake_books();
    module = module->of != NULL ? module->of : module;
    uint64_t bytes = module->pending;
    bool had = bytes == 0 || fake_charge(module->gpu, bytes);
    if (had) {
        module->bytes += bytes;
        module->pending = 0;
    }
    fake_books_done();
    return had ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult fake_load_function(CUfunction function)
{
    CUresult loaded = function->unloaded != NULL ? load_rest(function->unloaded) : CUDA_SUCCESS;
    if (loaded == CUDA_SUCCESS)
        function->unloaded = NULL;
    return loaded;
}

static CUresult unload(CUmodule module)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    for (struct CUmod_st **at = &modules; *at != NULL; at = &(*at)->next)
        if (*at == module) {
            *at = module->next;
            uint32_t gpu = module->gpu;
            uint64_t bytes = module->bytes;
            recycle(module);
            fake_books_done();
            fake_refund(gpu, bytes);
            return CUDA_SUCCESS;
        }
    fake_books_done();
    return CUDA_ERROR_INVALID_HANDLE;
}

DO cuModuleLoad(CUmodule *module, const char *path)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return load(module, path);
}
DO cuModuleLoadData(CUmodule *module, const void *image)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return load(module, image);
}
DO cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, void *o, void **v)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)n, (void)o, (void)v;
    return load(module, image);
}
DO cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return load(module, image);
}
DO cuModuleUnload(CUmodule module)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return unload(module);
}
DO cuLibraryLoadData(CUlibrary *library, const void *code, void *a, void **b, unsigned c, void *d,
                     void **e, unsigned f)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return load((CUmodule *)(void *)library, code);
}
DO cuLibraryLoadFromFile(CUlibrary *library, const char *path, void *a, void **b, unsigned c,
                         void *d, void **e, unsigned f)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return load((CUmodule *)(void *)library, path);
}
DO cuLibraryUnload(CUlibrary library)
{
    CUresult wrong = fake_ready(__func__);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return unload((CUmodule)(void *)library);
}

DO cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), function), name);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    struct CUfunc_st *made = calloc(1, sizeof *made);
    module = module != NULL && module->of != NULL ? module->of : module;
    made->module = module;
    if (fake_like_lazy)
        made->unloaded = module != NULL && module->pending != 0 ? module : NULL;
    if (fake_like("asked") && fake_load_function(made) != CUDA_SUCCESS) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (strncmp(name, "spin_", 5) == 0)
        made->spin_ns = strtoull(name + 5, NULL, 10) * 1000;
    if (strncmp(name, "wave_", 5) == 0)
        made->wave_ns = strtoull(name + 5, NULL, 10) * 1000;
    if (strncmp(name, "even_", 5) == 0)
        made->even_ns = strtoull(name + 5, NULL, 10) * 1000;
    if (strncmp(name, "deep_", 5) == 0)
        made->local_bytes = strtoull(name + 5, NULL, 10);
    unsigned long long usual_us, long_us, every;
    if (sscanf(name, "vary_%llu_%llu_%llu", &usual_us, &long_us, &every) == 3 && every != 0) {
        made->spin_ns = usual_us * 1000;
        made->long_ns = long_us * 1000;
        made->every = every;
    }
    *function = made;
    return CUDA_SUCCESS;
}

/* For tests: as if another library had asked the driver behind everybody's back. */
FAKE_EXPORT CUresult fake_get_function(CUfunction *function, CUmodule module)
{
    return cuModuleGetFunction(function, module, "f");
}
DO cuFuncLoad(CUfunction function)
{
    CUresult wrong = fake_given(fake_ready(__func__), function);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return fake_load_function(function);
}
DO cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), value), function);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *value = attribute == CU_FUNCTION_LOCAL_BYTES ? (int)function->local_bytes : 0;
    return CUDA_SUCCESS;
}
DO cuFuncIsLoaded(int *state, CUfunction function)
{
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), state), function);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *state = function->unloaded == NULL;
    return CUDA_SUCCESS;
}
DO cuFuncGetModule(CUmodule *module, CUfunction function)
{
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), module), function);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *module = function->module;
    return CUDA_SUCCESS;
}
DO cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), library), kernel);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *library = (CUlibrary)(void *)((CUfunction)(void *)kernel)->module;
    return CUDA_SUCCESS;
}
DO cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return cuModuleGetFunction((CUfunction *)(void *)kernel, (CUmodule)(void *)library, name);
}
DO cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), function), kernel);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *function = (CUfunction)(void *)kernel;
    return CUDA_SUCCESS;
}

DO cuModuleGetLoadingMode(int *mode)
{
    CUresult wrong = fake_given(fake_ready(__func__), mode);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *mode = fake_like_lazy ? CU_LOADING_LAZY : CU_LOADING_EAGER;
    return CUDA_SUCCESS;
}

/* A variable, texture or surface of a module, or the module of a library: its address is of no use.
 */
static CUresult ask_data(const char *call, void **out, struct CUmod_st *module)
{
    CUresult wrong = fake_given(fake_in_context(call), module);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    wrong = load_rest(module);
    if (wrong == CUDA_SUCCESS && out != NULL)
        *out = module;
    return wrong;
}

DO cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes, CUmodule module, const char *name)
{
    if (bytes != NULL)
        *bytes = 4;
    CUresult wrong = ask_data(__func__, (void **)ptr, module); /* loads before it looks for it */
    return wrong == CUDA_SUCCESS && name != NULL && strcmp(name, "missing") == 0
               ? CUDA_ERROR_NOT_FOUND
               : wrong;
}
DO cuModuleGetGlobal(unsigned *ptr, unsigned *bytes, CUmodule module, const char *name)
{
    void *at = NULL;
    CUresult result = ask_data(__func__, &at, module);
    (void)name;
    if (bytes != NULL)
        *bytes = 4;
    if (ptr != NULL)
        *ptr = (unsigned)(uintptr_t)at;
    return result;
}
DO cuModuleGetTexRef(CUtexture *texture, CUmodule module, const char *name)
{
    (void)name;
    return ask_data(__func__, (void **)texture, module);
}
DO cuModuleGetSurfRef(CUsurface *surface, CUmodule module, const char *name)
{
    (void)name;
    return ask_data(__func__, (void **)surface, module);
}
DO cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    struct CUmod_st *of = (CUmodule)(void *)library;
    CUresult wrong = ask_data(__func__, NULL, of);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    if (of->module == NULL) {
        of->module = new_module();
        *of->module = (struct CUmod_st){ .gpu = of->gpu, .context = of->context, .of = of };
    }
    *module = of->module;
    fake_books_done();
    return CUDA_SUCCESS;
}
DO cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *bytes, CUlibrary library, const char *name)
{
    return cuModuleGetGlobal_v2(ptr, bytes, (CUmodule)(void *)library, name);
}
DO cuLibraryGetManaged(CUdeviceptr *ptr, size_t *bytes, CUlibrary library, const char *name)
{
    return cuModuleGetGlobal_v2(ptr, bytes, (CUmodule)(void *)library, name);
}
DO cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name)
{
    (void)name;
    return ask_data(__func__, function, (CUmodule)(void *)library);
}

void fake_modules_gone(struct CUctx_st *context)
{
    fake_books();
    for (struct CUmod_st **at = &modules; *at != NULL;) {
        struct CUmod_st *module = *at;
        if (module->context != context) {
            at = &module->next;
            continue;
        }
        fake_refund(module->gpu, module->bytes);
        *at = module->next;
        recycle(module);
    }
    fake_books_done();
}

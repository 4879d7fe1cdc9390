/* Hooks of contexts and modules. */
#include "snippets.h"

/* ---- contexts and modules; tests/partition gives a context 10 MiB and a module 1 MiB ---- */

#define CONTEXT (10 * MIB)
#define MODULE (1 * MIB)

/* Six contexts fill the limit; the seventh is refused. */
#define CREATES(create)                        \
    do {                                       \
        CUcontext made[7];                     \
        CUdeviceptr a;                         \
        OK(cuInit(0));                         \
        for (int i = 0; i < 6; i++) {          \
            CUcontext *ctx = &made[i];         \
            OK(create);                        \
            HELD((unsigned)(i + 1) * CONTEXT); \
        }                                      \
        CUcontext *ctx = &made[6];             \
        OOM(create);                           \
        OK(cuMemAlloc_v2(&a, 4 * MIB));        \
        HELD(LIMIT);                           \
    } while (0)

SNIPPET(cuCtxCreate)
{
    CREATES(cuCtxCreate(ctx, 0, 0));
}
SNIPPET(cuCtxCreate_v2)
{
    CREATES(cuCtxCreate_v2(ctx, 0, 0));
}
SNIPPET(cuCtxCreate_v3)
{
    CREATES(cuCtxCreate_v3(ctx, NULL, 0, 0, 0));
}
SNIPPET(cuCtxCreate_v4)
{
    CREATES(cuCtxCreate_v4(ctx, NULL, 0, 0));
}

/* A context takes all along that was allocated in it. */
static void destroys(CUresult (*destroy)(CUcontext))
{
    CUcontext context;
    CUmodule module;
    CUdeviceptr a;
    start();
    HELD(CONTEXT);
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&a, 20 * MIB));
    OK(cuModuleLoadData(&module, ""));
    HELD(2 * CONTEXT + 20 * MIB + MODULE);
    OK(destroy(context));
    HELD(CONTEXT);
    CHECK(destroy(NULL) != CUDA_SUCCESS);
    HELD(CONTEXT);
}

SNIPPET(cuCtxDestroy)
{
    destroys(cuCtxDestroy);
}
SNIPPET(cuCtxDestroy_v2)
{
    destroys(cuCtxDestroy_v2);
}
SNIPPET(cuCtxDetach)
{
    destroys(cuCtxDetach);
}

/* A context lives until all who attached to it have detached. */
SNIPPET(cuCtxAttach)
{
    CUcontext context, same = NULL;
    CUdeviceptr a;
    start();
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&a, 20 * MIB));
    OK(cuCtxAttach(&same, 0));
    CHECK(same == context && cuCtxAttach(&same, 7) == CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxDetach(context));
    HELD(2 * CONTEXT + 20 * MIB);
    OOM(cuMemAlloc_v2(&a, LIMIT - 2 * CONTEXT - 20 * MIB + 1));
    OK(cuCtxDetach(context));
    HELD(CONTEXT);
}

SNIPPET(cuDevicePrimaryCtxRetain)
{
    CUcontext first, second;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&second, 0));
    OK(cuCtxSetCurrent(first));
    CHECK(first == second);
    HELD(CONTEXT);
}

static void ends_primary(CUresult (*end)(CUdevice))
{
    CUdeviceptr a;
    start();
    OK(cuMemAlloc_v2(&a, 20 * MIB));
    HELD(CONTEXT + 20 * MIB);
    OK(end(0));
    CHECK(fake_own_bytes(0) == 0);
    start();
    HELD(CONTEXT);
}

SNIPPET(cuDevicePrimaryCtxRelease)
{
    ends_primary(cuDevicePrimaryCtxRelease);
}
SNIPPET(cuDevicePrimaryCtxRelease_v2)
{
    ends_primary(cuDevicePrimaryCtxRelease_v2);
}
SNIPPET(cuDevicePrimaryCtxReset)
{
    ends_primary(cuDevicePrimaryCtxReset);
}
SNIPPET(cuDevicePrimaryCtxReset_v2)
{
    ends_primary(cuDevicePrimaryCtxReset_v2);
}

#define LOADS(type, load, unload)                        \
    do {                                                 \
        type first, second, *at = &first;                \
        CUdeviceptr a;                                   \
        start();                                         \
        OK(load);                                        \
        HELD(CONTEXT + MODULE);                          \
        OK(cuMemAlloc_v2(&a, LIMIT - CONTEXT - MODULE)); \
        at = &second;                                    \
        OOM(load);                                       \
        OK(unload(first));                               \
        HELD(LIMIT - MODULE);                            \
        OK(load);                                        \
        HELD(LIMIT);                                     \
    } while (0)

SNIPPET(cuModuleLoad)
{
    LOADS(CUmodule, cuModuleLoad(at, "file"), cuModuleUnload);
}
SNIPPET(cuModuleLoadData)
{
    LOADS(CUmodule, cuModuleLoadData(at, ""), cuModuleUnload);
}
SNIPPET(cuModuleLoadDataEx)
{
    LOADS(CUmodule, cuModuleLoadDataEx(at, "", 0, NULL, NULL), cuModuleUnload);
}
SNIPPET(cuModuleLoadFatBinary)
{
    LOADS(CUmodule, cuModuleLoadFatBinary(at, ""), cuModuleUnload);
}
SNIPPET(cuModuleUnload)
{
    CUmodule module;
    start();
    OK(cuModuleLoadData(&module, ""));
    HELD(CONTEXT + MODULE);
    OK(cuModuleUnload(module));
    HELD(CONTEXT);
    CHECK(cuModuleUnload(module) != CUDA_SUCCESS);
    HELD(CONTEXT);
}
SNIPPET(cuLibraryLoadData)
{
    LOADS(CUlibrary, cuLibraryLoadData(at, "", NULL, NULL, 0, NULL, NULL, 0), cuLibraryUnload);
}
SNIPPET(cuLibraryLoadFromFile)
{
    LOADS(CUlibrary, cuLibraryLoadFromFile(at, "file", NULL, NULL, 0, NULL, NULL, 0),
          cuLibraryUnload);
}
SNIPPET(cuLibraryUnload)
{
    CUlibrary library;
    start();
    OK(cuLibraryLoadData(&library, "", NULL, NULL, 0, NULL, NULL, 0));
    HELD(CONTEXT + MODULE);
    OK(cuLibraryUnload(library));
    HELD(CONTEXT);
    CHECK(cuLibraryUnload(library) != CUDA_SUCCESS);
    HELD(CONTEXT);
}

/* What is loaded when `get` first asks for it, once, and not by its use; tests/partition makes the
   card lazy. What a second module would bring is refused. */
#define LOADS_LATER(type, load, get, use, unload)        \
    do {                                                 \
        type first, second, module;                      \
        CUdeviceptr a;                                   \
        start();                                         \
        OK(load(&first));                                \
        HELD(CONTEXT);                                   \
        module = first;                                  \
        OK(get);                                         \
        HELD(CONTEXT + MODULE);                          \
        OK(use);                                         \
        HELD(CONTEXT + MODULE);                          \
        OK(load(&second));                               \
        OK(cuMemAlloc_v2(&a, LIMIT - CONTEXT - MODULE)); \
        module = second;                                 \
        OOM(get);                                        \
        HELD(LIMIT);                                     \
        OK(unload(first));                               \
        HELD(LIMIT - MODULE);                            \
        OK(get);                                         \
        HELD(LIMIT);                                     \
        OK(unload(second));                              \
        HELD(LIMIT - MODULE);                            \
    } while (0)

static CUresult launch(CUfunction function)
{
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}
static CUresult load_module(CUmodule *module)
{
    return cuModuleLoadData(module, "");
}
static CUresult load_library(CUlibrary *library)
{
    return cuLibraryLoadData(library, "", NULL, NULL, 0, NULL, NULL, 0);
}
SNIPPET(cuModuleGetFunction)
{
    CUfunction function;
    LOADS_LATER(CUmodule, load_module, cuModuleGetFunction(&function, module, "f"),
                launch(function), cuModuleUnload);
}
SNIPPET(cuLibraryGetKernel)
{
    CUfunction function;
    LOADS_LATER(CUlibrary, load_library,
                cuLibraryGetKernel((CUkernel *)(void *)&function, module, "f"), launch(function),
                cuLibraryUnload);
}
SNIPPET(cuKernelGetFunction) /* of a kernel that a library was asked for without a context */
{
    CUcontext context;
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUdeviceptr a;
    start();
    OK(cuLibraryLoadData(&library, "", NULL, NULL, 0, NULL, NULL, 0));
    OK(cuCtxPopCurrent_v2(&context));
    OK(cuLibraryGetKernel(&kernel, library, "f"));
    OK(cuCtxPushCurrent_v2(context));
    HELD(CONTEXT);
    OK(cuKernelGetFunction(&function, kernel));
    HELD(CONTEXT + MODULE);
    OK(cuKernelGetFunction(&function, kernel));
    HELD(CONTEXT + MODULE);
    OOM(cuMemAlloc_v2(&a, LIMIT - CONTEXT - MODULE + 1));
}

/* Variables come with the first of them that is asked for, and once. */
#define BRINGS_DATA(type, load, get, unload) LOADS_LATER(type, load, get, get, unload)

SNIPPET(cuModuleGetGlobal)
{
    unsigned at, bytes;
    BRINGS_DATA(CUmodule, load_module, cuModuleGetGlobal(&at, &bytes, module, "v"), cuModuleUnload);
}
SNIPPET(cuModuleGetGlobal_v2)
{
    CUdeviceptr at;
    size_t bytes;
    BRINGS_DATA(CUmodule, load_module, cuModuleGetGlobal_v2(&at, &bytes, module, "v"),
                cuModuleUnload);
}
SNIPPET(cuModuleGetTexRef)
{
    CUtexture texture;
    BRINGS_DATA(CUmodule, load_module, cuModuleGetTexRef(&texture, module, "t"), cuModuleUnload);
}
SNIPPET(cuModuleGetSurfRef)
{
    CUsurface surface;
    BRINGS_DATA(CUmodule, load_module, cuModuleGetSurfRef(&surface, module, "s"), cuModuleUnload);
}
SNIPPET(cuLibraryGetModule)
{
    CUmodule of_library;
    BRINGS_DATA(CUlibrary, load_library, cuLibraryGetModule(&of_library, module), cuLibraryUnload);
}
SNIPPET(cuLibraryGetGlobal)
{
    CUdeviceptr at;
    size_t bytes;
    BRINGS_DATA(CUlibrary, load_library, cuLibraryGetGlobal(&at, &bytes, module, "v"),
                cuLibraryUnload);
}
SNIPPET(cuLibraryGetManaged)
{
    CUdeviceptr at;
    size_t bytes;
    BRINGS_DATA(CUlibrary, load_library, cuLibraryGetManaged(&at, &bytes, module, "v"),
                cuLibraryUnload);
}
SNIPPET(cuLibraryGetUnifiedFunction)
{
    void *function;
    BRINGS_DATA(CUlibrary, load_library, cuLibraryGetUnifiedFunction(&function, module, "f"),
                cuLibraryUnload);
}

SNIPPET(cuFuncLoad) /* of a function that was got round the wrapper */
{
    CUmodule module;
    CUfunction function;
    CUdeviceptr a;
    start();
    OK(cuModuleLoadData(&module, ""));
    OK(fake_get_function(&function, module));
    HELD(CONTEXT);
    OK(cuMemAlloc_v2(&a, LIMIT - CONTEXT - MODULE + 1));
    CHECK(cuFuncLoad(NULL) != CUDA_SUCCESS);
    OK(cuMemFree_v2(a));
    OK(cuFuncLoad(function));
    HELD(CONTEXT + MODULE);
    OK(cuFuncLoad(function));
    HELD(CONTEXT + MODULE);
}

SNIPPET(cuGreenCtxCreate)
{
    CUgreen green[8];
    CUdeviceptr a;
    OK(cuInit(0));
    for (int i = 0; i < 6;
         i++) { /* the first makes the primary context; each takes 9 MiB of its own */
        if (i == 5)
            break;
        OK(cuGreenCtxCreate(&green[i], NULL, 0, 0));
        CHECK(fake_own_bytes(0) == CONTEXT + (unsigned)(i + 1) * 9 * MIB);
    }
    CUcontext context;
    OK(cuCtxFromGreenCtx(&context, green[0]));
    OK(cuCtxSetCurrent(context));
    HELD(CONTEXT + 45 * MIB);
    OK(cuGreenCtxCreate(&green[5], NULL, 0, 0));
    HELD(LIMIT);
    OOM(cuGreenCtxCreate(&green[6], NULL, 0, 0));
    OOM(cuMemAlloc_v2(&a, 1));
    HELD(LIMIT);
}

SNIPPET(cuGreenCtxDestroy)
{
    CUgreen green;
    OK(cuInit(0));
    OK(cuGreenCtxCreate(&green, NULL, 0, 0));
    CHECK(fake_own_bytes(0) == CONTEXT + 9 * MIB);
    OK(cuGreenCtxDestroy(green)); /* and the primary context that it made */
    CHECK(fake_own_bytes(0) == 0);
    start();
    HELD(CONTEXT);
    OK(cuGreenCtxCreate(&green, NULL, 0, 0));
    HELD(CONTEXT + 9 * MIB);
    OK(cuGreenCtxDestroy(green));
    HELD(CONTEXT);
}

SNIPPET(cuCtxSetLimit)
{
    CUcontext context;
    CUdeviceptr a;
    size_t now;
    start();
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 28 * MIB)); /* 8 MiB of it are the context's from the start */
    HELD(CONTEXT + 20 * MIB);
    OOM(cuCtxSetLimit(CU_LIMIT_HEAP, LIMIT));
    HELD(CONTEXT + 20 * MIB);
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 18 * MIB + 1)); /* the driver makes 19 of it */
    HELD(CONTEXT + 11 * MIB);
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 4));
    HELD(CONTEXT);
    OK(cuCtxSetLimit(CU_LIMIT_PRINTF, 3 * MIB));
    HELD(CONTEXT + 2 * MIB);
    OK(cuCtxSetLimit(CU_LIMIT_STACK, 1024 + 16)); /* for 132 times 2048 threads */
    HELD(CONTEXT + 2 * MIB + 16 * 132 * 2048);
    OOM(cuCtxSetLimit(CU_LIMIT_STACK, 16 << 10));
    CHECK(cuCtxSetLimit(99, 1) != CUDA_SUCCESS);
    OK(cuCtxGetLimit(&now, CU_LIMIT_STACK));
    CHECK(now == 1024 + 16);
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 18 * MIB));
    HELD(2 * CONTEXT + 12 * MIB + 16 * 132 * 2048);
    OOM(cuMemAlloc_v2(&a, LIMIT - 2 * CONTEXT - 12 * MIB));
    OK(cuCtxDestroy_v2(context)); /* takes it along */
    HELD(CONTEXT + 2 * MIB + 16 * 132 * 2048);
}

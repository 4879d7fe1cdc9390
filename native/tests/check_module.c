/* Modules, and functions that are loaded when they are first used, by a stricter driver. */
#include "check.h"

#include <elf.h>
#include <stddef.h>
#include <stdlib.h>

struct cubin {
    Elf64_Ehdr head;
    Elf64_Shdr sections[3];
    char names[16];
};

/* A module is as large as it is, and refused where it does not fit, whatever its size. */
void test_large_module(void)
{
    CUmodule first, second;
    CUdeviceptr a;
    start();
    for (int i = 0; i < 3; i++) {
        OOM(cuModuleLoadData(&first, "mib=12288"));
        OOM(cuModuleLoadData(&first, "mib=65"));
        HELD(0);
    }
    OK(cuModuleLoadData(&first, "mib=40"));
    HELD(40 * MIB);
    OOM(cuModuleLoadData(&second, "mib=3000"));
    HELD(40 * MIB);
    OOM(cuMemAlloc_v2(&a, 25 * MIB));
    OK(cuModuleUnload(first));
    HELD(0);
}

/* A cubin with a global variable of `bytes`, which its image does not hold. */
static void make_cubin(struct cubin *cubin, uint64_t bytes)
{
    *cubin = (struct cubin){
        .head = { .e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, 1 },
                  .e_machine = 190,
                  .e_shoff = offsetof(struct cubin, sections),
                  .e_shentsize = sizeof(Elf64_Shdr),
                  .e_shnum = 3,
                  .e_shstrndx = 1 },
        .sections = { [1] = { .sh_type = SHT_STRTAB, .sh_offset = offsetof(struct cubin, names) },
                      [2] = { .sh_name = 1,
                              .sh_type = SHT_NOBITS,
                              .sh_flags = SHF_ALLOC | SHF_WRITE,
                              .sh_size = bytes } },
        .names = "\0.nv.global"
    };
}

/* A module whose unloading fails (tests/partition says so) is refused before it is loaded, where
   its image tells how large it is, whichever way it is given. */
void test_module_that_stays(void)
{
    CUmodule module;
    CUlibrary library;
    struct cubin small, large;
    struct {
        uint32_t magic, version;
        const void *data;
        void *name;
    } wrapper = { 0x466243b1, 1, NULL, NULL };
    struct {
        uint32_t magic;
        uint16_t version, header_bytes;
        uint64_t bytes;
        uint16_t kind, kind_version;
        uint32_t entry_bytes;
        uint64_t cubin_bytes, rest[6];
        struct cubin cubin;
    } fat = { .magic = 0xba55ed50,
              .header_bytes = 16,
              .bytes = 64 + sizeof large,
              .kind = 2,
              .entry_bytes = 64,
              .cubin_bytes = sizeof large };
    const char *path = getenv("BERTH_TEST_CUBIN");
    start();
    make_cubin(&small, 20 * MIB);
    make_cubin(&large, LIMIT + 16 * MIB);
    OK(cuModuleLoadData(&module, &small));
    CHECK(fake_own_bytes(0) <= LIMIT);
    OOM(cuModuleLoadData(&module, &large));
    OOM(cuModuleLoadDataEx(&module, &large, 0, NULL, NULL));
    OOM(cuLibraryLoadData(&library, &large, NULL, NULL, 0, NULL, NULL, 0));
    fat.cubin = large;
    wrapper.data = &fat;
    OOM(cuModuleLoadFatBinary(&module, &fat));
    OOM(cuModuleLoadData(&module, &wrapper));
    FILE *file = fopen(path, "we");
    CHECK(file != NULL && fwrite(&large, sizeof large, 1, file) == 1 && fclose(file) == 0);
    OOM(cuModuleLoad(&module, path));
    OOM(cuLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(fake_own_bytes(0) <= LIMIT && fake_violations(0) == 0);
}

/* Under a limit of 16 GiB: one of many GiB is believed, and what is left is what is left. */
void test_huge_module(void)
{
    CUmodule module;
    CUdeviceptr a;
    start();
    OK(cuModuleLoadData(&module, "mib=12288"));
    CHECK(fake_own_bytes(0) == 12288 * MIB && room() == 4096 * MIB);
    OOM(cuMemAlloc_v2(&a, 4097 * MIB));
    OK(cuMemAlloc_v2(&a, 4096 * MIB));
    OK(cuModuleUnload(module));
    CHECK(room() == 12288 * MIB);
}

/* The first use of a function loads it: with the module loaded lazily (BERTH_FAKE_LIKE=lazy) as
   without. */
void test_first_use(void)
{
    CUmodule module, other;
    CUfunction function;
    CUdeviceptr a;
    bool lazy = getenv("BERTH_FAKE_LIKE") != NULL;
    start();
    OK(cuModuleLoadData(&module, "mib=40"));
    HELD(lazy ? 0 : 40 * MIB);
    OK(cuModuleGetFunction(&function, module, "f"));
    HELD(40 * MIB);
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    HELD(40 * MIB);
    OK(cuModuleGetFunction(&function, module, "g"));
    HELD(40 * MIB);
    CHECK((cuModuleLoadData(&other, "mib=40") == CUDA_ERROR_OUT_OF_MEMORY) == !lazy);
    OK(cuModuleUnload(module));
    HELD(0);
    OK(cuMemAlloc_v2(&a, LIMIT));
}

void test_first_kernel(void) /* of a library */
{
    CUlibrary library;
    CUkernel kernel;
    start();
    OK(cuLibraryLoadData(&library, "mib=40", NULL, NULL, 0, NULL, NULL, 0));
    HELD(0);
    OK(cuLibraryGetKernel(&kernel, library, "f"));
    HELD(40 * MIB);
    OK(cuLibraryUnload(library));
    HELD(0);
}

/* A launch makes the stack of every thread as large as its function needs: 128 bytes beside the
   1024 that a context begins with are 33 MiB on a GPU of 132 x 2048 threads. */
void test_deep_function(void)
{
    CUmodule module;
    CUlibrary library;
    CUkernel kernel;
    CUfunction small, deep, deeper;
    start();
    OK(cuModuleLoadData(&module, "mib=0"));
    OK(cuModuleGetFunction(&small, module, "deep_1024"));
    HELD(0);
    OK(cuModuleGetFunction(&deep, module, "deep_1152"));
    CHECK(room() == LIMIT - 33 * MIB);
    for (int i = 0; i < 2; i++) {
        OK(cuLaunchKernel(deep, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        HELD(33 * MIB);
    }
    OK(cuModuleGetFunction(&small, module, "deep_1088"));
    HELD(33 * MIB);
    OOM(cuModuleGetFunction(&deeper, module, "deep_1280"));
    OK(cuLibraryLoadData(&library, "mib=0", NULL, NULL, 0, NULL, NULL, 0));
    OOM(cuLibraryGetKernel(&kernel, library, "deep_1280"));
    OOM(cuKernelGetFunction(&deeper, kernel));
    HELD(33 * MIB);
    OOM(cuCtxSetLimit(CU_LIMIT_STACK, 1280));
    OK(cuCtxSetLimit(CU_LIMIT_STACK, 1216)); /* of the two the larger */
    CHECK(room() < LIMIT - 49 * MIB && fake_own_bytes(0) == LIMIT - room());
    OK(cuCtxSetLimit(CU_LIMIT_STACK, 1024));
    HELD(33 * MIB); /* it stays */
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK(fake_own_bytes(0) == 0 && fake_violations(0) == 0);
    start();
    HELD(0);
}

/* A function of many GiB that fits is handed out, also where only the card as a whole tells. */
void test_huge_function(void)
{
    CUmodule module, second;
    CUfunction function;
    CUdeviceptr a;
    start();
    OK(cuModuleLoadData(&module, "mib=3072"));
    OK(cuModuleGetFunction(&function, module, "f"));
    CHECK(fake_own_bytes(0) == 3072 * MIB && room() == (16384 - 3072) * MIB);
    OK(cuModuleLoadData(&second, "mib=12288"));
    OK(cuModuleGetFunction(&function, second, "g"));
    CHECK(room() == 1024 * MIB);
    OOM(cuMemAlloc_v2(&a, 1025 * MIB));
    OK(cuModuleUnload(second));
    OK(cuModuleUnload(module));
    CHECK(room() == 16384 * MIB && fake_violations(0) == 0);
}

/* In a full partition a function whose module is yet to load is refused: nothing is left to count
   it with. */
void test_function_when_full(void)
{
    CUmodule module;
    CUfunction function;
    CUdeviceptr a;
    start();
    OK(cuModuleLoadData(&module, "mib=40"));
    OK(cuMemAlloc_v2(&a, LIMIT));
    OOM(cuModuleGetFunction(&function, module, "f"));
}

/* What kernels and functions bring goes with their library or module, whichever way it was asked
   for, and the next of the same handles counts again. */
void test_kernels_come_and_go(void)
{
    CUcontext context;
    CUmodule module;
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    start();
    for (int i = 0; i < 4; i++) {
        OK(cuCtxPopCurrent_v2(&context));
        OK(cuCtxPushCurrent_v2(context));
        OK(cuLibraryLoadData(&library, "mib=30", NULL, NULL, 0, NULL, NULL, 0));
        OK(cuCtxPopCurrent_v2(&context));
        OK(cuLibraryGetKernel(&kernel, library, "f"));
        OK(cuCtxPushCurrent_v2(context));
        HELD(0);
        OK(cuKernelGetFunction(&function, kernel));
        HELD(30 * MIB);
        OK(cuLibraryUnload(library));
        HELD(0);
        OK(cuModuleLoadData(&module, "mib=30"));
        OK(fake_get_function(&function, module));
        HELD(0);
        OK(cuFuncLoad(function));
        HELD(30 * MIB);
        OK(cuModuleUnload(module));
        HELD(0);
    }
}

/* A module whose handle was that of a library's module has variables of its own. */
void test_handle_again(void)
{
    CUlibrary library;
    CUmodule of_library, module;
    CUdeviceptr at;
    size_t bytes;
    start();
    OK(cuLibraryLoadData(&library, "mib=4", NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetModule(&of_library, library));
    OK(cuModuleGetGlobal_v2(&at, &bytes, of_library, "v"));
    HELD(4 * MIB);
    OK(cuLibraryUnload(library));
    HELD(0);
    OK(cuModuleLoadData(&module, "mib=4"));
    CHECK(module == of_library);
    HELD(0);
    OK(cuModuleGetGlobal_v2(&at, &bytes, module, "v"));
    HELD(4 * MIB);
    OK(cuModuleUnload(module));
    HELD(0);
}

/* A driver may load a module's variables before it finds that there is none of the name. */
void test_missing_name(void)
{
    CUmodule module;
    CUdeviceptr at;
    size_t bytes;
    start();
    OK(cuModuleLoadData(&module, "mib=40"));
    CHECK(cuModuleGetGlobal_v2(&at, &bytes, module, "missing") == CUDA_ERROR_NOT_FOUND);
    HELD(40 * MIB);
    OK(cuModuleGetGlobal_v2(&at, &bytes, module, "v"));
    HELD(40 * MIB);
    OK(cuModuleUnload(module));
    HELD(0);
}

/* A small function is not refused because another module's variables were large. */
void test_small_function(void)
{
    CUmodule large, small;
    CUfunction function;
    CUdeviceptr at;
    size_t bytes;
    start();
    OK(cuModuleLoadData(&large, "mib=40"));
    OK(cuModuleLoadData(&small, "mib=1"));
    OK(cuModuleGetGlobal_v2(&at, &bytes, large, "v"));
    OK(cuMemAlloc_v2(&at, LIMIT - 42 * MIB));
    OK(cuModuleGetFunction(&function, small, "f"));
    HELD(LIMIT - MIB);
}

/* A green context is measured on its own GPU where NVML does not tell, with no context current. */
void test_green_alone(void)
{
    CUcontext context;
    CUgreen green;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    uint64_t before = room();
    OK(cuCtxSetCurrent(NULL));
    OK(cuGreenCtxCreate(&green, NULL, 0, 0));
    OK(cuCtxGetCurrent(&context));
    CHECK(context == NULL);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CHECK(before - room() == 9 * MIB);
}

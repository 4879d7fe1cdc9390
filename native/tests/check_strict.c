/* What a stricter driver does. */
#include "check.h"

#include <elf.h>
#include <stddef.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

struct cubin {
    Elf64_Ehdr head;
    Elf64_Shdr sections[3];
    char names[16];
};

/* A call that fails for want of a context says nothing of a pool: later ones are counted all the
   same. */
void test_no_context(void)
{
    CUcontext context;
    CUpool own, standard;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    CUdeviceptr a, b, c, d;
    CUstream stream;
    CUarray array;
    CUhandle handle;
    CUexec exec;
    CUarray_desc plane = { 1024, 1024, 0x20, 1 };
    OK(cuInit(0));
    OK(cuMemPoolCreate(&own, &props));
    OK(cuDeviceGetDefaultMemPool(&standard, 0));
    for (int i = 0; i < 3; i++) {
        CHECK(cuMemAllocFromPoolAsync(&a, MIB, own, NULL) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuMemAllocFromPoolAsync(&a, MIB, standard, NULL) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuMemAllocAsync(&a, MIB, NULL) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuMemAlloc_v2(&a, MIB) == CUDA_ERROR_INVALID_CONTEXT &&
              cuMemAllocManaged(&a, MIB, 1) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuArrayCreate_v2(&array, &plane) == CUDA_ERROR_INVALID_CONTEXT &&
              cuCtxSetLimit(CU_LIMIT_HEAP, MIB) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuGraphInstantiateWithFlags(&exec, NULL, 0) != CUDA_SUCCESS);
    }
    OK(cuMemCreate(&handle, 4 * MIB, &on_device, 0)); /* needs none */
    CHECK(fake_own_bytes(0) == 4 * MIB);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    HELD(4 * MIB);
    OK(cuMemRelease(handle));
    OOM(cuMemAllocFromPoolAsync(&a, LIMIT + 1, own, NULL));
    OOM(cuMemAllocFromPoolAsync(&a, LIMIT + 1, standard, NULL));
    OOM(cuMemAllocAsync(&a, LIMIT + 1, NULL));
    OK(cuStreamCreate(&stream, 0));
    OK(cuMemAllocFromPoolAsync(&a, 32 * MIB, standard, NULL));
    HELD(32 * MIB);
    OK(cuMemAllocFromPoolAsync(&b, 32 * MIB, own, stream));
    HELD(LIMIT);
    OOM(cuMemAllocAsync(&c, 1, stream));
    OOM(cuMemAllocFromPoolAsync(&d, 1, own, NULL));
    OK(cuMemFreeAsync(a, NULL));
    OK(cuMemFreeAsync(b, stream));
    OK(cuCtxSynchronize());
    HELD(0);
}

/* With errors injected (BERTH_FAKE_ERRORS): whatever fails, the books are those of the driver. */
void test_failing(void)
{
    CUdeviceptr a, at;
    CUhandle handle, again;
    CUarray array;
    CUarray3d_desc cube = { 256, 256, 16, 0x01, 4, 0 },
                   sparse = { 8192, 8192, 0, 0x20, 4, CU_ARRAY_SPARSE };
    CUmodule module;
    CUstream stream;
    CUgraph graph;
    CUexec exec = NULL;
    CUnode node;
    CUpool pool;
    CUext memory;
    CUgreen green;
    CUpool_props props = { .type = 1, .location = { 1, 0 } };
    CUmem_node ten = { .bytes = 10 * MIB };
    CUext_desc external = { .type = 1, .size = 8 * MIB };
    int fd = -1, failed = 0;
    start();
    for (int i = 0; i < 4; i++) {
#define TRY(call, ...)                              \
    do {                                            \
        if ((call) == CUDA_SUCCESS) {               \
            __VA_ARGS__;                            \
        } else {                                    \
            failed++;                               \
        }                                           \
        CHECK(room() <= LIMIT - fake_own_bytes(0)); \
    } while (0)
#define FREED(call) while ((call) != CUDA_SUCCESS)
        TRY(cuMemAlloc_v2(&a, 8 * MIB), FREED(cuMemFree_v2(a)));
        TRY(cuMemAllocManaged(&a, 8 * MIB, 1), FREED(cuMemFree_v2(a)));
        TRY(cuArray3DCreate_v2(&array, &cube), FREED(cuArrayDestroy(array)));
        TRY(cuMemCreate(&handle, 8 * MIB, &on_device, 0), FREED(cuMemRelease(handle)));
        TRY(cuMemCreate(&handle, 8 * MIB, &on_device, 0), {
            TRY(cuMemAddressReserve(&at, 8 * MIB, 0, 0, 0),
                { TRY(cuMemMap(at, 8 * MIB, 0, handle, 0), FREED(cuMemUnmap(at, 8 * MIB))); });
            TRY(cuMemExportToShareableHandle(&fd, handle, CU_SHARE_FD, 0), {
                TRY(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_SHARE_FD),
                    FREED(cuMemRelease(again)));
            });
            TRY(cuArray3DCreate_v2(&array, &sparse), {
                CUmap_info part = { .resource = array,
                                    .operation = CU_OPERATION_MAP,
                                    .handle = handle };
                TRY(cuMemMapArrayAsync(&part, 1, NULL), (void)0);
                FREED(cuArrayDestroy(array));
            });
            FREED(cuMemRelease(handle));
            close(fd);
        });
        TRY(cuMemAllocAsync(&a, 8 * MIB, NULL), FREED(cuMemFreeAsync(a, NULL)));
        TRY(cuMemPoolCreate(&pool, &props), {
            TRY(cuMemAllocFromPoolAsync(&a, 8 * MIB, pool, NULL), FREED(cuMemFreeAsync(a, NULL)));
            FREED(cuMemPoolDestroy(pool));
        });
        TRY(cuModuleLoadData(&module, "mib=4"), FREED(cuModuleUnload(module)));
        TRY(cuCtxSetLimit(CU_LIMIT_HEAP, 12 * MIB), FREED(cuCtxSetLimit(CU_LIMIT_HEAP, 8 * MIB)));
        TRY(cuImportExternalMemory(&memory, &external), FREED(cuDestroyExternalMemory(memory)));
        TRY(cuGreenCtxCreate(&green, NULL, 0, 0), FREED(cuGreenCtxDestroy(green)));
        TRY(cuStreamCreate(&stream, 0), (void)0);
        TRY(cuGraphCreate(&graph, 0), {
            TRY(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &ten), {
                TRY(cuGraphInstantiateWithFlags(&exec, graph, 0), {
                    TRY(cuGraphUpload(exec, NULL), (void)0);
                    TRY(cuGraphLaunch(exec, NULL), (void)0);
                    FREED(cuGraphExecDestroy(exec));
                });
            });
        });
        FREED(cuDeviceGraphMemTrim(0));
        FREED(cuCtxSynchronize());
        HELD(0);
    }
    CHECK(getenv("BERTH_FAKE_ERRORS") == NULL || failed != 0);
    CHECK(fake_violations(0) == 0);
}

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

/* Each graph holds its memory apart from others', and each node from the rest
   (BERTH_FAKE_LIKE=nodes). */
void test_graphs_apart(void)
{
    CUgraph graph;
    CUexec exec[3];
    CUnode node;
    CUmem_node memory = { .bytes = 20 * MIB };
    CUdeviceptr a;
    CUstream stream;
    start();
    OK(cuStreamCreate(&stream, 0));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory));
    for (int i = 0; i < 3; i++)
        OK(cuGraphInstantiateWithFlags(&exec[i], graph, 0));
    OK(cuGraphLaunch(exec[0], NULL));
    HELD(32 * MIB);
    OK(cuGraphUpload(exec[1], stream));
    OK(cuGraphLaunch(exec[1], stream));
    HELD(LIMIT);
    OOM(cuGraphLaunch(exec[2], stream));
    OOM(cuGraphUpload(exec[2], stream));
    HELD(LIMIT);
    for (int i = 0; i < 5; i++) {
        OK(cuGraphLaunch(exec[0], NULL));
        OK(cuGraphLaunch(exec[1], stream));
    }
    HELD(LIMIT);
    OK(cuGraphExecDestroy(exec[0]));
    OK(cuGraphLaunch(exec[2], stream)); /* what the first kept is trimmed for it */
    HELD(LIMIT);
    OK(cuGraphExecDestroy(exec[1]));
    OK(cuGraphExecDestroy(exec[2]));
    OK(cuDeviceGraphMemTrim(0));
    HELD(0);
    OK(cuMemAlloc_v2(&a, LIMIT));
    CHECK(fake_violations(0) == 0);
}

/* The card may be divided into parts that have memory of their own: it is the card's all the same.
 */
void test_parts(void)
{
    CUhandle handle;
    CUpool pool;
    CUdeviceptr a;
    CUalloc_prop prop = { .type = 1, .location = { CU_LOCATION_DEVICE_PART, 1 << 8 } };
    CUpool_props props = { .type = 1, .location = { CU_LOCATION_DEVICE_PART, 1 << 8 } };
    start();
    OOM(cuMemCreate(&handle, LIMIT + 2 * MIB, &prop, 0));
    OK(cuMemCreate(&handle, 40 * MIB, &prop, 0));
    HELD(40 * MIB);
    OK(cuMemRelease(handle));
    OK(cuMemPoolCreate(&pool, &props));
    OOM(cuMemAllocFromPoolAsync(&a, LIMIT + 1, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&a, LIMIT, pool, NULL));
    HELD(LIMIT);
}

/* Pools of other processes give nothing here, and what they are told of is counted there. */
void test_imported_pool(void)
{
    CUpool own, imported;
    CUpool_props props = { .type = 1, .handle_types = 1, .location = { 1, 0 } };
    CUdeviceptr a;
    int fd;
    start();
    OK(cuMemPoolCreate(&own, &props));
    OK(cuMemPoolExportToShareableHandle(&fd, own, CU_SHARE_FD, 0));
    OK(cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_SHARE_FD, 0));
    CHECK(cuMemAllocFromPoolAsync(&a, MIB, imported, NULL) != CUDA_SUCCESS);
    HELD(0);
    OK(cuMemAllocFromPoolAsync(&a, LIMIT, own, NULL));
    HELD(LIMIT);
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

/* The heap that a context is told to set aside is counted once, whether the driver takes it at once
   or with the next module (BERTH_FAKE_LIKE=heap). */
void test_heap(void)
{
    CUmodule module;
    CUdeviceptr a;
    start();
    OK(cuCtxSetLimit(CU_LIMIT_HEAP, 28 * MIB));
    CHECK(room() == LIMIT - 20 * MIB);
    OK(cuModuleLoadData(&module, "mib=4"));
    HELD(24 * MIB);
    OK(cuMemAlloc_v2(&a, 40 * MIB));
    HELD(LIMIT);
    OOM(cuCtxSetLimit(CU_LIMIT_HEAP, 29 * MIB));
    CHECK(fake_violations(0) == 0);
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

/* A program that asks again and again fills no log, whichever way it asks. */
void test_refused_often(void)
{
    CUdeviceptr a;
    CUhandle handle;
    start();
    for (int i = 0; i < 100; i++) {
        OOM(cuMemAlloc_v2(&a, LIMIT + 1));
        OOM(cuMemAllocAsync(&a, LIMIT + 1, NULL));
        OOM(cuMemCreate(&handle, LIMIT + 2 * MIB, &on_device, 0));
    }
    OOM(cuMemAlloc_v2(&a, UINT64_MAX));
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

/* What another process made counts there, whoever it is passed on to. */
void test_passed_on(void)
{
    CUhandle theirs, own;
    uint64_t from[CU_FABRIC_BYTES / 8] = { 1, 1 }, out[CU_FABRIC_BYTES / 8]; /* of process 1 */
    start();
    for (int i = 0; i < 3; i++) {
        OK(cuMemImportFromShareableHandle(&theirs, from, CU_SHARE_FABRIC));
        OK(cuMemExportToShareableHandle(out, theirs, CU_SHARE_FABRIC, 0));
        OK(cuMemRelease(theirs));
        OK(cuMemCreate(&own, 40 * MIB, &on_device, 0));
        OK(cuMemExportToShareableHandle(out, own, CU_SHARE_FABRIC, 0));
        HELD(40 * MIB);
        OK(cuMemRelease(own));
        HELD(0);
    }
}

static void *grow_the_books(void *context)
{
    CUdeviceptr held[4096];
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return (void *)1;
    for (int i = 0; i < 4096; i++)
        if (cuMemAlloc_v2(&held[i], 1) != CUDA_SUCCESS)
            return (void *)2;
    for (int i = 0; i < 4096; i++)
        if (cuMemFree_v2(held[i]) != CUDA_SUCCESS)
            return (void *)3;
    return NULL;
}

/* A child that is forked while its parent's books grow keeps its hands off them. */
void test_fork_while_growing(void)
{
    CUcontext context;
    pthread_t thread;
    void *failed;
    start();
    OK(cuCtxGetCurrent(&context));
    CHECK(pthread_create(&thread, NULL, grow_the_books, context) == 0);
    for (int i = 0; i < 200; i++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(cuInit(0) == CUDA_SUCCESS);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    pthread_join(thread, &failed);
    CHECK(failed == NULL);
    HELD(0);
}

/* Under a limit of 64 MiB of the card and 32 MiB of the host (BERTH_GPU_OVERSUBSCRIBE_MIB). */
void test_swap(void)
{
    CUdeviceptr a, b, c, d;
    CUcontext own;
    size_t pitch, total;
    char word = 7, seen = 0;
    start();
    OK(cuMemAlloc_v2(&a, LIMIT));
    HELD(LIMIT);
    OK(cuMemAlloc_v2(&b, 20 * MIB)); /* beyond the limit, and of the host */
    HELD(LIMIT);
    CHECK(fake_swapped_bytes() == 20 * MIB);
    OK(cuMemcpyHtoD_v2(b, &word, 1));
    OK(cuMemcpyDtoH_v2(&seen, b, 1));
    CHECK(seen == word);
    OOM(cuMemAlloc_v2(&c, 13 * MIB));
    OK(cuMemAllocPitch_v2(&c, &pitch, 1000, 4096, 4));
    CHECK(pitch == 1024 && fake_swapped_bytes() == 24 * MIB && room() == 0);
    OK(cuMemAllocAsync(&d, 8 * MIB, NULL)); /* its pool's step would not fit */
    CHECK(fake_swapped_bytes() == 32 * MIB);
    OOM(cuMemAllocManaged(&d, 5 * MIB, 1));
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(total == LIMIT); /* who sizes himself by the card is told of the card */
    OK(cuMemFreeAsync(d, NULL));
    CHECK(fake_swapped_bytes() == 24 * MIB);
    OK(cuMemFree_v2(b));
    OK(cuMemFree_v2(c));
    OK(cuMemFree_v2(a));
    HELD(0);
    CHECK(fake_swapped_bytes() == 0);
    OK(cuCtxCreate_v2(&own, 0, 0));
    OK(cuMemAlloc_v2(&a, 60 * MIB));
    OK(cuMemAlloc_v2(&b, 30 * MIB));
    OK(cuCtxDestroy_v2(own)); /* takes both along */
    OK(cuMemAlloc_v2(&a, 60 * MIB));
    OK(cuMemAlloc_v2(&b, 32 * MIB));
    OOM(cuMemAlloc_v2(&c, 5 * MIB));
    CHECK(fake_violations(0) == 0);
}

void test_hold_swapped(void) /* takes all and 20 MiB of the host, says so, and is killed */
{
    CUdeviceptr a, b;
    char line[8];
    start();
    OK(cuMemAlloc_v2(&a, LIMIT));
    OK(cuMemAlloc_v2(&b, 20 * MIB));
    printf("held\n");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

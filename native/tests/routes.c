/* Every route by which a program gets to the driver ends at the limit. Not linked to the driver:
   `routes NAME`. */
#define _GNU_SOURCE
#include "../cu.h"

#include "claim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef CUresult init_call(unsigned);
typedef CUresult retain_call(CUcontext *, CUdevice);
typedef CUresult set_call(CUcontext);
typedef CUresult alloc_call(CUdeviceptr *, size_t);
typedef CUresult async_call(CUdeviceptr *, size_t, CUstream);
typedef CUresult free_call(CUdeviceptr);
typedef CUresult create_call(CUcontext *, unsigned, CUdevice);
typedef CUresult release_call(CUdevice);
typedef CUresult info_call(size_t *, size_t *);
typedef CUresult lookup_call(const char *, void **, int, uint64_t);
typedef CUresult lookup2_call(const char *, void **, int, uint64_t, int *);
typedef void *dlsym_call(void *, const char *);

static void begin(void *driver)
{
    CUcontext context;
    init_call *init = (init_call *)dlsym(driver, "cuInit");
    retain_call *retain = (retain_call *)dlsym(driver, "cuDevicePrimaryCtxRetain");
    set_call *set = (set_call *)dlsym(driver, "cuCtxSetCurrent");
    CHECK(init != NULL && retain != NULL && set != NULL);
    CHECK(init(0) == CUDA_SUCCESS && retain(&context, 0) == CUDA_SUCCESS &&
          set(context) == CUDA_SUCCESS);
}

/* An allocation through this pointer is limited to 64 MiB, and the driver's own pointer would not
   be. */
static void limited(void *pointer)
{
    CUdeviceptr a = 0;
    CHECK(pointer != NULL);
    CHECK(((alloc_call *)pointer)(&a, 65 << 20) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(((alloc_call *)pointer)(&a, 64 << 20) == CUDA_SUCCESS);
    CHECK(((alloc_call *)pointer)(&a, 1) == CUDA_ERROR_OUT_OF_MEMORY);
}

static void *driver_named(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}
static void *driver(void)
{
    return driver_named("libcuda.so.1");
}

static void test_dlsym(void)
{
    begin(driver());
    limited(dlsym(driver(), "cuMemAlloc_v2"));
}
static void test_dlvsym(void) /* of a driver whose symbols have versions */
{
    begin(driver());
    CHECK(dlvsym(driver(), "cuMemFree_v2", "CUDA_OLD") == dlsym(driver(), "cuMemFree_v2"));
    CHECK(dlvsym(driver(), "cuMemAlloc_v2", "CUDA_NONE") == NULL && dlerror() != NULL);
    limited(dlvsym(driver(), "cuMemAlloc_v2", "CUDA_OLD"));
}
static void test_dlvsym_dlsym(void)
{
    dlsym_call *fetched = (dlsym_call *)dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5"),
               *next = (dlsym_call *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    begin(driver());
    CHECK(fetched != NULL);
    CHECK(next == NULL || next(driver(), "cuMemAlloc_v2") == fetched(driver(), "cuMemAlloc_v2"));
    limited(fetched(driver(), "cuMemAlloc_v2"));
}
static void test_libc_dlsym(void)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    dlsym_call *fetched = (dlsym_call *)dlsym(libc, "dlsym");
    begin(driver());
    CHECK(fetched != NULL);
    limited(fetched(driver(), "cuMemAlloc_v2"));
}
static void test_global(void)
{
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL); /* nothing is there before the driver */
    CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != NULL);
    begin(RTLD_DEFAULT);
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == dlsym(driver(), "cuMemAlloc_v2"));
    CHECK(dlsym(RTLD_NEXT, "cuMemAlloc_v2") == dlsym(driver(), "cuMemAlloc_v2"));
    limited(dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
}
static void test_next(void) /* a second dlsym(RTLD_NEXT, x) says what the first said, for any x */
{
    for (int i = 0; i < 3; i++) {
        CHECK(dlsym(RTLD_NEXT, "malloc") == dlsym(RTLD_DEFAULT, "malloc") &&
              dlsym(RTLD_NEXT, "malloc") != NULL);
        CHECK(dlsym(RTLD_NEXT, "no_such_thing") == NULL && dlerror() != NULL);
    }
}
static void test_plugin(int flags, const char *with)
{
    void *plugin = dlopen(getenv(with), flags);
    if (plugin == NULL)
        printf("%s\n", dlerror());
    CHECK(plugin != NULL);
    dlsym_call *get = (dlsym_call *)dlsym(plugin, "plugin_get");
    CHECK(get != NULL);
    begin(driver());
    limited(get(driver(), "cuMemAlloc_v2"));
}
static void test_linked_plugin(void)
{
    test_plugin(RTLD_NOW, "BERTH_TEST_LINKED");
}
static void test_deepbind_linked(void)
{
    test_plugin(RTLD_NOW | RTLD_DEEPBIND, "BERTH_TEST_LINKED");
}
static void test_deepbind_lazy(void)
{
    test_plugin(RTLD_LAZY | RTLD_DEEPBIND, "BERTH_TEST_LINKED");
}
static void test_deepbind_dlsym(void)
{
    test_plugin(RTLD_NOW | RTLD_DEEPBIND, "BERTH_TEST_ASKING");
}
static void test_runpath(
    void) /* a library found by its caller's RUNPATH is still found: the caller stays the caller */
{
    void *plugin = dlopen(getenv("BERTH_TEST_ASKING"), RTLD_NOW);
    void *(*open_near)(const char *) = (void *(*)(const char *))dlsym(plugin, "plugin_open");
    CHECK(open_near != NULL && open_near("libnear.so") != NULL);
}
static void test_dlmopen(void)
{
    void *other = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    CHECK(other != NULL);
    begin(other);
    limited(dlsym(other, "cuMemAlloc_v2"));
}
static void test_second_copy(
    void) /* of the driver, from another folder: the process's one driver answers for it */
{
    const char *copy = getenv("BERTH_TEST_COPY");
    CHECK(copy != NULL);
    begin(driver());
    void *opened = dlopen(copy, RTLD_NOW), *apart = dlmopen(LM_ID_NEWLM, copy, RTLD_NOW);
    CHECK(opened == driver() && apart == opened);
    CHECK(dlopen("/nonexistent/libcuda.so.1", RTLD_NOW) == NULL && dlerror() != NULL);
    limited(dlsym(opened, "cuMemAlloc_v2"));
}
/* A copy under a name of its own, of which nothing says that it is the driver but what it holds:
   before the driver is opened, or after. */
static void private_copy(bool before)
{
    const char *copy = getenv("BERTH_TEST_COPY");
    size_t free_bytes, total;
    CUdeviceptr a;
    if (!before)
        begin(driver());
    void *own = dlopen(copy, RTLD_NOW | RTLD_LOCAL);
    CHECK(own != NULL);
    begin(own);
    alloc_call *allocate = (alloc_call *)dlsym(own, "cuMemAlloc_v2"),
               *other = (alloc_call *)dlsym(driver(), "cuMemAlloc_v2");
    info_call *info = (info_call *)dlsym(driver(), "cuMemGetInfo_v2");
    free_call *release = (free_call *)dlsym(driver(), "cuMemFree_v2");
    begin(driver());
    CHECK(allocate(&a, 65 << 20) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(allocate(&a, 60 << 20) == CUDA_SUCCESS && info(&free_bytes, &total) == CUDA_SUCCESS &&
          free_bytes == 4 << 20);
    CHECK(other(&a, 5 << 20) == CUDA_ERROR_OUT_OF_MEMORY && other(&a, 4 << 20) == CUDA_SUCCESS);
    CHECK(release(a) == CUDA_SUCCESS);
    lookup2_call *lookup = (lookup2_call *)dlsym(own, "cuGetProcAddress_v2");
    void *found = NULL;
    CHECK(lookup("cuMemAlloc", &found, 12000, 0, NULL) == CUDA_SUCCESS &&
          ((alloc_call *)found)(&a, 5 << 20) == CUDA_ERROR_OUT_OF_MEMORY);
}
static void test_private_copy(void)
{
    private_copy(false);
}
static void test_private_copy_first(void)
{
    private_copy(true);
}
static void test_dlmopen_shares(void) /* with the one driver its current context: memory goes with
                                        the context that it was made in */
{
    CUcontext mine;
    CUdeviceptr ptr;
    size_t free_bytes, total;
    void *first = driver();
    CHECK(((init_call *)dlsym(first, "cuInit"))(0) == CUDA_SUCCESS &&
          ((create_call *)dlsym(first, "cuCtxCreate_v2"))(&mine, 0, 0) == CUDA_SUCCESS);
    void *other = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    CHECK(other != NULL);
    begin(other); /* makes its primary context the current one, here too */
    info_call *info = (info_call *)dlsym(first, "cuMemGetInfo_v2");
    CHECK(((alloc_call *)dlsym(first, "cuMemAlloc_v2"))(&ptr, 40 << 20) == CUDA_SUCCESS);
    CHECK(((set_call *)dlsym(first, "cuCtxDestroy_v2"))(mine) == CUDA_SUCCESS);
    uint64_t (*held)(int) = (uint64_t (*)(int))dlsym(first, "fake_own_bytes");
    CHECK(info(&free_bytes, &total) == CUDA_SUCCESS && total - free_bytes == 40 << 20 &&
          held(0) == 40 << 20);
    CHECK(((release_call *)dlsym(other, "cuDevicePrimaryCtxRelease_v2"))(0) == CUDA_SUCCESS &&
          held(0) == 0);
    begin(first);
    CHECK(info(&free_bytes, &total) == CUDA_SUCCESS && free_bytes == total);
}
static void test_dlclose(void)
{
    void *handle = driver();
    begin(handle);
    for (int i = 0; i < 5; i++)
        dlclose(handle);
    limited(dlsym(driver(), "cuMemAlloc_v2"));
}

/* Threads that load, look up and unload while the process forks: no thread waits for ever, in the
   parent or in a child. */
static void *load_and_look(void *data)
{
    const char *plugin_name = getenv("BERTH_TEST_ASKING");
    for (int i = 0; i < 300; i++) {
        void *plugin = dlopen(plugin_name, RTLD_NOW | (i % 2 ? RTLD_DEEPBIND : 0));
        dlsym_call *get = plugin != NULL ? (dlsym_call *)dlsym(plugin, "plugin_get") : NULL;
        if (get == NULL || get(data, "cuMemAlloc_v2") == NULL ||
            dlsym(RTLD_DEFAULT, "nvmlNoSuchThing") != NULL)
            return (void *)1;
        dlclose(plugin);
    }
    return NULL;
}

static void test_crowd(void)
{
    pthread_t threads[4];
    void *handle = driver();
    begin(handle);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, load_and_look, handle) == 0);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(dlsym(handle, "cuMemAlloc_v2") == NULL ||
                  dlsym(RTLD_DEFAULT, "nvmlNoSuchThing") != NULL);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    limited(dlsym(handle, "cuMemAlloc_v2"));
}

static void test_lookup(void)
{
    lookup_call *lookup = (lookup_call *)dlsym(driver(), "cuGetProcAddress");
    lookup2_call *lookup2 = (lookup2_call *)dlsym(driver(), "cuGetProcAddress_v2"), *again = NULL;
    void *found = NULL, *per_thread = NULL;
    int status = -1;
    CHECK(lookup != NULL && lookup2 != NULL);
    begin(driver());
    CHECK(lookup("cuGetProcAddress", &found, 11030, 0) == CUDA_SUCCESS && found == (void *)lookup);
    CHECK(lookup2("cuGetProcAddress", (void **)&again, 12000, 0, &status) == CUDA_SUCCESS &&
          again == lookup2 && status == CU_LOOKUP_FOUND);
    CHECK(again("cuMemAlloc", &found, 2000, 0, &status) == CUDA_SUCCESS &&
          found == dlsym(driver(), "cuMemAlloc"));
    CHECK(again("cuMemAllocAsync", &found, 11020, 0, NULL) == CUDA_SUCCESS &&
          found == dlsym(driver(), "cuMemAllocAsync"));
    CHECK(again("cuMemAllocAsync", &per_thread, 11020, 2, NULL) == CUDA_SUCCESS &&
          per_thread == dlsym(driver(), "cuMemAllocAsync_ptsz"));
    CHECK(again("cuMemAllocAsync", &found, 11010, 0, &status) == CUDA_SUCCESS && found == NULL &&
          status == CU_LOOKUP_OLD_VERSION);
    CHECK(again("cuNoSuchThing", &found, 12000, 0, &status) == CUDA_SUCCESS && found == NULL &&
          status == CU_LOOKUP_NO_SYMBOL);
    CHECK(again("cuMemAlloc", &found, 99000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
    CHECK(again(NULL, &found, 12000, 0, &status) == CUDA_ERROR_INVALID_VALUE &&
          again("cuMemAlloc", NULL, 12000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr a;
    CHECK(((async_call *)per_thread)(&a, 65 << 20, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(again("cuMemAlloc", &found, 12000, 0, &status) == CUDA_SUCCESS);
    limited(found);
}

static void test_no_driver(void)
{
    CHECK(dlopen("libcuda.so.1", RTLD_NOW) == NULL && dlerror() != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "cuInit") == NULL && dlerror() != NULL);
    CHECK(dlvsym(RTLD_DEFAULT, "cuInit", "GLIBC_2.2.5") == NULL && dlerror() != NULL);
}

static void test_old_driver(void) /* without stream-ordered memory */
{
    begin(driver());
    CHECK(dlsym(driver(), "cuMemAllocAsync") == NULL &&
          dlsym(RTLD_DEFAULT, "cuMemAllocAsync") == NULL);
    limited(dlsym(driver(), "cuMemAlloc_v2"));
}

static void test_nvml(void)
{
    void *nvml = driver_named("libnvidia-ml.so.1");
    int (*init)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
    int (*at)(unsigned, NVdevice *) =
        (int (*)(unsigned, NVdevice *))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    int (*info)(NVdevice, NVmemory *) =
        (int (*)(NVdevice, NVmemory *))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    int (*info2)(NVdevice, NVmemory_v2 *) =
        (int (*)(NVdevice, NVmemory_v2 *))dlsym(nvml, "nvmlDeviceGetMemoryInfo_v2");
    int (*list)(NVdevice, unsigned *, NVprocess *) = (int (*)(
        NVdevice, unsigned *, NVprocess *))dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
    NVdevice device;
    NVmemory memory;
    NVmemory_v2 more = { 0 };
    NVprocess processes[64];
    unsigned count = 64;
    CHECK(init() == 0 && at(0, &device) == 0 && info(device, &memory) == 0 &&
          info2(device, &more) == 0);
    CHECK(memory.total == 64 << 20 && more.total == memory.total && more.used == memory.used &&
          memory.free == memory.total - memory.used);
    CHECK(list(device, &count, processes) == 0);
    printf("%llu %u\n", memory.used >> 20, count);
}

static void test_cost(void) /* ns for one dlsym of a symbol that no library hooks */
{
    struct timespec from, to;
    volatile void *sink;
    long best = 1 << 30;
    for (int round = 0; round < 40; round++) {
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int i = 0; i < 5000; i++)
            sink = dlsym(RTLD_DEFAULT, "malloc");
        clock_gettime(CLOCK_MONOTONIC, &to);
        long ns = (to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec;
        best = ns < best ? ns : best;
    }
    (void)sink;
    printf("%.2f\n", (double)best / 5000);
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
#define TEST(name) { #name, test_##name }
    TEST(dlsym),          TEST(dlvsym),         TEST(dlvsym_dlsym),  TEST(libc_dlsym),
    TEST(global),         TEST(next),           TEST(linked_plugin), TEST(deepbind_linked),
    TEST(deepbind_lazy),  TEST(deepbind_dlsym), TEST(runpath),       TEST(dlmopen),
    TEST(dlmopen_shares), TEST(second_copy),    TEST(private_copy),  TEST(private_copy_first),
    TEST(dlclose),        TEST(crowd),          TEST(lookup),        TEST(no_driver),
    TEST(old_driver),     TEST(nvml),           TEST(cost),
};

int main(int count, char **words)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (count == 2 && strcmp(words[1], "--list") == 0)
            puts(tests[i].name);
        else if (count == 2 && strcmp(words[1], tests[i].name) == 0)
            return tests[i].run(), 0;
    }
    return count == 2 && strcmp(words[1], "--list") == 0 ? 0 : 2;
}

/* Hooks of what a process is told. */
#include "snippets.h"

#include <poll.h>
#include <stdlib.h>

/* ---- the device and lookups ---- */

SNIPPET(cuInit)
{
    CHECK(cuInit(1) == CUDA_ERROR_INVALID_VALUE);
    OK(cuInit(0));
    OK(cuInit(0));
    start();
    HELD(0);
}

SNIPPET(cuDeviceGetCount)
{
    int count = 7;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK(count == 1);
}

static void looks_up(CUresult (*found)(CUdeviceptr *, size_t))
{
    CUdeviceptr a;
    start();
    CHECK(found == cuMemAlloc_v2);
    OOM(found(&a, LIMIT + 1));
    OK(found(&a, LIMIT));
    HELD(LIMIT);
}

SNIPPET(cuGetProcAddress)
{
    void *found = NULL, *itself = NULL;
    OK(cuGetProcAddress("cuMemAlloc", &found, 12000, 0));
    OK(cuGetProcAddress("cuGetProcAddress", &itself, 11030, 0));
    CHECK(itself == (void *)cuGetProcAddress &&
          cuGetProcAddress("cuNoSuchThing", &itself, 12000, 0) == CUDA_ERROR_NOT_FOUND);
    looks_up((CUresult (*)(CUdeviceptr *, size_t))found);
}

SNIPPET(cuGetProcAddress_v2)
{
    void *found = NULL, *itself = NULL;
    int status = 7;
    OK(cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, &status));
    OK(cuGetProcAddress_v2("cuGetProcAddress", &itself, 12000, 0, NULL));
    CHECK(status == CU_LOOKUP_FOUND && itself == (void *)cuGetProcAddress_v2);
    looks_up((CUresult (*)(CUdeviceptr *, size_t))found);
}

/* ---- what a process is told ---- */

SNIPPET(cuDeviceTotalMem)
{
    unsigned total = 7;
    start();
    OK(cuDeviceTotalMem(&total, 0));
    CHECK(total == LIMIT);
}

SNIPPET(cuDeviceTotalMem_v2)
{
    size_t total = 7;
    start();
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(total == LIMIT);
}

SNIPPET(cuMemGetInfo)
{
    unsigned free_bytes = 7, total = 7;
    CUdeviceptr a;
    start();
    OK(cuMemAlloc_v2(&a, 5));
    OK(cuMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == LIMIT - 5 && total == LIMIT);
}

SNIPPET(cuMemGetInfo_v2)
{
    size_t free_bytes = 7, total = 7;
    CUdeviceptr a;
    start();
    OK(cuMemAlloc_v2(&a, 5));
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(free_bytes == LIMIT - 5 && total == LIMIT);
}

/* ---- NVML; another process of the card, of another partition, holds 40 MiB meanwhile ---- */

/* A fifth of a second's work, and what NVML takes to tell of it. */
static void busy(void)
{
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadData(&module, ""));
    OK(cuModuleGetFunction(&function, module, "spin_20000"));
    for (int i = 0; i < 10; i++)
        OK(cuLaunchKernel(function, ONE_BLOCK, NULL, NULL));
    OK(cuStreamSynchronize(NULL));
    usleep(200 * 1000);
}

/* The other partition's process: computes until it is told to end. */
void neighbour(void)
{
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
    start();
    busy();
    puts("busy");
    fflush(stdout);
    while (poll(&input, 1, 0) == 0)
        busy();
}

SNIPPET(nvmlDeviceGetMemoryInfo)
{
    NVdevice device;
    NVmemory memory;
    CUdeviceptr a;
    start();
    OK(cuMemAlloc_v2(&a, 5));
    nvml_device(&device);
    CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NV_SUCCESS);
    CHECK(memory.total == LIMIT && memory.used == 5 && memory.free == LIMIT - 5);
}

SNIPPET(nvmlDeviceGetMemoryInfo_v2)
{
    NVdevice device;
    NVmemory_v2 memory;
    CUdeviceptr a;
    start();
    OK(cuMemAlloc_v2(&a, 5));
    nvml_device(&device);
    CHECK(nvmlDeviceGetMemoryInfo_v2(device, &memory) == NV_SUCCESS);
    CHECK(memory.total == LIMIT && memory.used == 5 && memory.free == LIMIT - 5 &&
          memory.reserved == 0);
}

/* Only this process is listed. */
#define LISTS(name, type)                                                             \
    SNIPPET(name)                                                                     \
    {                                                                                 \
        NVdevice device;                                                              \
        type list[64];                                                                \
        unsigned count = 64;                                                          \
        start();                                                                      \
        nvml_device(&device);                                                         \
        CHECK(name(device, &count, list) == NV_SUCCESS);                              \
        CHECK(count == 1 && list[0].pid == (unsigned)getpid() && list[0].bytes == 0); \
    }
LISTS(nvmlDeviceGetComputeRunningProcesses, NVprocess_v1)
LISTS(nvmlDeviceGetComputeRunningProcesses_v2, NVprocess)
LISTS(nvmlDeviceGetComputeRunningProcesses_v3, NVprocess)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, NVprocess_v1)
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v2, NVprocess)
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v3, NVprocess)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, NVprocess_v1)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v2, NVprocess)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v3, NVprocess)

/* Another partition's process computes too: one of the list is this process, where it did. */
SNIPPET(nvmlDeviceGetProcessUtilization)
{
    NVdevice device;
    NVutilization list[64];
    unsigned count = 64;
    start();
    nvml_device(&device);
    CHECK(nvmlDeviceGetProcessUtilization(device, list, &count, 0) == NV_NOT_FOUND);
    busy();
    count = 64;
    CHECK(nvmlDeviceGetProcessUtilization(device, list, &count, 0) == NV_SUCCESS);
    CHECK(count == 1 && list[0].pid == (unsigned)getpid() && list[0].sm_pct != 0);
}

SNIPPET(nvmlDeviceGetProcessesUtilizationInfo)
{
    NVdevice device;
    NVutilization_v1 list[64];
    NVutilizations all = { NV_UTILIZATIONS_V1, 64, 0, list };
    start();
    nvml_device(&device);
    CHECK(nvmlDeviceGetProcessesUtilizationInfo(device, &all) == NV_NOT_FOUND);
    busy();
    all.count = 64;
    CHECK(nvmlDeviceGetProcessesUtilizationInfo(device, &all) == NV_SUCCESS);
    CHECK(all.count == 1 && list[0].pid == (unsigned)getpid() && list[0].sm_pct != 0);
}

SNIPPET(nvmlDeviceGetRunningProcessDetailList)
{
    NVdevice device;
    NVdetail list[64];
    NVdetails all = { NV_DETAILS_V1, 0, 64, list };
    start();
    nvml_device(&device);
    CHECK(nvmlDeviceGetRunningProcessDetailList(device, &all) == NV_SUCCESS);
    CHECK(all.count == 1 && list[0].pid == (unsigned)getpid());
}

SNIPPET(nvmlDeviceGetAccountingPids)
{
    NVdevice device;
    unsigned list[64], count = 64;
    start();
    nvml_device(&device);
    CHECK(nvmlDeviceGetAccountingPids(device, &count, list) == NV_SUCCESS);
    CHECK(count == 1 && list[0] == (unsigned)getpid());
}

SNIPPET(nvmlDeviceGetAccountingStats)
{
    NVdevice device;
    NVaccount account;
    unsigned other = (unsigned)atoi(getenv("BERTH_TEST_OTHER"));
    start();
    nvml_device(&device);
    CHECK(nvmlDeviceGetAccountingStats(device, (unsigned)getpid(), &account) == NV_SUCCESS);
    CHECK(nvmlDeviceGetAccountingStats(device, other, &account) == NV_NOT_FOUND);
}

/* The driver's entry points as a linked program calls them. */
#ifndef BERTH_DRIVER_H
#define BERTH_DRIVER_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../cu.h"
#define HOOK(name, params) CUresult name params;
#define NEED(name, params) CUresult name params;
#include "../hooks.h"
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t bytes, size_t align, CUdeviceptr at,
                             unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr ptr, size_t bytes);
CUresult cuMemPoolSetAttribute(CUpool pool, int attribute, void *value);
CUresult cuDeviceGetDefaultMemPool(CUpool *pool, CUdevice dev);
CUresult cuMemGetDefaultMemPool(CUpool *pool, CUlocation *location, int type);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuGraphCreate(CUgraph *graph, unsigned flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddMemAllocNode(CUnode *node, CUgraph graph, const CUnode *needs, size_t count,
                                CUmem_node *params);
CUresult cuGraphAddNode(CUnode *node, CUgraph graph, const CUnode *needs, size_t count,
                        CUnode_params *params);
CUresult cuGraphAddChildGraphNode(CUnode *node, CUgraph graph, const CUnode *needs, size_t count,
                                  CUgraph child);
CUresult cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void *ptr);
CUresult cuIpcGetMemHandle(CUipc *handle, CUdeviceptr ptr);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipc handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr ptr);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMulticastAddDevice(CUhandle object, CUdevice dev);
CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreen green, unsigned flags, int priority);
CUresult cuMemPoolExportToShareableHandle(void *out, CUpool pool, int type,
                                          unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(CUpool *pool, void *handle, int type,
                                            unsigned long long flags);
CUresult fake_get_function(CUfunction *function, CUmodule module);
uint64_t fake_own_bytes(int gpu);
uint64_t fake_own_busy_ns(int gpu);
uint64_t fake_used_bytes(int gpu);
unsigned fake_own_events(void);
uint64_t fake_violations(int gpu);
uint64_t fake_worst_bytes(int gpu);
uint64_t fake_waited_ns(void);
void fake_when_counting(void (*call)(void));
#endif

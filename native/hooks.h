/* clang-format off */
/* Every entry point that berth answers in the driver's place. One line here, one wrapper, one test
   snippet.

   HOOK(symbol, parameters)     of libcuda.so.1
   TWINS(symbol, parameters)    the same, and its twin whose default stream is the thread's own
   PASSES(symbol, thread, parameters, arguments)  the same of what is only passed on; `thread` ends
                                the name of the twin
   NVLISTS, CREATES, LOADS, BRINGS, BINDS_MEMORY, BINDS_ADDRESS, CAPTURES, INSTANTIATES, LAUNCHES
                                families of calls that are answered alike; one part defines each

   NVHOOK(symbol, parameters)   of libnvidia-ml.so.1
   NEED(symbol, parameters)     called, never replaced; NVNEED of libnvidia-ml.so.1

   Who includes this defines those that it wants; none is defined afterwards. */
/* clang-format on */
#ifndef HOOK
#define HOOK(name, params)
#endif
#ifndef NVHOOK
#define NVHOOK(name, params)
#endif
#ifndef NEED
#define NEED(name, params)
#endif
#ifndef NVNEED
#define NVNEED(name, params)
#endif
#define TWINS(name, params)   \
    HOOK(name, params)        \
    HOOK(name##_ptsz, params)
#ifndef NVLISTS
#define NVLISTS(name, type) NVHOOK(name, (NVdevice device, unsigned *count, type *list))
#endif
#ifndef CREATES
#define CREATES(name, params, args) HOOK(name, params)
#endif
#ifndef LOADS
#define LOADS(name, kind, image, path, params, args) HOOK(name, params)
#endif
#ifndef BRINGS
#define BRINGS(name, kind, params, args) HOOK(name, params)
#endif
#ifndef BINDS_MEMORY
#define BINDS_MEMORY(name, dev, params, args) HOOK(name, params)
#endif
#ifndef BINDS_ADDRESS
#define BINDS_ADDRESS(name, dev, params, args) HOOK(name, params)
#endif
#ifndef CAPTURES
#define CAPTURES(name, params, args) TWINS(name, params)
#endif
#ifndef INSTANTIATES
#define INSTANTIATES(name, params, args) HOOK(name, params)
#endif
#ifndef LAUNCHES
#define LAUNCHES(name, blocks, stream, params, args) TWINS(name, params)
#endif
#ifndef PASSES
#define PASSES(name, thread, params, args) \
    HOOK(name, params)                     \
    HOOK(name##_##thread, params)
#endif

/* devices.c: the device count, and no device at all where the limits cannot be known */
HOOK(cuInit, (unsigned flags))
HOOK(cuDeviceGetCount, (int *count))

/* routes.c: lookups */
HOOK(cuGetProcAddress, (const char *name, void **found, int version, uint64_t flags))
HOOK(cuGetProcAddress_v2,
     (const char *name, void **found, int version, uint64_t flags, int *status))

/* view.c: what a process is told about the card */
HOOK(cuDeviceTotalMem, (unsigned *bytes, CUdevice dev))
HOOK(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice dev))
HOOK(cuMemGetInfo, (unsigned *free_bytes, unsigned *total_bytes))
HOOK(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes))

/* context.c: contexts and what they set aside */
CREATES(cuCtxCreate, (CUcontext * ctx, unsigned flags, CUdevice dev), (ctx, flags, dev))
CREATES(cuCtxCreate_v2, (CUcontext * ctx, unsigned flags, CUdevice dev), (ctx, flags, dev))
CREATES(cuCtxCreate_v3, (CUcontext * ctx, void *affinity, int count, unsigned flags, CUdevice dev),
        (ctx, affinity, count, flags, dev))
CREATES(cuCtxCreate_v4, (CUcontext * ctx, void *params, unsigned flags, CUdevice dev),
        (ctx, params, flags, dev))
HOOK(cuCtxDestroy, (CUcontext ctx))
HOOK(cuCtxDestroy_v2, (CUcontext ctx))
HOOK(cuCtxAttach, (CUcontext * ctx, unsigned flags))
HOOK(cuCtxDetach, (CUcontext ctx))
HOOK(cuDevicePrimaryCtxRetain, (CUcontext * ctx, CUdevice dev))
HOOK(cuDevicePrimaryCtxRelease, (CUdevice dev))
HOOK(cuDevicePrimaryCtxRelease_v2, (CUdevice dev))
HOOK(cuDevicePrimaryCtxReset, (CUdevice dev))
HOOK(cuDevicePrimaryCtxReset_v2, (CUdevice dev))
HOOK(cuGreenCtxCreate, (CUgreen * ctx, void *desc, CUdevice dev, unsigned flags))
HOOK(cuGreenCtxDestroy, (CUgreen ctx))
HOOK(cuCtxSetLimit, (int limit, size_t value))

/* module.c: what is loaded */
LOADS(cuModuleLoad, MODULE, NULL, path, (CUmodule * made, const char *path), (made, path))
LOADS(cuModuleLoadData, MODULE, image, NULL, (CUmodule * made, const void *image), (made, image))
LOADS(cuModuleLoadDataEx, MODULE, image, NULL,
      (CUmodule * made, const void *image, unsigned count, void *options, void **values),
      (made, image, count, options, values))
LOADS(cuModuleLoadFatBinary, MODULE, image, NULL, (CUmodule * made, const void *image),
      (made, image))
HOOK(cuModuleUnload, (CUmodule module))
LOADS(cuLibraryLoadData, LIBRARY, code, NULL,
      (CUlibrary * made, const void *code, void *jit, void **jit_values, unsigned jit_count,
       void *options, void **values, unsigned count),
      (made, code, jit, jit_values, jit_count, options, values, count))
LOADS(cuLibraryLoadFromFile, LIBRARY, NULL, path,
      (CUlibrary * made, const char *path, void *jit, void **jit_values, unsigned jit_count,
       void *options, void **values, unsigned count),
      (made, path, jit, jit_values, jit_count, options, values, count))
HOOK(cuLibraryUnload, (CUlibrary library))

/* lazy.c: what is loaded when it is first asked for */
HOOK(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))
HOOK(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name))
HOOK(cuKernelGetFunction, (CUfunction * function, CUkernel kernel))
HOOK(cuFuncLoad, (CUfunction function))
BRINGS(cuModuleGetGlobal, MODULE,
       (unsigned *ptr, unsigned *bytes, CUmodule owner, const char *name),
       (ptr, bytes, owner, name))
BRINGS(cuModuleGetGlobal_v2, MODULE,
       (CUdeviceptr * ptr, size_t *bytes, CUmodule owner, const char *name),
       (ptr, bytes, owner, name))
BRINGS(cuModuleGetTexRef, MODULE, (CUtexture * texture, CUmodule owner, const char *name),
       (texture, owner, name))
BRINGS(cuModuleGetSurfRef, MODULE, (CUsurface * surface, CUmodule owner, const char *name),
       (surface, owner, name))
HOOK(cuLibraryGetModule, (CUmodule * module, CUlibrary library))
BRINGS(cuLibraryGetGlobal, LIBRARY,
       (CUdeviceptr * ptr, size_t *bytes, CUlibrary owner, const char *name),
       (ptr, bytes, owner, name))
BRINGS(cuLibraryGetManaged, LIBRARY,
       (CUdeviceptr * ptr, size_t *bytes, CUlibrary owner, const char *name),
       (ptr, bytes, owner, name))
BRINGS(cuLibraryGetUnifiedFunction, LIBRARY, (void **function, CUlibrary owner, const char *name),
       (function, owner, name))

/* memory.c: linear memory, arrays */
HOOK(cuMemAlloc, (unsigned *ptr, unsigned bytes))
HOOK(cuMemAlloc_v2, (CUdeviceptr * ptr, size_t bytes))
HOOK(cuMemAllocPitch,
     (unsigned *ptr, unsigned *pitch, unsigned width, unsigned height, unsigned element))
HOOK(cuMemAllocPitch_v2,
     (CUdeviceptr * ptr, size_t *pitch, size_t width, size_t height, unsigned element))
HOOK(cuMemAllocManaged, (CUdeviceptr * ptr, size_t bytes, unsigned flags))
HOOK(cuMemFree, (unsigned ptr))
HOOK(cuMemFree_v2, (CUdeviceptr ptr))
HOOK(cuArrayCreate, (CUarray * array, const CUarray_desc_v1 *desc))
HOOK(cuArrayCreate_v2, (CUarray * array, const CUarray_desc *desc))
HOOK(cuArray3DCreate, (CUarray * array, const CUarray3d_desc_v1 *desc))
HOOK(cuArray3DCreate_v2, (CUarray * array, const CUarray3d_desc *desc))
HOOK(cuArrayDestroy, (CUarray array))
HOOK(cuMipmappedArrayCreate, (CUmipmap * mipmap, const CUarray3d_desc *desc, unsigned levels))
HOOK(cuMipmappedArrayDestroy, (CUmipmap mipmap))
HOOK(cuImportExternalMemory, (CUext * memory, const CUext_desc *desc))
HOOK(cuDestroyExternalMemory, (CUext memory))

/* system_memory.c: what is prefetched of the system's memory */
TWINS(cuMemPrefetchAsync, (CUdeviceptr at, size_t bytes, CUdevice dev, CUstream stream))
TWINS(cuMemPrefetchAsync_v2,
      (CUdeviceptr at, size_t bytes, CUlocation location, unsigned flags, CUstream stream))
TWINS(cuMemPrefetchBatchAsync,
      (CUdeviceptr * at, size_t *bytes, size_t count, CUlocation *locations, size_t *first,
       size_t location_count, unsigned long long flags, CUstream stream))
TWINS(cuMemDiscardAndPrefetchBatchAsync,
      (CUdeviceptr * at, size_t *bytes, size_t count, CUlocation *locations, size_t *first,
       size_t location_count, unsigned long long flags, CUstream stream))

/* vmm.c: physical memory and where it is mapped */
HOOK(cuMemCreate,
     (CUhandle * handle, size_t bytes, const CUalloc_prop *prop, unsigned long long flags))
HOOK(cuMemRelease, (CUhandle handle))
HOOK(cuMemMap,
     (CUdeviceptr ptr, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags))
HOOK(cuMemUnmap, (CUdeviceptr ptr, size_t bytes))
HOOK(cuMemRetainAllocationHandle, (CUhandle * handle, void *address))
HOOK(cuMemExportToShareableHandle, (void *out, CUhandle handle, int type, unsigned long long flags))
HOOK(cuMemImportFromShareableHandle, (CUhandle * handle, void *from, int type))

/* bindings.c: tiles of sparse arrays, and multicast objects */
TWINS(cuMemMapArrayAsync, (CUmap_info * list, unsigned count, CUstream stream))
HOOK(cuMulticastCreate, (CUhandle * object, const CUmulticast_prop *prop))
BINDS_MEMORY(cuMulticastBindMem, -1,
             (CUhandle object, size_t offset, CUhandle memory, size_t from, size_t bytes,
              unsigned long long flags),
             (object, offset, memory, from, bytes, flags))
BINDS_MEMORY(cuMulticastBindMem_v2, dev,
             (CUhandle object, CUdevice dev, size_t offset, CUhandle memory, size_t from,
              size_t bytes, unsigned long long flags),
             (object, dev, offset, memory, from, bytes, flags))
BINDS_ADDRESS(cuMulticastBindAddr, -1,
              (CUhandle object, size_t offset, CUdeviceptr ptr, size_t bytes,
               unsigned long long flags),
              (object, offset, ptr, bytes, flags))
BINDS_ADDRESS(cuMulticastBindAddr_v2, dev,
              (CUhandle object, CUdevice dev, size_t offset, CUdeviceptr ptr, size_t bytes,
               unsigned long long flags),
              (object, dev, offset, ptr, bytes, flags))
HOOK(cuMulticastUnbind, (CUhandle object, CUdevice dev, size_t offset, size_t bytes))

/* async.c: stream-ordered memory */
TWINS(cuMemAllocAsync, (CUdeviceptr * ptr, size_t bytes, CUstream stream))
TWINS(cuMemAllocFromPoolAsync, (CUdeviceptr * ptr, size_t bytes, CUpool pool, CUstream stream))
TWINS(cuMemFreeAsync, (CUdeviceptr ptr, CUstream stream))
HOOK(cuMemPoolCreate, (CUpool * pool, const CUpool_props *props))
HOOK(cuMemPoolDestroy, (CUpool pool))
HOOK(cuMemPoolTrimTo, (CUpool pool, size_t keep))
TWINS(cuStreamSynchronize, (CUstream stream))
HOOK(cuEventSynchronize, (CUevent event))
HOOK(cuCtxSynchronize, (void))
HOOK(cuCtxSynchronize_v2, (CUcontext ctx))

/* idle.c: what passes through, so that it shows that a process is not idle, and waits while that is
   suspended */
PASSES(cuMemcpy, ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
PASSES(cuMemcpyHtoD_v2, ptds, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes))
PASSES(cuMemcpyDtoH_v2, ptds, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))
PASSES(cuMemcpyDtoD_v2, ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
PASSES(cuMemsetD8_v2, ptds, (CUdeviceptr to, unsigned char value, size_t count), (to, value, count))
PASSES(cuMemsetD32_v2, ptds, (CUdeviceptr to, unsigned value, size_t count), (to, value, count))
PASSES(cuMemcpyAsync, ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
       (to, from, bytes, stream))
PASSES(cuMemcpyHtoDAsync_v2, ptsz,
       (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), (to, from, bytes, stream))
PASSES(cuMemcpyDtoHAsync_v2, ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
       (to, from, bytes, stream))
PASSES(cuMemcpyDtoDAsync_v2, ptsz,
       (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
PASSES(cuMemsetD8Async, ptsz, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
       (to, value, count, stream))
PASSES(cuMemsetD32Async, ptsz, (CUdeviceptr to, unsigned value, size_t count, CUstream stream),
       (to, value, count, stream))
PASSES(cuMemsetD16_v2, ptds, (CUdeviceptr to, unsigned short value, size_t count),
       (to, value, count))
PASSES(cuMemsetD16Async, ptsz,
       (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
       (to, value, count, stream))
PASSES(cuMemsetD2D8_v2, ptds,
       (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height),
       (to, pitch, value, width, height))
PASSES(cuMemsetD2D8Async, ptsz,
       (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
        CUstream stream),
       (to, pitch, value, width, height, stream))
PASSES(cuMemsetD2D16_v2, ptds,
       (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
       (to, pitch, value, width, height))
PASSES(cuMemsetD2D16Async, ptsz,
       (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
        CUstream stream),
       (to, pitch, value, width, height, stream))
PASSES(cuMemsetD2D32_v2, ptds,
       (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height),
       (to, pitch, value, width, height))
PASSES(cuMemsetD2D32Async, ptsz,
       (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream),
       (to, pitch, value, width, height, stream))
PASSES(cuMemcpy2D_v2, ptds, (const void *copy), (copy))
PASSES(cuMemcpy2DUnaligned_v2, ptds, (const void *copy), (copy))
PASSES(cuMemcpy3D_v2, ptds, (const void *copy), (copy))
PASSES(cuMemcpy3DPeer, ptds, (const void *copy), (copy))
PASSES(cuMemcpy2DAsync_v2, ptsz, (const void *copy, CUstream stream), (copy, stream))
PASSES(cuMemcpy3DAsync_v2, ptsz, (const void *copy, CUstream stream), (copy, stream))
PASSES(cuMemcpy3DPeerAsync, ptsz, (const void *copy, CUstream stream), (copy, stream))
PASSES(cuMemcpyPeer, ptds,
       (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
        size_t bytes),
       (to, to_context, from, from_context, bytes))
PASSES(cuMemcpyPeerAsync, ptsz,
       (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
        size_t bytes, CUstream stream),
       (to, to_context, from, from_context, bytes, stream))
PASSES(cuMemcpyAtoA_v2, ptds,
       (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
       (to, to_offset, from, from_offset, bytes))
PASSES(cuMemcpyAtoD_v2, ptds, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
       (to, from, offset, bytes))
PASSES(cuMemcpyAtoH_v2, ptds, (void *to, CUarray from, size_t offset, size_t bytes),
       (to, from, offset, bytes))
PASSES(cuMemcpyDtoA_v2, ptds, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
       (to, offset, from, bytes))
PASSES(cuMemcpyHtoA_v2, ptds, (CUarray to, size_t offset, const void *from, size_t bytes),
       (to, offset, from, bytes))
PASSES(cuMemcpyAtoHAsync_v2, ptsz,
       (void *to, CUarray from, size_t offset, size_t bytes, CUstream stream),
       (to, from, offset, bytes, stream))
PASSES(cuMemcpyHtoAAsync_v2, ptsz,
       (CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream),
       (to, offset, from, bytes, stream))
PASSES(cuMemcpyBatchAsync, ptsz,
       (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes,
        size_t *first, size_t attribute_count, size_t *failed, CUstream stream),
       (to, from, bytes, count, attributes, first, attribute_count, failed, stream))
PASSES(cuMemcpyBatchAsync_v2, ptsz,
       (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes,
        size_t *first, size_t attribute_count, CUstream stream),
       (to, from, bytes, count, attributes, first, attribute_count, stream))
PASSES(cuMemcpy3DBatchAsync, ptsz,
       (size_t count, void *copies, size_t *failed, unsigned long long flags, CUstream stream),
       (count, copies, failed, flags, stream))
PASSES(cuMemcpy3DBatchAsync_v2, ptsz,
       (size_t count, void *copies, unsigned long long flags, CUstream stream),
       (count, copies, flags, stream))
PASSES(cuMemcpyWithAttributesAsync, ptsz,
       (CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes, CUstream stream),
       (to, from, bytes, attributes, stream))
PASSES(cuMemcpy3DWithAttributesAsync, ptsz, (void *copy, unsigned long long flags, CUstream stream),
       (copy, flags, stream))

/* graph.c: captures and graphs */
CAPTURES(cuStreamBeginCapture, (CUstream stream), (stream))
CAPTURES(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode))
CAPTURES(cuStreamBeginCaptureToGraph,
         (CUstream stream, CUgraph graph, const CUnode *needs, const void *edges, size_t count,
          int mode),
         (stream, graph, needs, edges, count, mode))
TWINS(cuStreamEndCapture, (CUstream stream, CUgraph *graph))
CAPTURES(cuStreamBeginRecaptureToGraph,
         (CUstream stream, int mode, CUgraph graph, void *call, void *data),
         (stream, mode, graph, call, data))
HOOK(cuStreamDestroy, (CUstream stream))
HOOK(cuStreamDestroy_v2, (CUstream stream))
INSTANTIATES(cuGraphInstantiate,
             (CUexec * exec, CUgraph graph, CUnode *error_node, char *log, size_t log_bytes),
             (exec, graph, error_node, log, log_bytes))
INSTANTIATES(cuGraphInstantiate_v2,
             (CUexec * exec, CUgraph graph, CUnode *error_node, char *log, size_t log_bytes),
             (exec, graph, error_node, log, log_bytes))
INSTANTIATES(cuGraphInstantiateWithFlags, (CUexec * exec, CUgraph graph, unsigned long long flags),
             (exec, graph, flags))
INSTANTIATES(cuGraphInstantiateWithParams, (CUexec * exec, CUgraph graph, void *params),
             (exec, graph, params))
INSTANTIATES(cuGraphInstantiateWithParams_ptsz, (CUexec * exec, CUgraph graph, void *params),
             (exec, graph, params))
HOOK(cuGraphExecDestroy, (CUexec exec))
TWINS(cuGraphLaunch, (CUexec exec, CUstream stream))
TWINS(cuGraphUpload, (CUexec exec, CUstream stream))
HOOK(cuDeviceGraphMemTrim, (CUdevice dev))

/* launch.c: compute */
HOOK(cuLaunch, (CUfunction function))
HOOK(cuLaunchGrid, (CUfunction function, int width, int height))
HOOK(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream))
LAUNCHES(cuLaunchKernel, (uint64_t)gx * gy * gz, stream,
         (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
          unsigned bz, unsigned shared_bytes, CUstream stream, void **params, void **extra),
         (function, gx, gy, gz, bx, by, bz, shared_bytes, stream, params, extra))
LAUNCHES(cuLaunchKernelEx, blocks_of(launch), stream_of(launch),
         (const CUlaunch *launch, CUfunction function, void **params, void **extra),
         (launch, function, params, extra))
LAUNCHES(cuLaunchCooperativeKernel, (uint64_t)gx * gy * gz, stream,
         (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
          unsigned bz, unsigned shared_bytes, CUstream stream, void **params),
         (function, gx, gy, gz, bx, by, bz, shared_bytes, stream, params))
HOOK(cuLaunchCooperativeKernelMultiDevice, (CUcooperative * list, unsigned count, unsigned flags))

/* nvml.c: what a process is told about the card by its management library */
NVHOOK(nvmlDeviceGetMemoryInfo, (NVdevice device, NVmemory *memory))
NVHOOK(nvmlDeviceGetMemoryInfo_v2, (NVdevice device, NVmemory_v2 *memory))
NVLISTS(nvmlDeviceGetComputeRunningProcesses, NVprocess_v1)
NVLISTS(nvmlDeviceGetComputeRunningProcesses_v2, NVprocess)
NVLISTS(nvmlDeviceGetComputeRunningProcesses_v3, NVprocess)
NVLISTS(nvmlDeviceGetGraphicsRunningProcesses, NVprocess_v1)
NVLISTS(nvmlDeviceGetGraphicsRunningProcesses_v2, NVprocess)
NVLISTS(nvmlDeviceGetGraphicsRunningProcesses_v3, NVprocess)
NVLISTS(nvmlDeviceGetMPSComputeRunningProcesses, NVprocess_v1)
NVLISTS(nvmlDeviceGetMPSComputeRunningProcesses_v2, NVprocess)
NVLISTS(nvmlDeviceGetMPSComputeRunningProcesses_v3, NVprocess)

NVHOOK(nvmlDeviceGetProcessUtilization,
       (NVdevice device, NVutilization *samples, unsigned *count, unsigned long long since_us))
NVHOOK(nvmlDeviceGetProcessesUtilizationInfo, (NVdevice device, NVutilizations *all))
NVHOOK(nvmlDeviceGetRunningProcessDetailList, (NVdevice device, NVdetails *all))
NVHOOK(nvmlDeviceGetAccountingPids, (NVdevice device, unsigned *count, unsigned *pids))
NVHOOK(nvmlDeviceGetAccountingStats, (NVdevice device, unsigned pid, NVaccount *account))

NEED(cuCtxGetCurrent, (CUcontext * ctx))
NEED(cuCtxPushCurrent_v2, (CUcontext ctx))
NEED(cuCtxPopCurrent_v2, (CUcontext * ctx))
NEED(cuCtxGetDevice, (CUdevice * dev))
NEED(cuCtxGetDevice_v2, (CUdevice * dev, CUcontext ctx))
NEED(cuCtxFromGreenCtx, (CUcontext * ctx, CUgreen green))
NEED(cuMemGetAllocationPropertiesFromHandle, (CUalloc_prop * prop, CUhandle handle))
NEED(cuPointerGetAttribute, (void *value, int attribute, CUdeviceptr ptr))
NEED(cuCtxGetLimit, (size_t *value, int limit))
NEED(cuDeviceGetAttribute, (int *value, int attribute, CUdevice dev))
NEED(cuFuncGetAttribute, (int *value, int attribute, CUfunction function))
NEED(cuFuncIsLoaded, (int *state, CUfunction function))
NEED(cuFuncGetModule, (CUmodule * module, CUfunction function))
NEED(cuKernelGetLibrary, (CUlibrary * library, CUkernel kernel))
NEED(cuModuleGetLoadingMode, (int *mode))
NEED(cuDeviceGet, (CUdevice * dev, int ordinal))
NEED(cuDeviceGetUuid, (CUuuid * uuid, CUdevice dev))
NEED(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice dev))
NEED(cuDevicePrimaryCtxGetState, (CUdevice dev, unsigned *flags, int *active))
NEED(cuDeviceGetMemPool, (CUpool * pool, CUdevice dev))
NEED(cuMemPoolGetAttribute, (CUpool pool, int attribute, void *value))
NEED(cuDeviceGetGraphMemAttribute, (CUdevice dev, int attribute, void *value))
NEED(cuStreamGetCtx, (CUstream stream, CUcontext *ctx))
NEED(cuStreamGetDevice, (CUstream stream, CUdevice *dev))
NEED(cuStreamGetGreenCtx, (CUstream stream, CUgreen *green))
NEED(cuStreamIsCapturing, (CUstream stream, int *status))
NEED(cuStreamIsCapturing_ptsz, (CUstream stream, int *status))
NEED(cuThreadExchangeStreamCaptureMode, (int *mode))
NEED(cuGraphGetNodes, (CUgraph graph, CUnode *nodes, size_t *count))
NEED(cuGraphNodeGetType, (CUnode node, int *type))
NEED(cuGraphMemAllocNodeGetParams, (CUnode node, CUmem_node *params))
NEED(cuGraphChildGraphNodeGetGraph, (CUnode node, CUgraph *graph))
NEED(cuStreamQuery, (CUstream stream))
NEED(cuStreamQuery_ptsz, (CUstream stream))
NEED(cuEventCreate, (CUevent * event, unsigned flags))
NEED(cuEventDestroy_v2, (CUevent event))
NEED(cuEventRecord, (CUevent event, CUstream stream))
NEED(cuEventRecord_ptsz, (CUevent event, CUstream stream))
NEED(cuEventQuery, (CUevent event))
NEED(cuEventElapsedTime, (float *ms, CUevent from, CUevent to))
NEED(cuEventElapsedTime_v2, (float *ms, CUevent from, CUevent to))

NVNEED(nvmlInit_v2, (void))
NVNEED(nvmlDeviceGetUUID, (NVdevice device, char *uuid, unsigned bytes))
NVNEED(nvmlDeviceGetHandleByUUID, (const char *uuid, NVdevice *device))
NVNEED(nvmlDeviceGetIndex, (NVdevice device, unsigned *index))
NVNEED(nvmlDeviceGetUtilizationRates, (NVdevice device, NVrates *rates))

#undef HOOK
#undef NVHOOK
#undef NEED
#undef NVNEED
#undef TWINS
#undef PASSES
#undef CREATES
#undef LOADS
#undef BRINGS
#undef BINDS_MEMORY
#undef BINDS_ADDRESS
#undef CAPTURES
#undef INSTANTIATES
#undef LAUNCHES
#undef NVLISTS

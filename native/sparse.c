/* What holds physical memory beside handles and mappings: parts of sparse arrays, and multicast
   objects that it is bound to. */
#define _GNU_SOURCE
#include "ledger.h"
#include "ties.h"
#include "vmm.h"

#include <stdlib.h>

/* ---- sparse arrays ---- */

/* Parts are let go when the stream gets there. */
static void let_go(struct record *record, CUstream stream, bool per_thread)
{
    if (vmm_is_last(record))
        (void)(per_thread ? REAL(cuStreamSynchronize_ptsz)(stream)
                          : REAL(cuStreamSynchronize)(stream));
    vmm_drop(record, 0, 1);
}

static CUresult map_array(CUmap_info *list, unsigned count, CUstream stream, bool per_thread)
{
    bool counted =
        atomic_load_explicit(&limiting, memory_order_relaxed) && list != NULL && count != 0;
    struct record **held = counted ? calloc(count, sizeof *held) : NULL;
    if (counted && held == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; held != NULL && i < count; i++)
        held[i] = list[i].operation == CU_OPERATION_MAP ? vmm_hold(list[i].handle) : NULL;
    CUresult result = per_thread ? REAL(cuMemMapArrayAsync_ptsz)(list, count, stream)
                                 : REAL(cuMemMapArrayAsync)(list, count, stream);
    for (unsigned i = 0; held != NULL && i < count; i++) {
        struct record *before;
        if (result != CUDA_SUCCESS) {
            if (held[i] != NULL)
                vmm_drop(held[i], 0, 1);
            continue;
        }
        while ((before = ties_take(list[i].resource, &list[i], -1, 0, 0)) != NULL)
            let_go(before, stream, per_thread);
        if (held[i] != NULL)
            ties_add(
                (struct tie){ .holder = list[i].resource, .part = list[i], .record = held[i] });
    }
    free(held);
    return result;
}

CUresult cuMemMapArrayAsync(CUmap_info *list, unsigned count, CUstream stream)
{
    return map_array(list, count, stream, false);
}

CUresult cuMemMapArrayAsync_ptsz(CUmap_info *list, unsigned count, CUstream stream)
{
    return map_array(list, count, stream, true);
}

/* ---- multicast: what is bound is held until it is unbound or the object is gone ---- */

CUresult cuMulticastCreate(CUhandle *object, const CUmulticast_prop *prop)
{
    CUresult result = REAL(cuMulticastCreate)(object, prop);
    if (result != CUDA_SUCCESS || object == NULL ||
        !atomic_load_explicit(&limiting, memory_order_relaxed))
        return result;
    vmm_keep_object(*object);
    return result;
}

/* What binds it: the object's record, which lives as long as the driver's object does. */
static const void *object_of(CUhandle object)
{
    struct entry entry;
    return ledger_get(HANDLE, object, &entry) ? entry.owner : NULL;
}

static CUresult bound(CUresult result, CUhandle object, CUdevice dev, size_t offset,
                      struct record *record)
{
    const void *holder = record != NULL ? object_of(object) : NULL;
    if (dev < 0 && record != NULL) /* the first versions bind on the GPU that the memory is of */
        dev = vmm_device(record);
    if (record != NULL && result == CUDA_SUCCESS && holder != NULL)
        ties_add((struct tie){ .holder = holder, .dev = dev, .offset = offset, .record = record });
    else if (record != NULL && result != CUDA_SUCCESS)
        vmm_drop(record, 0, 1);
    return result;
}

CUresult cuMulticastBindMem(CUhandle object, size_t offset, CUhandle memory, size_t from,
                            size_t bytes, unsigned long long flags)
{
    struct record *record = vmm_hold(memory);
    return bound(REAL(cuMulticastBindMem)(object, offset, memory, from, bytes, flags), object, -1,
                 offset, record);
}

CUresult cuMulticastBindMem_v2(CUhandle object, CUdevice dev, size_t offset, CUhandle memory,
                               size_t from, size_t bytes, unsigned long long flags)
{
    struct record *record = vmm_hold(memory);
    return bound(REAL(cuMulticastBindMem_v2)(object, dev, offset, memory, from, bytes, flags),
                 object, dev, offset, record);
}

CUresult cuMulticastBindAddr(CUhandle object, size_t offset, CUdeviceptr ptr, size_t bytes,
                             unsigned long long flags)
{
    struct record *record = vmm_hold_at(ptr);
    return bound(REAL(cuMulticastBindAddr)(object, offset, ptr, bytes, flags), object, -1, offset,
                 record);
}

CUresult cuMulticastBindAddr_v2(CUhandle object, CUdevice dev, size_t offset, CUdeviceptr ptr,
                                size_t bytes, unsigned long long flags)
{
    struct record *record = vmm_hold_at(ptr);
    return bound(REAL(cuMulticastBindAddr_v2)(object, dev, offset, ptr, bytes, flags), object, dev,
                 offset, record);
}

CUresult cuMulticastUnbind(CUhandle object, CUdevice dev, size_t offset, size_t bytes)
{
    CUresult result = REAL(cuMulticastUnbind)(object, dev, offset, bytes);
    const void *holder =
        result == CUDA_SUCCESS && atomic_load_explicit(&limiting, memory_order_relaxed)
            ? object_of(object)
            : NULL;
    for (struct record *record;
         holder != NULL && (record = ties_take(holder, NULL, dev, offset, bytes)) != NULL;)
        vmm_drop(record, 0, 1);
    return result;
}

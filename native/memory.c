/* Linear memory and arrays: taken before the driver is asked, given back when it refuses or frees.
 */
#define _GNU_SOURCE
#include "bindings.h"
#include "devices.h"
#include "ledger.h"
#include "pool.h"
#include "steps.h"

#include <stdlib.h>

/* `shares`: it is charged the steps that it lies in, which it may share. */
static void keep(struct device *device, enum kind kind, uint64_t key, uint64_t bytes, bool shares)
{
    struct entry entry = entry_of(kind, key, bytes, device_context(), device->ordinal);
    entry.count = shares;
    ledger_put(entry);
}

/* An allocation of known size: its bytes are taken, then the driver is asked, then they are kept
   under the name that it gave, or given back. */
static inline CUresult settled(struct device *device, enum kind kind, uint64_t bytes,
                               CUresult result, uint64_t key)
{
    if (LIKELY(result == CUDA_SUCCESS))
        keep(device, kind, key, bytes, false);
    else
        give(device, bytes);
    return result;
}

/* The same of linear memory, of which `taken` bytes were taken. */
static inline CUresult settled_at(struct device *device, uint64_t bytes, uint64_t taken,
                                  CUresult result, uint64_t at, const char *call)
{
    if (result != CUDA_SUCCESS) {
        give(device, taken);
        return result;
    }
    bool shares = !steps_exact(device); /* once: another thread may be finding it out */
    if (UNLIKELY(!shares && taken != bytes))
        give(device, taken - bytes);
    if (UNLIKELY(shares && !steps_settle(device, at, bytes, taken, call))) {
        (void)(at <= UINT32_MAX && HAVE(cuMemFree) ? real.cuMemFree((unsigned)at)
                                                   : REAL(cuMemFree_v2)(at));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    keep(device, LINEAR, at, bytes, shares);
    return CUDA_SUCCESS;
}

#define ALLOCATES(name, call, params, args)                                                       \
    CUresult name params                                                                          \
    {                                                                                             \
        struct device *device = device_for_memory();                                              \
        if (device == NULL || ptr == NULL)                                                        \
            return REAL(name) args;                                                               \
        uint64_t taken = steps_most(device, bytes);                                               \
        if (UNLIKELY(!obtain(device, taken, call)))                                               \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                      \
        CUresult result = REAL(name) args;                                                        \
        return settled_at(device, bytes, taken, result, result == CUDA_SUCCESS ? *ptr : 0, call); \
    }
ALLOCATES(cuMemAlloc, "cuMemAlloc", (unsigned *ptr, unsigned bytes), (ptr, bytes))
ALLOCATES(cuMemAlloc_v2, "cuMemAlloc", (CUdeviceptr * ptr, size_t bytes), (ptr, bytes))
ALLOCATES(cuMemAllocManaged, "cuMemAllocManaged", (CUdeviceptr * ptr, size_t bytes, unsigned flags),
          (ptr, bytes, flags))

enum { PITCH_STEP = 512 };

struct pitched {
    uint64_t ptr;
    size_t pitch, width, height;
    unsigned element;
};

static CUresult ask_pitched(struct pitched *call, bool narrow)
{
    if (!narrow)
        return REAL(cuMemAllocPitch_v2)(&call->ptr, &call->pitch, call->width, call->height,
                                        call->element);
    unsigned ptr = 0, pitch = 0;
    CUresult result = REAL(cuMemAllocPitch)(&ptr, &pitch, (unsigned)call->width,
                                            (unsigned)call->height, call->element);
    call->ptr = ptr;
    call->pitch = pitch;
    return result;
}

/* The pitch is known only afterwards: the usual one is taken first and the difference settled. */
static CUresult allocate_pitched(struct device *device, struct pitched *call, bool narrow)
{
    uint64_t bytes = UINT64_MAX >> 1, real_bytes = 0;
    if (call->width <= SIZE_MAX - PITCH_STEP) {
        uint64_t guess = (call->width + PITCH_STEP - 1) / PITCH_STEP * PITCH_STEP;
        if (__builtin_mul_overflow(guess, (uint64_t)call->height, &bytes))
            bytes = UINT64_MAX >> 1;
    }
    uint64_t taken = steps_most(device, bytes), whole;
    if (!obtain(device, taken, "cuMemAllocPitch"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = ask_pitched(call, narrow);
    if (result == CUDA_SUCCESS &&
        __builtin_mul_overflow((uint64_t)call->pitch, (uint64_t)call->height, &real_bytes))
        real_bytes = UINT64_MAX >> 1;
    whole = result == CUDA_SUCCESS ? steps_most(device, real_bytes) : taken;
    if (whole < taken) {
        give(device, taken - whole);
    } else if (whole > taken && !obtain(device, whole - taken, "cuMemAllocPitch")) {
        (void)(narrow ? REAL(cuMemFree)((unsigned)call->ptr) : REAL(cuMemFree_v2)(call->ptr));
        give(device, taken);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return settled_at(device, real_bytes, whole, result, call->ptr, "cuMemAllocPitch");
}

#define ALLOCATES_PITCHED(name, ptr_type, size_type, narrow)                            \
    CUresult name(ptr_type *ptr, size_type *pitch, size_type width, size_type height,   \
                  unsigned element)                                                     \
    {                                                                                   \
        struct device *device = device_for_memory();                                    \
        struct pitched call = { .width = width, .height = height, .element = element }; \
        if (device == NULL || ptr == NULL || pitch == NULL)                             \
            return REAL(name)(ptr, pitch, width, height, element);                      \
        CUresult result = allocate_pitched(device, &call, narrow);                      \
        if (result == CUDA_SUCCESS) {                                                   \
            *ptr = (ptr_type)call.ptr;                                                  \
            *pitch = (size_type)call.pitch;                                             \
        }                                                                               \
        return result;                                                                  \
    }
ALLOCATES_PITCHED(cuMemAllocPitch, unsigned, unsigned, true)
ALLOCATES_PITCHED(cuMemAllocPitch_v2, CUdeviceptr, size_t, false)

/* An entry is taken out before the driver frees what it names, since the name may be given anew at
   once; it is put back where the driver refuses. */
static CUresult freed(bool known, const struct entry *entry, CUresult result)
{
    if (known && UNLIKELY(result != CUDA_SUCCESS))
        ledger_put(*entry);
    else if (known)
        steps_give(entry);
    return result;
}

static bool taken_out(enum kind kind, const void *key, struct entry *entry)
{
    return limits_any() && ledger_take(kind, (uintptr_t)key, entry);
}

static CUresult free_linear(uint64_t ptr, bool narrow)
{
    struct entry entry;
    bool known = limits_any() && ledger_take(LINEAR, ptr, &entry);
    CUresult result = narrow ? REAL(cuMemFree)((unsigned)ptr) : REAL(cuMemFree_v2)(ptr);
    if (!known)
        return result;
    if (UNLIKELY(result != CUDA_SUCCESS))
        ledger_put(entry);
    else if (LIKELY(entry.kind == LINEAR))
        steps_give(&entry);
    else
        pools_free(&entry);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    return free_linear(ptr, false);
}

CUresult cuMemFree(unsigned ptr)
{
    return free_linear(ptr, true);
}

/* ---- arrays ---- */

/* Bits of one element of one channel; block-compressed and planar formats as bits of a pixel of
   all. */
static unsigned format_bits(int format, unsigned channels)
{
    switch (format) {
    case 0x01:
    case 0x08:
        return 8 * channels;
    case 0x02:
    case 0x09:
    case 0x10:
        return 16 * channels;
    case 0x03:
    case 0x0a:
    case 0x20:
        return 32 * channels;
    case 0x91:
    case 0x92:
    case 0x97:
    case 0x98:
        return 4;
    case 0x93:
    case 0x94:
    case 0x95:
    case 0x96:
    case 0x99:
    case 0x9a:
    case 0x9b:
    case 0x9c:
    case 0x9d:
    case 0x9e:
        return 8;
    case 0xb0:
        return 12;
    case 0x9f:
    case 0xa1:
        return 24;
    case 0xc0:
    case 0xc6:
        return 8;
    case 0xc1:
    case 0xc3:
    case 0xc7:
    case 0xc9:
        return 16;
    case 0xc2:
    case 0xc4:
    case 0xc8:
    case 0xca:
        return 32;
    case 0xc5:
    case 0xcb:
        return 64;
    default:
        return 32 * (channels ? channels : 1);
    }
}

static uint64_t array_bytes(size_t width, size_t height, size_t depth, int format,
                            unsigned channels, unsigned flags)
{
    uint64_t cells, bits;
    if (flags & (CU_ARRAY_SPARSE | CU_ARRAY_DEFERRED))
        return 0; /* its memory is mapped later, from cuMemCreate */
    if (__builtin_mul_overflow((uint64_t)width, (uint64_t)(height ? height : 1), &cells) ||
        __builtin_mul_overflow(cells, (uint64_t)(depth ? depth : 1), &cells) ||
        __builtin_mul_overflow(cells, (uint64_t)format_bits(format, channels), &bits))
        return UINT64_MAX >> 1;
    return (bits + 7) / 8;
}

/* Each call has an older version, whose descriptor has narrower fields of the same names. */
#define MAKES_ARRAY(name, call, type, depth, flags)                                            \
    CUresult name(CUarray *array, const type *desc)                                            \
    {                                                                                          \
        struct device *device = array != NULL && desc != NULL ? device_for_memory() : NULL;    \
        if (device == NULL)                                                                    \
            return REAL(name)(array, desc);                                                    \
        uint64_t bytes = steps_most(device, array_bytes(desc->width, desc->height, depth,      \
                                                        desc->format, desc->channels, flags)); \
        if (!obtain(device, bytes, call))                                                      \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                   \
        CUresult result = REAL(name)(array, desc);                                             \
        return settled(device, ARRAY, bytes, result,                                           \
                       result == CUDA_SUCCESS ? (uintptr_t)*array : 0);                        \
    }
MAKES_ARRAY(cuArrayCreate, "cuArrayCreate", CUarray_desc_v1, 1, 0)
MAKES_ARRAY(cuArrayCreate_v2, "cuArrayCreate", CUarray_desc, 1, 0)
MAKES_ARRAY(cuArray3DCreate, "cuArray3DCreate", CUarray3d_desc_v1, desc->depth, desc->flags)
MAKES_ARRAY(cuArray3DCreate_v2, "cuArray3DCreate", CUarray3d_desc, desc->depth, desc->flags)

CUresult cuArrayDestroy(CUarray array)
{
    struct entry entry;
    bool known = taken_out(ARRAY, array, &entry);
    CUresult result = freed(known, &entry, REAL(cuArrayDestroy)(array));
    if (result == CUDA_SUCCESS)
        bindings_drop_all(array);
    return result;
}

static uint64_t mipmap_bytes(const CUarray3d_desc *desc, unsigned levels)
{
    uint64_t bytes = 0;
    size_t width = desc->width, height = desc->height, depth = desc->depth;
    /* Layers, and the six faces of a cube, are as many at every level. */
    bool layered = (desc->flags & (CU_ARRAY_LAYERED | CU_ARRAY_CUBEMAP)) != 0;
    for (unsigned level = 0; level < (levels ? levels : 1) && level < 32; level++) {
        uint64_t more =
            array_bytes(width, height, depth, desc->format, desc->channels, desc->flags);
        if (__builtin_add_overflow(bytes, more, &bytes))
            return UINT64_MAX >> 1;
        if (width <= 1 && height <= 1 && (layered || depth <= 1))
            break;
        width = width > 1 ? width / 2 : width;
        height = height > 1 ? height / 2 : height;
        depth = !layered && depth > 1 ? depth / 2 : depth;
    }
    return bytes;
}

CUresult cuMipmappedArrayCreate(CUmipmap *mipmap, const CUarray3d_desc *desc, unsigned levels)
{
    struct device *device = mipmap != NULL && desc != NULL ? device_for_memory() : NULL;
    if (device == NULL)
        return REAL(cuMipmappedArrayCreate)(mipmap, desc, levels);
    uint64_t bytes = steps_most(device, mipmap_bytes(desc, levels));
    if (!obtain(device, bytes, "cuMipmappedArrayCreate"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMipmappedArrayCreate)(mipmap, desc, levels);
    return settled(device, MIPMAP, bytes, result, result == CUDA_SUCCESS ? (uintptr_t)*mipmap : 0);
}

CUresult cuMipmappedArrayDestroy(CUmipmap mipmap)
{
    struct entry entry;
    bool known = taken_out(MIPMAP, mipmap, &entry);
    CUresult result = freed(known, &entry, REAL(cuMipmappedArrayDestroy)(mipmap));
    if (result == CUDA_SUCCESS)
        bindings_drop_all(mipmap);
    return result;
}

/* ---- memory of graphics interfaces: not limited where it is made, and counted from here on ----
 */

CUresult cuImportExternalMemory(CUext *memory, const CUext_desc *desc)
{
    struct device *device = memory != NULL && desc != NULL ? device_for_memory() : NULL;
    if (device == NULL)
        return REAL(cuImportExternalMemory)(memory, desc);
    uint64_t bytes = steps_most(device, desc->size);
    if (!obtain(device, bytes, "cuImportExternalMemory"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuImportExternalMemory)(memory, desc);
    return settled(device, EXTERNAL, bytes, result,
                   result == CUDA_SUCCESS ? (uintptr_t)*memory : 0);
}

CUresult cuDestroyExternalMemory(CUext memory)
{
    struct entry entry;
    bool known = taken_out(EXTERNAL, memory, &entry);
    return freed(known, &entry, REAL(cuDestroyExternalMemory)(memory));
}

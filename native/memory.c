/* Linear memory and arrays: taken before the driver is asked, given back if it refuses or frees. */
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
                               CUresult result, uint64_t key, const char *call)
{
    driver_answered(device, bytes, call, result);
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
    driver_answered(device, bytes, call, result);
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
    bytes = result == CUDA_SUCCESS ? real_bytes : bytes;
    return settled_at(device, bytes, whole, result, call->ptr, "cuMemAllocPitch");
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

static CUresult free_linear(uint64_t ptr, bool narrow)
{
    struct entry entry;
    bool known = limits_any() && ledger_take(LINEAR, ptr, &entry);
    CUresult result = narrow ? REAL(cuMemFree)((unsigned)ptr) : REAL(cuMemFree_v2)(ptr);
    if (!known || LIKELY(entry.kind == LINEAR) || result != CUDA_SUCCESS)
        return steps_freed(known, &entry, result);
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

/* Formats by CUarray_format: bits of one channel, or of a pixel of all where the format is
   block-compressed or planar. Any other counts as the widest channel. */
static const struct {
    unsigned char from, to, bits;
    bool whole;
} formats[] = {
    { 0x01, 0x01, 8, false },  { 0x02, 0x02, 16, false }, { 0x08, 0x08, 8, false },
    { 0x09, 0x09, 16, false }, { 0x10, 0x10, 16, false }, { 0x91, 0x92, 4, true },
    { 0x93, 0x96, 8, true },   { 0x97, 0x98, 4, true },   { 0x99, 0x9e, 8, true },
    { 0x9f, 0x9f, 24, true },  { 0xa1, 0xa1, 24, true },  { 0xb0, 0xb0, 12, true },
    { 0xc0, 0xc0, 8, true },   { 0xc1, 0xc1, 16, true },  { 0xc2, 0xc2, 32, true },
    { 0xc3, 0xc3, 16, true },  { 0xc4, 0xc4, 32, true },  { 0xc5, 0xc5, 64, true },
    { 0xc6, 0xc6, 8, true },   { 0xc7, 0xc7, 16, true },  { 0xc8, 0xc8, 32, true },
    { 0xc9, 0xc9, 16, true },  { 0xca, 0xca, 32, true },  { 0xcb, 0xcb, 64, true },
};

static unsigned format_bits(int format, unsigned channels)
{
    channels = channels != 0 ? channels : 1;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (format >= formats[i].from && format <= formats[i].to)
            return formats[i].bits * (formats[i].whole ? 1 : channels);
    return 32 * channels;
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

/* A wrapper that makes `*made` of as many bytes as its description says. */
#define MAKES(name, call, kind, params, args, bytes_asked)                                         \
    CUresult name params                                                                           \
    {                                                                                              \
        struct device *device = made != NULL && desc != NULL ? device_for_memory() : NULL;         \
        if (device == NULL)                                                                        \
            return REAL(name) args;                                                                \
        uint64_t bytes = steps_most(device, bytes_asked);                                          \
        if (!obtain(device, bytes, call))                                                          \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
        CUresult result = REAL(name) args;                                                         \
        return settled(device, kind, bytes, result, result == CUDA_SUCCESS ? (uintptr_t)*made : 0, \
                       call);                                                                      \
    }
/* Each of these has an older version, whose description has narrower fields of the same names. */
#define MAKES_ARRAY(name, call, desc_type, depth, flags)                                      \
    MAKES(name, call, ARRAY, (CUarray * made, const desc_type *desc), (made, desc),           \
          array_bytes(desc->width, desc->height, depth, desc->format, desc->channels, flags))
MAKES_ARRAY(cuArrayCreate, "cuArrayCreate", CUarray_desc_v1, 1, 0)
MAKES_ARRAY(cuArrayCreate_v2, "cuArrayCreate", CUarray_desc, 1, 0)
MAKES_ARRAY(cuArray3DCreate, "cuArray3DCreate", CUarray3d_desc_v1, desc->depth, desc->flags)
MAKES_ARRAY(cuArray3DCreate_v2, "cuArray3DCreate", CUarray3d_desc, desc->depth, desc->flags)
MAKES(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", MIPMAP,
      (CUmipmap * made, const CUarray3d_desc *desc, unsigned levels), (made, desc, levels),
      mipmap_bytes(desc, levels))
/* Memory of graphics interfaces is not limited where it is made, and counts from here on. */
MAKES(cuImportExternalMemory, "cuImportExternalMemory", EXTERNAL,
      (CUext * made, const CUext_desc *desc), (made, desc), desc->size)

#define UNMAKES(name, kind, type)                                                \
    CUresult name(type gone)                                                     \
    {                                                                            \
        struct entry entry;                                                      \
        bool known = limits_any() && ledger_take(kind, (uintptr_t)gone, &entry); \
        CUresult result = steps_freed(known, &entry, REAL(name)(gone));          \
        if (result == CUDA_SUCCESS)                                              \
            bindings_drop_all(gone);                                             \
        return result;                                                           \
    }
UNMAKES(cuArrayDestroy, ARRAY, CUarray)
UNMAKES(cuMipmappedArrayDestroy, MIPMAP, CUmipmap)
UNMAKES(cuDestroyExternalMemory, EXTERNAL, CUext)

/* What holds physical memory besides handles and mappings: tiles of sparse arrays, and multicast
   objects that it is bound to. */
#define _GNU_SOURCE
#include "bindings.h"
#include "ledger.h"
#include "parts.h"
#include "vmm.h"

#include <stdlib.h>

enum { AXES = 3, MIP_TAIL = 1 /* of a part's types; the other is a level */ };

/* A box of texels of one level and layer; of a mip tail, bytes along the first axis. */
struct box {
    uint64_t from[AXES], to[AXES];
};

/* A tile, or a piece of a multicast object, and what it holds. */
struct binding {
    const void *holder;
    struct record *record;
    int part_type;
    unsigned level, layer, device_mask; /* of a tile: the GPUs that it is mapped for */
    struct box box;
    CUdevice dev; /* of a multicast object's piece */
    size_t offset;
};
static struct turn turn;
static struct binding *bindings;
static size_t binding_count, binding_space;

/* Without memory for it the record stays counted until the process ends. */
static void add(struct binding new)
{
    IN_TURN(&turn);
    if (binding_count == binding_space)
        bindings = list_grown(bindings, &binding_space, sizeof *bindings);
    if (binding_count < binding_space)
        bindings[binding_count++] = new;
}

/* Takes out one binding that `matches` what is asked for. */
static bool take_out(bool (*matches)(const struct binding *, const struct binding *),
                     const struct binding *asked, struct binding *out)
{
    IN_TURN(&turn);
    for (size_t i = 0; i < binding_count; i++)
        if (bindings[i].holder == asked->holder && matches(&bindings[i], asked)) {
            *out = bindings[i];
            bindings[i] = bindings[--binding_count];
            return true;
        }
    return false;
}

static bool is_any(const struct binding *one, const struct binding *asked)
{
    (void)one, (void)asked;
    return true;
}

void bindings_drop_all(const void *holder)
{
    struct binding gone;
    if (!limits_any() || holder == NULL)
        return;
    while (take_out(is_any, &(struct binding){ .holder = holder }, &gone))
        vmm_drop(gone.record, 0, 1);
}

/* ---- sparse arrays ---- */

static struct box box_of(const CUmap_info *info)
{
    struct box box = { .to = { 1, 1, 1 } };
    if (info->part_type == MIP_TAIL) {
        box.from[0] = info->part.tail.offset;
        box.to[0] = info->part.tail.offset + info->part.tail.size;
        return box;
    }
    const unsigned from[AXES] = { info->part.level.x, info->part.level.y, info->part.level.z };
    const unsigned size[AXES] = { info->part.level.width, info->part.level.height,
                                  info->part.level.depth };
    for (int axis = 0; axis < AXES; axis++) {
        box.from[axis] = from[axis];
        box.to[axis] = (uint64_t)from[axis] + (size[axis] != 0 ? size[axis] : 1);
    }
    return box;
}

static struct binding tile_of(const CUmap_info *info, struct record *record)
{
    bool tail = info->part_type == MIP_TAIL;
    return (struct binding){ .holder = info->resource,
                             .record = record,
                             .part_type = info->part_type,
                             .level = tail ? 0 : info->part.level.level,
                             .layer = tail ? info->part.tail.layer : info->part.level.layer,
                             .device_mask = info->device_mask,
                             .box = box_of(info) };
}

static bool overlaps(const struct binding *one, const struct binding *other)
{
    if (one->part_type != other->part_type || one->level != other->level ||
        one->layer != other->layer || (one->device_mask & other->device_mask) == 0)
        return false;
    for (int axis = 0; axis < AXES; axis++)
        if (one->box.from[axis] >= other->box.to[axis] ||
            other->box.from[axis] >= one->box.to[axis])
            return false;
    return true;
}

static void keep_piece(const struct binding *before, struct box box, unsigned device_mask)
{
    struct binding piece = *before;
    piece.box = box;
    piece.device_mask = device_mask;
    vmm_hold_again(piece.record);
    add(piece);
}

/* Keeps what a new tile leaves of one that it overlaps: that of other GPUs, and along each axis
   what lies before and after it. */
static void keep_rest(struct binding *before, const struct binding *new)
{
    struct box rest = before->box;
    unsigned both = before->device_mask & new->device_mask;
    if (before->device_mask != both)
        keep_piece(before, rest, before->device_mask & ~both);
    for (int axis = 0; axis < AXES; axis++) {
        struct box side = rest;
        if (rest.from[axis] < new->box.from[axis]) {
            side.to[axis] = new->box.from[axis];
            keep_piece(before, side, both);
            rest.from[axis] = new->box.from[axis];
        }
        side = rest;
        if (rest.to[axis] > new->box.to[axis]) {
            side.from[axis] = new->box.to[axis];
            keep_piece(before, side, both);
            rest.to[axis] = new->box.to[axis];
        }
    }
}

/* Tiles are let go when the stream gets there. */
static void let_go(struct record *record, CUstream stream, bool per_thread)
{
    if (vmm_is_last(record))
        (void)REAL_TWIN(cuStreamSynchronize)(stream);
    vmm_drop(record, 0, 1);
}

static CUresult map_array(CUmap_info *list, unsigned count, CUstream stream, bool per_thread)
{
    bool counted = limits_any() && list != NULL && count != 0;
    struct record **held = counted ? calloc(count, sizeof *held) : NULL;
    if (counted && held == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; held != NULL && i < count; i++)
        held[i] = list[i].operation == CU_OPERATION_MAP ? vmm_hold(list[i].handle) : NULL;
    CUresult result = REAL_TWIN(cuMemMapArrayAsync)(list, count, stream);
    for (unsigned i = 0; held != NULL && i < count; i++) {
        struct binding new = tile_of(&list[i], held[i]), before;
        if (result != CUDA_SUCCESS) {
            if (held[i] != NULL)
                vmm_drop(held[i], 0, 1);
            continue;
        }
        while (take_out(overlaps, &new, &before)) {
            keep_rest(&before, &new);
            let_go(before.record, stream, per_thread);
        }
        if (held[i] != NULL)
            add(new);
    }
    free(held);
    return result;
}

DEFINE_TWINS(cuMemMapArrayAsync, (CUmap_info * list, unsigned count, CUstream stream),
             map_array(list, count, stream, per_thread))

/* ---- multicast: what is bound is held until it is unbound or the object is gone ---- */

CUresult cuMulticastCreate(CUhandle *object, const CUmulticast_prop *prop)
{
    CUresult result = REAL(cuMulticastCreate)(object, prop);
    if (result != CUDA_SUCCESS || object == NULL || !limits_any())
        return result;
    vmm_keep_object(*object, bindings_drop_all);
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
        add((struct binding){ .holder = holder, .dev = dev, .offset = offset, .record = record });
    else if (record != NULL && result != CUDA_SUCCESS)
        vmm_drop(record, 0, 1);
    return result;
}

#define BINDS_MEMORY(name, dev, params, args)                                     \
    CUresult name params                                                          \
    {                                                                             \
        struct record *record;                                                    \
        if (!vmm_hold_grown(memory, from + bytes, "cuMulticastBindMem", &record)) \
            return CUDA_ERROR_OUT_OF_MEMORY;                                      \
        return bound(REAL(name) args, object, dev, offset, record);               \
    }

#define BINDS_ADDRESS(name, dev, params, args)                      \
    CUresult name params                                            \
    {                                                               \
        struct record *record = vmm_hold_at(ptr);                   \
        return bound(REAL(name) args, object, dev, offset, record); \
    }
#include "hooks.h"

/* Pieces that begin within what is asked for, which the first axis of its box says. */
static bool is_unbound(const struct binding *one, const struct binding *asked)
{
    return (asked->dev < 0 || one->dev < 0 || one->dev == asked->dev) &&
           one->offset >= asked->box.from[0] && one->offset < asked->box.to[0];
}

CUresult cuMulticastUnbind(CUhandle object, CUdevice dev, size_t offset, size_t bytes)
{
    CUresult result = REAL(cuMulticastUnbind)(object, dev, offset, bytes);
    bool counted = result == CUDA_SUCCESS && limits_any();
    const void *holder = counted ? object_of(object) : NULL;
    struct binding asked = { .holder = holder,
                             .dev = dev,
                             .box = { .from = { offset }, .to = { offset + bytes } } };
    struct binding gone;
    while (holder != NULL && take_out(is_unbound, &asked, &gone))
        vmm_drop(gone.record, 0, 1);
    return result;
}

static void bindings_forget(void)
{
    bindings = NULL; /* which may be amid its growth */
    binding_count = binding_space = 0;
}

PART(.turn = &turn, .forget = bindings_forget);

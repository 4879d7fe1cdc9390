/* What the parts of the fake driver know of each other: the card's books are kept in fake_cuda.c.

   BERTH_FAKE_LIKE is a list of words, each of which makes the fake as unkind as a real driver in
   one way:

   - nodes: every graph holds the memory of each of its nodes apart, until it is destroyed and
   trimmed
   - lazy: a module takes its memory when one of its functions is first loaded or launched
   - heap: the heap of cuCtxSetLimit is taken by the next module that is loaded

   BERTH_FAKE_ERRORS=NAME:N:CODE,… has the Nth call of NAME, and all after it where N is 0, answer
   CODE. */
#ifndef BERTH_FAKE_INSIDE_H
#define BERTH_FAKE_INSIDE_H
#include "fake.h"

struct CUctx_st {
    uint32_t gpu, attached;
    bool primary, alive;
    uint64_t limit_bytes,
        promised_bytes;         /* for what cuCtxSetLimit was told: taken, and not taken yet */
    uint64_t limits[CU_LIMITS]; /* above the first value */
};
struct CUmod_st {
    uint32_t gpu;
    uint64_t bytes, pending;
    struct CUctx_st *context;
    struct CUmod_st *next;
};
struct CUarray_st {
    uint64_t va;
};

struct physical {
    uint64_t id, bytes;
    uint32_t gpu, handles, maps;
    int fd;
    uint64_t file;
    struct physical *next;
};

extern struct fake_card *fake_card;
extern bool fake_initialized, fake_injecting;
struct CUctx_st *fake_current(void);
uint32_t fake_gpu_at(CUdevice dev);
bool fake_is_gpu(CUdevice dev);
bool fake_like(const char *word);
CUresult fake_injected(const char *name);

void fake_books(void); /* one at a time */
void fake_books_done(void);
bool fake_charge(uint32_t gpu, uint64_t bytes);
void fake_refund(uint32_t gpu, uint64_t bytes);
uint64_t fake_address(uint64_t bytes); /* with the books */

/* With the books. */
struct physical *fake_physical(uint64_t id);      /* by its handle */
struct physical *fake_physical_kept(uint64_t id); /* whatever holds it */
struct physical *fake_physical_at(uint64_t va);
struct physical *fake_physical_new(uint32_t gpu, uint64_t bytes);
void fake_physical_drop(struct physical *physical);

/* fake_share.c: what is held for whom is not told by a handle or a mapping alone. */
void fake_parts_of(CUarray array);      /* a sparse array is gone: what is mapped into it */
void fake_bindings_of(uint64_t object); /* a multicast object is gone */
CUresult fake_promises_kept(struct CUctx_st *context);
void fake_limits_gone(struct CUctx_st *context);

#define READY()                                                    \
    do {                                                           \
        if (__builtin_expect(!fake_initialized, 0))                \
            return CUDA_ERROR_NOT_INITIALIZED;                     \
        CUresult injected_;                                        \
        if (__builtin_expect(fake_injecting, 0) &&                 \
            (injected_ = fake_injected(__func__)) != CUDA_SUCCESS) \
            return injected_;                                      \
    } while (0)
#define IN_CONTEXT()                                 \
    READY();                                         \
    if (__builtin_expect(fake_current() == NULL, 0)) \
    return CUDA_ERROR_INVALID_CONTEXT
#define GIVEN(pointer)                              \
    do {                                            \
        if (__builtin_expect((pointer) == NULL, 0)) \
            return CUDA_ERROR_INVALID_VALUE;        \
    } while (0)
#define GPU(dev)                     \
    READY();                         \
    if (!fake_is_gpu(dev))           \
    return CUDA_ERROR_INVALID_DEVICE
#define DO FAKE_EXPORT CUresult

#endif

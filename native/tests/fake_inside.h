/* What the parts of the fake driver know of each other: the card's books are kept in
   fake_ledger.c.

   BERTH_FAKE_LIKE is a list of words, each of which makes the fake as unkind as a real driver in
   one way:

   - nodes: every graph holds the memory of each of its nodes apart, until it is destroyed and
   trimmed
   - lazy: a module takes its memory when one of its functions is first loaded or launched
   - asked: with lazy, also when one is asked for by name, as by drivers before CUDA 12.4
   - heap: the heap of cuCtxSetLimit is taken by the next module that is loaded
   - slow: cuCtxSetLimit takes a while
   - untouched: managed memory stays with the host, as where no kernel touches it
   - hmm: memory of the system can be prefetched to the card
   - unnamed: a stream of a green context names no context, as drivers before CUDA 13 may

   BERTH_FAKE_ERRORS=NAME:N:CODE,… has the Nth call of NAME, and all after it where N is 0, answer
   CODE; if that is less than 0 the process dies by the signal -CODE. */
#ifndef BERTH_FAKE_INSIDE_H
#define BERTH_FAKE_INSIDE_H
#include "fake.h"

struct CUctx_st {
    uint32_t gpu, attached;
    bool primary, alive;
    uint64_t limit_bytes,
        promised_bytes;          /* for what cuCtxSetLimit was told: taken, and not taken yet */
    uint64_t limits[CU_LIMITS];  /* above the first value */
    uint64_t stack_bytes;        /* of each thread, as launches made it; never less again */
    struct CUctx_st *primary_of; /* of a green context: the primary one, whose its memory is */
};
struct CUmod_st {
    uint32_t gpu;
    uint64_t bytes, pending;
    struct CUctx_st *context;
    struct CUmod_st *of, *module; /* the library that this is the module of; its module */
    struct CUmod_st *next;
};
struct CUarray_st {
    uint64_t va;
};

struct CUstream_st {
    uint32_t gpu;
    int capture_mode;
    struct CUctx_st *context; /* NULL: it ended */
    _Atomic uint64_t tail_ns;
    CUgraph capture;
    struct CUstream_st *next;
};
struct CUevent_st {
    _Atomic uint64_t at_ns;
    uint32_t gpu;
    struct CUctx_st *context;
    struct CUevent_st *next;
};
struct CUfunc_st {
    uint64_t local_bytes;
    uint64_t spin_ns, wave_ns, long_ns, every, even_ns;
    _Atomic uint64_t launches;
    struct CUmod_st *module, *unloaded;
};
struct CUmipmap_st {
    uint64_t va;
};
struct CUpool_st {
    uint32_t gpu;
    bool device, gone, imported;
    int type; /* of allocation; 0: pinned */
    CUlocation location;
    uint64_t reserved, most_reserved, used, threshold;
    struct CUpool_st *next;
};
struct CUnode_st {
    int type;
    uint64_t bytes, ptr;
    uint32_t gpu;
    CUgraph child;
    struct CUnode_st *next;
    CUfunction function;
    unsigned blocks;
};
struct CUgraph_st {
    struct CUnode_st *nodes;
    size_t count;
};
struct CUexec_st {
    struct {
        uint64_t bytes, apart_bytes, held_bytes;
    } on[FAKE_GPUS];
    uint64_t kernel_ns;
};

enum what { FREE, BLOCK, ASYNC, VIRTUAL };
struct node {
    uint64_t va, bytes;
    enum what what;
    bool managed, unplaced;
    uint32_t gpu;
    struct CUctx_st *context;
    struct CUpool_st *pool;
};

struct physical {
    uint64_t id, bytes;
    uint32_t gpu, handles, maps;
    int fd;
    uint64_t file;
    bool for_tiles;
    struct fake_shared *shared; /* NULL: never exported to a file */
    struct physical *next;
};

enum { FAKE_WAVE_BLOCKS = 132 };

extern struct fake_card *fake_card;
extern struct fake_process *fake_self;
extern uint32_t fake_watch_group;
extern uint64_t fake_watch_bytes; /* above which a violation is put down; 0: not watched */
extern bool fake_initialized, fake_injecting, fake_like_nodes, fake_like_lazy;
extern _Thread_local struct CUctx_st *fake_context;
extern _Thread_local uint64_t fake_kept_ns; /* how long others kept this thread at the ledger */
/* Of the instance of MIG that this process sees; of a whole GPU there is no such bound. */
uint64_t fake_instance_bytes(uint32_t gpu);
uint32_t fake_gpu_at(CUdevice dev);
CUdevice fake_ordinal_of(uint32_t gpu);
bool fake_is_gpu(CUdevice dev);
bool fake_like(const char *word);
CUresult fake_injected(const char *name);

/* fake_table.c: the address of a name; NULL where this version has none */
void *fake_lookup(const char *name, int version, bool per_thread, bool *known);

void fake_books(void); /* one at a time */
void fake_books_done(void);
bool fake_charge(uint32_t gpu, uint64_t bytes);
void fake_refund(uint32_t gpu, uint64_t bytes);
void fake_books_forget(void);
void fake_reap_dead(void);

/* With the books: what lies where. */
extern struct node *fake_nodes;
extern size_t fake_node_space;
uint64_t fake_address(uint64_t bytes);
void fake_address_back(uint64_t va, uint64_t bytes);
/* What of a range lies in steps of the card (BERTH_FAKE_STEP_KIB) that nothing else is in, when it
   comes (`by` is 1) or has gone (-1). */
uint64_t fake_blocks(uint64_t va, uint64_t bytes, int by);
struct node *fake_node_at(uint64_t va);
struct node *fake_node_holding(uint64_t va); /* that `va` lies in */
void fake_node_put(struct node node);
void fake_node_drop(struct node *gone);

void fake_populate(void); /* managed memory that was not used yet comes to the card */
CUresult fake_release(uint64_t va);
void fake_drop_unmapped(void); /* memory of the system that is on the card no more */
void fake_drop_closed(void);   /* physical memory that only a closed file held */
CUresult fake_load_function(CUfunction function);
struct CUstream_st *fake_stream(CUstream stream);
uint64_t fake_length_ns(CUfunction function, uint64_t blocks); /* of the next launch */
void fake_work(struct CUstream_st *stream, uint64_t ns);
uint64_t fake_steps(uint64_t bytes); /* whole steps of a pool */
CUresult fake_graph_alloc(CUgraph graph, uint32_t gpu, uint64_t bytes, uint64_t *ptr, CUnode *out);
void fake_pools_settle(uint32_t gpu); /* a stream has come to its end */
void fake_pools_start(uint32_t gpu);
void fake_streams_start(uint32_t gpu);
struct CUstream_st *fake_stream_new(struct CUctx_st *context);
void fake_streams_gone(struct CUctx_st *context);
/* The context of a call on a stream: the stream's own, or the current one's of a special handle. */
CUresult fake_on_stream(const char *name, CUstream stream, struct CUctx_st **context);
void fake_memory_gone(struct CUctx_st *context);
void fake_modules_gone(struct CUctx_st *context);
void fake_events_gone(struct CUctx_st *context);

/* With the books. */
struct physical *fake_physical(uint64_t id);      /* by its handle */
struct physical *fake_physical_kept(uint64_t id); /* whatever holds it */
struct physical *fake_physical_shared(const struct fake_shared *shared);
struct physical *fake_physical_at(uint64_t va);
struct physical *fake_physical_new(uint32_t gpu, uint64_t bytes);
void fake_physical_drop(struct physical *physical);

/* fake_share.c: what is held for whom is not told by a handle or a mapping alone. */
void fake_parts_of(CUarray array); /* a sparse array is gone: what is mapped into it */
void fake_parts_gone(struct CUctx_st *context);
void fake_bindings_of(uint64_t object); /* a multicast object is gone */
CUresult fake_promises_kept(struct CUctx_st *context);
CUresult fake_stack_grows(struct CUctx_st *context, uint64_t local_bytes);
void fake_limits_gone(struct CUctx_st *context);

/* fake_graph.c: a stream is gone, and what it captured. */
void fake_capture_gone(CUstream stream);

/* fake_checkpoint.c: a call of a process that is locked waits until it is not. */
void fake_wait_unlocked(void);
void fake_checkpoint_begins(void); /* a process registers */
void fake_shares_memory(void);     /* from now on with other processes, or with the host */

/* Each call begins with what it needs, and answers what is wrong with that. */
static inline CUresult fake_ready(const char *name)
{
    if (__builtin_expect(!fake_initialized, 0))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (__builtin_expect(
            atomic_load_explicit(&fake_self->checkpoint, memory_order_relaxed) != FAKE_RUNNING, 0))
        fake_wait_unlocked();
    return __builtin_expect(fake_injecting, 0) ? fake_injected(name) : CUDA_SUCCESS;
}

static inline CUresult fake_in_context(const char *name)
{
    CUresult wrong = fake_ready(name);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (__builtin_expect(fake_context == NULL, 0))
        return CUDA_ERROR_INVALID_CONTEXT;
    return __builtin_expect(!fake_context->alive, 0) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                     : CUDA_SUCCESS;
}

/* The context whose is what is made while a context is current. */
static inline struct CUctx_st *fake_owner(void)
{
    return fake_context->primary_of != NULL ? fake_context->primary_of : fake_context;
}

static inline CUresult fake_on_gpu(const char *name, CUdevice dev)
{
    CUresult wrong = fake_ready(name);
    return wrong == CUDA_SUCCESS && !fake_is_gpu(dev) ? CUDA_ERROR_INVALID_DEVICE : wrong;
}

static inline CUresult fake_given(CUresult before, const void *pointer)
{
    return before == CUDA_SUCCESS && __builtin_expect(pointer == NULL, 0) ? CUDA_ERROR_INVALID_VALUE
                                                                          : before;
}

static inline CUresult fake_lives(CUresult before, const struct CUevent_st *event)
{
    return before == CUDA_SUCCESS && __builtin_expect(event->context == NULL, 0)
               ? CUDA_ERROR_INVALID_HANDLE
               : before;
}

CUresult fake_safe(CUresult before); /* what a capture of all cannot hold */

#define DO FAKE_EXPORT CUresult

#endif

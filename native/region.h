/* The region: what the processes of one container share about one GPU.

   Two files in one folder, named by the GPU's UUID. `<uuid>.limit` holds what is allowed; the
   library only reads it, so that whoever made it (the node's agent) can mount it read-only.
   `<uuid>.use` holds what is taken.

   `used` is exact at every instant. It changes by one 16-byte compare-and-swap that also names the
   slot and the number of the change. Before a process overwrites that name, it records the change
   in the slot named there. A process that was killed at any instruction has therefore left enough
   to tell whether its last change happened, and no process ever waits for another.

   A process proves that it lives by a lock on one byte of the file, held by a mapping of it rather
   than by a descriptor: it ends with the process's memory, whatever the program closes, forks or
   executes, and shows in every pid namespace. */
#ifndef BERTH_REGION_H
#define BERTH_REGION_H

#include "turn.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BERTH_VERSION = 1,
    BERTH_SLOTS = 1024,
    BERTH_REFUSALS = 256,
    BERTH_NAME = 64,
    BERTH_TAG_SLOT_BITS = 16,
    BERTH_EXPORT_WORDS = 4,
    /* A slot's state; what is between these is being cleared (members.c). */
    BERTH_FREE = 0,
    BERTH_MEMBER = 1,
    BERTH_LENDS = BERTH_SLOTS + 3 /* its process died, and others hold memory that it exported */
};
#define BERTH_LIMIT_MAGIC 0x314c485452454231ull
#define BERTH_USE_MAGIC 0x3155485452454231ull

enum {
    BERTH_BURST = 1u,
    BERTH_AGENT = 2u,
    BERTH_HIGH = 4u,
    BERTH_LOW = 8u,
    BERTH_SHOWS_MAX = 16u,
    BERTH_STOPPED = 32u, /* of berth_resize alone: counts one of `stops` */
    BERTH_WITNESS = 64u  /* hardware keeps the memory: what does not fit is counted all the same */
};

/* Whether calls of CUDA are counted, so that idle processes are known, and whether they wait. */
enum { BERTH_UNWATCHED, BERTH_WATCHED, BERTH_AWAY };
#define BERTH_COMES_BACK UINT64_MAX /* the bytes of a wish to be resumed */

/* A word that others may change meanwhile, without an order to anything else; or with it. */
#define LOAD(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define STORE(x, v) atomic_store_explicit(&(x), (v), memory_order_relaxed)
#define LOAD_ACQUIRE(x) atomic_load_explicit(&(x), memory_order_acquire)
#define STORE_RELEASE(x, v) atomic_store_explicit(&(x), (v), memory_order_release)

typedef _Atomic uint64_t shared64;
typedef _Atomic uint32_t shared32;

struct berth_limit_file {
    uint64_t magic;
    uint32_t version, size;
    unsigned char uuid[16];
    char name[BERTH_NAME];
    /* Each is read by itself. A change of several may be seen in part for an instant, which is no
       worse than the change having come a little earlier or later: memory is not weighed against
       compute. */
    shared64 mem_bytes; /* 0: nothing at all */
    shared32 core_pct;  /* 0: not limited */
    shared32 flags;     /* BERTH_BURST, BERTH_AGENT, BERTH_HIGH, BERTH_LOW, BERTH_SHOWS_MAX,
                           BERTH_WITNESS */
    uint64_t made_ns;
    uint64_t retired_swap_bytes; /* of 0.2: how much more of the host's memory; not read */
    /* All 0 in a page of 0.2, whose limit does not grow. */
    shared64 promise_bytes; /* of `mem_bytes`, what is never taken away; 0: all of it */
    shared64 max_bytes;     /* how far `mem_bytes` may grow; 0: not at all */
    shared32 ask_ms;        /* how long a call that does not fit waits for room; 0: not at all */
    shared32 answers;       /* how many wishes were answered; those that wait sleep on this word */
    shared32 stops;         /* how often all processes were kept from the GPU for a while */
    shared32 watch;         /* BERTH_UNWATCHED, BERTH_WATCHED, BERTH_AWAY */
    unsigned char reserved[3936];
};

struct berth_slot {
    shared32 state; /* BERTH_FREE, BERTH_MEMBER, … */
    shared32 pid;   /* as its own pid namespace counts */
    shared64 start_ticks, pid_namespace;
    char command[16]; /* for lists only: one that is read while a new member writes it is mixed */
    shared64 seq, next_held,
        intent; /* the change under way: held after it, its number; 0 when settled */
    shared64 held, peak;
    shared64 gpu_ns;
    shared64 unproven_ns; /* since when it is seen to live without its proof: it has become another
                             program */
    shared64 wish_bytes;  /* what a call waits for; 0: none does. Of 0.2: what was swapped out */
    shared32 outer_pid;   /* what NVML calls it, which in a container is another than `pid`; 0: not
                             known */
    shared32 borrowed; /* how many imports of its are of memory that other slots are charged for */
    shared64 exported_bytes; /* what of `held` was exported */
    shared32 wish;           /* number of the last wish; 0: there was none */
    shared32 answer;         /* the wish that was answered last, twice its number; one more: yes */
    _Alignas(64) shared64 noted; /* the last change of this slot that another process saw done */
    shared64 open_since_ns,      /* since when launches run that were not measured yet; 0: none, */
        open_charged_ns;         /* and what they were charged */
    shared64 export_marks[BERTH_EXPORT_WORDS]; /* by serial number: the slot is charged for it */
    shared32 first_serial;                     /* of those that the marks are of */
    unsigned char pad2[4];
};

struct berth_refusal {
    shared64 number; /* twice its number, from 1; odd while it is being written */
    /* Plain, since `number` says before and after a copy whether it was written meanwhile. */
    uint64_t time_ns, asked_bytes, left_bytes, limit_bytes;
    uint32_t pid, uid;
    char command[16], call[40];
};

struct berth_use_file {
    uint64_t magic;
    uint32_t version, size;
    unsigned char uuid[16];
    shared64 recent_measured_ns,
        recent_raw_ns;     /* compute of late: by NVML, and by the launches as they were measured */
    shared32 trims, mixed; /* whether launches are taken for alike, as NVML would tell if they were
                              not; that it did tell */
    shared32 strangers;    /* whether NVML tells which pids compute, and not which of them this
                              partition is */
    shared32 renumbered;   /* whether NVML's pids were seen to be other than the processes' own */
    struct {
        _Alignas(16) shared64 used;
        shared64 tag;
    } total; /* tag: number of the change << BERTH_TAG_SLOT_BITS | slot + 1 */
    shared64 function_bytes, data_bytes; /* learned too, and seldom: what is loaded with the largest
                                            function, and with variables, plus one */
    shared32 rounding; /* learned: 1: the driver gives bytes as they are asked for, 2: whole steps
                        */
    shared32 pageable_logged; /* that the GPU reaches the memory of the system by itself */
    shared32 wishes;          /* changes with each wish; who answers them sleeps on this word */
    shared32 asked, granted;
    shared32 calls; /* of CUDA, while they are counted */
    unsigned char pad1[8];
    shared64 peak, refused, refused_bytes;
    shared32 slots_seen;
    shared32 mended; /* how often the total was not what the slots hold, and was made so */
    shared64 context_bytes, module_bytes,
        pool_step_bytes; /* learned: what the driver takes for itself */
    shared64 reaped_ns;
    _Alignas(64) shared64 paid_until_ns; /* compute: everything up to here is used up */
    shared64 gpu_ns, measured_ns, measured_at_us, checked_at_ns, charged_then_ns;
    shared32 factor_milli, others_pct;
    shared64 seen_ns; /* the last instant at which time was bought: a clock that fell behind it has
                         jumped */
    shared64 refusal_count;
    shared64 backlog_ns; /* how long work of the partition was on its way to the GPU, all in all */
    shared64 backlog_until_ns, backlog_mark_ns;
    shared64 longest_ns;           /* the longest launch of late, with its wait for others */
    uint64_t retired_measuring_ns; /* not read */
    shared32 given_pct, total_pct;
    shared32 distrust;       /* for how many more looks NVML's word on compute is not taken */
    shared32 left_out_looks; /* at how many looks of late NVML's samples left this partition out:
                                one more for each that did, two less for each that did not */
    struct berth_refusal refusals[BERTH_REFUSALS];
    struct berth_slot slots[BERTH_SLOTS];
};

_Static_assert(sizeof(struct berth_limit_file) == 4096, "the limit file is one page");
_Static_assert(offsetof(struct berth_limit_file, promise_bytes) == 128, "what 0.2 read is before");
_Static_assert(offsetof(struct berth_slot, wish_bytes) == 96 &&
                   offsetof(struct berth_slot, wish) == 120,
               "a wish is where a slot of 0.2 has nothing");
_Static_assert(offsetof(struct berth_use_file, wishes) == 104 &&
                   offsetof(struct berth_use_file, peak) == 128,
               "a count of wishes is where a page of 0.2 has nothing");
_Static_assert(sizeof(struct berth_slot) == 192, "a slot");
_Static_assert(sizeof(struct berth_refusal) == 104, "a refusal");
_Static_assert(offsetof(struct berth_use_file, total) == 64, "the total has a line of its own");
_Static_assert(sizeof(((struct berth_use_file *)0)->total) == 16,
               "one swap changes the whole total");
_Static_assert(offsetof(struct berth_use_file, slots) % 64 == 0, "slots are aligned");

struct berth_region {
    const struct berth_limit_file *limit;
    struct berth_use_file *use;
    void *proof; /* the mapping whose lock says that this process lives; not inherited by fork */
    int slot;    /* -1: looks only */
    struct turn turn;   /* this process's threads take turns at the slot; never across a system call
                           or driver call */
    struct turn asking; /* the threads take turns at the wish too, each for as long as it waits */
    shared32 unheard;   /* `answers`, plus one, when a wish was answered too late; 0: none was */
    uint64_t held;      /* what this process holds, whatever is written into its slot */
    uint32_t pid;       /* who has the slot, whatever is written there, as for the next two */
    uint64_t start_ticks, pid_namespace;
    uint32_t changes; /* of the total, by this process */
    shared64 looked_ns;
    uint64_t disk, inode; /* of the file that is mapped, to which the path may lead no more */
    char path[256];       /* of the use file */
};

struct berth_error {
    char text[512];
};
/* Says what is wrong; always false, for its caller to return. */
__attribute__((format(printf, 2, 3))) bool region_fail(struct berth_error *error,
                                                       const char *format, ...);

/* Opens a region that exists. A missing limit file is no error: false with an empty text. */
bool region_open(struct berth_region *region, const char *folder, const unsigned char uuid[16],
                 struct berth_error *error);
/* Makes the files that are missing, and opens the region. An existing limit is kept unless it is
   not in use and was not the agent's. */
bool region_make(struct berth_region *region, const char *folder, const unsigned char uuid[16],
                 const char *name, uint64_t mem_bytes, uint32_t core_pct, uint32_t flags,
                 struct berth_error *error);
/* The limit for its maker to write; NULL with an error. The caller unmaps it. */
struct berth_limit_file *region_limit(const char *folder, const unsigned char uuid[16],
                                      struct berth_error *error);
/* Whether the path leads to another file by now: the partition was removed and made anew. */
bool region_replaced(const struct berth_region *region);
bool region_join(struct berth_region *region, struct berth_error *error);
void region_close(struct berth_region *region);
/* Around a fork, in the parent: no other thread joins a region meanwhile, because the child would
   inherit the descriptor that holds the lock, and the parent would seem to live as long as it. */
void region_fork_begins(void);
void region_fork_ended(void);
void region_fork_child(void); /* in the child, first of all */
/* After a fork: the child has the parent's mapping and no slot. */
void region_forget(struct berth_region *region);

/* Takes `bytes` if they fit below the limit, at once and whole; `left` gets what was left. */
bool region_take(struct berth_region *region, uint64_t bytes, uint64_t *left);
/* Whether hardware keeps the memory, so that nothing is refused here. */
static inline bool region_is_witness(const struct berth_region *region)
{
    return (LOAD(region->limit->flags) & BERTH_WITNESS) != 0 && LOAD(region->limit->mem_bytes) != 0;
}
void region_note_peak(struct berth_region *region);
/* Takes what does not fit, where hardware keeps the memory; false where the limit is kept here. */
bool region_take_beyond(struct berth_region *region, uint64_t bytes);
/* Takes as much of `bytes` as fits. */
uint64_t region_take_some(struct berth_region *region, uint64_t bytes);
void region_give(struct berth_region *region, uint64_t bytes);
/* Passes a charge on to a slot without a process, which keeps it while any member borrows. False
   where there is none free. */
bool region_lend(struct berth_region *region, uint64_t bytes);
/* Gives back what dead processes held; returns how many were found. */
int region_reap(struct berth_region *region);
/* The same, at most every few milliseconds. */
void region_glance(struct berth_region *region);
void region_refuse(struct berth_region *region, const char *call, uint64_t asked, uint64_t left);

/* How much the limit may become by asking: `mem_bytes` where nobody can be asked. */
uint64_t region_most(const struct berth_region *region);
/* How large a card its processes are shown: the limit, or what it may become (BERTH_SHOWS_MAX). */
uint64_t region_shown(const struct berth_region *region);
/* Asks for room for `bytes` more, and waits for the answer. The call waits since `since_ns`. True:
   there may be room now. False: the answer is no, or there is none. Not to be called with a turn or
   while a stream is captured. */
bool region_ask(struct berth_region *region, uint64_t bytes, uint64_t since_ns);
/* Whether a living process answers the wishes of a region; the locks are of the mapped file. */
bool region_has_granter(const struct berth_region *region);
/* Becomes that process: a descriptor that holds the lock until it is closed, or -1. */
int region_be_granter(const struct berth_region *region);
int futex_wait(const shared32 *word, uint32_t seen, uint64_t ns);
void futex_wake(const shared32 *word);

bool region_check_limit(const void *bytes, size_t size, const unsigned char uuid[16],
                        struct berth_error *error);
bool region_check_use(const void *bytes, size_t size, const unsigned char uuid[16],
                      struct berth_error *error);
void region_uuid_text(const unsigned char uuid[16], char text[37]);
bool region_uuid_parse(const char *text, unsigned char uuid[16]);
uint64_t clock_ns(void);
void clock_forget(void);

#endif

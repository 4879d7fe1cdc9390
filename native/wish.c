/* Asking for room. A call that does not fit below the limit puts a wish into its process's slot and
   wakes who answers (granter.c); then it sleeps on a word of the limit page, which it can read
   only. An answer changes the limit first, then the slot, then that word. It is believed for what
   it is worth: the bytes are taken below the limit, as ever. */
#define _GNU_SOURCE
#include "account.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Of a word that other processes have too. 0, or -1 with `errno` set. */
int futex_wait(const shared32 *word, uint32_t seen, uint64_t ns)
{
    struct timespec most = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
    return (int)syscall(SYS_futex, word, FUTEX_WAIT, seen, &most, NULL, 0);
}

void futex_wake(const shared32 *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint64_t region_most(const struct berth_region *region)
{
    uint64_t limit = LOAD(region->limit->mem_bytes), most = LOAD(region->limit->max_bytes);
    bool asks = region->slot >= 0 && most > limit && LOAD(region->limit->ask_ms) != 0;
    return asks ? most : limit;
}

uint64_t region_shown(const struct berth_region *region)
{
    const struct berth_limit_file *limit = region->limit;
    uint64_t now = LOAD(limit->mem_bytes), most = LOAD(limit->max_bytes);
    if (now == 0 && LOAD(limit->watch) == BERTH_AWAY) /* others have it until it comes back */
        now = LOAD(limit->promise_bytes) != 0 ? LOAD(limit->promise_bytes) : most;
    return most > now && (LOAD(limit->flags) & BERTH_SHOWS_MAX) != 0 ? most : now;
}

/* With the turn of asking. Who was silent for a whole wait is asked no more until it shows, by any
   other answer or by beginning anew, that it can be asked again. */
static bool can_be_asked(struct berth_region *region)
{
    uint32_t unheard = LOAD(region->unheard);
    if (unheard != 0 && unheard == LOAD_ACQUIRE(region->limit->answers) + 1)
        return false;
    return region_has_granter(region);
}

/* When a call that waits since then has waited long enough: who answers may say longer later. */
static uint64_t until(const struct berth_region *region, uint64_t since_ns)
{
    return since_ns + LOAD(region->limit->ask_ms) * UINT64_C(1000000);
}

/* `before`: `answers` when it was asked. */
static bool wait_for_answer(struct berth_region *region, uint32_t number, uint32_t before,
                            uint64_t since_ns)
{
    const struct berth_limit_file *limit = region->limit;
    const struct berth_slot *slot = &region->use->slots[region->slot];
    for (;;) {
        uint32_t answers = LOAD_ACQUIRE(limit->answers), answer = LOAD_ACQUIRE(slot->answer);
        if (answer >> 1 == number) {
            STORE(region->unheard, 0);
            return answer & 1;
        }
        uint64_t now = clock_ns(), until_ns = until(region, since_ns);
        if (now >= until_ns) {
            STORE(region->unheard, answers == before ? answers + 1 : 0);
            return false;
        }
        if (futex_wait(&limit->answers, answers, until_ns - now) != 0 && errno != EAGAIN &&
            errno != EINTR && errno != ETIMEDOUT)
            return false;
    }
}

bool region_ask(struct berth_region *region, uint64_t bytes, uint64_t since_ns)
{
    KEEPS_ERRNO;
    if (region->slot < 0)
        return false;
    if (!turn_try(&region->asking)) { /* what another thread is given may do for this one too */
        /* Ever longer: looking each 100 us costs 5 % of a core as long as a job is suspended. */
        for (long pause_ns = 100000; clock_ns() < until(region, since_ns);) {
            nanosleep(&(struct timespec){ 0, pause_ns }, NULL);
            if (atomic_load(&region->asking.word) == 0)
                break;
            pause_ns += pause_ns < 10000000 ? pause_ns / 8 : 0;
        }
        return clock_ns() < until(region, since_ns);
    }
    struct berth_slot *slot = &region->use->slots[region->slot];
    bool granted = false;
    if (can_be_asked(region)) {
        uint32_t number = (LOAD(slot->wish) + 1) & (UINT32_MAX >> 1);
        uint32_t before = LOAD_ACQUIRE(region->limit->answers);
        STORE(slot->wish_bytes, bytes);
        STORE_RELEASE(slot->wish, number);
        atomic_fetch_add(&region->use->asked, 1);
        atomic_fetch_add(&region->use->wishes, 1);
        futex_wake(&region->use->wishes);
        granted = wait_for_answer(region, number, before, since_ns);
        STORE(slot->wish_bytes, 0);
    }
    turn_leave(&region->asking);
    return granted;
}

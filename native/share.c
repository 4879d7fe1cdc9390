/* The partition's time: GPU time is what is charged, and a launch waits until the time before it is
   paid for.

   The region holds one number, the instant up to which the partition's time is used up. A launch
   that costs c at a share of p per cent moves it by c * 100 / p and starts where it stood; so the
   share holds over any two launches, processes queue in the order they came, and a killed one
   leaves nothing behind. Time that passes unused is lost but for a little, unless work of the
   partition was on its way meanwhile and others kept the GPU: that may be caught up.

   What NVML reports corrects the sum where others compute: a launch that waited for them seems
   longer than it is. It is believed as far as that explains it, since a launch never takes longer
   than it seems. */
#define _GNU_SOURCE
#include "share.h"
#include "nvml_delta.h"
#include "settings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* NVML's documents set the times: use is sampled over 1/6 to 1 s, in whole per cents. The others
   were chosen by hand; bench/partition_shares.py judges all of them together. */
enum {
    CHECK_NS = 500 * 1000 * 1000,    /* between two looks: within one or two of NVML's periods */
    SAMPLES_NS = 1500 * 1000 * 1000, /* its longest period and a look: what is older tells */
    MOST_SAMPLES = 512,
    NONE_PCT = 2,   /* of use by others that counts as none: what rounding may show of nothing */
    UNSURE_PCT = 6, /* what was charged and what was used may differ by, of late */
    FULL_PCT = 97,  /* a card in use by so much has nothing left */

    /* What a burst leaves, and what low priority gets. */
    FREE_PCT = 4,       /* of the GPU, to others that use it: they could not show more want */
    ALONE_PCT = 98,     /* is taken of a GPU that no other uses: one that begins finds no queue */
    LOW_PCT = 5,        /* on a full card */
    LOW_BLIND_PCT = 20, /* where NVML does not tell how full it is */

    /* How much time may be caught up, and owed: in launches, since none can be cut short. */
    SLACK_NS = 20 * 1000 * 1000,  /* unused: a few launches of a usual program */
    KEPT_LAUNCHES = 8,            /* that others took: so many of the longest of late, */
    KEPT_NS = 1000 * 1000 * 1000, /* at most */
    DEBT_LAUNCHES = 64,           /* of those, owed at once: as many as are guessed (measure.c) */
    SLICE_NS = 100 * 1000 * 1000, /* of a wait, between which the region is looked at */
    JUMP_NS = 1000 * 1000 * 1000, /* a clock that falls back by more has jumped */

    /* When NVML's word is not taken. */
    DISTRUST_LOOKS = 20, /* ten seconds */
    LEFT_OUT_PCT = 10,   /* charged at least before its samples may be said to leave it out, */
    LEFT_OUT_LOOKS = 4   /* at so many looks, of which one that does not takes two off */
};
#define DEBT_NS 10000000000ull  /* beside this */
#define NOT_REPORTED UINT32_MAX /* others_pct: NVML does not tell */

static uint32_t ceiling_pct(const struct device *device)
{
    uint32_t pct = LOAD(device->region.limit->core_pct);
    return pct == 0 || pct > 100 ? 100 : pct;
}

bool share_limits(const struct device *device)
{
    return LOAD(device->region.limit->core_pct) != 0 ||
           (LOAD(device->region.limit->flags) & BERTH_LOW) != 0;
}

bool share_contended(const struct device *device)
{
    uint32_t others = LOAD(device->region.use->others_pct);
    return others != NOT_REPORTED && others > NONE_PCT;
}

bool share_alone(const struct device *device, uint64_t *looked_ns)
{
    *looked_ns = LOAD(device->region.use->checked_at_ns);
    return LOAD(device->region.use->others_pct) <= NONE_PCT;
}

bool share_knows(const struct device *device)
{
    return LOAD(device->region.use->trims) != 0 || LOAD(device->region.use->mixed) != 0;
}

bool share_may_trim(const struct device *device)
{
    return LOAD(device->region.use->trims) != 0;
}

static uint32_t share_pct(const struct device *device)
{
    uint32_t pct = ceiling_pct(device), flags = LOAD(device->region.limit->flags);
    uint32_t others = LOAD(device->region.use->others_pct);
    if (flags & BERTH_LOW) {
        uint32_t given = LOAD(device->region.use->given_pct),
                 least = others == NOT_REPORTED ? LOW_BLIND_PCT : LOW_PCT;
        given = given > least ? given : least;
        return given < pct || (flags & BERTH_BURST) != 0 ? given : pct;
    }
    if ((flags & BERTH_BURST) == 0)
        return pct;
    if (flags & BERTH_HIGH)
        return ALONE_PCT;
    /* What others leave is there to be used. Two that both want all of it are each sure of their
       own share, and what one has beyond it shrinks as the other comes, faster on a full card: they
       settle at their shares. A little is left free beside others: on a GPU that is full they could
       not show that they want more. */
    if (others == NOT_REPORTED || LOAD(device->region.use->strangers) != 0)
        return pct;
    uint32_t most = others <= NONE_PCT ? ALONE_PCT : 100 - FREE_PCT,
             left = others < most ? most - others : 0;
    if (left <= pct)
        return pct;
    return others <= NONE_PCT || LOAD(device->region.use->total_pct) < FULL_PCT
               ? left
               : left - (left - pct) / 2;
}

uint64_t share_within(const struct device *device, uint64_t wall_ns)
{
    return wall_ns * share_pct(device) / 100;
}

bool share_measures(void)
{
    return HAVE(cuEventCreate) && HAVE(cuEventRecord) && HAVE(cuEventQuery) &&
           (HAVE(cuEventElapsedTime) || HAVE(cuEventElapsedTime_v2)) && HAVE(cuCtxGetCurrent);
}

uint64_t share_scaled(const struct device *device, uint64_t ns)
{
    uint32_t factor = LOAD(device->region.use->factor_milli);
    return factor == 0 ? ns : ns * factor / 1000;
}

static void charge(struct device *device, int64_t ns)
{
    struct berth_use_file *use = device->region.use;
    atomic_fetch_add(&use->gpu_ns, (uint64_t)ns);
    if (device->region.slot >= 0)
        atomic_fetch_add(&use->slots[device->region.slot].gpu_ns, (uint64_t)ns);
}

void share_correct(struct device *device, int64_t ns)
{
    atomic_fetch_add(&device->region.use->paid_until_ns,
                     (uint64_t)(ns * 100 / (int64_t)share_pct(device)));
    charge(device, ns);
}

/* By how long and not until when: a clock that jumps meanwhile changes nothing. */
void share_sleep(uint64_t ns)
{
    struct timespec left = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) { }
}

void share_backlog(struct device *device, uint64_t begun_ns, uint64_t took_ns)
{
    struct berth_use_file *use = device->region.use;
    uint64_t until = LOAD(use->backlog_until_ns), end = begun_ns + took_ns;
    uint64_t longest = LOAD(use->longest_ns);
    if (took_ns > longest)
        atomic_store(&use->longest_ns, took_ns);
    if (end > until && atomic_compare_exchange_strong(&use->backlog_until_ns, &until, end))
        atomic_fetch_add(&use->backlog_ns, end - (begun_ns > until ? begun_ns : until));
}

/* How long work was on its way since the partition's time was last used up. */
static uint64_t kept_ns(struct berth_use_file *use)
{
    uint64_t kept = LOAD(use->backlog_ns) - LOAD(use->backlog_mark_ns);
    return smaller(kept, smaller(KEPT_LAUNCHES * LOAD(use->longest_ns), KEPT_NS));
}

/* The machine was restarted, or the clock set back: the instants of the region are moved along. */
static void follow_clock(struct berth_use_file *use, uint64_t now)
{
    uint64_t seen = LOAD(use->seen_ns);
    if (now > seen || seen - now < JUMP_NS) {
        STORE(use->seen_ns, now > seen ? now : seen);
        return;
    }
    if (!atomic_compare_exchange_strong(&use->seen_ns, &seen, now))
        return;
    log_line("the clock fell back by %llu ms; so does the time that the partition has paid for",
             (unsigned long long)((seen - now) / 1000000));
    atomic_fetch_sub(&use->paid_until_ns, seen - now);
    atomic_store(&use->backlog_until_ns, now);
    atomic_store(&use->checked_at_ns, now);
}

/* How long to wait, at most what the longest launches of late explain: an instant beyond that was
   written by a process of another clock, and must not stop the others. */
static uint64_t bounded(struct device *device, uint64_t now, uint64_t wait, uint32_t pct)
{
    struct berth_use_file *use = device->region.use;
    uint64_t most = DEBT_NS + DEBT_LAUNCHES * LOAD(use->longest_ns) * 100 / pct;
    uint64_t paid = atomic_load(&use->paid_until_ns);
    static shared32 logged;
    if (wait <= most)
        return wait;
    /* To an instant and not by a difference, which each of several would take off. */
    while ((int64_t)(paid - (now + most)) > 0 &&
           !atomic_compare_exchange_weak(&use->paid_until_ns, &paid, now + most)) { }
    if (atomic_exchange(&logged, 1) == 0)
        log_line("the partition's time was used up for %llu ms to come, which no launch explains; "
                 "set back to %llu ms",
                 (unsigned long long)(wait / 1000000), (unsigned long long)(most / 1000000));
    return most;
}

/* In slices, since what the region says may be put right meanwhile. */
static void wait_for(struct device *device, uint64_t start, uint64_t wait)
{
    while ((int64_t)wait > 0) {
        uint64_t slice = wait < SLICE_NS ? wait : SLICE_NS, before = clock_ns();
        share_sleep(slice);
        uint64_t slept = clock_ns() - before,
                 paid = atomic_load(&device->region.use->paid_until_ns);
        slept = slept > slice && slept < 10ull * SLICE_NS ? slept : slice;
        if ((int64_t)(paid - start) < 0) { /* set back */
            slept += start - paid;
            start = paid;
        }
        wait = slept < wait ? wait - slept : 0;
    }
}

void share_buy(struct device *device, uint64_t ns)
{
    struct berth_use_file *use = device->region.use;
    uint32_t pct = share_pct(device);
    uint64_t now = clock_ns(), wall = ns * 100 / pct, start, paid, floor;
    follow_clock(use, now);
    floor = now - SLACK_NS - kept_ns(use);
    paid = atomic_load(&use->paid_until_ns);
    do {
        start = (int64_t)(paid - floor) < 0 ? floor : paid;
    } while (!atomic_compare_exchange_weak(&use->paid_until_ns, &paid, start + wall));
    if ((int64_t)(start - (now - SLACK_NS)) >= 0)
        atomic_store(&use->backlog_mark_ns, LOAD(use->backlog_ns));
    charge(device, (int64_t)ns);
    if (pct < 100 && (int64_t)(start - now) > 0) {
        uint64_t wait = bounded(device, now, start - now, pct);
        wait_for(device, now + wait, wait);
    }
}

/* ---- what NVML says ---- */

struct report {
    bool by_process, reported; /* which process uses the card; how much it is used */
    bool rated; /* how much it is used by all, whether the samples tell of them or not */
    uint32_t total_pct, ours_pct, ours, others, rated_pct;
    uint64_t latest_us;
    NVutilization samples[MOST_SAMPLES];
    unsigned count;
};

static void ask(struct device *device, struct report *report, uint64_t after_us)
{
    NVdevice handle = device_nvml(device);
    NVrates rates;
    memset(report, 0, offsetof(struct report, samples));
    report->latest_us = after_us;
    report->count = MOST_SAMPLES;
    if (handle != NULL && HAVE(nvmlDeviceGetProcessUtilization)) {
        int result =
            real.nvmlDeviceGetProcessUtilization(handle, report->samples, &report->count, after_us);
        report->by_process = result == NV_SUCCESS || result == NV_NOT_FOUND;
        report->count = result == NV_SUCCESS && report->count <= MOST_SAMPLES ? report->count : 0;
    }
    for (unsigned i = 0; report->by_process && i < report->count; i++) {
        const NVutilization *one = &report->samples[i];
        uint32_t pct = one->sm_pct <= 100 ? one->sm_pct : 0;
        bool ours = processes_ours(&device->region, one->pid);
        report->latest_us = one->time_us > report->latest_us ? one->time_us : report->latest_us;
        report->total_pct += pct;
        report->ours_pct += ours ? pct : 0;
        report->ours += ours && pct != 0;
        report->others += !ours && pct != 0;
    }
    report->reported = report->by_process && report->total_pct != 0;
    report->rated = handle != NULL &&
                    REAL(nvmlDeviceGetUtilizationRates)(handle, &rates) == NV_SUCCESS &&
                    rates.gpu_pct <= 100;
    report->rated_pct = report->rated ? rates.gpu_pct : 0;
    if (!report->reported && report->rated) {
        report->total_pct = report->rated_pct;
        report->reported = true;
    }
    report->total_pct = report->total_pct < 100 ? report->total_pct : 100;
}

/* NVML's samples may leave this partition out and tell of the others alone. Then what all use
   beyond the samples is taken for this partition's, which may be too much and is never too little.
   That is believed after several looks at which the samples are well below the use of the card as a
   whole, though this partition computes, and until it was not so at several others. */
static bool left_out(struct berth_use_file *use, const struct report *report, uint64_t charged_pct)
{
    uint32_t looks = LOAD(use->left_out_looks);
    bool beyond =
        report->rated && charged_pct >= LEFT_OUT_PCT &&
        report->rated_pct >= (report->count != 0 ? report->total_pct : 0) + LEFT_OUT_PCT / 2;
    if (!report->by_process || report->ours != 0)
        looks = 0;
    else if (beyond)
        looks += looks < LEFT_OUT_LOOKS * 2;
    else
        looks -= looks < 2 ? looks : 2;
    atomic_store(&use->left_out_looks, looks);
    return looks >= LEFT_OUT_LOOKS;
}

/* Each process finds out for itself by which pid NVML knows it. Samples of use may come more seldom
   than looks: one that finds nothing newer than the last, which is not old, tells nothing. */
static void watch(struct device *device, struct report *report, uint64_t now)
{
    static struct {
        shared64 at_ns, from_ns, sampled_ns, charged_ns, after_us;
    } seen[MAX_DEVICES];
    __typeof__(&seen[0]) here = &seen[device->ordinal];
    uint64_t then = LOAD(here->at_ns);
    if (device->region.slot < 0 || now - then < CHECK_NS ||
        !atomic_compare_exchange_strong(&here->at_ns, &then, now))
        return;
    uint64_t after_us = LOAD(here->after_us);
    ask(device, report, after_us);
    atomic_store(&here->after_us, report->latest_us);
    if (report->count != 0)
        atomic_store(&here->sampled_ns, now);
    else if (report->by_process && now - LOAD(here->sampled_ns) < SAMPLES_NS)
        return;
    uint64_t charged = LOAD(device->region.use->slots[device->region.slot].gpu_ns);
    uint64_t since = atomic_exchange(&here->charged_ns, charged),
             from = atomic_exchange(&here->from_ns, now);
    if (report->by_process && (after_us != 0 || report->count == 0) &&
        now - from < 4ull * CHECK_NS && charged >= since)
        processes_watch(device, report->samples, report->count,
                        (unsigned)((charged - since) * 100 / (now - from)));
    else if (report->by_process && from == 0)
        processes_watch(device, report->samples, report->count, 0);
}

/* A low priority takes what is left, and gives way by halves where the card is full. */
static void give_way(struct device *device, uint32_t total_pct, uint32_t others_pct)
{
    struct berth_use_file *use = device->region.use;
    uint32_t given = LOAD(use->given_pct), ceiling = ceiling_pct(device);
    if (LOAD(device->region.limit->flags) & BERTH_BURST)
        ceiling = 100;
    if (others_pct == NOT_REPORTED || others_pct <= NONE_PCT)
        given = others_pct == NOT_REPORTED ? 0 : ceiling;
    else if (total_pct >= FULL_PCT)
        given /= 2;
    else
        given += (100 - FREE_PCT > total_pct ? 100 - FREE_PCT - total_pct : 0) / 2;
    given = given > LOW_PCT ? given : LOW_PCT;
    atomic_store(&use->given_pct, given < ceiling ? given : ceiling);
}

/* No other partition computes: what a launch seems to take is what it takes. */
static void start_over(struct berth_use_file *use)
{
    atomic_store(&use->recent_measured_ns, 0);
    atomic_store(&use->recent_raw_ns, 0);
    atomic_store(&use->factor_milli, 1000);
    atomic_store(&use->mixed, 0);
}

/* The factor by which measured launches are charged: what NVML saw of late beside what they seemed
   to take. */
static void settle(struct device *device, const struct report *report, uint64_t window,
                   uint64_t charged)
{
    struct berth_use_file *use = device->region.use;
    static struct {
        shared64 measured_ns;
        shared32 raised;
    } before[MAX_DEVICES];
    uint32_t factor = LOAD(use->factor_milli),
             others = report->total_pct - report->ours_pct + report->others;
    factor = factor == 0 ? 1000 : factor;
    /* NVML rounds down to whole per cents: half a point for each process is what that loses on
       average. */
    uint64_t measured = (report->ours_pct * 2 + report->ours) * window / 200;
    uint64_t raw = charged * 1000 / factor, waited = others * window / 100;
    if (share_measures() && measured + waited < raw)
        measured = raw - waited; /* others' work explains no more than that */
    atomic_fetch_add(&use->measured_ns, measured);
    /* A report is coarse and late: several are taken together, and believed where they differ by
       more than that. */
    measured += LOAD(use->recent_measured_ns) / 2;
    raw += LOAD(use->recent_raw_ns) / 2;
    atomic_store(&use->recent_measured_ns, measured);
    atomic_store(&use->recent_raw_ns, raw);
    uint64_t apart = measured > raw ? measured - raw : raw - measured;
    if (raw == 0 || apart * 100 < window * 2 * 2) {
        atomic_store(&use->factor_milli, 1000);
        return;
    }
    uint64_t wanted = measured * 1000 / raw;
    /* More than the least of the launches: they do differ. */
    if (wanted > 1150 && LOAD(use->trims) != 0) {
        start_over(use);
        atomic_store(&use->mixed, 1);
        atomic_store(&use->trims, 0);
        return;
    }
    if (wanted < factor / 2) /* what was launched may not have run yet */
        wanted = factor / 2;
    wanted = wanted < 1 ? 1 : wanted < 1000000000u ? wanted : 1000000000u;
    /* What is charged ever more for its launches and does not use less is not what NVML takes it
       for. */
    if (wanted > 4000 && wanted > factor) {
        if (atomic_fetch_add(&before[device->ordinal].raised, 1) > 2 &&
            measured * 10 >= LOAD(before[device->ordinal].measured_ns) * 9) {
            atomic_store(&use->distrust, DISTRUST_LOOKS);
            wanted = 1000;
        }
        atomic_store(&before[device->ordinal].measured_ns, measured);
    } else {
        atomic_store(&before[device->ordinal].raised, 0);
    }
    atomic_store(&use->factor_milli, (uint32_t)wanted);
}

void share_check(struct device *device)
{
    struct berth_use_file *use = device->region.use;
    uint64_t now = clock_ns(), then = LOAD(use->checked_at_ns);
    struct report *report = NULL;
    static _Thread_local uint64_t looked_ns[MAX_DEVICES]; /* most calls come too early */
    if (now - looked_ns[device->ordinal] < CHECK_NS / 8)
        return;
    looked_ns[device->ordinal] = now;
    report = malloc(sizeof *report);
    if (report == NULL)
        return;
    watch(device, report, now);
    if (now - then < CHECK_NS || !atomic_compare_exchange_strong(&use->checked_at_ns, &then, now)) {
        free(report);
        return;
    }
    uint64_t charged = LOAD(use->gpu_ns), since = atomic_exchange(&use->charged_then_ns, charged);
    uint64_t after_us = LOAD(use->measured_at_us), window = now - then;
    bool recent = then != 0 && window <= 4ull * CHECK_NS && charged > since;
    charged = recent ? charged - since : 0;
    if (charged > window) { /* they waited for others, and more than once each */
        int64_t more = (int64_t)(charged - window);
        share_correct(device, -more);
        atomic_fetch_sub(&use->charged_then_ns, (uint64_t)more);
        charged = window;
    }
    ask(device, report, after_us);
    atomic_store(&use->measured_at_us, report->latest_us);
    atomic_store(&use->longest_ns, LOAD(use->longest_ns) * 7 / 8);
    bool known = report->by_process && processes_known(&device->region);
    uint64_t charged_pct = charged * 100 / (window != 0 ? window : 1);
    bool unseen = !known && left_out(use, report, charged_pct);
    if (known)
        atomic_store(&use->left_out_looks, 0);
    if (unseen) {
        uint32_t samples_pct = report->count != 0 ? report->total_pct : 0;
        report->ours_pct = report->rated_pct > samples_pct ? report->rated_pct - samples_pct : 0;
        report->ours = 1;
        report->total_pct = samples_pct + report->ours_pct;
        known = report->reported = true;
    }
    uint32_t own = report->ours_pct, others;
    /* What a partition that is left out uses is too rough to burst by: it keeps to its share. */
    atomic_store(&use->strangers, report->by_process && report->count != 0 && (!known || unseen));
    atomic_store(&use->trims,
                 known && report->ours != 0 && LOAD(use->mixed) == 0 && LOAD(use->distrust) == 0);
    /* A card cannot be used by less than this partition uses. */
    if (recent && charged_pct >= 20 && report->total_pct * 2 < charged_pct)
        report->reported = report->by_process = false;
    if (!known || report->ours == 0)
        own = (uint32_t)smaller(charged_pct + UNSURE_PCT, report->total_pct);
    others = report->reported     ? (uint32_t)above(report->total_pct, own)
             : report->by_process ? 0
                                  : NOT_REPORTED;
    atomic_store(&use->others_pct, others);
    atomic_store(&use->total_pct, report->total_pct);
    if (LOAD(device->region.limit->flags) & BERTH_LOW)
        give_way(device, report->total_pct, others);
    uint32_t distrust = LOAD(use->distrust);
    if (distrust != 0)
        atomic_store(&use->distrust, distrust - 1);
    else if (others <= NONE_PCT && share_measures())
        start_over(use);
    else if (recent && known && report->ours != 0 && after_us != 0)
        settle(device, report, window, charged);
    free(report);
}

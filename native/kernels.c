/* What launches of each kernel with each number of blocks were measured to take.

   Launches of one kernel with the same blocks may take any time (a persistent kernel works as long
   as its data last), so what is charged is their mean, and a launch that was measured is charged
   what it took. Others' work in between makes a launch seem longer. So where others compute,
   launches count that came right behind others of this process, which leave others no gap; and
   where most of them agree on the least, that is what it takes.

   Shapes that change for ever bring launches that were never measured: each is charged what its
   function took of late. */
#define _GNU_SOURCE
#include "kernels.h"
#include "share.h"

#include <string.h>

enum {
    KERNELS = 1 << 12,
    FAMILIES = 1 << 10,
    MORE_BLOCKS =
        8, /* a launch with more blocks is estimated to take at most this many times the mean */
    MEAN_OF = 64,
    ALONE_OF = 1024,
    EVENT_STEP_NS = 1000,
    SAMPLES = sizeof((struct kernel *)0)->samples / sizeof(shared64)
};

static struct kernel kernels[KERNELS];
static struct family families[FAMILIES], all_launches[MAX_DEVICES];
static char graphs; /* its address is the family of all graphs */

struct kernel *kernels_of(void *what, uint64_t blocks, CUcontext context)
{
    size_t start = kernels_place(what, blocks);
    for (size_t i = 0; i < 32; i++) {
        struct kernel *kernel = &kernels[(start + i) % KERNELS];
        void *seen = atomic_load(&kernel->what);
        if (seen == NULL && atomic_compare_exchange_strong(&kernel->what, &seen, what)) {
            atomic_store(&kernel->blocks, blocks);
            atomic_store(&kernel->context, context);
            return kernel;
        }
        if (seen == what && atomic_load(&kernel->blocks) == blocks &&
            atomic_load(&kernel->context) == context)
            return kernel;
    }
    return NULL;
}

struct family *kernels_family(void *what, uint64_t blocks, CUcontext context)
{
    what = blocks == 0 ? &graphs : what;
    size_t start = kernels_place(what, 0);
    for (size_t i = 0; i < 32; i++) {
        struct family *family = &families[(start + i) % FAMILIES];
        void *seen = atomic_load(&family->what);
        if (seen == NULL && atomic_compare_exchange_strong(&family->what, &seen, what)) {
            atomic_store(&family->context, context);
            return family;
        }
        if (seen == what && atomic_load(&family->context) == context)
            return family;
    }
    return &families[start % FAMILIES]; /* a crowd shares */
}

static void follow(struct family *family, uint64_t ns, uint64_t blocks)
{
    uint64_t mean = atomic_load(&family->mean_ns), mean_blocks = atomic_load(&family->mean_blocks);
    ns = ns != 0 ? ns : 1;
    atomic_store(&family->mean_blocks, mean == 0 ? blocks : (mean_blocks * 3 + blocks) / 4);
    atomic_store(&family->mean_ns, mean == 0 ? ns : (mean * 3 + ns + 3) / 4);
}

uint64_t kernels_estimate(const struct device *device, const struct family *family, uint64_t blocks)
{
    uint64_t mean = atomic_load(&family->mean_ns), usual = atomic_load(&family->mean_blocks);
    if (mean == 0) {
        mean = atomic_load(&all_launches[device->ordinal].mean_ns);
        return mean > FIRST_COST_NS ? mean : FIRST_COST_NS;
    }
    if (usual == 0 || blocks <= usual)
        return mean;
    return blocks / usual >= MORE_BLOCKS
               ? mean * MORE_BLOCKS
               : (uint64_t)((double)mean * (double)blocks / (double)usual);
}

/* What the last few launches took that agree on the least, if they are many; 0 otherwise. */
static uint64_t agreed(const uint64_t *samples, uint32_t count, uint64_t mean, bool *varies)
{
    uint64_t least = UINT64_MAX, most = 0, near_sum = 0, near_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        least = samples[i] < least ? samples[i] : least;
        most = samples[i] > most ? samples[i] : most;
    }
    for (uint32_t i = 0; i < count; i++)
        if (samples[i] <= least + least / 16) {
            near_sum += samples[i];
            near_count++;
        }
    /* By more than what a GPU tells two instants apart by. */
    uint64_t alike = least + least / 4 + EVENT_STEP_NS;
    *varies = most > alike || mean > alike;
    return near_count * 3 >= count ? near_sum / near_count : 0;
}

static void spread_by(struct spread *spread, uint64_t sum_ns, uint64_t count, uint64_t least_ns,
                      uint64_t most_ns)
{
    atomic_fetch_add(&spread->sum_ns, sum_ns);
    if (atomic_fetch_add(&spread->count, count) == 0 || least_ns < atomic_load(&spread->least_ns))
        atomic_store(&spread->least_ns, least_ns);
    if (most_ns > atomic_load(&spread->most_ns))
        atomic_store(&spread->most_ns, most_ns);
}

/* Keeps apart what launches took while no other partition computed, which is known at NVML's next
   look; returns their mean, 0 while they are too few to tell. */
static uint64_t take_note(struct device *device, struct kernel *kernel, uint64_t ns)
{
    struct spread *pending = &kernel->pending;
    uint64_t looked_ns, count;
    bool alone = share_alone(device, &looked_ns);
    if (atomic_exchange(&kernel->pending_since_ns, looked_ns) != looked_ns) {
        if (alone && (count = atomic_load(&pending->count)) != 0 &&
            atomic_load(&kernel->alone.count) < ALONE_OF)
            spread_by(&kernel->alone, atomic_load(&pending->sum_ns), count,
                      atomic_load(&pending->least_ns), atomic_load(&pending->most_ns));
        atomic_store(&pending->count, 0); /* first: nothing else is believed without it */
        atomic_store(&pending->sum_ns, 0);
        atomic_store(&pending->least_ns, 0);
        atomic_store(&pending->most_ns, 0);
    }
    if (alone)
        spread_by(pending, ns, 1, ns, ns);
    count = atomic_load(&kernel->alone.count);
    bool alike =
        atomic_load(&kernel->alone.most_ns) <= atomic_load(&kernel->alone.least_ns) * 5 / 4;
    return count >= (alike ? SAMPLES : ALONE_OF / 4) ? atomic_load(&kernel->alone.sum_ns) / count
                                                     : 0;
}

uint64_t kernels_learn(struct device *device, struct kernel *kernel, uint64_t ns, bool behind)
{
    bool contended = share_contended(device), knows = contended && share_knows(device);
    uint64_t samples[SAMPLES], cost, mean = atomic_load(&kernel->mean_ns);
    uint32_t count = atomic_load(&kernel->sample_count);
    bool varies;
    if (behind && contended && atomic_fetch_add(&kernel->behind_count, 1) == 0)
        atomic_store(&kernel->sample_count,
                     count = 0); /* the first that is worth more than those before */
    if (!knows || behind || atomic_load(&kernel->behind_count) == 0) {
        count = atomic_fetch_add(&kernel->sample_count, 1);
        atomic_store(&kernel->samples[count % SAMPLES], ns ? ns : 1);
        count++;
        int64_t weight = count < MEAN_OF ? count : MEAN_OF;
        mean = (uint64_t)((int64_t)mean + ((int64_t)ns - (int64_t)mean) / weight);
        atomic_store(&kernel->mean_ns, mean);
    }
    count = count < SAMPLES ? count : SAMPLES;
    for (uint32_t i = 0; i < count; i++)
        samples[i] = atomic_load(&kernel->samples[i]);
    cost = agreed(samples, count, mean, &varies);
    bool trimmed = contended && cost != 0 && share_may_trim(device);
    uint64_t alone = take_note(device, kernel, ns);
    bool as_alone = contended && !trimmed && alone != 0;
    cost = trimmed ? cost : as_alone ? alone : mean;
    atomic_store(&kernel->varies, varies);
    atomic_store(&kernel->cost_ns, cost ? cost : 1);
    if (as_alone)
        return cost;
    bool kept = trimmed || (knows && !behind && atomic_load(&kernel->behind_count) != 0);
    return kept && ns > cost ? cost : ns;
}

void kernels_follow(struct device *device, struct family *family, uint64_t ns, uint64_t blocks,
                    bool estimated)
{
    if (family != NULL)
        follow(family, ns, blocks);
    if (estimated)
        follow(&all_launches[device->ordinal], ns, 0);
}

void kernels_forget(void)
{
    memset(kernels, 0, sizeof kernels);
    memset(families, 0, sizeof families);
    memset(all_launches, 0, sizeof all_launches);
}

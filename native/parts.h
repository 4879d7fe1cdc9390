/* What the parts do for one another without knowing of each other: each registers it, in one line.
 */
#ifndef BERTH_PARTS_H
#define BERTH_PARTS_H

#include <stdatomic.h>
#include <stdint.h>

struct device;
struct turn;

struct part {
    /* Around a fork, in the parent: what a child must not inherit half done is waited for. */
    _Alignas(64) void (*fork_begins)(void); /* one follows another without a gap */
    void (*fork_ended)(void);
    /* After a fork: the child holds nothing, and no turn is taken. */
    void (*forget)(void);
    struct turn *turn;
    /* Gives back what the process holds of a device and does not use; NULL: of all. */
    void (*reclaim)(struct device *device);
};

/* Registered by the linker, so that it is there before any constructor has run. */
#define PART(...)                                                                                 \
    static const struct part part __attribute__((section("berth_parts"), used)) = { __VA_ARGS__ }

/* Something is held that may not be used. A part that reclaims in vain sets it anew. */
extern _Atomic uint32_t parts_dirty; /* written by parts.c alone */
void parts_mark_dirty(void);

void parts_fork_begins(void);
void parts_fork_ended(void);
void parts_forget(void);
void parts_reclaim(struct device *device);

#endif

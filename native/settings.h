/* What the environment says, and the log that it names. */
#ifndef BERTH_SETTINGS_H
#define BERTH_SETTINGS_H

#include "berth.h"

struct setting {
    bool given, per_device;
    int count;
    struct {
        int index;
        unsigned char uuid[16];
        bool by_uuid;
        uint64_t value;
    } items[MAX_DEVICES];
    uint64_t value;
};
struct settings {
    bool active;        /* anything is limited at all */
    char wrong[512];    /* why the limits cannot be known; then there is no GPU */
    shared32 no_gpu;    /* set after `wrong` */
    char folder[256];   /* of the region */
    bool made_by_agent; /* its limits are the agent's, and a GPU without one has none */
    bool burst;
    uint32_t priority; /* BERTH_HIGH, BERTH_LOW, or 0 */
    struct setting mem_mib, core_pct;
    char log_path[256];
};
extern struct settings settings;
void settings_read(void);
/* The limits cannot be known: from here on there is no GPU. */
void settings_fail(const char *why);
bool settings_parse(struct setting *setting, const char *variable, const char *text, uint64_t most,
                    char *wrong, size_t wrong_size);
/* The value for a device; false where a list names others only. */
bool settings_for(const struct setting *setting, int index, const unsigned char uuid[16],
                  uint64_t *value);
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

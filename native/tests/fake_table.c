/* Every entry point of the published driver interface: those that nothing here implements
   answer "not supported". And the driver's own lookup by name, version and flags. */
#include "fake.h"

#define ENTRY(name, version, per_thread, symbol)            \
    FAKE_EXPORT __attribute__((weak)) CUresult symbol(void) \
    {                                                       \
        return CUDA_ERROR_NOT_SUPPORTED;                    \
    }
#include "../entry_points.h"
#undef ENTRY

static const struct {
    const char *name;
    int version, per_thread;
    void *address;
} table[] = {
#define ENTRY(name, version, per_thread, symbol) { #name, version, per_thread, (void *)symbol },
#include "../entry_points.h"
#undef ENTRY
};

void *fake_lookup(const char *name, int version, bool per_thread, bool *known)
{
    void *best = NULL;
    int best_version = -1, best_thread = -1;
    *known = false;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].name, name) != 0)
            continue;
        *known = true;
        if (table[i].version > version || table[i].per_thread > (int)per_thread)
            continue;
        if (table[i].per_thread > best_thread ||
            (table[i].per_thread == best_thread && table[i].version > best_version)) {
            best = table[i].address;
            best_version = table[i].version;
            best_thread = table[i].per_thread;
        }
    }
    return best;
}

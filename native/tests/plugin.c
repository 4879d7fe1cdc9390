/* A plug-in as frameworks load them: linked to the driver (LINKED), or asking for it by name. */
#define _GNU_SOURCE
#include "../cu.h"

#include <dlfcn.h>
#include <string.h>

#ifdef LINKED
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
#endif

__attribute__((visibility("default"))) void *plugin_get(void *driver, const char *name);
__attribute__((visibility("default"))) void *plugin_open(const char *name);

#ifdef LINKED
static CUresult through(CUdeviceptr *ptr, size_t bytes)
{
    return cuMemAlloc_v2(ptr, bytes);
}
#endif

void *plugin_get(void *driver, const char *name)
{
#ifdef LINKED
    (void)driver;
    if (strcmp(name, "cuMemAlloc_v2") == 0)
        return (void *)through;
#endif
    return dlsym(driver, name);
}

void *plugin_open(const char *name)
{
    void *volatile handle =
        dlopen(name, RTLD_NOW); /* no tail call: the caller must be seen to be here */
    return handle;
}

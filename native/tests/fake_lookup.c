/* Lookups by name, and the names of errors. */
#include "fake_inside.h"

/* BERTH_FAKE_LOOKUPS=FILE writes down what is looked up, as bench/partition_lookups.py reads it. */
static void write_down(const char *name, int version, uint64_t flags)
{
    const char *path = getenv("BERTH_FAKE_LOOKUPS");
    FILE *file = path != NULL && *path != 0 && name != NULL ? fopen(path, "ae") : NULL;
    if (file != NULL) {
        fprintf(file, "%s\t%d\t%llu\n", name, version, (unsigned long long)flags);
        fclose(file);
    }
}

DO cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
    bool known = false;
    write_down(name, version, flags);
    int own = fake_card != NULL ? (int)fake_card->driver_version
                                : (int)fake_number("BERTH_FAKE_VERSION", 13050);
    if (name == NULL || found == NULL || version > own)
        return CUDA_ERROR_INVALID_VALUE;
    *found = fake_lookup(name, version, (flags & CU_LOOKUP_PER_THREAD) != 0, &known);
    if (status != NULL)
        *status = *found != NULL ? CU_LOOKUP_FOUND
                  : known        ? CU_LOOKUP_OLD_VERSION
                                 : CU_LOOKUP_NO_SYMBOL;
    return CUDA_SUCCESS;
}

DO cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{
    CUresult result = cuGetProcAddress_v2(name, found, version, flags, NULL);
    return result == CUDA_SUCCESS && *found == NULL ? CUDA_ERROR_NOT_FOUND : result;
}

DO cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
            : error == CUDA_SUCCESS           ? "no error"
                                              : "error";
    return CUDA_SUCCESS;
}
DO cuGetErrorName(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return CUDA_SUCCESS;
}

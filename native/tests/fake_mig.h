/* The instances of MIG on the fake card: a file beside the card's, which NVML writes and CUDA
   reads. */
#ifndef BERTH_FAKE_MIG_H
#define BERTH_FAKE_MIG_H

#include "fake.h"

enum { FAKE_MIG_SLICES = 7, FAKE_MIG_INSTANCES = 7, FAKE_MIG_HANDLES = 0x4000 };

struct fake_mig_instance {
    _Atomic uint32_t state; /* 0 free, 1 a GPU instance, 2 with its compute instance */
    uint32_t profile, slices;
    uint32_t start, size; /* eighths of the memory */
    uint64_t bytes;
    unsigned char uuid[16];
};

struct fake_mig {
    struct fake_mig_instance instances[FAKE_GPUS][FAKE_MIG_INSTANCES];
};

static inline struct fake_mig *fake_mig_attach(void)
{
    static struct fake_mig *mig;
    char path[256];
    if (mig != NULL)
        return mig;
    snprintf(path, sizeof path, "%s.mig", fake_path());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, sizeof *mig) != 0) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    void *map = mmap(NULL, sizeof *mig, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return mig = map == MAP_FAILED ? NULL : map;
}

static inline void fake_mig_uuid_text(const unsigned char *b, char text[48])
{
    snprintf(text, 48, "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

/* The instance of a name, and the GPU that it is a part of; NULL where there is none. */
static inline struct fake_mig_instance *fake_mig_named(const char *name, size_t size, uint32_t *gpu)
{
    struct fake_mig *mig = strncmp(name, "MIG-", 4) == 0 ? fake_mig_attach() : NULL;
    for (int i = 0; mig != NULL && i < FAKE_GPUS * FAKE_MIG_INSTANCES; i++) {
        struct fake_mig_instance *one =
            &mig->instances[i / FAKE_MIG_INSTANCES][i % FAKE_MIG_INSTANCES];
        char text[48];
        fake_mig_uuid_text(one->uuid, text);
        if (atomic_load(&one->state) != 2 || size < 40 || strncmp(name, text, size) != 0)
            continue;
        *gpu = (uint32_t)(i / FAKE_MIG_INSTANCES);
        return one;
    }
    return NULL;
}

static inline struct fake_mig_instance *fake_mig_of_handle(NVdevice handle)
{
    uintptr_t at = (uintptr_t)handle - FAKE_MIG_HANDLES;
    if ((uintptr_t)handle < FAKE_MIG_HANDLES || at >= FAKE_GPUS * FAKE_MIG_INSTANCES)
        return NULL;
    return &fake_mig_attach()->instances[at / FAKE_MIG_INSTANCES][at % FAKE_MIG_INSTANCES];
}

#endif

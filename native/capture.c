#define _GNU_SOURCE
#include "capture.h"

static shared32 captured; /* some stream has been, since the start */
static shared32 under_way, ending, ended;

void capture_begins(void)
{
    atomic_store(&captured, 1);
}

void capture_began(void)
{
    atomic_fetch_add(&under_way, 1);
}

void capture_ends(void)
{
    atomic_fetch_add(&ending, 1);
}

void capture_ended(bool did)
{
    if (did)
        atomic_fetch_sub(&under_way, 1);
    atomic_fetch_add(&ended, 1);
}

uint32_t capture_watch(void)
{
    uint32_t done = atomic_load(&ended), begun = atomic_load(&ending);
    return begun == done ? begun : begun - 1;
}

bool capture_held(uint32_t watched)
{
    return atomic_load(&ending) == watched;
}

bool capture_under_way(void)
{
    return atomic_load(&under_way) != 0;
}

bool capturing(CUstream stream, bool per_thread)
{
    int status = CU_CAPTURE_NONE;
    return LOAD(captured) && REAL_EITHER(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status != CU_CAPTURE_NONE;
}

int capture_relax(void)
{
    int mode = CU_CAPTURE_RELAXED;
    if (LOAD(captured) && REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS)
        return mode;
    return -1;
}

void capture_restore(int mode)
{
    if (mode >= 0)
        real.cuThreadExchangeStreamCaptureMode(&mode);
}

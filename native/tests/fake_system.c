/* Memory of the system that the card reaches by itself (BERTH_FAKE_LIKE=hmm): what is prefetched is
   on the card, in whole pieces of 2 MiB, until it is prefetched away or unmapped. */
#include "fake_inside.h"

enum { PIECES = 4096, PIECE_BYTES = 2 << 20 };
static struct {
    uint64_t number; /* its address by pieces; 0: a free place */
    uint32_t gpu;
} pieces[PIECES];
static int piece_count;

static bool set_piece(uint64_t number, bool on_card, uint32_t gpu)
{
    int at = 0;
    while (at < piece_count && pieces[at].number != number)
        at++;
    bool was_there = at < piece_count;
    if (was_there && on_card && pieces[at].gpu == gpu)
        return true;
    if (on_card && (piece_count == PIECES || !fake_charge(gpu, PIECE_BYTES)))
        return false;
    if (was_there) {
        fake_refund(pieces[at].gpu, PIECE_BYTES);
        pieces[at] = pieces[--piece_count];
    }
    if (on_card) {
        pieces[piece_count].number = number;
        pieces[piece_count++].gpu = gpu;
    }
    return true;
}

void fake_drop_unmapped(void)
{
    unsigned char seen[PIECE_BYTES / 4096];
    if (piece_count == 0)
        return;
    fake_books();
    for (int i = piece_count - 1; i >= 0; i--)
        if (mincore((void *)(uintptr_t)(pieces[i].number * PIECE_BYTES), PIECE_BYTES, seen) != 0)
            set_piece(pieces[i].number, false, 0);
    fake_books_done();
}

static CUresult prefetch(const char *call, uint64_t at, size_t bytes, CUlocation location,
                         CUstream stream)
{
    struct CUctx_st *context;
    CUresult wrong = fake_on_stream(call, stream, &context);
    bool to_card = location.type == CU_LOCATION_DEVICE;
    if (wrong == CUDA_SUCCESS && to_card)
        wrong = fake_on_gpu("", location.id);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_drop_unmapped();
    fake_books();
    struct node *node = fake_node_holding(at);
    bool managed = node != NULL && node->managed, had = node == NULL && fake_like("hmm") && bytes;
    for (uint64_t n = at / PIECE_BYTES; had && n <= (at + bytes - 1) / PIECE_BYTES; n++)
        had = set_piece(n, to_card, to_card ? fake_gpu_at(location.id) : 0);
    fake_books_done();
    return managed || had ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

DO cuMemPrefetchAsync(CUdeviceptr at, size_t bytes, CUdevice dev, CUstream stream)
{
    CUlocation location = { dev < 0 ? CU_LOCATION_HOST : CU_LOCATION_DEVICE, dev };
    return prefetch(__func__, at, bytes, location, stream);
}
DO cuMemPrefetchAsync_ptsz(CUdeviceptr at, size_t bytes, CUdevice dev, CUstream stream)
{
    return cuMemPrefetchAsync(at, bytes, dev, stream);
}
DO cuMemPrefetchAsync_v2(CUdeviceptr at, size_t bytes, CUlocation location, unsigned flags,
                         CUstream stream)
{
    (void)flags;
    return prefetch(__func__, at, bytes, location, stream);
}
DO cuMemPrefetchAsync_v2_ptsz(CUdeviceptr at, size_t bytes, CUlocation location, unsigned flags,
                              CUstream stream)
{
    return cuMemPrefetchAsync_v2(at, bytes, location, flags, stream);
}
DO cuMemPrefetchBatchAsync(CUdeviceptr *at, size_t *bytes, size_t count, CUlocation *locations,
                           size_t *first, size_t location_count, unsigned long long flags,
                           CUstream stream)
{
    (void)flags;
    CUresult wrong = fake_given(fake_given(fake_ready(__func__), at), locations);
    size_t place = 0;
    for (size_t i = 0; i < count && wrong == CUDA_SUCCESS; i++) {
        while (place + 1 < location_count && first[place + 1] <= i)
            place++;
        wrong = prefetch(__func__, at[i], bytes[i], locations[place], stream);
    }
    return wrong;
}
DO cuMemPrefetchBatchAsync_ptsz(CUdeviceptr *at, size_t *bytes, size_t count, CUlocation *locations,
                                size_t *first, size_t location_count, unsigned long long flags,
                                CUstream stream)
{
    return cuMemPrefetchBatchAsync(at, bytes, count, locations, first, location_count, flags,
                                   stream);
}
DO cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *at, size_t *bytes, size_t count,
                                     CUlocation *locations, size_t *first, size_t location_count,
                                     unsigned long long flags, CUstream stream)
{
    return cuMemPrefetchBatchAsync(at, bytes, count, locations, first, location_count, flags,
                                   stream);
}
DO cuMemDiscardAndPrefetchBatchAsync_ptsz(CUdeviceptr *at, size_t *bytes, size_t count,
                                          CUlocation *locations, size_t *first,
                                          size_t location_count, unsigned long long flags,
                                          CUstream stream)
{
    return cuMemPrefetchBatchAsync(at, bytes, count, locations, first, location_count, flags,
                                   stream);
}

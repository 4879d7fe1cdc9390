/* Streams and events: what is done when. */
#include "fake_inside.h"

static struct CUstream_st legacy_streams[FAKE_GPUS];
static struct CUstream_st *streams;
static struct CUevent_st *events; /* those that live; one whose context is gone has none */

struct CUstream_st *fake_stream(CUstream stream)
{
    return (uintptr_t)stream > 2 ? stream
                                 : &legacy_streams[fake_context != NULL ? fake_context->gpu : 0];
}

void fake_streams_start(uint32_t gpu)
{
    legacy_streams[gpu].gpu = gpu;
}

static void sleep_to(uint64_t ns)
{
    for (uint64_t now; (now = fake_now()) < ns;)
        nanosleep(&(struct timespec){ (time_t)((ns - now) / 1000000000u),
                                      (long)((ns - now) % 1000000000u) },
                  NULL);
}

struct CUstream_st *fake_stream_new(struct CUctx_st *context)
{
    struct CUstream_st *made = calloc(1, sizeof *made);
    *made = (struct CUstream_st){ .gpu = context->gpu, .context = context };
    fake_books();
    made->next = streams;
    streams = made;
    fake_books_done();
    return made;
}

/* They stay in the list, so that a program that still uses one is told. */
void fake_streams_gone(struct CUctx_st *context)
{
    fake_books();
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (stream->context == context)
            stream->context = NULL;
    fake_books_done();
}

CUresult fake_on_stream(const char *name, CUstream stream, struct CUctx_st **context)
{
    *context = fake_context;
    if ((uintptr_t)stream <= 2)
        return fake_in_context(name);
    CUresult wrong = fake_ready(name);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    struct CUstream_st *at = streams;
    while (at != NULL && at != stream)
        at = at->next;
    *context = at != NULL ? at->context : NULL;
    fake_books_done();
    return *context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

DO cuStreamCreate(CUstream *stream, unsigned flags)
{
    CUresult wrong = fake_given(fake_in_context(__func__), stream);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)flags;
    *stream = fake_stream_new(fake_context);
    return CUDA_SUCCESS;
}
DO cuStreamDestroy_v2(CUstream stream)
{
    struct CUctx_st *context;
    if ((uintptr_t)stream <= 2)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult wrong = fake_on_stream(__func__, stream, &context);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    for (struct CUstream_st **at = &streams; *at != NULL; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    fake_books_done();
    fake_capture_gone(stream);
    free(stream);
    return CUDA_SUCCESS;
}
DO cuStreamDestroy(CUstream stream)
{
    return cuStreamDestroy_v2(stream);
}
/* The first version knows of no green contexts. */
DO cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
    struct CUctx_st *context;
    CUresult wrong = fake_given(fake_on_stream(__func__, stream, &context), ctx);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if ((uintptr_t)stream > 2 && context->primary_of != NULL && fake_like("unnamed"))
        return CUDA_ERROR_NOT_SUPPORTED;
    *ctx = context;
    return CUDA_SUCCESS;
}
DO cuStreamGetDevice(CUstream stream, CUdevice *dev)
{
    struct CUctx_st *context;
    CUresult wrong = fake_given(fake_on_stream(__func__, stream, &context), dev);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *dev = fake_ordinal_of(context->gpu);
    return CUDA_SUCCESS;
}

DO cuStreamSynchronize(CUstream stream)
{
    struct CUctx_st *context;
    CUresult wrong = fake_on_stream(__func__, stream, &context);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    struct CUstream_st *queue = fake_stream(stream);
    if (atomic_load(&queue->tail_ns) > fake_now())
        sleep_to(atomic_load(&queue->tail_ns));
    fake_pools_settle(queue->gpu);
    return CUDA_SUCCESS;
}
DO cuStreamSynchronize_ptsz(CUstream stream)
{
    return cuStreamSynchronize(stream);
}
DO cuStreamQuery(CUstream stream)
{
    struct CUctx_st *context;
    CUresult wrong = fake_on_stream(__func__, stream, &context);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return atomic_load(&fake_stream(stream)->tail_ns) > fake_now() ? CUDA_ERROR_NOT_READY
                                                                   : CUDA_SUCCESS;
}
DO cuStreamQuery_ptsz(CUstream stream)
{
    return cuStreamQuery(stream);
}
DO cuCtxSynchronize(void)
{
    return cuStreamSynchronize(NULL);
}
DO cuCtxSynchronize_v2(CUcontext ctx)
{
    CUresult wrong = fake_given(CUDA_SUCCESS, ctx);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return cuStreamSynchronize(NULL);
}
DO cuEventCreate(CUevent *event, unsigned flags)
{
    CUresult wrong = fake_safe(fake_in_context(__func__));
    if (wrong != CUDA_SUCCESS)
        return wrong;
    (void)flags;
    *event = calloc(1, sizeof **event);
    (*event)->context = fake_context;
    fake_books();
    (*event)->next = events;
    events = *event;
    fake_books_done();
    return CUDA_SUCCESS;
}
DO cuEventDestroy_v2(CUevent event)
{
    CUresult wrong = fake_lives(fake_given(fake_ready(__func__), event), event);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    fake_books();
    for (struct CUevent_st **at = &events; *at != NULL; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            break;
        }
    fake_books_done();
    free(event);
    return CUDA_SUCCESS;
}
FAKE_EXPORT unsigned fake_own_events(void)
{
    unsigned count = 0;
    fake_books();
    for (struct CUevent_st *event = events; event != NULL; event = event->next)
        count++;
    fake_books_done();
    return count;
}
DO cuEventRecord(CUevent event, CUstream stream)
{
    struct CUctx_st *context;
    CUresult wrong = fake_lives(fake_on_stream(__func__, stream, &context), event);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    uint64_t now = fake_now(), tail = atomic_load(&fake_stream(stream)->tail_ns);
    atomic_store(&event->at_ns, tail > now ? tail : now);
    event->gpu = fake_stream(stream)->gpu;
    return CUDA_SUCCESS;
}
DO cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return cuEventRecord(event, stream);
}
DO cuEventQuery(CUevent event)
{
    CUresult wrong = fake_lives(fake_safe(fake_ready(__func__)), event);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    return atomic_load(&event->at_ns) > fake_now() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
DO cuEventSynchronize(CUevent event)
{
    CUresult wrong = fake_given(fake_ready(__func__), event);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    if (atomic_load(&event->at_ns) > fake_now())
        sleep_to(atomic_load(&event->at_ns));
    fake_pools_settle(event->gpu);
    return CUDA_SUCCESS;
}
DO cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    CUresult wrong = fake_lives(fake_lives(fake_ready(__func__), from), to);
    if (wrong != CUDA_SUCCESS)
        return wrong;
    *ms = (float)((double)(int64_t)(atomic_load(&to->at_ns) - atomic_load(&from->at_ns)) / 1e6);
    return CUDA_SUCCESS;
}

void fake_events_gone(struct CUctx_st *context)
{
    fake_books();
    for (struct CUevent_st **at = &events; *at != NULL;) {
        struct CUevent_st *event = *at;
        if (event->context != context) {
            at = &event->next;
            continue;
        }
        event->context = NULL; /* kept, so that a program that still uses it is told */
        *at = event->next;
    }
    fake_books_done();
}

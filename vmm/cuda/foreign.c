/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events behind work of another GPU's streams. The driver records an event only on a stream of the
 * event's own context, and streams of any GPU may use our memory. So an event of their context is
 * recorded there, a stream of ours waits for it, and the requested event is recorded behind that
 * wait.
 *
 *     their stream   ... work | their event
 *     our stream                   waits | the event
 *
 * One stream of ours serves all of them. An event then also waits for those recorded before it,
 * which is late, never early.
 */
#include "vmm/cuda/foreign.h"

/* The first thread creates it; another thread
 * that created one at the same time destroys its own. */
static int joining_stream(cuda_backend *b, ductile_stream *out) {
    ductile_stream made = NULL;
    *out = atomic_load_explicit(&b->joining, memory_order_acquire);
    if (*out != NULL) {
        return DVMM_SUCCESS;
    }
    DTI_TRY(b->api->cuStreamCreate(&made, CU_STREAM_FLAG_NON_BLOCKING));
    if (atomic_compare_exchange_strong(&b->joining, out, made)) {
        *out = made;
        return DVMM_SUCCESS;
    }
    return b->api->cuStreamDestroy(made);
}

static int record_in_current(const cuda_backend *b, ductile_stream stream, dvmm_event *out) {
    DTI_TRY(b->api->cuEventCreate(out, CU_EVENT_FLAG_DISABLE_TIMING));
    int code = b->api->cuEventRecord(*out, stream);
    if (code != DVMM_SUCCESS) {
        (void)b->api->cuEventDestroy(*out);
    }
    return code;
}

static int record_there(const cuda_backend *b, cu_context theirs, ductile_stream stream,
                        dvmm_event *out) {
    cu_context popped = NULL;
    int code = b->api->cuCtxPushCurrent(theirs);
    if (code == DVMM_SUCCESS) {
        code = record_in_current(b, stream, out);
        (void)b->api->cuCtxPopCurrent(&popped);
    }
    return code;
}

static int record_behind(cuda_backend *b, dvmm_event event, dvmm_event theirs) {
    ductile_stream joining = NULL;
    DTI_TRY(joining_stream(b, &joining));
    DTI_TRY(b->api->cuStreamWaitEvent(joining, theirs, 0));
    return b->api->cuEventRecord(event, joining);
}

int dvmm_cuda_record_foreign(cuda_backend *b, dvmm_event event, ductile_stream stream) {
    cu_context theirs = NULL;
    dvmm_event at = NULL;
    bool is_foreign = b->api->cuStreamGetCtx(stream, &theirs) == DVMM_SUCCESS && theirs != NULL &&
                      theirs != b->context;
    if (!is_foreign) {
        return DVMM_INVALID_HANDLE;
    }
    int code = record_there(b, theirs, stream, &at);
    if (code == DVMM_SUCCESS) {
        code = record_behind(b, event, at);
        (void)b->api->cuEventDestroy(at); /* a wait for it goes on without it */
    }
    return code;
}

void dvmm_cuda_drop_joining(cuda_backend *b) {
    ductile_stream joining = atomic_load_explicit(&b->joining, memory_order_acquire);
    if (joining != NULL && b->api->cuCtxPushCurrent(b->context) == DVMM_SUCCESS) {
        cu_context popped = NULL;
        (void)b->api->cuStreamDestroy(joining);
        (void)b->api->cuCtxPopCurrent(&popped);
    }
}

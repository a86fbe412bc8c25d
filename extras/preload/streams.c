/* SPDX-License-Identifier: Apache-2.0 */
/* What Ductile has to learn of: the end of streams, captures, peers, default pools, resets. */
#include "deferred.h"
#include "device.h"
#include "real.h"

/* ---- Captures ------------------------------------------------------------------------------ */

static bool is_capturing(ductile_stream stream) {
    int status = 0;
    return dpre_real() != NULL && dpre_real()->cuStreamIsCapturing(stream, &status) == CU_SUCCESS &&
           status != 0;
}

static cu_result begun(cu_result code, int device) {
    if (code != CU_SUCCESS) {
        dpre_capture_ended(device);
    }
    return code;
}

#define DEFINE_BEGIN(function, parameters, ...)                                                    \
    cu_result function parameters {                                                                \
        int device = dpre_stream_device(stream);                                                   \
        dpre_capture_begins(device);                                                               \
        return begun(REAL(function, __VA_ARGS__), device);                                         \
    }

DEFINE_BEGIN(cuStreamBeginCapture, (ductile_stream stream), stream)
DEFINE_BEGIN(cuStreamBeginCapture_ptsz, (ductile_stream stream), stream)
DEFINE_BEGIN(cuStreamBeginCapture_v2, (ductile_stream stream, int mode), stream, mode)
DEFINE_BEGIN(cuStreamBeginCapture_v2_ptsz, (ductile_stream stream, int mode), stream, mode)
DEFINE_BEGIN(cuStreamBeginCaptureToGraph,
             (ductile_stream stream, void *graph, const void *nodes, const void *edges, size_t n,
              int mode),
             stream, graph, nodes, edges, n, mode)
DEFINE_BEGIN(cuStreamBeginCaptureToGraph_ptsz,
             (ductile_stream stream, void *graph, const void *nodes, const void *edges, size_t n,
              int mode),
             stream, graph, nodes, edges, n, mode)

/* A capture may end although the call fails, when it had become invalid; and go on, when the call
 * came from the wrong thread. */
static cu_result ended(cu_result code, bool was_capturing, ductile_stream stream) {
    if (was_capturing && !is_capturing(stream)) {
        dpre_capture_ended(dpre_stream_device(stream));
    }
    return code;
}

#define DEFINE_END(function, named)                                                                \
    cu_result function(ductile_stream stream, void **graph) {                                      \
        bool was_capturing = is_capturing(named);                                                  \
        return ended(REAL(function, stream, graph), was_capturing, named);                         \
    }

DEFINE_END(cuStreamEndCapture, stream)
DEFINE_END(cuStreamEndCapture_ptsz, (stream == NULL ? CU_PER_THREAD_STREAM : stream))

/* ---- The end of a stream -------------------------------------------------------------------- */

/* An error says that its progress could not be marked; it is forgotten all the same. */
static void forget(ductile_stream stream) {
    for (int i = 0; i < dpre_n_devices(); i++) {
        dpre_device *d = dpre_enter_open(i);
        if (d != NULL) {
            (void)ductile_stream_done(dpre_allocator(d), stream);
        }
        dpre_leave(d);
    }
}

/* A stream that ends takes its capture with it. */
typedef struct ending {
    bool was_capturing;
    int device;
} ending;

static ending begin_destroying(ductile_stream stream) {
    ending e = {false, -1};
    if (!dpre_is_default_stream(stream)) {
        e.was_capturing = is_capturing(stream);
        e.device = e.was_capturing ? dpre_stream_device(stream) : -1;
        forget(stream);
    }
    return e;
}

static cu_result destroyed(cu_result code, ending e) {
    if (code == CU_SUCCESS && e.was_capturing) {
        dpre_capture_ended(e.device);
    }
    return code;
}

#define DEFINE_DESTROY(function)                                                                   \
    cu_result function(ductile_stream stream) {                                                    \
        ending e = begin_destroying(stream);                                                       \
        return destroyed(REAL(function, stream), e);                                               \
    }

DEFINE_DESTROY(cuStreamDestroy)
DEFINE_DESTROY(cuStreamDestroy_v2)

/* ---- Other GPUs ----------------------------------------------------------------------------- */

static cu_result set_peer(cu_context peer, bool is_allowed) {
    return dpre_set_peer(dpre_primary_device(peer), dpre_current_device(), DPRE_OF_CONTEXT,
                         is_allowed);
}

cu_result cuCtxEnablePeerAccess(cu_context peer, unsigned int flags) {
    cu_result code = REAL(cuCtxEnablePeerAccess, peer, flags);
    cu_result ours = code == CU_SUCCESS ? set_peer(peer, true) : code;
    if (code == CU_SUCCESS && ours != CU_SUCCESS) {
        (void)REAL(cuCtxDisablePeerAccess, peer);
    }
    return ours;
}

cu_result cuCtxDisablePeerAccess(cu_context peer) {
    cu_result code = REAL(cuCtxDisablePeerAccess, peer);
    return code == CU_SUCCESS ? set_peer(peer, false) : code;
}

/* ---- Default pools -------------------------------------------------------------------------- */

/* The device whose default pool it is. NULL: none that Ductile serves. */
static dpre_device *enter_pool(cu_mem_pool pool) {
    for (int i = 0; i < dpre_n_devices(); i++) {
        dpre_device *d = dpre_enter_open(i);
        if (d != NULL && dpre_is_default_pool(d, pool)) {
            return d;
        }
        dpre_leave(d);
    }
    return NULL;
}

cu_result cuMemPoolTrimTo(cu_mem_pool pool, size_t keep_bytes) {
    cu_result code = REAL(cuMemPoolTrimTo, pool, keep_bytes);
    dpre_device *d = code == CU_SUCCESS ? enter_pool(pool) : NULL;
    if (d != NULL) {
        (void)!ductile_trim(dpre_allocator(d), NULL, keep_bytes, NULL);
    }
    dpre_leave(d);
    return code;
}

cu_result cuMemPoolSetAccess(cu_mem_pool pool, const cu_access *map, size_t n) {
    cu_result code = REAL(cuMemPoolSetAccess, pool, map, n);
    int owner = code == CU_SUCCESS ? dpre_pool_device(pool) : -1;
    for (size_t i = 0; i < n && code == CU_SUCCESS; i++) {
        if (map[i].location_type == CU_LOCATION_OF_DEVICE) {
            code = dpre_set_peer(owner, map[i].location, DPRE_OF_POOL, map[i].flags != 0);
        }
    }
    return code;
}

/* ---- Resets --------------------------------------------------------------------------------- */

static void close_device(cu_device device) {
    if (dpre_close(device)) {
        dpre_forget_deferred(device);
    }
}

static cu_result reset(cu_result code, cu_device device) {
    if (code == CU_SUCCESS) {
        dpre_captures_gone(device);
    }
    return code;
}

#define DEFINE_RESET(function)                                                                     \
    cu_result function(cu_device device) {                                                         \
        close_device(device);                                                                      \
        return reset(REAL(function, device), device);                                              \
    }

DEFINE_RESET(cuDevicePrimaryCtxReset)
DEFINE_RESET(cuDevicePrimaryCtxReset_v2)

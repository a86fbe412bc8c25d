/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rows need and the seam has no call for: host functions, graphs that are launched, blocking
 * streams, other contexts of the device. On hardware these are calls of the driver library itself,
 * on the virtual GPU its own equal, where it has one. Declarations of the driver's interface are
 * our own, compared with cuda.h where the compiler finds one.
 */
#include "tests/conformance/conformance_words.h"

#include <ductile_virtual.h>

#include <dlfcn.h>
#include <string.h>
#include <time.h>

/* ---- The driver's interface ---------------------------------------------------------------- */

typedef struct CUctx_st *context;
typedef struct CUgreenCtx_st *green_context;
typedef struct CUdevResourceDesc_st *resource_desc;
typedef struct CUgraphExec_st *graph_exec;

typedef struct device_resource {
    int type;
    unsigned char inside[92 + 48];
} device_resource;

enum { RESOURCE_SM = 1, SM_COUNT = 16, GREEN_DEFAULT_STREAM = 1, STREAM_NON_BLOCKING = 1 };

/* X(field, exported symbol, parameters) */
#define OUTSIDE_FUNCTIONS(X)                                                                       \
    X(context_retain, "cuDevicePrimaryCtxRetain", (context * out, int device))                     \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                               \
    X(context_create, "cuCtxCreate_v2", (context * out, unsigned flags, int device))               \
    X(context_destroy, "cuCtxDestroy_v2", (context it))                                            \
    X(context_push, "cuCtxPushCurrent_v2", (context it))                                           \
    X(context_pop, "cuCtxPopCurrent_v2", (context * out))                                          \
    X(green_create, "cuGreenCtxCreate",                                                            \
      (green_context * out, resource_desc desc, int device, unsigned flags))                       \
    X(green_destroy, "cuGreenCtxDestroy", (green_context it))                                      \
    X(green_context_of, "cuCtxFromGreenCtx", (context * out, green_context it))                    \
    X(green_stream, "cuGreenCtxStreamCreate",                                                      \
      (ductile_stream * out, green_context it, unsigned flags, int priority))                      \
    X(device_resource_of, "cuDeviceGetDevResource", (int device, device_resource *out, int type))  \
    X(split_resource, "cuDevSmResourceSplitByCount",                                               \
      (device_resource * out, unsigned *n, const device_resource *from, device_resource *rest,     \
       unsigned flags, unsigned count))                                                            \
    X(describe_resource, "cuDevResourceGenerateDesc",                                              \
      (resource_desc * out, device_resource * resources, unsigned n))                              \
    X(stream_create, "cuStreamCreate", (ductile_stream * out, unsigned flags))                     \
    X(stream_destroy, "cuStreamDestroy_v2", (ductile_stream it))                                   \
    X(stream_context, "cuStreamGetCtx", (ductile_stream it, context * out))                        \
    X(launch_host, "cuLaunchHostFunc", (ductile_stream stream, void (*work)(void *), void *user))  \
    X(capture_begin, "cuStreamBeginCapture_v2", (ductile_stream stream, int mode))                 \
    X(capture_end, "cuStreamEndCapture", (ductile_stream stream, dvmm_graph * out))                \
    X(graph_destroy, "cuGraphDestroy", (dvmm_graph graph))                                         \
    X(graph_instantiate, "cuGraphInstantiateWithFlags",                                            \
      (graph_exec * out, dvmm_graph graph, unsigned long long flags))                              \
    X(graph_launch, "cuGraphLaunch", (graph_exec graph, ductile_stream stream))                    \
    X(exec_destroy, "cuGraphExecDestroy", (graph_exec graph))

typedef struct outside_functions {
#define OUTSIDE_FIELD(field, symbol, parameters) int(*field) parameters;
    OUTSIDE_FUNCTIONS(OUTSIDE_FIELD)
#undef OUTSIDE_FIELD
} outside_functions;

#ifdef __has_include
#if __has_include(<cuda.h>)
#include <cuda.h>
#if CUDA_VERSION >= 12050
#define SAME(condition) _Static_assert(condition, #condition)
SAME(sizeof(device_resource) == sizeof(CUdevResource));
SAME((int)RESOURCE_SM == (int)CU_DEV_RESOURCE_TYPE_SM);
SAME((int)GREEN_DEFAULT_STREAM == (int)CU_GREEN_CTX_DEFAULT_STREAM);
SAME((int)STREAM_NON_BLOCKING == (int)CU_STREAM_NON_BLOCKING);
#endif
#endif
#endif

static int find_functions(outside_functions *out) {
    static const struct {
        const char *symbol;
        size_t offset;
    } wanted[] = {
#define OUTSIDE_WANTED(field, symbol, parameters) {symbol, offsetof(outside_functions, field)},
        OUTSIDE_FUNCTIONS(OUTSIDE_WANTED)
#undef OUTSIDE_WANTED
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; library != NULL && i < COUNT_OF(wanted); i++) {
        void *found = dlsym(library, wanted[i].symbol);
        memcpy((char *)out + wanted[i].offset, &found, sizeof(found));
    }
    return library != NULL ? DVMM_SUCCESS : DVMM_NOT_FOUND;
}

static outside_functions functions;

/* One call of the driver; NOT_FOUND where the driver lacks it. */
#define OUT(field, ...) (functions.field != NULL ? functions.field(__VA_ARGS__) : DVMM_NOT_FOUND)

/* Does an outside call make sense? Notes why not. */
static bool is_outside(lab *l) {
    if (!l->is_virtual && functions.stream_create == NULL) {
        need(l, "library", find_functions(&functions));
    }
    return !l->is_virtual;
}

static ductile_virtual_gpu *virtual_gpu(const lab *l) {
    return l->ctx;
}

/* ---- The current context ------------------------------------------------------------------- */

static context primary_of(lab *l) {
    context primary = NULL;
    need(l, "retain", OUT(context_retain, &primary, l->ordinal));
    return primary;
}

static void enter(lab *l, context it) {
    need(l, "push", OUT(context_push, it));
}

static void leave(lab *l) {
    context left = NULL;
    need(l, "pop", OUT(context_pop, &left));
}

static void enter_primary(lab *l) {
    enter(l, primary_of(l));
}

static void leave_primary(lab *l) {
    leave(l);
    need(l, "release", OUT(context_release, l->ordinal));
}

/* ---- Host functions ------------------------------------------------------------------------ */

static void wait_for_word(void *user) {
    const uint64_t *word = user;
    const struct timespec moment = {.tv_nsec = 20000};
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == 0) {
        (void)nanosleep(&moment, NULL);
    }
}

/* "host_function s w": later work of the stream waits for a host function, which ends once the word
 * is 1. The virtual GPU has no host functions: there the stream waits for the word. */
DOES(host_function) {
    if (!is_outside(l)) {
        need(l, "wait_value", CALL(l, stream_wait_value, P(1), P(2), 1));
        return;
    }
    enter_primary(l);
    need(l, "launch_host", OUT(launch_host, P(1), wait_for_word, P(2)));
    leave_primary(l);
}

/* ---- Streams ------------------------------------------------------------------------------- */

/* A stream that the legacy default stream waits for, and that waits for it. */
DOES(blocking) {
    ductile_stream stream = NULL;
    if (is_outside(l)) {
        enter_primary(l);
        need(l, "stream_create", OUT(stream_create, &stream, 0));
        leave_primary(l);
    } else if (ductile_virtual_stream_create_blocking(virtual_gpu(l), &stream) != DUCTILE_OK) {
        note(l, "setup stream_create");
    }
    *out = (uint64_t)(uintptr_t)stream;
    if (stream != NULL) {
        remember(l, A_STREAM, *out, 0);
    }
}

/* ---- Graphs -------------------------------------------------------------------------------- */

static void *graph_of_driver(lab *l, ductile_stream stream) {
    dvmm_graph graph = NULL;
    graph_exec made = NULL;
    enter_primary(l);
    need(l, "capture_end", OUT(capture_end, stream, &graph));
    need(l, "instantiate", OUT(graph_instantiate, &made, graph, 0));
    need(l, "graph_destroy", OUT(graph_destroy, graph));
    leave_primary(l);
    return made;
}

/* "x = graph s": the capture of the stream ends in a graph that can be launched. */
DOES(graph) {
    ductile_virtual_graph *graph = NULL;
    if (is_outside(l)) {
        *out = (uint64_t)(uintptr_t)graph_of_driver(l, P(1));
        return;
    }
    if (ductile_virtual_capture_end(virtual_gpu(l), P(1), &graph) != DUCTILE_OK) {
        note(l, "setup capture_end");
    }
    *out = (uint64_t)(uintptr_t)graph;
}

DOES(launch) {
    if (is_outside(l)) {
        enter_primary(l);
        need(l, "graph_launch", OUT(graph_launch, P(1), P(2)));
        leave_primary(l);
    } else if (ductile_virtual_graph_launch(P(1), P(2)) != DUCTILE_OK) {
        note(l, "setup graph_launch");
    }
}

DOES(drop_graph) {
    if (is_outside(l)) {
        need(l, "exec_destroy", OUT(exec_destroy, P(1)));
    } else {
        ductile_virtual_graph_destroy(P(1));
    }
}

/* ---- Other contexts ------------------------------------------------------------------------ */

static void open_own(lab *l, elsewhere *e) {
    context made = NULL;
    need(l, "context_create", OUT(context_create, &made, 0, l->ordinal));
    need(l, "stream_create", OUT(stream_create, &e->stream, STREAM_NON_BLOCKING));
    leave(l);
    e->context = made;
}

static resource_desc some_multiprocessors(lab *l) {
    device_resource all = {0};
    device_resource some = {0};
    device_resource rest = {0};
    unsigned n = 1;
    resource_desc desc = NULL;
    need(l, "resource", OUT(device_resource_of, l->ordinal, &all, RESOURCE_SM));
    need(l, "split", OUT(split_resource, &some, &n, &all, &rest, 0, SM_COUNT));
    need(l, "describe", OUT(describe_resource, &desc, &some, 1));
    return desc;
}

static void open_green(lab *l, elsewhere *e) {
    green_context green = NULL;
    context made = NULL;
    resource_desc desc = some_multiprocessors(l);
    need(l, "green", OUT(green_create, &green, desc, l->ordinal, GREEN_DEFAULT_STREAM));
    if (green == NULL) {
        return;
    }
    need(l, "green_stream", OUT(green_stream, &e->stream, green, STREAM_NON_BLOCKING, 0));
    need(l, "green_context", OUT(green_context_of, &made, green));
    e->green = green;
    e->context = made;
}

/* "x = open_elsewhere green", or own: the context's stream. */
DOES(open_elsewhere) {
    l->elsewhere = (elsewhere){NULL, NULL, NULL};
    if (!is_outside(l)) {
        note(l, "setup: there is one context");
    } else if (has_word(w, "green")) {
        open_green(l, &l->elsewhere);
    } else {
        open_own(l, &l->elsewhere);
    }
    *out = (uint64_t)(uintptr_t)l->elsewhere.stream;
}

void lab_leave_elsewhere(lab *l) {
    const elsewhere *e = &l->elsewhere;
    if (e->stream == NULL) {
        return;
    }
    enter(l, e->context);
    need(l, "stream_destroy", OUT(stream_destroy, e->stream));
    leave(l);
    if (e->green != NULL) {
        need(l, "green_destroy", OUT(green_destroy, e->green));
    } else {
        need(l, "context_destroy", OUT(context_destroy, e->context));
    }
}

DOES(hold_elsewhere) {
    const elsewhere *e = &l->elsewhere;
    if (e->stream != NULL) {
        enter(l, e->context);
        need(l, "launch_host", OUT(launch_host, e->stream, wait_for_word, P(1)));
        leave(l);
    }
}

DOES(begin_elsewhere) {
    const elsewhere *e = &l->elsewhere;
    if (e->stream != NULL) {
        enter(l, e->context);
        need(l, "capture_begin", OUT(capture_begin, e->stream, DVMM_CAPTURE_GLOBAL));
        leave(l);
    }
}

SAYS(end_elsewhere) {
    const elsewhere *e = &l->elsewhere;
    dvmm_graph graph = NULL;
    if (e->stream == NULL) {
        return DVMM_NOT_FOUND;
    }
    enter(l, e->context);
    int code = OUT(capture_end, e->stream, &graph);
    if (graph != NULL) {
        need(l, "graph_destroy", OUT(graph_destroy, graph));
    }
    leave(l);
    return code;
}

/* Which context its stream says that it is of: "primary", "own", or "!CODE". */
DOES(name_context) {
    const elsewhere *e = &l->elsewhere;
    context of_stream = NULL;
    if (e->stream == NULL) {
        note(l, "context=none");
        return;
    }
    int code = OUT(stream_context, e->stream, &of_stream);
    context primary = primary_of(l);
    need(l, "release", OUT(context_release, l->ordinal));
    if (code != DVMM_SUCCESS) {
        note(l, "context=!%d", code);
        return;
    }
    note(l, "context=%s",
         of_stream == primary      ? "primary"
         : of_stream == e->context ? "own"
                                   : "another");
}

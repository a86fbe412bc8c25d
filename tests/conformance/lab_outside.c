/* SPDX-License-Identifier: Apache-2.0 */
/* Calls beside the seam. Declarations of the driver's interface are our own, compared with cuda.h
 * where the compiler finds one. */
#include "tests/conformance/lab_outside.h"

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

void hold_by_host_function(lab *l, ductile_stream stream, uint64_t *word) {
    if (!is_outside(l)) {
        need(l, "wait_value", CALL(l, stream_wait_value, stream, word, 1));
        return;
    }
    enter_primary(l);
    need(l, "launch_host", OUT(launch_host, stream, wait_for_word, word));
    leave_primary(l);
}

/* ---- Streams ------------------------------------------------------------------------------- */

ductile_stream new_blocking_stream(lab *l) {
    ductile_stream stream = NULL;
    if (is_outside(l)) {
        enter_primary(l);
        need(l, "stream_create", OUT(stream_create, &stream, 0));
        leave_primary(l);
    } else if (ductile_virtual_stream_create_blocking(virtual_gpu(l), &stream) != DUCTILE_OK) {
        note(l, "setup stream_create");
    }
    if (stream != NULL) {
        remember(l, A_STREAM, (uint64_t)(uintptr_t)stream, 0);
    }
    return stream;
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

void *end_capture_as_graph(lab *l, ductile_stream stream) {
    ductile_virtual_graph *graph = NULL;
    if (is_outside(l)) {
        return graph_of_driver(l, stream);
    }
    if (ductile_virtual_capture_end(virtual_gpu(l), stream, &graph) != DUCTILE_OK) {
        note(l, "setup capture_end");
    }
    return graph;
}

void launch_graph(lab *l, void *graph, ductile_stream stream) {
    if (is_outside(l)) {
        enter_primary(l);
        need(l, "graph_launch", OUT(graph_launch, graph, stream));
        leave_primary(l);
    } else if (ductile_virtual_graph_launch(graph, stream) != DUCTILE_OK) {
        note(l, "setup graph_launch");
    }
}

void destroy_graph(lab *l, void *graph) {
    if (is_outside(l)) {
        need(l, "exec_destroy", OUT(exec_destroy, graph));
    } else {
        ductile_virtual_graph_destroy(graph);
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

elsewhere open_elsewhere(lab *l, bool is_green) {
    elsewhere e = {NULL, NULL, NULL};
    if (!is_outside(l)) {
        note(l, "setup: there is one context");
    } else if (is_green) {
        open_green(l, &e);
    } else {
        open_own(l, &e);
    }
    return e;
}

void close_elsewhere(lab *l, const elsewhere *e) {
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

void hold_elsewhere(lab *l, const elsewhere *e, uint64_t *word) {
    if (e->stream != NULL) {
        enter(l, e->context);
        need(l, "launch_host", OUT(launch_host, e->stream, wait_for_word, word));
        leave(l);
    }
}

void begin_capture_elsewhere(lab *l, const elsewhere *e) {
    if (e->stream != NULL) {
        enter(l, e->context);
        need(l, "capture_begin", OUT(capture_begin, e->stream, DVMM_CAPTURE_GLOBAL));
        leave(l);
    }
}

int end_capture_elsewhere(lab *l, const elsewhere *e) {
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

const char *context_word(lab *l, const elsewhere *e) {
    static char unknown[16];
    context of_stream = NULL;
    if (e->stream == NULL) {
        return "none";
    }
    int code = OUT(stream_context, e->stream, &of_stream);
    context primary = primary_of(l);
    need(l, "release", OUT(context_release, l->ordinal));
    (void)snprintf(unknown, sizeof(unknown), "!%d", code);
    if (code != DVMM_SUCCESS) {
        return unknown;
    }
    return of_stream == primary ? "primary" : of_stream == e->context ? "own" : "another";
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rows need and the seam has no call for: host functions, graphs that are launched, blocking
 * streams, other contexts of the device. On hardware these are calls of the driver library itself,
 * on the virtual GPU its own equal, where it has one. Declarations of the driver's interface are
 * our own, compared with cuda.h where the compiler finds one.
 */
#include "tests/conformance/conformance_words.h"
#include "vmm/virtual/addresses/addresses.h"

#include <ductile_virtual.h>

#include <dlfcn.h>
#include <string.h>
#include <time.h>

/* ---- The driver's interface ---------------------------------------------------------------- */

typedef struct CUctx_st *context;
typedef struct CUgreenCtx_st *green_context;
typedef struct CUdevResourceDesc_st *resource_desc;
typedef struct CUgraph_st *cuda_graph;
typedef struct CUgraphExec_st *graph_exec;

typedef struct device_resource {
    int type;
    unsigned char inside[92 + 48];
} device_resource;

enum { RESOURCE_SM = 1, SM_COUNT = 16, GREEN_DEFAULT_STREAM = 1, STREAM_NON_BLOCKING = 1 };
enum { POINTER_MEMORY_TYPE = 2, OF_HOST = 1, OF_DEVICE = 2 };

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
    X(pointer_attribute, "cuPointerGetAttribute", (void *out, int which, ductile_addr addr))       \
    X(launch_host, "cuLaunchHostFunc", (ductile_stream stream, void (*work)(void *), void *user))  \
    X(capture_begin, "cuStreamBeginCapture_v2", (ductile_stream stream, int mode))                 \
    X(capture_end, "cuStreamEndCapture", (ductile_stream stream, cuda_graph * out))                \
    X(graph_destroy, "cuGraphDestroy", (cuda_graph graph))                                         \
    X(graph_instantiate, "cuGraphInstantiateWithFlags",                                            \
      (graph_exec * out, cuda_graph graph, unsigned long long flags))                              \
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
SAME((int)POINTER_MEMORY_TYPE == (int)CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME((int)OF_HOST == (int)CU_MEMORYTYPE_HOST);
SAME((int)OF_DEVICE == (int)CU_MEMORYTYPE_DEVICE);
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
static bool is_outside(session *s) {
    if (!s->is_virtual && functions.stream_create == NULL) {
        need(s, "library", find_functions(&functions));
    }
    return !s->is_virtual;
}

static ductile_virtual_gpu *virtual_gpu(const session *s) {
    return s->ctx;
}

/* ---- The current context ------------------------------------------------------------------- */

static context primary_of(session *s) {
    context primary = NULL;
    need(s, "retain", OUT(context_retain, &primary, s->ordinal));
    return primary;
}

static void enter(session *s, context it) {
    need(s, "push", OUT(context_push, it));
}

static void leave(session *s) {
    context left = NULL;
    need(s, "pop", OUT(context_pop, &left));
}

static void enter_primary(session *s) {
    enter(s, primary_of(s));
}

static void leave_primary(session *s) {
    leave(s);
    need(s, "release", OUT(context_release, s->ordinal));
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
    if (!is_outside(s)) {
        need(s, "wait_value", BENCH_CALL(s, stream_wait_value, P(1), P(2), 1));
        return;
    }
    enter_primary(s);
    need(s, "launch_host", OUT(launch_host, P(1), wait_for_word, P(2)));
    leave_primary(s);
}

/* ---- Pointers ------------------------------------------------------------------------------ */

/* "type_of half a": "half=host" or "half=device", where libraries look for the kind of memory. */
DOES(type_of) {
    unsigned type = 0;
    if (is_outside(s)) {
        enter_primary(s);
        need(s, "attribute", OUT(pointer_attribute, &type, POINTER_MEMORY_TYPE, N(2)));
        leave_primary(s);
    } else {
        const vgpu_mapping *mapping = dvmm_vgpu_mapping_at(s->ctx, N(2));
        type = mapping == NULL ? 0 : mapping->phys->is_host ? OF_HOST : OF_DEVICE;
    }
    note(s, "%s=%s", word_at(w, 1),
         type == OF_HOST     ? "host"
         : type == OF_DEVICE ? "device"
                             : "neither");
}

/* ---- Streams ------------------------------------------------------------------------------- */

/* A stream that the legacy default stream waits for, and that waits for it. */
DOES(blocking) {
    ductile_stream stream = NULL;
    if (is_outside(s)) {
        enter_primary(s);
        need(s, "stream_create", OUT(stream_create, &stream, 0));
        leave_primary(s);
    } else if (ductile_virtual_stream_create_blocking(virtual_gpu(s), &stream) != DUCTILE_OK) {
        note(s, "setup stream_create");
    }
    *out = (uint64_t)(uintptr_t)stream;
    if (stream != NULL) {
        remember(s, A_STREAM, *out, 0);
    }
}

/* ---- Graphs -------------------------------------------------------------------------------- */

static void *graph_of_driver(session *s, ductile_stream stream) {
    cuda_graph graph = NULL;
    graph_exec made = NULL;
    enter_primary(s);
    need(s, "capture_end", OUT(capture_end, stream, &graph));
    need(s, "instantiate", OUT(graph_instantiate, &made, graph, 0));
    need(s, "graph_destroy", OUT(graph_destroy, graph));
    leave_primary(s);
    return made;
}

/* "x = graph s": the capture of the stream ends in a graph that can be launched. */
DOES(graph) {
    ductile_virtual_graph *graph = NULL;
    if (is_outside(s)) {
        *out = (uint64_t)(uintptr_t)graph_of_driver(s, P(1));
        return;
    }
    if (ductile_virtual_capture_end(virtual_gpu(s), P(1), &graph) != DUCTILE_OK) {
        note(s, "setup capture_end");
    }
    *out = (uint64_t)(uintptr_t)graph;
}

DOES(launch) {
    if (is_outside(s)) {
        enter_primary(s);
        need(s, "graph_launch", OUT(graph_launch, P(1), P(2)));
        leave_primary(s);
    } else if (ductile_virtual_graph_launch(P(1), P(2)) != DUCTILE_OK) {
        note(s, "setup graph_launch");
    }
}

DOES(drop_graph) {
    if (is_outside(s)) {
        need(s, "exec_destroy", OUT(exec_destroy, P(1)));
    } else {
        ductile_virtual_graph_destroy(P(1));
    }
}

/* ---- Other contexts ------------------------------------------------------------------------ */

static void open_own(session *s, elsewhere *e) {
    context made = NULL;
    need(s, "context_create", OUT(context_create, &made, 0, s->ordinal));
    need(s, "stream_create", OUT(stream_create, &e->stream, STREAM_NON_BLOCKING));
    leave(s);
    e->context = made;
}

static resource_desc some_multiprocessors(session *s) {
    device_resource all = {0};
    device_resource some = {0};
    device_resource rest = {0};
    unsigned n = 1;
    resource_desc desc = NULL;
    need(s, "resource", OUT(device_resource_of, s->ordinal, &all, RESOURCE_SM));
    need(s, "split", OUT(split_resource, &some, &n, &all, &rest, 0, SM_COUNT));
    need(s, "describe", OUT(describe_resource, &desc, &some, 1));
    return desc;
}

static void open_green(session *s, elsewhere *e) {
    green_context green = NULL;
    context made = NULL;
    resource_desc desc = some_multiprocessors(s);
    need(s, "green", OUT(green_create, &green, desc, s->ordinal, GREEN_DEFAULT_STREAM));
    if (green == NULL) {
        return;
    }
    need(s, "green_stream", OUT(green_stream, &e->stream, green, STREAM_NON_BLOCKING, 0));
    need(s, "green_context", OUT(green_context_of, &made, green));
    e->green = green;
    e->context = made;
}

/* "x = open_elsewhere green", or own: the context's stream. */
DOES(open_elsewhere) {
    s->elsewhere = (elsewhere){NULL, NULL, NULL};
    if (!is_outside(s)) {
        note(s, "setup: there is one context");
    } else if (has_word(w, "green")) {
        open_green(s, &s->elsewhere);
    } else {
        open_own(s, &s->elsewhere);
    }
    *out = (uint64_t)(uintptr_t)s->elsewhere.stream;
}

void session_leave_elsewhere(session *s) {
    const elsewhere *e = &s->elsewhere;
    if (e->stream == NULL) {
        return;
    }
    enter(s, e->context);
    need(s, "stream_destroy", OUT(stream_destroy, e->stream));
    leave(s);
    if (e->green != NULL) {
        need(s, "green_destroy", OUT(green_destroy, e->green));
    } else {
        need(s, "context_destroy", OUT(context_destroy, e->context));
    }
}

DOES(hold_elsewhere) {
    const elsewhere *e = &s->elsewhere;
    if (e->stream != NULL) {
        enter(s, e->context);
        need(s, "launch_host", OUT(launch_host, e->stream, wait_for_word, P(1)));
        leave(s);
    }
}

DOES(begin_elsewhere) {
    const elsewhere *e = &s->elsewhere;
    if (e->stream != NULL) {
        enter(s, e->context);
        need(s, "capture_begin", OUT(capture_begin, e->stream, DVMM_CAPTURE_GLOBAL));
        leave(s);
    }
}

SAYS(end_elsewhere) {
    const elsewhere *e = &s->elsewhere;
    cuda_graph graph = NULL;
    if (e->stream == NULL) {
        return DVMM_NOT_FOUND;
    }
    enter(s, e->context);
    int code = OUT(capture_end, e->stream, &graph);
    if (graph != NULL) {
        need(s, "graph_destroy", OUT(graph_destroy, graph));
    }
    leave(s);
    return code;
}

/* Which context its stream says that it is of: "primary", "own", or "!CODE". */
DOES(name_context) {
    const elsewhere *e = &s->elsewhere;
    context of_stream = NULL;
    if (e->stream == NULL) {
        note(s, "context=none");
        return;
    }
    int code = OUT(stream_context, e->stream, &of_stream);
    context primary = primary_of(s);
    need(s, "release", OUT(context_release, s->ordinal));
    if (code != DVMM_SUCCESS) {
        note(s, "context=!%d", code);
        return;
    }
    note(s, "context=%s",
         of_stream == primary      ? "primary"
         : of_stream == e->context ? "own"
                                   : "another");
}

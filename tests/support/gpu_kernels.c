/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles and launches the kernels. Declarations of the driver's interface are our own, compared
 * with cuda.h where the compiler finds one. */
#include "tests/support/gpu_kernels.h"

#include "tests/support/complain.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- The driver's interface ---------------------------------------------------------------- */

typedef struct CUctx_st *gpu_context;
typedef struct CUmod_st *gpu_module;
typedef struct CUfunc_st *gpu_function;
typedef struct CUgraph_st *gpu_graph;
typedef struct CUgraphExec_st *gpu_graph_exec;

enum {
    JIT_ERROR_LOG = 5,
    JIT_ERROR_LOG_BYTES = 6,
    ATTRIBUTE_PROGRAMMATIC_SERIALIZATION = 6,
    DEVICE_MULTIPROCESSORS = 16,
    DEVICE_CAPABILITY_MAJOR = 75
};

typedef struct launch_attribute {
    int id;
    char padding[4];
    union {
        int programmatic_allowed;
        char size[64];
    } value;
} launch_attribute;

typedef struct launch_config {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    ductile_stream stream;
    launch_attribute *attributes;
    unsigned n_attributes;
} launch_config;

/* X(field, exported symbol, parameters) */
#define GPU_FUNCTIONS(X)                                                                           \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(device_get, "cuDeviceGet", (int *out, int ordinal))                                          \
    X(device_attribute, "cuDeviceGetAttribute", (int *out, int which, int device))                 \
    X(context_retain, "cuDevicePrimaryCtxRetain", (gpu_context * out, int device))                 \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                               \
    X(context_push, "cuCtxPushCurrent_v2", (gpu_context context))                                  \
    X(context_pop, "cuCtxPopCurrent_v2", (gpu_context * out))                                      \
    X(module_load, "cuModuleLoadDataEx",                                                           \
      (gpu_module * out, const void *image, unsigned n, int *options, void **values))              \
    X(module_unload, "cuModuleUnload", (gpu_module module))                                        \
    X(module_function, "cuModuleGetFunction",                                                      \
      (gpu_function * out, gpu_module module, const char *name))                                   \
    X(launch, "cuLaunchKernelEx",                                                                  \
      (const launch_config *config, gpu_function function, void **parameters, void **extra))       \
    X(capture_end, "cuStreamEndCapture", (ductile_stream stream, gpu_graph * out))                 \
    X(graph_destroy, "cuGraphDestroy", (gpu_graph graph))                                          \
    X(graph_instantiate, "cuGraphInstantiateWithFlags",                                            \
      (gpu_graph_exec * out, gpu_graph graph, unsigned long long flags))                           \
    X(graph_launch, "cuGraphLaunch", (gpu_graph_exec graph, ductile_stream stream))                \
    X(exec_destroy, "cuGraphExecDestroy", (gpu_graph_exec graph))

typedef struct gpu_functions {
#define GPU_FIELD(field, symbol, parameters) int(*field) parameters;
    GPU_FUNCTIONS(GPU_FIELD)
#undef GPU_FIELD
} gpu_functions;

#ifdef __has_include
#if __has_include(<cuda.h>)
#include <cuda.h>
#if CUDA_VERSION >= 11080
#define SAME(condition) _Static_assert(condition, #condition)
SAME(sizeof(launch_config) == sizeof(CUlaunchConfig));
SAME(offsetof(launch_config, stream) == offsetof(CUlaunchConfig, hStream));
SAME(offsetof(launch_config, attributes) == offsetof(CUlaunchConfig, attrs));
SAME(offsetof(launch_config, n_attributes) == offsetof(CUlaunchConfig, numAttrs));
SAME(sizeof(launch_attribute) == sizeof(CUlaunchAttribute));
SAME(offsetof(launch_attribute, value) == offsetof(CUlaunchAttribute, value));
SAME((int)ATTRIBUTE_PROGRAMMATIC_SERIALIZATION ==
     (int)CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME((int)JIT_ERROR_LOG == (int)CU_JIT_ERROR_LOG_BUFFER);
SAME((int)JIT_ERROR_LOG_BYTES == (int)CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
SAME((int)DEVICE_MULTIPROCESSORS == (int)CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME((int)DEVICE_CAPABILITY_MAJOR == (int)CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
#endif
#endif
#endif

/* ---- Opening ------------------------------------------------------------------------------- */

/* Owned by the caller that opened it; constant after that. */
struct gpu_kernels {
    gpu_functions call;
    int device;
    gpu_context context;
    int multiprocessors;
    int capability_major;
    gpu_module modules[GPU_N_KERNELS]; /* NULL where the device cannot run the kernel */
    gpu_function functions[GPU_N_KERNELS];
};

static const char *find_functions(gpu_kernels *gpu) {
    static const struct {
        const char *symbol;
        size_t offset;
    } wanted[] = {
#define GPU_WANTED(field, symbol, parameters) {symbol, offsetof(gpu_functions, field)},
        GPU_FUNCTIONS(GPU_WANTED)
#undef GPU_WANTED
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    NEED(library != NULL, "libcuda.so.1 cannot be opened");
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *found = dlsym(library, wanted[i].symbol);
        NEED(found != NULL, "the driver has no %s", wanted[i].symbol);
        memcpy((char *)&gpu->call + wanted[i].offset, &found, sizeof(found));
    }
    return NULL;
}

static const char *find_device(gpu_kernels *gpu, int ordinal) {
    int code = gpu->call.init(0);
    NEED(code == 0, "cuInit failed with %d", code);
    code = gpu->call.device_get(&gpu->device, ordinal);
    NEED(code == 0, "there is no device %d (%d)", ordinal, code);
    (void)gpu->call.device_attribute(&gpu->multiprocessors, DEVICE_MULTIPROCESSORS, gpu->device);
    (void)gpu->call.device_attribute(&gpu->capability_major, DEVICE_CAPABILITY_MAJOR, gpu->device);
    code = gpu->call.context_retain(&gpu->context, gpu->device);
    NEED(code == 0, "there is no context of the device (%d)", code);
    return NULL;
}

static const char *load_kernel(gpu_kernels *gpu, gpu_kernel kernel) {
    const gpu_kernel_text *text = &gpu_kernel_texts[kernel];
    char log[1024] = "";
    int options[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof(log)};
    int code = gpu->call.module_load(&gpu->modules[kernel], text->ptx, 2, options, values);
    NEED(code == 0, "kernel %s does not compile (%d): %s", text->name, code, log);
    code = gpu->call.module_function(&gpu->functions[kernel], gpu->modules[kernel], text->name);
    NEED(code == 0, "module has no kernel %s (%d)", text->name, code);
    return NULL;
}

static const char *load_kernels(gpu_kernels *gpu) {
    int n = gpu_has_dependent_launch(gpu) ? GPU_N_KERNELS : GPU_FIRST_DEPENDENT;
    const char *why = NULL;
    (void)gpu->call.context_push(gpu->context);
    for (int i = 0; i < n && why == NULL; i++) {
        why = load_kernel(gpu, (gpu_kernel)i);
    }
    (void)gpu->call.context_pop(&gpu->context);
    return why;
}

static const char *open_steps(gpu_kernels *gpu, int ordinal) {
    TRY(find_functions(gpu));
    TRY(find_device(gpu, ordinal));
    return load_kernels(gpu);
}

const char *gpu_open(int ordinal, gpu_kernels **out) {
    *out = NULL;
    gpu_kernels *gpu = calloc(1, sizeof(*gpu));
    NEED(gpu != NULL, "out of memory");
    const char *why = open_steps(gpu, ordinal);
    if (why != NULL) {
        gpu_close(gpu);
        return why;
    }
    *out = gpu;
    return NULL;
}

void gpu_close(gpu_kernels *gpu) {
    if (gpu == NULL) {
        return;
    }
    if (gpu->context != NULL) {
        (void)gpu->call.context_push(gpu->context);
        for (int i = 0; i < GPU_N_KERNELS; i++) {
            if (gpu->modules[i] != NULL) {
                (void)gpu->call.module_unload(gpu->modules[i]);
            }
        }
        (void)gpu->call.context_pop(&gpu->context);
        (void)gpu->call.context_release(gpu->device);
    }
    free(gpu);
}

bool gpu_has_dependent_launch(const gpu_kernels *gpu) {
    return gpu->capability_major >= 9;
}

/* ---- Launching ----------------------------------------------------------------------------- */

int gpu_start(const gpu_kernels *gpu, const gpu_launch *launch) {
    enum { NOT_SUPPORTED = 801, DEFAULT_THREADS = 256, BLOCKS_EACH = 8 };
    if (gpu->functions[launch->kernel] == NULL) {
        return NOT_SUPPORTED;
    }
    launch_attribute programmatic = {.id = ATTRIBUTE_PROGRAMMATIC_SERIALIZATION,
                                     .value = {.programmatic_allowed = 1}};
    unsigned fill = (unsigned)gpu->multiprocessors * BLOCKS_EACH;
    launch_config config = {
        .grid_x = launch->blocks != 0 ? launch->blocks : fill,
        .grid_y = 1,
        .grid_z = 1,
        .block_x = launch->threads != 0 ? launch->threads : DEFAULT_THREADS,
        .block_y = 1,
        .block_z = 1,
        .stream = launch->stream,
        .attributes = &programmatic,
        .n_attributes = launch->programmatic ? 1 : 0,
    };
    uint64_t arguments[GPU_MOST_ARGUMENTS];
    void *parameters[GPU_MOST_ARGUMENTS];
    memcpy(arguments, launch->arguments, sizeof(arguments));
    for (int i = 0; i < GPU_MOST_ARGUMENTS; i++) {
        parameters[i] = &arguments[i];
    }
    gpu_context ours = gpu->context;
    int code = gpu->call.context_push(ours);
    if (code == 0) {
        code = gpu->call.launch(&config, gpu->functions[launch->kernel], parameters, NULL);
        (void)gpu->call.context_pop(&ours);
    }
    return code;
}

/* ---- Graphs -------------------------------------------------------------------------------- */

static int instantiate(const gpu_kernels *gpu, gpu_graph captured, void **graph) {
    gpu_graph_exec made = NULL;
    int code = gpu->call.graph_instantiate(&made, captured, 0);
    (void)gpu->call.graph_destroy(captured);
    *graph = made;
    return code;
}

int gpu_capture_end(const gpu_kernels *gpu, ductile_stream stream, void **graph) {
    gpu_graph captured = NULL;
    gpu_context ours = gpu->context;
    *graph = NULL;
    int code = gpu->call.context_push(ours);
    if (code != 0) {
        return code;
    }
    code = gpu->call.capture_end(stream, &captured);
    if (code == 0) {
        code = instantiate(gpu, captured, graph);
    }
    (void)gpu->call.context_pop(&ours);
    return code;
}

int gpu_graph_launch(const gpu_kernels *gpu, void *graph, ductile_stream stream) {
    gpu_context ours = gpu->context;
    int code = gpu->call.context_push(ours);
    if (code == 0) {
        code = gpu->call.graph_launch(graph, stream);
        (void)gpu->call.context_pop(&ours);
    }
    return code;
}

int gpu_graph_destroy(const gpu_kernels *gpu, void *graph) {
    return gpu->call.exec_destroy(graph);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Built three times, as the three kinds of libcuda.so.1 that exist: FAKE_FIND is 12000 or 11030
 * for one whose own search is of that version, and then nothing else is exported; 0 for one that
 * exports every function under its versioned name and has no search.
 */
#include "tests/fake_cuda/fake_libcuda.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

extern fake_state fake_control;

EXPORTED fake_state fake_control = {
    .version = 13000,
    .n_devices = 2,
    .has_vmm = 1,
    .has_pools = 1,
    .has_wait_value = 1,
    .granted = DVMM_ACCESS_RW,
    .primary = (cu_context)0x1000,
};

static fake_state *const fake = &fake_control;

/* What a program is given that cannot reach the state: python/tests/test_doctor.py starts some. */
__attribute__((constructor)) static void read_environment(void) {
    const struct {
        const char *name;
        int *member;
    } all[] = {{"FAKE_CUDA_VERSION", &fake->version},
               {"FAKE_CUDA_DEVICES", &fake->n_devices},
               {"FAKE_CUDA_VMM", &fake->has_vmm}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *value = getenv(all[i].name);
        *all[i].member = value != NULL ? atoi(value) : *all[i].member;
    }
}

/* What the fake hands out: anything but 0 will do. */
enum {
    SOME_ADDRESS = 0x40000000,
    SOME_HANDLE = 0x77,
    SOME_OBJECT = 0x2000,
    FOREIGN_EVENT = 0x2800,
    SOME_DESCRIPTOR = 1 << 20, /* no process has so many */
    SOME_BYTE = 0xA5
};

/* ---- Planned failures ---------------------------------------------------------------------- */

/* The code that was planned for a call. */
static cu_result code_of(const char *call) {
    if (fake->failing == NULL || strcmp(fake->failing, call) != 0) {
        return DVMM_SUCCESS;
    }
    return fake->fail_from-- > 0 ? DVMM_SUCCESS : fake->fail_code;
}

static void linger(void) {
    int inside = atomic_fetch_add(&fake->inside, 1) + 1;
    int most = atomic_load(&fake->most_inside);
    while (inside > most && !atomic_compare_exchange_weak(&fake->most_inside, &most, inside)) {
    }
    (void)usleep((useconds_t)fake->linger_us);
    (void)atomic_fetch_sub(&fake->inside, 1);
}

/* The code a call returns before it does anything. */
static cu_result planned(const char *call) {
    if (fake->linger_us > 0) {
        linger();
    }
    fake->last_call = call;
    fake->context_of_last_call = fake->current;
    fake->n_calls++;
    return code_of(call);
}

/* The body of a call that does one thing when it is not planned to fail. */
#define ANSWER(call, effect)                                                                       \
    do {                                                                                           \
        cu_result answer = planned(call);                                                          \
        if (answer == DVMM_SUCCESS) {                                                              \
            effect;                                                                                \
        }                                                                                          \
        return answer;                                                                             \
    } while (0)

#define NOTHING ((void)0)

#define DO(name, parameters, effect)                                                               \
    static cu_result fake_##name parameters {                                                      \
        ANSWER(#name, effect);                                                                     \
    }

/* ---- Start and devices --------------------------------------------------------------------- */

DO(cuInit, (unsigned int flags), NOTHING)
DO(cuDriverGetVersion, (int *version), *version = fake->version)

static cu_result fake_cuDeviceGet(cu_device *out, int ordinal) {
    if (ordinal < 0 || ordinal >= fake->n_devices) {
        return DVMM_INVALID_DEVICE;
    }
    ANSWER("cuDeviceGet", *out = ordinal);
}

DO(cuDeviceGetCount, (int *count), *count = fake->n_devices)
DO(cuDeviceGetName, (char *name, int size, cu_device device),
   strncpy(name, "Fake GPU", (size_t)size))
DO(cuDeviceTotalMem, (size_t * bytes, cu_device device), *bytes = (size_t)1 << 34)

static int attribute(cu_device_attribute which) {
    switch (which) {
    case CU_HAS_VMM:
        return fake->has_vmm;
    case CU_HAS_MEMORY_POOLS:
        return fake->has_pools;
    case CU_HAS_WAIT_VALUE_64:
        return fake->has_wait_value;
    case CU_HAS_SHARED_FABRIC:
        return fake->has_fabric;
    default:
        return 0;
    }
}

DO(cuDeviceGetAttribute, (int *value, cu_device_attribute which, cu_device device),
   *value = attribute(which))
DO(cuDevicePrimaryCtxRetain, (cu_context * out, cu_device device),
   (fake->contexts++, *out = fake->primary))
DO(cuDevicePrimaryCtxRelease, (cu_device device), fake->contexts--)

/* ---- The current context: a stack of two is all that is ever needed ------------------------ */

static cu_context below[4]; /* the current one */
static int n_below;

static cu_result fake_cuCtxGetCurrent(cu_context *out) {
    *out = fake->current;
    return code_of("cuCtxGetCurrent");
}

static cu_result fake_cuCtxPushCurrent(cu_context context) {
    cu_result code = code_of("cuCtxPushCurrent");
    if (code != DVMM_SUCCESS) {
        return code;
    }
    fake->pushes++;
    below[n_below++ % 4] = fake->current;
    fake->current = context;
    return DVMM_SUCCESS;
}

static cu_result fake_cuCtxPopCurrent(cu_context *out) {
    fake->pops++;
    *out = fake->current;
    fake->current = below[--n_below % 4];
    return DVMM_SUCCESS;
}

DO(cuCtxSynchronize, (void), NOTHING)

/* ---- Memory -------------------------------------------------------------------------------- */

DO(cuMemGetInfo, (size_t * free_bytes, size_t *total_bytes), (*free_bytes = 1, *total_bytes = 2))
DO(cuMemGetAllocationGranularity,
   (size_t * out, const cu_phys_props *props, cu_granularity_option option), *out = (size_t)2 << 20)
DO(cuMemAddressReserve,
   (ductile_addr * out, size_t size, size_t alignment, ductile_addr hint, unsigned long long flags),
   (fake->reservations++, *out = SOME_ADDRESS))
DO(cuMemAddressFree, (ductile_addr addr, size_t size), fake->reservations--)

static cu_result fake_cuMemCreate(dvmm_phys *out, size_t size, const cu_phys_props *props,
                                  unsigned long long flags) {
    if (props->type != CU_PHYS_PINNED || props->location.type != CU_LOCATION_DEVICE) {
        return DVMM_INVALID_VALUE;
    }
    ANSWER("cuMemCreate", (fake->handles++, *out = SOME_HANDLE));
}

DO(cuMemRelease, (dvmm_phys phys), fake->handles--)
DO(cuMemMap,
   (ductile_addr addr, size_t size, size_t offset, dvmm_phys phys, unsigned long long flags),
   fake->mappings++)
DO(cuMemUnmap, (ductile_addr addr, size_t size), fake->mappings--)

static cu_result fake_cuMemSetAccess(ductile_addr addr, size_t size, const cu_access_desc *descs,
                                     size_t n_descs) {
    if (n_descs < 1 || n_descs > 2 || descs->location.type != CU_LOCATION_DEVICE) {
        return DVMM_INVALID_VALUE;
    }
    ANSWER("cuMemSetAccess", NOTHING);
}

DO(cuMemGetAccess, (unsigned long long *flags, const cu_location *location, ductile_addr addr),
   *flags = fake->granted)
DO(cuDeviceCanAccessPeer, (int *out, cu_device device, cu_device of), *out = device != of)

static cu_result fake_cuMemExportToShareableHandle(void *out, dvmm_phys phys, cu_handle_type type,
                                                   unsigned long long flags) {
    if (type != DVMM_SHARE_FD && type != DVMM_SHARE_FABRIC) {
        return DVMM_INVALID_VALUE;
    }
    ANSWER("cuMemExportToShareableHandle", type == DVMM_SHARE_FD
                                               ? (void)(*(int *)out = SOME_DESCRIPTOR)
                                               : (void)memset(out, SOME_BYTE, DVMM_FABRIC_BYTES));
}

/* What came back is what went out. */
static cu_result take_back(dvmm_phys *out, const void *shared, cu_handle_type type) {
    bool is_ours = type == DVMM_SHARE_FD
                       ? (intptr_t)shared == SOME_DESCRIPTOR
                       : ((const uint8_t *)shared)[DVMM_FABRIC_BYTES - 1] == SOME_BYTE;
    *out = is_ours ? SOME_HANDLE : 0;
    return is_ours ? DVMM_SUCCESS : DVMM_INVALID_VALUE;
}

DO(cuMemImportFromShareableHandle, (dvmm_phys * out, void *shared, cu_handle_type type),
   answer = take_back(out, shared, type))
DO(cuMemAlloc, (ductile_addr * out, size_t size), *out = SOME_ADDRESS)
DO(cuMemFree, (ductile_addr addr), NOTHING)
DO(cuMemAllocAsync, (ductile_addr * out, size_t size, ductile_stream stream), *out = SOME_ADDRESS)
DO(cuMemFreeAsync, (ductile_addr addr, ductile_stream stream), NOTHING)
DO(cuDeviceGetDefaultMemPool, (cu_mem_pool * out, cu_device device),
   *out = (cu_mem_pool)SOME_OBJECT)

static cu_result reset_peak(int *n_resets, unsigned long long value) {
    if (value != 0) {
        return DVMM_INVALID_VALUE;
    }
    *n_resets += fake->pool_trims > *n_resets;
    return DVMM_SUCCESS;
}

static cu_result set_in_pool(cu_pool_attribute which, unsigned long long value) {
    switch (which) {
    case CU_POOL_RELEASE_THRESHOLD:
        fake->pool_threshold = value;
        return DVMM_SUCCESS;
    case CU_POOL_RESERVED_HIGH:
        return reset_peak(&fake->reserved_peak_resets, value);
    case CU_POOL_USED_HIGH:
        return reset_peak(&fake->used_peak_resets, value);
    default:
        return DVMM_INVALID_VALUE;
    }
}

DO(cuMemPoolSetAttribute, (cu_mem_pool pool, cu_pool_attribute which, void *value),
   answer = set_in_pool(which, *(unsigned long long *)value))
DO(cuMemPoolGetAttribute, (cu_mem_pool pool, cu_pool_attribute which, void *value),
   *(unsigned long long *)value = (unsigned long long)which)
DO(cuMemPoolTrimTo, (cu_mem_pool pool, size_t keep_bytes), fake->pool_trims++)

/* ---- Streams, captures, events ------------------------------------------------------------- */

static cu_result fake_cuStreamCreate(ductile_stream *out, unsigned int flags) {
    if (flags != CU_STREAM_FLAG_NON_BLOCKING) {
        return DVMM_INVALID_VALUE;
    }
    ANSWER("cuStreamCreate", (fake->streams++, *out = (ductile_stream)SOME_OBJECT));
}

DO(cuStreamDestroy, (ductile_stream stream), fake->streams--)
DO(cuStreamSynchronize, (ductile_stream stream), NOTHING)
DO(cuStreamQuery, (ductile_stream stream), NOTHING)
DO(cuStreamWaitEvent, (ductile_stream stream, dvmm_event event, unsigned int flags),
   fake->foreign_waits += event == (dvmm_event)FOREIGN_EVENT)
DO(cuStreamWaitValue64,
   (ductile_stream stream, ductile_addr addr, uint64_t value, unsigned int flags), NOTHING)
DO(cuStreamIsCapturing, (ductile_stream stream, cu_capture_status *out), *out = DVMM_CAPTURE_ACTIVE)
DO(cuStreamBeginCapture, (ductile_stream stream, cu_capture_mode mode), NOTHING)
DO(cuStreamEndCapture, (ductile_stream stream, cu_graph *out),
   (fake->graphs++, *out = (cu_graph)SOME_OBJECT))
DO(cuThreadExchangeStreamCaptureMode, (cu_capture_mode * mode), *mode = DVMM_CAPTURE_GLOBAL)
DO(cuGraphDestroy, (cu_graph graph), fake->graphs--)

static cu_result fake_cuEventCreate(dvmm_event *out, unsigned int flags) {
    if (flags != CU_EVENT_FLAG_DISABLE_TIMING) {
        return DVMM_INVALID_VALUE;
    }
    dvmm_event made =
        fake->current == FAKE_FOREIGN_CONTEXT ? (dvmm_event)FOREIGN_EVENT : (dvmm_event)SOME_OBJECT;
    ANSWER("cuEventCreate", (fake->events++, *out = made));
}

DO(cuEventDestroy, (dvmm_event event), fake->events--)

static cu_result fake_cuEventRecord(dvmm_event event, ductile_stream stream) {
    bool is_foreign = event == (dvmm_event)FOREIGN_EVENT;
    if (is_foreign != (stream == FAKE_FOREIGN_STREAM) ||
        (is_foreign && fake->current != FAKE_FOREIGN_CONTEXT)) {
        return DVMM_INVALID_HANDLE;
    }
    ANSWER("cuEventRecord", fake->behind_waits += !is_foreign && fake->foreign_waits > 0);
}

static cu_result fake_cuCtxRecordEvent(cu_context context, dvmm_event event) {
    if (context != fake->primary || event == (dvmm_event)FOREIGN_EVENT) {
        return DVMM_INVALID_HANDLE;
    }
    ANSWER("cuCtxRecordEvent", NOTHING);
}

DO(cuStreamGetCtx, (ductile_stream stream, cu_context *out),
   *out = stream == FAKE_FOREIGN_STREAM   ? FAKE_FOREIGN_CONTEXT
          : stream == FAKE_STREAM_OF_NONE ? NULL
          : stream == FAKE_GREEN_STREAM   ? FAKE_GREEN_CONTEXT
                                          : fake->primary)

static cu_result fake_cuStreamGetCtx_v2(ductile_stream stream, cu_context *out,
                                        cu_green_context *green) {
    *green = stream == FAKE_GREEN_STREAM ? (cu_green_context)SOME_OBJECT : NULL;
    ANSWER("cuStreamGetCtx_v2",
           *out = stream == FAKE_FOREIGN_STREAM ? FAKE_FOREIGN_CONTEXT : fake->primary);
}

DO(cuEventQuery, (dvmm_event event), NOTHING)
DO(cuEventSynchronize, (dvmm_event event), NOTHING)

/* ---- Host memory and contents -------------------------------------------------------------- */

DO(cuMemHostAlloc, (void **out, size_t size, unsigned int flags), *out = malloc(size))
DO(cuMemFreeHost, (void *memory), free(memory))
DO(cuMemHostRegister, (void *memory, size_t size, unsigned int flags), NOTHING)
DO(cuMemHostUnregister, (void *memory), NOTHING)
DO(cuMemsetD8Async, (ductile_addr addr, unsigned char value, size_t size, ductile_stream stream),
   NOTHING)
DO(cuMemcpyDtoDAsync, (ductile_addr to, ductile_addr from, size_t size, ductile_stream stream),
   NOTHING)
DO(cuMemcpyHtoDAsync, (ductile_addr to, const void *from, size_t size, ductile_stream stream),
   NOTHING)
DO(cuMemcpyDtoHAsync, (void *to, ductile_addr from, size_t size, ductile_stream stream), NOTHING)

/* All of them in one way: in stream order. */
static cu_result fake_cuMemcpyBatchAsync(ductile_addr *to, ductile_addr *from, size_t *sizes,
                                         size_t n, cu_copy_attributes *attributes, size_t *begins,
                                         size_t n_attributes, size_t *failed,
                                         ductile_stream stream) {
    if (n == 0 || n_attributes != 1 || begins[0] != 0 || failed == NULL ||
        attributes->source_order != CU_SOURCE_IN_STREAM_ORDER || attributes->flags != 0) {
        return DVMM_INVALID_VALUE;
    }
    ANSWER("cuMemcpyBatchAsync", (fake->copied_to = to[n - 1], fake->copied_from = from[n - 1],
                                  fake->copied_bytes = sizes[n - 1]));
}

/* ---- How they are found -------------------------------------------------------------------- */

#if FAKE_FIND == 0

#define EXPORT(name, exported, version, parameters)                                                \
    extern cu_result exported_##name parameters __asm__(exported)                                  \
        __attribute__((alias("fake_" #name), visibility("default")));
CU_REQUIRED_FUNCTIONS(EXPORT)
CU_OPTIONAL_FUNCTIONS(EXPORT)
CU_BENCH_FUNCTIONS(EXPORT)

#else

typedef struct findable {
    const char *name;
    int version;
    bool is_of_bench;
    void (*function)(void);
} findable;

static const findable functions[] = {
#define FINDABLE(name, exported, version, parameters)                                              \
    {#name, version, false, (void (*)(void))fake_##name},
#define OF_BENCH(name, exported, version, parameters)                                              \
    {#name, version, true, (void (*)(void))fake_##name},
    CU_REQUIRED_FUNCTIONS(FINDABLE) CU_OPTIONAL_FUNCTIONS(FINDABLE) CU_BENCH_FUNCTIONS(OF_BENCH)
#undef FINDABLE
#undef OF_BENCH
};

static cu_result find(const char *name, void **out, int version, uint64_t flags) {
    *out = NULL;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        const findable *f = &functions[i];
        if (strcmp(f->name, name) != 0) {
            continue;
        }
        fake->bench_finds += f->is_of_bench;
        fake->wrong_finds += f->version != version || flags != CU_FIND_LEGACY_STREAM;
        if (fake->hidden == NULL || strcmp(fake->hidden, name) != 0) {
            memcpy(out, &f->function, sizeof(*out));
        }
        return DVMM_SUCCESS;
    }
    return DVMM_NOT_FOUND;
}

#if FAKE_FIND == 11030
EXPORTED cu_result cuGetProcAddress(const char *name, void **out, int version, uint64_t flags);

cu_result cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
    return find(name, out, version, flags);
}
#else
EXPORTED cu_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                                       int *answer);

cu_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                              int *answer) {
    bool is_hidden = fake->hidden != NULL && strcmp(fake->hidden, name) == 0;
    *answer = is_hidden ? fake->hidden_answer : CU_FIND_SUCCESS;
    return find(name, out, version, flags);
}
#endif
#endif

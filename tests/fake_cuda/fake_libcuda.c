/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Built three times, as the three kinds of libcuda.so.1 that exist: FAKE_FIND is 12000 or 11030
 * for one whose own search is of that version, and then nothing else is exported; 0 for one that
 * exports every function under its versioned name and has no search.
 */
#include "tests/fake_cuda/fake_libcuda.h"

#include <stdlib.h>
#include <string.h>

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

/* The code a call returns before it does anything. */
static cu_result planned(const char *call) {
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

/* ---- Start and devices --------------------------------------------------------------------- */

static cu_result fake_cuInit(unsigned int flags) {
    (void)flags;
    ANSWER("cuInit", NOTHING);
}

static cu_result fake_cuDriverGetVersion(int *version) {
    ANSWER("cuDriverGetVersion", *version = fake->version);
}

static cu_result fake_cuDeviceGet(cu_device *out, int ordinal) {
    if (ordinal < 0 || ordinal >= fake->n_devices) {
        return DVMM_INVALID_DEVICE;
    }
    ANSWER("cuDeviceGet", *out = ordinal);
}

static cu_result fake_cuDeviceGetCount(int *count) {
    ANSWER("cuDeviceGetCount", *count = fake->n_devices);
}

static cu_result fake_cuDeviceGetName(char *name, int size, cu_device device) {
    (void)device;
    ANSWER("cuDeviceGetName", strncpy(name, "Fake GPU", (size_t)size));
}

static cu_result fake_cuDeviceTotalMem(size_t *bytes, cu_device device) {
    (void)device;
    ANSWER("cuDeviceTotalMem", *bytes = (size_t)1 << 34);
}

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

static cu_result fake_cuDeviceGetAttribute(int *value, cu_device_attribute which,
                                           cu_device device) {
    (void)device;
    ANSWER("cuDeviceGetAttribute", *value = attribute(which));
}

static cu_result fake_cuDevicePrimaryCtxRetain(cu_context *out, cu_device device) {
    (void)device;
    ANSWER("cuDevicePrimaryCtxRetain", (fake->contexts++, *out = fake->primary));
}

static cu_result fake_cuDevicePrimaryCtxRelease(cu_device device) {
    (void)device;
    ANSWER("cuDevicePrimaryCtxRelease", fake->contexts--);
}

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

static cu_result fake_cuCtxSynchronize(void) {
    ANSWER("cuCtxSynchronize", NOTHING);
}

/* ---- Memory -------------------------------------------------------------------------------- */

static cu_result fake_cuMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    ANSWER("cuMemGetInfo", (*free_bytes = 1, *total_bytes = 2));
}

static cu_result fake_cuMemGetAllocationGranularity(size_t *out, const cu_phys_props *props,
                                                    cu_granularity_option option) {
    (void)props;
    (void)option;
    ANSWER("cuMemGetAllocationGranularity", *out = (size_t)2 << 20);
}

static cu_result fake_cuMemAddressReserve(ductile_addr *out, size_t size, size_t alignment,
                                          ductile_addr hint, unsigned long long flags) {
    (void)size;
    (void)alignment;
    (void)hint;
    (void)flags;
    ANSWER("cuMemAddressReserve", (fake->reservations++, *out = SOME_ADDRESS));
}

static cu_result fake_cuMemAddressFree(ductile_addr addr, size_t size) {
    (void)addr;
    (void)size;
    ANSWER("cuMemAddressFree", fake->reservations--);
}

static cu_result fake_cuMemCreate(dvmm_phys *out, size_t size, const cu_phys_props *props,
                                  unsigned long long flags) {
    (void)size;
    (void)flags;
    if (props->type != CU_PHYS_PINNED || props->location.type != CU_LOCATION_DEVICE) {
        return DVMM_INVALID_VALUE;
    }
    ANSWER("cuMemCreate", (fake->handles++, *out = SOME_HANDLE));
}

static cu_result fake_cuMemRelease(dvmm_phys phys) {
    (void)phys;
    ANSWER("cuMemRelease", fake->handles--);
}

static cu_result fake_cuMemMap(ductile_addr addr, size_t size, size_t offset, dvmm_phys phys,
                               unsigned long long flags) {
    (void)addr;
    (void)size;
    (void)offset;
    (void)phys;
    (void)flags;
    ANSWER("cuMemMap", fake->mappings++);
}

static cu_result fake_cuMemUnmap(ductile_addr addr, size_t size) {
    (void)addr;
    (void)size;
    ANSWER("cuMemUnmap", fake->mappings--);
}

static cu_result fake_cuMemSetAccess(ductile_addr addr, size_t size, const cu_access_desc *descs,
                                     size_t n_descs) {
    (void)addr;
    (void)size;
    if (n_descs < 1 || n_descs > 2 || descs->location.type != CU_LOCATION_DEVICE) {
        return DVMM_INVALID_VALUE;
    }
    ANSWER("cuMemSetAccess", NOTHING);
}

static cu_result fake_cuMemGetAccess(unsigned long long *flags, const cu_location *location,
                                     ductile_addr addr) {
    (void)location;
    (void)addr;
    ANSWER("cuMemGetAccess", *flags = fake->granted);
}

static cu_result fake_cuDeviceCanAccessPeer(int *out, cu_device device, cu_device of) {
    ANSWER("cuDeviceCanAccessPeer", *out = device != of);
}

static cu_result fake_cuMemExportToShareableHandle(void *out, dvmm_phys phys, cu_handle_type type,
                                                   unsigned long long flags) {
    (void)phys;
    (void)flags;
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

static cu_result fake_cuMemImportFromShareableHandle(dvmm_phys *out, void *shared,
                                                     cu_handle_type type) {
    ANSWER("cuMemImportFromShareableHandle", answer = take_back(out, shared, type));
}

static cu_result fake_cuMemAlloc(ductile_addr *out, size_t size) {
    (void)size;
    ANSWER("cuMemAlloc", *out = SOME_ADDRESS);
}

static cu_result fake_cuMemFree(ductile_addr addr) {
    (void)addr;
    ANSWER("cuMemFree", NOTHING);
}

static cu_result fake_cuMemAllocAsync(ductile_addr *out, size_t size, ductile_stream stream) {
    (void)size;
    (void)stream;
    ANSWER("cuMemAllocAsync", *out = SOME_ADDRESS);
}

static cu_result fake_cuMemFreeAsync(ductile_addr addr, ductile_stream stream) {
    (void)addr;
    (void)stream;
    ANSWER("cuMemFreeAsync", NOTHING);
}

static cu_result fake_cuDeviceGetDefaultMemPool(cu_mem_pool *out, cu_device device) {
    (void)device;
    ANSWER("cuDeviceGetDefaultMemPool", *out = (cu_mem_pool)SOME_OBJECT);
}

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

static cu_result fake_cuMemPoolSetAttribute(cu_mem_pool pool, cu_pool_attribute which,
                                            void *value) {
    (void)pool;
    ANSWER("cuMemPoolSetAttribute", answer = set_in_pool(which, *(unsigned long long *)value));
}

static cu_result fake_cuMemPoolGetAttribute(cu_mem_pool pool, cu_pool_attribute which,
                                            void *value) {
    (void)pool;
    ANSWER("cuMemPoolGetAttribute", *(unsigned long long *)value = (unsigned long long)which);
}

static cu_result fake_cuMemPoolTrimTo(cu_mem_pool pool, size_t keep_bytes) {
    (void)pool;
    (void)keep_bytes;
    ANSWER("cuMemPoolTrimTo", fake->pool_trims++);
}

/* ---- Streams, captures, events ------------------------------------------------------------- */

static cu_result fake_cuStreamCreate(ductile_stream *out, unsigned int flags) {
    if (flags != CU_STREAM_FLAG_NON_BLOCKING) {
        return DVMM_INVALID_VALUE;
    }
    ANSWER("cuStreamCreate", (fake->streams++, *out = (ductile_stream)SOME_OBJECT));
}

static cu_result fake_cuStreamDestroy(ductile_stream stream) {
    (void)stream;
    ANSWER("cuStreamDestroy", fake->streams--);
}

static cu_result fake_cuStreamSynchronize(ductile_stream stream) {
    (void)stream;
    ANSWER("cuStreamSynchronize", NOTHING);
}

static cu_result fake_cuStreamQuery(ductile_stream stream) {
    (void)stream;
    ANSWER("cuStreamQuery", NOTHING);
}

static cu_result fake_cuStreamWaitEvent(ductile_stream stream, dvmm_event event,
                                        unsigned int flags) {
    (void)stream;
    (void)flags;
    ANSWER("cuStreamWaitEvent", fake->foreign_waits += event == (dvmm_event)FOREIGN_EVENT);
}

static cu_result fake_cuStreamWaitValue64(ductile_stream stream, ductile_addr addr, uint64_t value,
                                          unsigned int flags) {
    (void)stream;
    (void)addr;
    (void)value;
    (void)flags;
    ANSWER("cuStreamWaitValue64", NOTHING);
}

static cu_result fake_cuStreamIsCapturing(ductile_stream stream, cu_capture_status *out) {
    (void)stream;
    ANSWER("cuStreamIsCapturing", *out = DVMM_CAPTURE_ACTIVE);
}

static cu_result fake_cuStreamBeginCapture(ductile_stream stream, cu_capture_mode mode) {
    (void)stream;
    (void)mode;
    ANSWER("cuStreamBeginCapture", NOTHING);
}

static cu_result fake_cuStreamEndCapture(ductile_stream stream, dvmm_graph *out) {
    (void)stream;
    ANSWER("cuStreamEndCapture", (fake->graphs++, *out = (dvmm_graph)SOME_OBJECT));
}

static cu_result fake_cuThreadExchangeStreamCaptureMode(cu_capture_mode *mode) {
    ANSWER("cuThreadExchangeStreamCaptureMode", *mode = DVMM_CAPTURE_GLOBAL);
}

static cu_result fake_cuGraphDestroy(dvmm_graph graph) {
    (void)graph;
    ANSWER("cuGraphDestroy", fake->graphs--);
}

static cu_result fake_cuEventCreate(dvmm_event *out, unsigned int flags) {
    if (flags != CU_EVENT_FLAG_DISABLE_TIMING) {
        return DVMM_INVALID_VALUE;
    }
    dvmm_event made =
        fake->current == FAKE_FOREIGN_CONTEXT ? (dvmm_event)FOREIGN_EVENT : (dvmm_event)SOME_OBJECT;
    ANSWER("cuEventCreate", (fake->events++, *out = made));
}

static cu_result fake_cuEventDestroy(dvmm_event event) {
    (void)event;
    ANSWER("cuEventDestroy", fake->events--);
}

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

static cu_result fake_cuStreamGetCtx(ductile_stream stream, cu_context *out) {
    ANSWER("cuStreamGetCtx", *out = stream == FAKE_FOREIGN_STREAM   ? FAKE_FOREIGN_CONTEXT
                                    : stream == FAKE_STREAM_OF_NONE ? NULL
                                    : stream == FAKE_GREEN_STREAM   ? FAKE_GREEN_CONTEXT
                                                                    : fake->primary);
}

static cu_result fake_cuStreamGetCtx_v2(ductile_stream stream, cu_context *out,
                                        cu_green_context *green) {
    *green = stream == FAKE_GREEN_STREAM ? (cu_green_context)SOME_OBJECT : NULL;
    ANSWER("cuStreamGetCtx_v2",
           *out = stream == FAKE_FOREIGN_STREAM ? FAKE_FOREIGN_CONTEXT : fake->primary);
}

static cu_result fake_cuEventQuery(dvmm_event event) {
    (void)event;
    ANSWER("cuEventQuery", NOTHING);
}

static cu_result fake_cuEventSynchronize(dvmm_event event) {
    (void)event;
    ANSWER("cuEventSynchronize", NOTHING);
}

/* ---- Host memory and contents -------------------------------------------------------------- */

static cu_result fake_cuMemHostAlloc(void **out, size_t size, unsigned int flags) {
    (void)flags;
    ANSWER("cuMemHostAlloc", *out = malloc(size));
}

static cu_result fake_cuMemFreeHost(void *memory) {
    ANSWER("cuMemFreeHost", free(memory));
}

static cu_result fake_cuMemHostRegister(void *memory, size_t size, unsigned int flags) {
    (void)memory;
    (void)size;
    (void)flags;
    ANSWER("cuMemHostRegister", NOTHING);
}

static cu_result fake_cuMemHostUnregister(void *memory) {
    (void)memory;
    ANSWER("cuMemHostUnregister", NOTHING);
}

static cu_result fake_cuMemsetD8Async(ductile_addr addr, unsigned char value, size_t size,
                                      ductile_stream stream) {
    (void)addr;
    (void)value;
    (void)size;
    (void)stream;
    ANSWER("cuMemsetD8Async", NOTHING);
}

static cu_result fake_cuMemcpyDtoDAsync(ductile_addr to, ductile_addr from, size_t size,
                                        ductile_stream stream) {
    (void)to;
    (void)from;
    (void)size;
    (void)stream;
    ANSWER("cuMemcpyDtoDAsync", NOTHING);
}

static cu_result fake_cuMemcpyHtoDAsync(ductile_addr to, const void *from, size_t size,
                                        ductile_stream stream) {
    (void)to;
    (void)from;
    (void)size;
    (void)stream;
    ANSWER("cuMemcpyHtoDAsync", NOTHING);
}

static cu_result fake_cuMemcpyDtoHAsync(void *to, ductile_addr from, size_t size,
                                        ductile_stream stream) {
    (void)to;
    (void)from;
    (void)size;
    (void)stream;
    ANSWER("cuMemcpyDtoHAsync", NOTHING);
}

/* ---- How they are found -------------------------------------------------------------------- */

#if FAKE_FIND == 0

#define EXPORT(name, exported, version, parameters)                                                \
    extern cu_result exported_##name parameters __asm__(exported)                                  \
        __attribute__((alias("fake_" #name), visibility("default")));
CU_REQUIRED_FUNCTIONS(EXPORT)
CU_OPTIONAL_FUNCTIONS(EXPORT)

#else

typedef struct findable {
    const char *name;
    int version;
    void (*function)(void);
} findable;

static const findable functions[] = {
#define FINDABLE(name, exported, version, parameters) {#name, version, (void (*)(void))fake_##name},
    CU_REQUIRED_FUNCTIONS(FINDABLE) CU_OPTIONAL_FUNCTIONS(FINDABLE)
#undef FINDABLE
};

static cu_result find(const char *name, void **out, int version, uint64_t flags) {
    *out = NULL;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        const findable *f = &functions[i];
        if (strcmp(f->name, name) != 0) {
            continue;
        }
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

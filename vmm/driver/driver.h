/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver seam: one device as the CUDA driver shows it, behind one table of functions.
 *
 * Rules common to every call:
 *  - Each dvmm_* wrapper below is the only caller of its table entry. It refuses to call in a
 *    forked child or once the process exits, refuses after a sticky error, checks what goes in,
 *    calls, counts, times, reports failures to the trace callback, checks what came back.
 *  - Wrappers return a ductile_status; table entries return the driver's own code (CUresult), so
 *    that both backends can be compared code by code. dvmm_status_of is the one translation.
 *  - No call needs or changes the caller's current device or context.
 *  - Calls are safe from any thread; no lock of rank INDEX may be held (invariant L3).
 *  - On failure outputs are zero and, unless said otherwise, nothing has changed.
 *  - Memory calls are ordered by the host alone: a stream wait never makes an unmap safe.
 *    `Pre:` lines say what the caller must have proven.
 */
#ifndef DUCTILE_VMM_DRIVER_DRIVER_H
#define DUCTILE_VMM_DRIVER_DRIVER_H

#include "vmm/base/status.h"

#include <ductile.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dvmm_driver dvmm_driver;
typedef unsigned long long dvmm_phys; /* CUmemGenericAllocationHandle; 0 is none             */
typedef struct CUevent_st *dvmm_event;

/* Codes of the driver that the project names. Values are CUresult's. */
typedef enum dvmm_code {
    DVMM_SUCCESS = 0,
    DVMM_INVALID_VALUE = 1,
    DVMM_OUT_OF_MEMORY = 2,
    DVMM_NOT_INITIALIZED = 3,
    DVMM_DEINITIALIZED = 4,
    DVMM_STUB_LIBRARY = 34,
    DVMM_NO_DEVICE = 100,
    DVMM_INVALID_DEVICE = 101,
    DVMM_INVALID_CONTEXT = 201,
    DVMM_OPERATING_SYSTEM = 304,
    DVMM_INVALID_HANDLE = 400,
    DVMM_ILLEGAL_STATE = 401,
    DVMM_NOT_FOUND = 500,
    DVMM_NOT_READY = 600,
    DVMM_ILLEGAL_ADDRESS = 700,
    DVMM_ALREADY_REGISTERED = 712,
    DVMM_NOT_REGISTERED = 713,
    DVMM_NOT_PERMITTED = 800,
    DVMM_NOT_SUPPORTED = 801,
    DVMM_CAPTURE_UNSUPPORTED = 900,
    DVMM_CAPTURE_INVALIDATED = 901,
    DVMM_CAPTURE_MERGE = 902,
    DVMM_CAPTURE_UNMATCHED = 903,
    DVMM_CAPTURE_UNJOINED = 904,
    DVMM_CAPTURE_ISOLATION = 905,
    DVMM_CAPTURE_IMPLICIT = 906,
    DVMM_CAPTURED_EVENT = 907,
    DVMM_CAPTURE_WRONG_THREAD = 908,
    DVMM_UNKNOWN = 999
} dvmm_code;

typedef enum dvmm_access {
    DVMM_ACCESS_NONE = 0,
    DVMM_ACCESS_READ = 1,
    DVMM_ACCESS_RW = 3
} dvmm_access;

typedef enum dvmm_capture_mode {
    DVMM_CAPTURE_GLOBAL = 0,
    DVMM_CAPTURE_THREAD_LOCAL = 1,
    DVMM_CAPTURE_RELAXED = 2
} dvmm_capture_mode;

typedef enum dvmm_capture_status {
    DVMM_CAPTURE_NONE = 0,
    DVMM_CAPTURE_ACTIVE = 1,
    DVMM_CAPTURE_BROKEN = 2 /* invalidated: treat it as capturing */
} dvmm_capture_status;

/* How a handle can be passed to another process: the driver's own values. */
typedef enum dvmm_share_type {
    DVMM_SHARE_NONE = 0,
    DVMM_SHARE_FD = 1,
    DVMM_SHARE_FABRIC = 8
} dvmm_share_type;

/* Physical memory is interchangeable only between equal properties. */
typedef struct dvmm_phys_props {
    uint32_t handle_types; /* dvmm_share_type */
    bool rdma;
    bool is_host; /* page-locked memory of the host, at the device's NUMA node */
} dvmm_phys_props;

enum { DVMM_FABRIC_BYTES = 64, DVMM_MAX_DEVICES = 64, DVMM_BATCH_COPIES = 512 };

/* A handle on its way to another process. */
typedef struct dvmm_shared {
    dvmm_share_type type;
    int fd; /* FD: owned by the holder of this struct; keeps the memory alive until closed */
    uint8_t fabric[DVMM_FABRIC_BYTES]; /* FABRIC: bytes, which own nothing */
} dvmm_shared;

/* Copies between the device and page-locked memory, all one way. Those of one batch have no order
 * among them. */
typedef struct dvmm_batch {
    uint64_t bytes; /* of all of them */
    uint32_t n;
    bool is_out; /* from the device */
    ductile_addr device[DVMM_BATCH_COPIES];
    ductile_addr host[DVMM_BATCH_COPIES]; /* pointers */
    size_t sizes[DVMM_BATCH_COPIES];
} dvmm_batch;

/* Constant after opening. Upper layers read these, and never ask which backend there is. */
typedef struct dvmm_caps {
    char name[96];           /* the device's name                                          */
    char driver_version[32]; /* "13.0 (580.159.04)" or "virtual"                           */
    int ordinal;
    uint64_t granule_bytes;  /* smallest mapping; every size and address is a multiple     */
    uint64_t total_bytes;    /* physical memory of the device                              */
    uint64_t host_bytes;     /* of a host that is modelled, too; 0: it is this machine     */
    bool is_virtual;         /* only for the name in results, never for policy */
    uint32_t share_types;    /* dvmm_share_type, or-ed: those that the device claims       */
    bool has_rdma;           /* the device claims props.rdma; some systems claim it and cannot */
    bool has_context_events; /* context_record works: CUDA 12.5 or newer                   */
    bool has_batches;        /* copy_batch is there: CUDA 12.8 or newer                    */
} dvmm_caps;

/* Every call that the library makes: X(name, parameters of its entry), in the order of the
 * counters. What the bench and tests call besides is in bench_calls.h. */
#define DVMM_CALLS(X)                                                                              \
    X(mem_info, (void *ctx, uint64_t *free_bytes, uint64_t *total_bytes))                          \
    X(address_reserve,                                                                             \
      (void *ctx, uint64_t size, uint64_t alignment, ductile_addr hint, ductile_addr *out))        \
    X(address_free, (void *ctx, ductile_addr addr, uint64_t size))                                 \
    X(phys_create, (void *ctx, uint64_t size, const dvmm_phys_props *props, dvmm_phys *out))       \
    X(phys_release, (void *ctx, dvmm_phys phys))                                                   \
    X(map, (void *ctx, ductile_addr addr, uint64_t size, uint64_t offset, dvmm_phys phys))         \
    X(unmap, (void *ctx, ductile_addr addr, uint64_t size))                                        \
    X(set_access, (void *ctx, ductile_addr addr, uint64_t size, dvmm_access access))               \
    X(get_access, (void *ctx, ductile_addr addr, dvmm_access *out))                                \
    X(can_access_peer, (void *ctx, int device, int *out))                                          \
    X(set_access_for, (void *ctx, ductile_addr addr, uint64_t size, dvmm_access access,            \
                       const int *devices, size_t n_devices))                                      \
    X(phys_export, (void *ctx, dvmm_phys phys, dvmm_share_type type, dvmm_shared *out))            \
    X(phys_import, (void *ctx, const dvmm_shared *shared, dvmm_phys *out))                         \
    X(stream_create, (void *ctx, ductile_stream *out))                                             \
    X(stream_destroy, (void *ctx, ductile_stream stream))                                          \
    X(stream_sync, (void *ctx, ductile_stream stream))                                             \
    X(stream_is_ours, (void *ctx, ductile_stream stream, int *out))                                \
    X(stream_wait_event, (void *ctx, ductile_stream stream, dvmm_event event))                     \
    X(capture_status, (void *ctx, ductile_stream stream, dvmm_capture_status *out))                \
    X(capture_exchange_mode, (void *ctx, dvmm_capture_mode *mode))                                 \
    X(context_sync, (void *ctx))                                                                   \
    X(context_record, (void *ctx, dvmm_event event))                                               \
    X(event_create, (void *ctx, dvmm_event *out))                                                  \
    X(event_destroy, (void *ctx, dvmm_event event))                                                \
    X(event_record, (void *ctx, dvmm_event event, ductile_stream stream))                          \
    X(event_query, (void *ctx, dvmm_event event))                                                  \
    X(event_sync, (void *ctx, dvmm_event event))                                                   \
    X(host_register, (void *ctx, void *memory, uint64_t size))                                     \
    X(host_unregister, (void *ctx, void *memory))                                                  \
    X(fill, (void *ctx, ductile_addr addr, uint8_t value, uint64_t size, ductile_stream stream))   \
    X(upload,                                                                                      \
      (void *ctx, ductile_addr to, const void *from, uint64_t size, ductile_stream stream))        \
    X(download, (void *ctx, void *to, ductile_addr from, uint64_t size, ductile_stream stream))    \
    X(copy_batch, (void *ctx, dvmm_batch *batch, ductile_stream stream))

typedef enum dvmm_call {
#define DVMM_CALL_ENUM(name, parameters) DVMM_CALL_##name,
    DVMM_CALLS(DVMM_CALL_ENUM)
#undef DVMM_CALL_ENUM
        DVMM_N_CALLS,
    DVMM_OTHER_CALL = DVMM_N_CALLS /* one of another table: counted together */
} dvmm_call;

/*
 * The table of these entries. `ctx` is the backend's. Entries return the driver's code. All but
 * clock_ns are filled; one a backend cannot serve returns DVMM_NOT_SUPPORTED.
 */
typedef struct dvmm_driver_ops {
    void (*close)(void *ctx);
    uint64_t (*clock_ns)(void *ctx); /* monotonic modelled time; NULL: the host's clock */
#define DVMM_ENTRY(name, parameters) int(*name) parameters;
    DVMM_CALLS(DVMM_ENTRY)
#undef DVMM_ENTRY
} dvmm_driver_ops;

/* Every failed call, and with trace_all every call: name, driver's code, its main operands. */
typedef void (*dvmm_trace_fn)(void *user, dvmm_call call, int code, uint64_t address,
                              uint64_t size);

/* Each counter is exact; the set is not a snapshot. Both times stay 0 unless dvmm_time_calls was
 * called. The time of a call includes both readings of the clock around it; the checks and
 * counts of the wrapper are not in it. */
typedef struct dvmm_counters {
    uint64_t calls[DVMM_N_CALLS + 1];    /* made                                               */
    uint64_t failures[DVMM_N_CALLS + 1]; /* of them, not successful (NOT_READY is no failure)  */
    uint64_t driver_time_ns;             /* modelled on the virtual GPU, else host_time_ns     */
    uint64_t host_time_ns;               /* by the host's clock                                */
} dvmm_counters;

/* One open device, owned by its opener. No lock: every field that changes is atomic. Only
 * vmm/driver reads the fields, and the inline functions below. */
struct dvmm_driver {
    /* constant after opening */
    const dvmm_driver_ops *ops;
    void *ctx; /* the backend's; closed with the driver */
    dvmm_caps caps;
    unsigned process_age; /* dvmm_process_age when the device was opened */

    _Atomic bool times_calls;   /* published after timing_ns */
    _Atomic uint64_t timing_ns; /* what timing adds to a call outside of it */
    _Atomic int poison; /* set once: the first code after which nothing may be called; else 0 */
    _Atomic unsigned usable_at; /* process_age, until poison is set */

    /* counters, relaxed */
    _Atomic uint64_t calls[DVMM_N_CALLS + 1];
    _Atomic uint64_t failures[DVMM_N_CALLS + 1];
    _Atomic uint64_t driver_time_ns; /* of devices with a clock of their own */
    _Atomic uint64_t host_time_ns;

    /* published after trace_user, so that a thread that sees them sees that */
    void *trace_user;
    _Atomic(dvmm_trace_fn) trace_failure;
    _Atomic(dvmm_trace_fn) trace_answer; /* of a call that did not fail; mostly NULL */
};

/* ---- A device (vmm/cuda/open.h and vmm/driver/open_virtual.h open one) ---------------------- */

/* Used by backends: takes ownership of ctx on success only. caps is copied. */
ductile_status dvmm_driver_new(const dvmm_driver_ops *ops, void *ctx, const dvmm_caps *caps,
                               dvmm_driver **out);

void dvmm_close(dvmm_driver *d);
const dvmm_caps *dvmm_get_caps(const dvmm_driver *d);
/* The device's clock: modelled on the virtual GPU, else the host's. */
uint64_t dvmm_clock_ns(dvmm_driver *d);
uint64_t dvmm_host_clock_ns(void);
/* Times every call that begins from now on, at the cost of two readings of the clock each. */
void dvmm_time_calls(dvmm_driver *d);
void dvmm_get_counters(const dvmm_driver *d, dvmm_counters *out);
static inline uint64_t dvmm_successes(const dvmm_counters *c, dvmm_call call) {
    return c->calls[call] - c->failures[call];
}
/* Waits of the host for a stream, an event or the whole device. */
uint64_t dvmm_count_host_waits(const dvmm_counters *c);
void dvmm_set_trace(dvmm_driver *d, dvmm_trace_fn trace, void *user, bool trace_all);

/* The driver's code of this thread's latest call, for reports. */
int dvmm_last_code(void);
const char *dvmm_code_name(int code);
const char *dvmm_call_name(dvmm_call call);
ductile_status dvmm_status_of(int code);
/* The driver says that it, or the context, is gone permanently. */
bool dvmm_code_is_sticky(int code);

/* DUCTILE_OK while calls may be made; otherwise ERR_EXITING, ERR_FORKED or ERR_DEVICE_LOST. */
ductile_status dvmm_usable(const dvmm_driver *d);

/* The number of forks between the first process and this one, and one more bit once the process
 * exits. */
extern _Atomic unsigned dvmm_process_age;

/* Does dvmm_usable return DUCTILE_OK? Costs two loads. */
static inline bool dvmm_is_usable(const dvmm_driver *d) {
    return atomic_load_explicit(&d->usable_at, memory_order_acquire) ==
           atomic_load_explicit(&dvmm_process_age, memory_order_relaxed);
}

/* May dvmm_context_record be called? Constant; false with a driver older than CUDA 12.5. */
static inline bool dvmm_has_context_events(const dvmm_driver *d) {
    return d->caps.has_context_events;
}

/* Closes the descriptor, if there is one. */
void dvmm_shared_drop(dvmm_shared *shared);

/* The raw table, for probes and the conformance suite. */
const dvmm_driver_ops *dvmm_raw_ops(const dvmm_driver *d, void **ctx);

/* Advisory only: another process may change the answer at any time. */
ductile_status dvmm_mem_info(dvmm_driver *d, uint64_t *free_bytes, uint64_t *total_bytes);

/* ERR_OUT_OF_ADDRESSES when no range is left. Pre: size is a multiple of the granule, not 0. */
ductile_status dvmm_address_reserve(dvmm_driver *d, uint64_t size, ductile_addr *out);
/* Pre: exactly one reservation, nothing mapped in it. */
ductile_status dvmm_address_free(dvmm_driver *d, ductile_addr addr, uint64_t size);
/* Pre: size is a multiple of the granule, not 0. */
ductile_status dvmm_phys_create(dvmm_driver *d, uint64_t size, const dvmm_phys_props *props,
                                dvmm_phys *out);
/* Pre: held once by the caller; never called twice, also not after a failure. */
ductile_status dvmm_phys_release(dvmm_driver *d, dvmm_phys phys);
/* Maps the whole of phys. Pre: the span is reserved and unmapped, size is phys's size. */
ductile_status dvmm_map(dvmm_driver *d, ductile_addr addr, uint64_t size, dvmm_phys phys);
/* Pre: the span is made of whole mappings, and the host knows all work on it complete. */
ductile_status dvmm_unmap(dvmm_driver *d, ductile_addr addr, uint64_t size);
/* Pre: the span is made of whole mappings. */
ductile_status dvmm_set_access(dvmm_driver *d, ductile_addr addr, uint64_t size,
                               dvmm_access access);
ductile_status dvmm_get_access(dvmm_driver *d, ductile_addr addr, dvmm_access *out);

/* Devices are named by ordinal, as the process numbers them. */

/* DUCTILE_OK when `device` can reach memory of this device.
 * ERR_NO_DEVICE: there is no such device. */
ductile_status dvmm_can_access_peer(dvmm_driver *d, int device, bool *out);
/* Sets the access of the given devices, which may include this one; the access of others does not
 * change. Pre: the span is made of whole mappings; 1 to DVMM_MAX_DEVICES devices. */
ductile_status dvmm_set_access_for(dvmm_driver *d, ductile_addr addr, uint64_t size,
                                   dvmm_access access, const int *devices, size_t n_devices);
/* Pre: phys was created with that type. The caller closes out->fd. On failure out->fd is -1. */
ductile_status dvmm_phys_export(dvmm_driver *d, dvmm_phys phys, dvmm_share_type type,
                                dvmm_shared *out);
/* A handle on memory that another process, or this one, exported; released like any other. The
 * descriptor stays the caller's. Its size must be known: the driver does not tell it. */
ductile_status dvmm_phys_import(dvmm_driver *d, const dvmm_shared *shared, dvmm_phys *out);

/* Of the non-blocking kind. */
ductile_status dvmm_stream_create(dvmm_driver *d, ductile_stream *out);
ductile_status dvmm_stream_destroy(dvmm_driver *d, ductile_stream stream);
ductile_status dvmm_stream_sync(dvmm_driver *d, ductile_stream stream);
/* Is the stream of our context, or of a green context of our device, so that dvmm_context_record
 * covers its work? Default streams are, without asking. False when the driver cannot tell. */
bool dvmm_stream_is_ours(dvmm_driver *d, ductile_stream stream);
ductile_status dvmm_stream_wait_event(dvmm_driver *d, ductile_stream stream, dvmm_event event);
/* Errors and refusals count as capturing. */
ductile_status dvmm_capture_status_of(dvmm_driver *d, ductile_stream stream,
                                      dvmm_capture_status *out);
/* Swaps the calling thread's capture mode with *mode. */
ductile_status dvmm_capture_exchange_mode(dvmm_driver *d, dvmm_capture_mode *mode);
ductile_status dvmm_context_sync(dvmm_driver *d);
/* Records the event behind all work issued to our context so far: that of every stream, named or
 * not, blocking or not, the default streams included. Work of other contexts is not covered.
 * ERR_CAPTURING while any stream of our context is captured, in whatever mode and by whatever
 * thread: then all those captures are invalidated. The capture mode of the thread changes nothing.
 * ERR_UNSUPPORTED where dvmm_has_context_events says no.
 * Pre: no capture is known to be under way. */
ductile_status dvmm_context_record(dvmm_driver *d, dvmm_event event);

/* Events without timing. */
ductile_status dvmm_event_create(dvmm_driver *d, dvmm_event *out);
ductile_status dvmm_event_destroy(dvmm_driver *d, dvmm_event event);
ductile_status dvmm_event_record(dvmm_driver *d, dvmm_event event, ductile_stream stream);
/* ERR_NOT_READY while the recorded work is under way. Pre: recorded (an event never recorded
 * answers "done", which would free memory in use). */
ductile_status dvmm_event_query(dvmm_driver *d, dvmm_event event);
ductile_status dvmm_event_sync(dvmm_driver *d, dvmm_event event);

/* Page-locks memory of the caller's own, in whole pages, until it is unregistered. */
ductile_status dvmm_host_register(dvmm_driver *d, void *memory, uint64_t size);
ductile_status dvmm_host_unregister(dvmm_driver *d, void *memory);

/* Contents, in stream order. What is downloaded is there once the work of the stream is done. Pre
 * of download: `to` is page-locked, and stays so until then. A call that failed may copy all the
 * same, and one for a batch some of it. */
ductile_status dvmm_fill(dvmm_driver *d, ductile_addr addr, uint8_t value, uint64_t size,
                         ductile_stream stream);
ductile_status dvmm_upload(dvmm_driver *d, ductile_addr to, const void *from, uint64_t size,
                           ductile_stream stream);
ductile_status dvmm_download(dvmm_driver *d, void *to, ductile_addr from, uint64_t size,
                             ductile_stream stream);
/* The batch does not change. ERR_UNSUPPORTED: only single copies are served.
 * Pre: 1 to DVMM_BATCH_COPIES copies; not on the legacy default stream. */
ductile_status dvmm_copy_batch(dvmm_driver *d, dvmm_batch *batch, ductile_stream stream);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A virtual GPU: a deterministic model of a device's memory, streams and events. It lets you test
 * allocators and programs, and replay recorded runs, without a GPU.
 *
 * The virtual GPU returns the codes that the hardware returns. Some calls are always a mistake, but
 * the hardware lets them pass (unmapping what is not mapped). They pass here too, and are recorded
 * as violations. With the option `detect`, the virtual GPU also records memory that is reused,
 * unmapped or moved too early. It finds this under every schedule, because it asks whether the
 * program ordered the work, not whether the work happened to end in time. The host cannot
 * dereference the addresses.
 *
 * Work on a stream completes when the schedule says so. Time is virtual: every driver call advances
 * the clock by what the same call costs on an H200. The calls of this header cost no virtual time
 * and are not counted.
 *
 * Link libductile_virtual, which carries these functions. An allocator on a virtual GPU needs it to
 * be of libductile's version.
 *
 * For all functions, unless they say otherwise: `gpu`, `out` and strings are not NULL; any thread
 * may call them; ERR_DEVICE_LOST means that an earlier mistake of the program's work ended the
 * device.
 */
#ifndef DUCTILE_VIRTUAL_H
#define DUCTILE_VIRTUAL_H

#include "ductile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ductile_schedule {
    DUCTILE_SCHEDULE_EAGER = 0,   /* work completes at once, unless it waits for other work   */
    DUCTILE_SCHEDULE_LAGGING = 1, /* work completes `lag` units of work time after its issue   */
    DUCTILE_SCHEDULE_LAZY = 2,    /* work completes only when a call waits for it              */
    DUCTILE_SCHEDULE_RANDOM = 3   /* each advance or query completes a seeded choice of it     */
} ductile_schedule;

/** How the device treats memory for RDMA (the allocator's option `rdma`). */
typedef enum ductile_virtual_rdma {
    DUCTILE_VIRTUAL_RDMA_WORKS = 0,
    DUCTILE_VIRTUAL_RDMA_NONE = 1, /* cannot be created                                    */
    DUCTILE_VIRTUAL_RDMA_TRAP = 2  /* can be created and mapped, but the access call fails, as
                                      on some systems that claim to support it             */
} ductile_virtual_rdma;

/** Options of a virtual GPU. A field of 0 means the default. */
typedef struct ductile_virtual_options {
    size_t struct_size;      /* set by ductile_virtual_options_init                         */
    uint64_t capacity_bytes; /* physical memory; 0: 139 GiB, an H200's                       */
    uint64_t granule_bytes;  /* smallest mapping, a power of two; 0: 2 MiB                   */
    uint64_t address_bytes;  /* addresses that can be reserved in all; 0: 125 TiB            */
    ductile_schedule schedule;
    uint64_t lag;       /* LAGGING: units of work time between issue and completion        */
    uint64_t seed;      /* RANDOM: which work completes; not 0: also places reservations    */
    uint64_t log_calls; /* how many of the latest driver calls to keep; 0: none             */
    uint32_t n_devices; /* in the machine, at most 64; this one is number 0; 0 means 1      */
    uint64_t unreachable_devices; /* bit i: device i cannot reach memory of this one        */
    int no_descriptors; /* 1: memory cannot be exported as file descriptors                 */
    int has_fabric;     /* 1: memory can be exported to the fabric                          */
    ductile_virtual_rdma rdma;
    int detect; /* which misuse of memory to record, see "What it detects": 0 none, the default;
                   1 what an allocator can cause; 2 also what a program does to its own blocks */
    int no_context_events; /* 1: no event can be recorded behind all work of the context, as with a
                              driver older than CUDA 12.5 */
    uint64_t host_bytes;   /* memory of the host that handles may lie in; 0: 128 GiB          */
    int no_host_handles;   /* 1: none may, as with a driver older than CUDA 12.2              */
} ductile_virtual_options;

/**
 * Fills in the size and every default.
 *
 * Arguments: options: not NULL.
 * Threads:   safe if different objects.
 */
DUCTILE_API void ductile_virtual_options_init(ductile_virtual_options *options);

/**
 * Creates a virtual GPU.
 *
 * Arguments: out: receives it. options: NULL means all defaults.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT; ERR_OUT_OF_HOST_MEMORY.
 * On error:  *out is NULL.
 * Ownership: release with ductile_virtual_destroy, after every allocator on it is destroyed.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_create(ductile_virtual_gpu **out, const ductile_virtual_options *options);

/**
 * Destroys a virtual GPU with its streams and memory. Destroy its allocators and graphs first.
 *
 * Arguments: gpu: NULL does nothing.
 * Threads:   no other call on this virtual GPU may be running, or follow.
 */
DUCTILE_API void ductile_virtual_destroy(ductile_virtual_gpu *gpu);

/* ---- Streams and work ---------------------------------------------------------------------- */

/**
 * Creates a stream that waits for no other stream.
 *
 * Arguments: out: receives the stream.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST.
 * On error:  *out is NULL.
 * Ownership: release with ductile_virtual_stream_destroy.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_stream_create(ductile_virtual_gpu *gpu,
                                                                         ductile_stream *out);

/**
 * Creates a blocking stream, as cudaStreamCreate does. Work on the legacy default stream waits for
 * all earlier work of a blocking stream, and later work of the blocking stream waits for that.
 * Per-thread default streams are blocking too.
 *
 * Arguments: out: receives the stream.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST.
 * On error:  *out is NULL.
 * Ownership: release with ductile_virtual_stream_destroy.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_stream_create_blocking(ductile_virtual_gpu *gpu, ductile_stream *out);

/**
 * Creates a stream of another device of the machine (the option `n_devices`). Its work reaches
 * memory that the other device has access to. A wait for all work of this device does not wait for
 * it. If its work uses memory that it may not use, this device ends too.
 *
 * Arguments: device: number of the other device. out: receives the stream.
 * Returns:   DUCTILE_OK; ERR_NO_DEVICE, ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY,
 *            ERR_DEVICE_LOST.
 * On error:  *out is NULL.
 * Ownership: release with ductile_virtual_stream_destroy.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_stream_create_on(ductile_virtual_gpu *gpu, int device, ductile_stream *out);

/**
 * Creates a stream of another context of this device, as cuStreamCreate does after cuCtxCreate. Its
 * work reaches the same memory. A wait for all work of the context, or an event behind it, does not
 * wait for it.
 *
 * Arguments: out: receives the stream.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST.
 * On error:  *out is NULL.
 * Ownership: release with ductile_virtual_stream_destroy.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_stream_create_foreign(ductile_virtual_gpu *gpu, ductile_stream *out);

/**
 * Destroys a stream. Returns at once; work already issued still completes.
 *
 * Returns:   DUCTILE_OK; ERR_DRIVER (no such stream), ERR_DEVICE_LOST.
 */
DUCTILE_API ductile_status ductile_virtual_stream_destroy(ductile_virtual_gpu *gpu,
                                                          ductile_stream stream);

/** A span of memory that work reads or writes. */
typedef struct ductile_virtual_use {
    ductile_addr address;
    uint64_t size; /* bytes */
    int writes;    /* 0: reads; 1: writes */
} ductile_virtual_use;

/**
 * Issues a "kernel": work that reads and writes the given spans when it executes. If a span is not
 * mapped with the needed access at that time, the device ends, as the hardware would.
 *
 * Arguments: uses, n_uses: the spans; NULL and 0 for none. They are copied.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_DRIVER (no such stream), ERR_OUT_OF_HOST_MEMORY,
 *            ERR_DEVICE_LOST.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_launch(ductile_virtual_gpu *gpu,
                                                                  ductile_stream stream,
                                                                  const ductile_virtual_use *uses,
                                                                  size_t n_uses);

/**
 * Makes later work of `stream` wait for all work issued to `on` so far.
 *
 * Returns:   DUCTILE_OK; ERR_DRIVER (no such stream), ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST;
 *            capture errors as on hardware.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_stream_wait(ductile_virtual_gpu *gpu,
                                                                       ductile_stream stream,
                                                                       ductile_stream on);

/**
 * Completes all work of a stream, and all work that it waits for.
 *
 * Returns:   DUCTILE_OK; ERR_DRIVER (no such stream), ERR_CAPTURING, ERR_DEVICE_LOST.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_stream_sync(ductile_virtual_gpu *gpu,
                                                                       ductile_stream stream);

/** Lets `n` units of work time pass, the unit of `lag`. */
DUCTILE_API void ductile_virtual_advance(ductile_virtual_gpu *gpu, uint64_t n);

/** Changes the schedule, and its lag, for work issued from now on. */
DUCTILE_API void ductile_virtual_set_schedule(ductile_virtual_gpu *gpu, ductile_schedule schedule,
                                              uint64_t lag);

/* ---- Captures and graphs ------------------------------------------------------------------- */

/** The work of one capture, ready to be launched. Opaque. */
typedef struct ductile_virtual_graph ductile_virtual_graph;

typedef enum ductile_capture_mode {
    DUCTILE_CAPTURE_GLOBAL = 0,
    DUCTILE_CAPTURE_THREAD_LOCAL = 1,
    DUCTILE_CAPTURE_RELAXED = 2
} ductile_capture_mode;

/**
 * Begins to capture a stream. Its work, and the work of streams that wait for it, is collected
 * instead of executed.
 *
 * Returns:   DUCTILE_OK; ERR_CAPTURING, ERR_DRIVER, ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_capture_begin(ductile_virtual_gpu *gpu,
                                                                         ductile_stream stream,
                                                                         ductile_capture_mode mode);

/**
 * Ends a capture and makes a graph of the work that it collected, in the order of issue.
 *
 * Arguments: out: receives the graph; NULL drops the work.
 * Returns:   DUCTILE_OK; ERR_CAPTURING (the capture was broken, or a stream had not joined it),
 *            ERR_DRIVER (no capture began on the stream), ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST.
 * On error:  *out is NULL.
 * Ownership: release with ductile_virtual_graph_destroy, before the virtual GPU is destroyed.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_capture_end(ductile_virtual_gpu *gpu,
                                                                       ductile_stream stream,
                                                                       ductile_virtual_graph **out);

/**
 * Issues the work of a graph to a stream, after the graph's previous launch. As on hardware, it
 * uses the addresses of the capture, whatever has happened to them since. Work that several streams
 * captured runs one after the other.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (graph is NULL), ERR_DRIVER, ERR_OUT_OF_HOST_MEMORY,
 *            ERR_DEVICE_LOST.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_graph_launch(ductile_virtual_graph *graph, ductile_stream stream);

/**
 * Tells the device that a graph rests: its pool is asleep, and it is not launched until it wakes.
 * Meanwhile its memory may be unmapped (GRAPH_MEMORY is not reported). Call it right before
 * ductile_sleep, and again right after ductile_wake. A launch of a graph at rest is a MISUSE.
 *
 * Arguments: graph: NULL does nothing. rests: 1: rests; 0: wakes, with whatever is mapped at its
 *            addresses now.
 */
DUCTILE_API void ductile_virtual_graph_rest(ductile_virtual_graph *graph, int rests);

/**
 * Destroys a graph. Launches under way complete.
 *
 * Arguments: graph: NULL does nothing.
 */
DUCTILE_API void ductile_virtual_graph_destroy(ductile_virtual_graph *graph);

/* ---- Faults -------------------------------------------------------------------------------- */

/** A failure of one driver call, planned in advance. */
typedef struct ductile_virtual_fault {
    size_t struct_size;
    const char *call; /* name of the driver call ("map", "phys_create", ...); NULL: any        */
    uint64_t nth;     /* the nth such call from now fails, counted from 1                      */
    int code;         /* the driver's code that it returns; not 0                              */
    int persistent;   /* 1: every later such call fails too                                    */
    int effect;       /* 0: the call does nothing; 1: it does its work, then fails; 2 (unmap and
                         set_access of several mappings, copy_batch): it does the first one,
                         then fails                                                            */
} ductile_virtual_fault;

/**
 * Plans one fault. It replaces the fault planned before.
 *
 * Arguments: fault: NULL plans none.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (an unknown call, nth or code of 0, or no such
 *            effect).
 * On error:  nothing has changed.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_inject(ductile_virtual_gpu *gpu, const ductile_virtual_fault *fault);

/** Returns how often the planned fault has fired. */
DUCTILE_API uint64_t ductile_virtual_faults_fired(ductile_virtual_gpu *gpu);

/**
 * Sets how much physical memory "another process" holds.
 *
 * Returns:   DUCTILE_OK; ERR_OUT_OF_MEMORY (not so much is free).
 * On error:  nothing has changed.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_set_external_bytes(ductile_virtual_gpu *gpu, uint64_t bytes);

/* ---- What it saw ---------------------------------------------------------------------------- */

/** The device at one moment, in numbers. */
typedef struct ductile_virtual_state {
    size_t struct_size;                   /* set by the caller */
    uint64_t used_bytes, used_peak_bytes; /* physical memory, mapped or not      */
    uint64_t handles;                     /* physical handles alive              */
    uint64_t mappings;
    uint64_t reservations, reserved_address_bytes;
    uint64_t streams, events;
    uint64_t allocations; /* of cuMemAlloc, alive */
    uint64_t violations;  /* recorded since creation, all kinds */
    uint64_t calls;       /* driver calls, all kinds */
    uint64_t time_ns;     /* virtual time */
    int poisoned;         /* the code that ended the device; 0: it works */
    int detects;          /* the option `detect`; 0 also when detection ran out of host memory */
    uint64_t host_bytes;  /* memory of the host behind handles; not in used_bytes */
} ductile_virtual_state;

/**
 * Reads the state of the device.
 *
 * Arguments: out: the caller sets struct_size. A smaller struct gets the fields that fit.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_get_state(ductile_virtual_gpu *gpu,
                                                                     ductile_virtual_state *out);

/**
 * Says what a device may do with the memory at an address.
 *
 * Returns:   0: nothing; 1: read; 3: read and write; -1: nothing is mapped there, or the machine
 *            has no such device.
 */
DUCTILE_API int ductile_virtual_access(ductile_virtual_gpu *gpu, ductile_addr address, int device);

/**
 * Counts the driver calls of one kind.
 *
 * Arguments: call: name of the driver call ("map", "phys_create", ...).
 * Returns:   how often it was made; UINT64_MAX for an unknown name.
 */
DUCTILE_API uint64_t ductile_virtual_count(ductile_virtual_gpu *gpu, const char *call);

/** Writes one sentence on the latest violation into `buffer`; nothing if there was none. */
DUCTILE_API void ductile_virtual_last_violation(ductile_virtual_gpu *gpu, char *buffer,
                                                size_t size);

/* ---- What it detects ------------------------------------------------------------------------ */

/*
 * The virtual GPU derives an order of work and host calls. One comes before another when
 *
 *   - both are work of one stream: in the order of issue;
 *   - a stream waits for an event: its later work comes after the work before the event's
 * recording, which is the work of all streams of the context for an event of the context;
 *   - the streams are the legacy default stream and a blocking stream: in the order of issue;
 *   - both are launches of one graph: in the order of launch;
 *   - the host knew that the first was complete when it issued the second, by a synchronisation or
 * a query that succeeded. What one thread of the host knows, all threads know.
 *
 * Nothing else is an order. Work that a schedule happened to complete is not ordered. Neither is a
 * wait for a host word (cuStreamWaitValue): a program that orders memory by one is reported even if
 * it is correct.
 *
 * Violations by kind, X(name, value, text, sentence):
 */
#define DUCTILE_VIOLATION_MAP(X)                                                                   \
    X(MISUSE, 0, "misuse", "a call that the hardware lets pass although it is a mistake")          \
    X(REUSE, 1, "reuse", "memory got a new owner before its old owner's work was ordered")         \
    X(RACE, 2, "race", "work of one owner, or of unknown owners, conflicts without an order")      \
    X(EARLY_UNMAP, 3, "early-unmap", "unmapped before the host knew that the work was complete")   \
    X(LIVE_UNMAP, 4, "live-unmap", "unmapped under a live block")                                  \
    X(GRAPH_MEMORY, 5, "graph-memory", "unmapped or moved while a capture or graph uses it")       \
    X(USE_AFTER_FREE, 6, "use-after-free", "work outside of live blocks")                          \
    X(UNMAPPED_USE, 7, "unmapped-use", "work with addresses that are not mapped")                  \
    X(OVERLAP, 8, "overlap", "two live blocks share memory")

typedef enum ductile_violation {
#define DUCTILE_VIOLATION_ENUM(name, value, text, sentence) DUCTILE_VIOLATION_##name = value,
    DUCTILE_VIOLATION_MAP(DUCTILE_VIOLATION_ENUM)
#undef DUCTILE_VIOLATION_ENUM
} ductile_violation;

/**
 * The text of a kind of violation, such as "early-unmap".
 *
 * Returns:   a static string; "unknown" for any other value. Never NULL.
 */
DUCTILE_API const char *ductile_virtual_violation_name(ductile_violation kind);

/** One of the two operations that should have been ordered. */
typedef struct ductile_virtual_side {
    int is_host; /* 1: a driver call, whose number is `operation`; 0: work of a stream     */
    ductile_stream stream; /* of the work; the handle may belong to a newer stream by now */
    uint64_t stream_id; /* identifies the stream; no other stream gets the same                   */
    uint64_t operation; /* its number among the work of its stream; 0: this side is not known     */
    ductile_addr address; /* what it used */
    uint64_t size;   /* bytes                                                                  */
    int writes;      /* 0: it read                                                             */
    uint64_t handle; /* the physical memory behind the address                                 */
    uint64_t block;  /* number of the live block (ductile_virtual_block_begin); 0: none known  */
} ductile_virtual_side;

typedef struct ductile_virtual_violation {
    size_t struct_size; /* set by the caller */
    ductile_violation kind;
    ductile_virtual_side first, second;
    char text[240]; /* one sentence */
} ductile_virtual_violation;

/** Returns how many violations of one kind there were. */
DUCTILE_API uint64_t ductile_virtual_violations_of(ductile_virtual_gpu *gpu,
                                                   ductile_violation kind);

/**
 * Reads one of the violations since creation, oldest first. The first 32 are kept.
 *
 * Arguments: index: from 0. out: the caller sets struct_size.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (there is no such violation, or it was not kept).
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_get_violation(
    ductile_virtual_gpu *gpu, uint64_t index, ductile_virtual_violation *out);

/**
 * Tells the device that a block is live, so that it can tell the owners of memory apart. Call it
 * right after ductile_alloc. It is optional: without it, REUSE is reported as RACE; LIVE_UNMAP,
 * USE_AFTER_FREE and OVERLAP are never reported. Once a block was announced in a reservation, work
 * of this header may use only live blocks there. Driver calls may use anything (an allocator fills
 * memory with zeros).
 */
DUCTILE_API void ductile_virtual_block_begin(ductile_virtual_gpu *gpu, ductile_addr address,
                                             uint64_t size);

/**
 * Tells the device that the block that starts there is free. Call it right before ductile_free, and
 * for the blocks of a pool right before ductile_sleep; after ductile_wake they begin again.
 */
DUCTILE_API void ductile_virtual_block_end(ductile_virtual_gpu *gpu, ductile_addr address);

/**
 * Writes the kept driver calls (the option `log_calls`), oldest first, one line each: "NUMBER NAME
 * ADDRESS SIZE CODE".
 *
 * Arguments: write: not NULL; gets the text piece by piece. user: passed to it.
 * Returns:   DUCTILE_OK, also when the callback ended the writing; ERR_INVALID_ARGUMENT,
 *            ERR_OUT_OF_HOST_MEMORY.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_write_log(ductile_virtual_gpu *gpu,
                                                                     ductile_write_fn write,
                                                                     void *user);

/* ---- Contents ------------------------------------------------------------------------------- */

/**
 * Writes bytes, in stream order.
 *
 * Returns:   DUCTILE_OK; ERR_DRIVER (the span is not mapped for writing, or no such stream),
 *            ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_upload(ductile_virtual_gpu *gpu,
                                                                  ductile_addr to, const void *from,
                                                                  uint64_t size,
                                                                  ductile_stream stream);

/**
 * Fills memory with one byte value, in stream order.
 *
 * Returns:   DUCTILE_OK; ERR_DRIVER (the span is not mapped for writing, or no such stream),
 *            ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_fill(ductile_virtual_gpu *gpu,
                                                                ductile_addr to, uint8_t value,
                                                                uint64_t size,
                                                                ductile_stream stream);

/**
 * Waits for the stream and reads bytes.
 *
 * Returns:   DUCTILE_OK; ERR_DRIVER (the span is not mapped, or no such stream), ERR_CAPTURING,
 *            ERR_DEVICE_LOST.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_read_back(ductile_virtual_gpu *gpu,
                                                                     void *to, ductile_addr from,
                                                                     uint64_t size,
                                                                     ductile_stream stream);

#ifdef __cplusplus
}
#endif
#endif

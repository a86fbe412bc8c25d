/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A virtual GPU: a deterministic model of a device's memory, streams and events, so that
 * allocators and programs can be tested, and recorded runs replayed, without a GPU.
 *
 * It returns the codes the hardware returns. What the hardware silently lets pass although it is
 * always a mistake (unmapping what is not mapped) passes here too and is recorded as a violation.
 * With the option `detect` that includes memory that is reused, unmapped or moved too early, and it
 * is found whatever the schedule: what counts is whether the program ordered it, not whether it
 * went well this time. Addresses it hands out cannot be dereferenced by the host.
 *
 * Work on a stream completes when the schedule says so. Time is virtual: every driver call moves
 * the clock by what the same call costs on an H200.
 *
 * Threads: every call is safe from any thread.
 */
#ifndef DUCTILE_VIRTUAL_H
#define DUCTILE_VIRTUAL_H

#include "ductile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ductile_schedule {
    DUCTILE_SCHEDULE_EAGER = 0,   /* work completes at once (unless it waits for something)   */
    DUCTILE_SCHEDULE_LAGGING = 1, /* work completes `lag` advances after it was issued         */
    DUCTILE_SCHEDULE_LAZY = 2,    /* work completes only when somebody waits for it            */
    DUCTILE_SCHEDULE_RANDOM = 3   /* at each advance or query, a seeded choice of it completes */
} ductile_schedule;

/* Memory for RDMA (the option `rdma`). */
typedef enum ductile_virtual_rdma {
    DUCTILE_VIRTUAL_RDMA_WORKS = 0,
    DUCTILE_VIRTUAL_RDMA_NONE = 1, /* refused                                              */
    DUCTILE_VIRTUAL_RDMA_TRAP = 2  /* can be made and mapped, but access to it is refused,
                                      as on some systems that claim to support it          */
} ductile_virtual_rdma;

typedef struct ductile_virtual_options {
    size_t struct_size;      /* set by ductile_virtual_options_init                         */
    uint64_t capacity_bytes; /* physical memory; 0: 139 GiB, an H200's                       */
    uint64_t granule_bytes;  /* smallest mapping, a power of two; 0: 2 MiB                   */
    uint64_t address_bytes;  /* addresses that can be reserved in all; 0: 125 TiB            */
    ductile_schedule schedule;
    uint64_t lag;       /* LAGGING: advances between issue and completion                        */
    uint64_t seed;      /* RANDOM; also where reservations are placed when not 0                 */
    uint64_t log_calls; /* how many of the latest driver calls to keep; 0: none             */
    uint32_t n_devices; /* in the machine, at most 64; this one is number 0; 0 means 1      */
    uint64_t unreachable_devices; /* bit i: device i cannot reach memory of this one        */
    int no_descriptors; /* 1: memory cannot be exported as file descriptors                 */
    int has_fabric;     /* 1: memory can be exported to the fabric                          */
    ductile_virtual_rdma rdma;
    int detect; /* misuse of memory is recorded, see "What it detects": 0 none, the default; 1 what
                   an allocator can cause; 2 also what a program does to its own blocks          */
} ductile_virtual_options;

DUCTILE_API void ductile_virtual_options_init(ductile_virtual_options *options);

/**
 * Makes a virtual GPU.
 *
 * Arguments: options: NULL means all defaults.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT; ERR_OUT_OF_HOST_MEMORY. On error *out is NULL.
 * Ownership: ductile_virtual_destroy, after every allocator on it is destroyed.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_create(ductile_virtual_gpu **out, const ductile_virtual_options *options);

DUCTILE_API void ductile_virtual_destroy(ductile_virtual_gpu *gpu);

/* ---- Streams and work ---------------------------------------------------------------------- */

/** Makes a stream that waits for no other. Release with ductile_virtual_stream_destroy. */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_stream_create(ductile_virtual_gpu *gpu,
                                                                         ductile_stream *out);

/**
 * Makes a blocking stream, as cudaStreamCreate does: work on the legacy default stream waits for
 * all its earlier work, and its later work waits for that. Per-thread default streams are blocking
 * too. Release with ductile_virtual_stream_destroy.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_stream_create_blocking(ductile_virtual_gpu *gpu, ductile_stream *out);

/**
 * Makes a stream of another device of the machine (the option `n_devices`): what it launches
 * reaches memory that is open to that device, and waits for all work of this one do not wait for
 * it. Work of it that meets memory it may not use ends this device too.
 *
 * Returns:   DUCTILE_OK; ERR_NO_DEVICE; ERR_INVALID_ARGUMENT; ERR_OUT_OF_HOST_MEMORY.
 * Ownership: ductile_virtual_stream_destroy.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_stream_create_on(ductile_virtual_gpu *gpu, int device, ductile_stream *out);

/** Returns at once; work already issued still completes. */
DUCTILE_API ductile_status ductile_virtual_stream_destroy(ductile_virtual_gpu *gpu,
                                                          ductile_stream stream);

typedef struct ductile_virtual_use {
    ductile_addr address;
    uint64_t size; /* bytes */
    int writes;    /* 0: reads */
} ductile_virtual_use;

/**
 * Issues a "kernel": work that reads and writes the given spans when it executes.
 * A span that is then not mapped with the needed access poisons the device, as on hardware.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_launch(ductile_virtual_gpu *gpu,
                                                                  ductile_stream stream,
                                                                  const ductile_virtual_use *uses,
                                                                  size_t n_uses);

/** Makes later work of `stream` wait for all work issued to `on` so far. */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_stream_wait(ductile_virtual_gpu *gpu,
                                                                       ductile_stream stream,
                                                                       ductile_stream on);

/** Waits for a stream: its work, and what that waits for, completes. */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_stream_sync(ductile_virtual_gpu *gpu,
                                                                       ductile_stream stream);

/** Lets `n` units of work time pass (the unit of `lag`). */
DUCTILE_API void ductile_virtual_advance(ductile_virtual_gpu *gpu, uint64_t n);

/** Changes the schedule for work issued from now on. */
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

/** Begins to capture a stream: its work, and that of streams that wait for it, is collected. */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_capture_begin(ductile_virtual_gpu *gpu,
                                                                         ductile_stream stream,
                                                                         ductile_capture_mode mode);

/**
 * Ends a capture and makes a graph of what it collected, in the order in which it was issued.
 *
 * Arguments: out: NULL drops the work.
 * Returns:   DUCTILE_OK; ERR_CAPTURING when the capture was broken or not joined, ERR_DRIVER when
 *            there is none that began on the stream, ERR_OUT_OF_HOST_MEMORY.
 * Ownership: ductile_virtual_graph_destroy, before the virtual GPU's.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_capture_end(ductile_virtual_gpu *gpu,
                                                                       ductile_stream stream,
                                                                       ductile_virtual_graph **out);

/**
 * Issues the work of a graph to a stream, after its launch before. As on hardware, it uses the
 * addresses of the capture, whatever has become of them. Work that several streams captured runs
 * one after the other.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_graph_launch(ductile_virtual_graph *graph, ductile_stream stream);

/** Ends the graph; launches under way complete. NULL does nothing. */
DUCTILE_API void ductile_virtual_graph_destroy(ductile_virtual_graph *graph);

/* ---- Faults -------------------------------------------------------------------------------- */

typedef struct ductile_virtual_fault {
    size_t struct_size;
    const char *call; /* name of the driver call ("map", "phys_create", ...); NULL: any        */
    uint64_t nth;     /* the nth such call from now fails, counted from 1                      */
    int code;         /* the driver's code it returns                                          */
    int persistent;   /* 1: every later one fails too                                          */
    int effect;       /* 0: nothing is done; 1: done, then the error; 2 (multi-mapping unmap and
                         set_access): the first mapping is done, then the error               */
} ductile_virtual_fault;

/** Plans one fault; it replaces the one before. NULL clears. ERR_INVALID_ARGUMENT: unknown call. */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_inject(ductile_virtual_gpu *gpu, const ductile_virtual_fault *fault);

/** How often the planned fault has fired. */
DUCTILE_API uint64_t ductile_virtual_faults_fired(ductile_virtual_gpu *gpu);

/** Physical bytes that "another process" holds; fails with ERR_OUT_OF_MEMORY beyond what is free.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_virtual_set_external_bytes(ductile_virtual_gpu *gpu, uint64_t bytes);

/* ---- What it saw ---------------------------------------------------------------------------- */

typedef struct ductile_virtual_state {
    size_t struct_size;                   /* set by the caller */
    uint64_t used_bytes, used_peak_bytes; /* physical memory, mapped or not      */
    uint64_t handles;                     /* physical handles alive              */
    uint64_t mappings;
    uint64_t reservations, reserved_address_bytes;
    uint64_t streams, events;
    uint64_t allocations; /* of cuMemAlloc, alive */
    uint64_t violations;  /* mistakes that the hardware lets pass, since creation */
    uint64_t calls;       /* driver calls, all kinds */
    uint64_t time_ns;     /* virtual time */
    int poisoned;         /* 0, or the sticky code */
    int detects;          /* the option `detect`; 0 also when the host had no memory to go on */
} ductile_virtual_state;

DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_get_state(ductile_virtual_gpu *gpu,
                                                                     ductile_virtual_state *out);

/**
 * What a device may do with the memory at an address.
 *
 * Returns:   0 nothing, 1 reading, 3 reading and writing; -1: nothing is mapped there, or the
 *            machine has no such device.
 */
DUCTILE_API int ductile_virtual_access(ductile_virtual_gpu *gpu, ductile_addr address, int device);

/** How often a driver call was made, by name; UINT64_MAX for an unknown name. */
DUCTILE_API uint64_t ductile_virtual_count(ductile_virtual_gpu *gpu, const char *call);

/** One sentence about the latest violation, into `buffer`; empty when there was none. */
DUCTILE_API void ductile_virtual_last_violation(ductile_virtual_gpu *gpu, char *buffer,
                                                size_t size);

/* ---- What it detects ------------------------------------------------------------------------ */

/*
 * Order, in which one thing comes before another:
 *
 *     work of one stream in the order of issue; a stream's wait for an event after the work before
 *     the event's recording; the legacy default stream and blocking streams after each other; a
 *     launch of a graph after the launch before; work after everything its host knew complete when
 *     it issued it, by a synchronisation or a query that succeeded.
 *
 * That a schedule happened to complete work is no order. All threads of the host know what one of
 * them knows. A wait for a host word (cuStreamWaitValue) is no order either: who orders memory by
 * one is reported although all may be well.
 *
 * Violations by kind, X(name, value, text, sentence):
 */
#define DUCTILE_VIOLATION_MAP(X)                                                                   \
    X(MISUSE, 0, "misuse", "a call that the hardware lets pass although it is a mistake")          \
    X(REUSE, 1, "reuse", "memory has a new owner before work of its old one is ordered before")    \
    X(RACE, 2, "race", "work of one owner, or of none known, conflicts and has no order")          \
    X(EARLY_UNMAP, 3, "early-unmap", "unmapped while the host does not know the work complete")    \
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

/** Its text, such as "early-unmap"; "unknown" for a value that is none. Static string. */
DUCTILE_API const char *ductile_virtual_violation_name(ductile_violation kind);

/** One of the two that should have been ordered. */
typedef struct ductile_virtual_side {
    int is_host;           /* 1: a driver call; then `operation` is its number                    */
    ductile_stream stream; /* of the work; maybe another stream's by now                          */
    uint64_t stream_id;    /* names the stream for good                                           */
    uint64_t operation;    /* its number among the work of its stream; 0: this side is not known  */
    ductile_addr address;  /* what it used                                                        */
    uint64_t size;
    int writes;
    uint64_t handle; /* physical memory behind the address                                        */
    uint64_t block;  /* number of the live block, see ductile_virtual_block_begin; 0: none known  */
} ductile_virtual_side;

typedef struct ductile_virtual_violation {
    size_t struct_size; /* set by the caller */
    ductile_violation kind;
    ductile_virtual_side first, second;
    char text[240]; /* one sentence */
} ductile_virtual_violation;

/** How many violations of the kind there were. */
DUCTILE_API uint64_t ductile_virtual_violations_of(ductile_virtual_gpu *gpu,
                                                   ductile_violation kind);

/**
 * One of the violations since creation, oldest first; the first 32 are kept.
 *
 * Arguments: index: from 0. out: its struct_size set.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT when there is no such violation or it was not kept.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_get_violation(
    ductile_virtual_gpu *gpu, uint64_t index, ductile_virtual_violation *out);

/**
 * Tells the device that a block is live, so that it can tell the owners of memory apart. Optional:
 * without it, REUSE is reported as RACE, and LIVE_UNMAP, USE_AFTER_FREE and OVERLAP never. In a
 * reservation where a block was ever announced, only live blocks may be used by the work of
 * ductile_virtual.h; driver calls (an allocator's fill with zeros) may use anything.
 * Call it right after ductile_alloc.
 */
DUCTILE_API void ductile_virtual_block_begin(ductile_virtual_gpu *gpu, ductile_addr address,
                                             uint64_t size);

/** The block that begins there is free. Call it right before ductile_free. */
DUCTILE_API void ductile_virtual_block_end(ductile_virtual_gpu *gpu, ductile_addr address);

/** Writes the kept driver calls, oldest first, one a line: "NUMBER NAME ADDRESS SIZE CODE". */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_write_log(ductile_virtual_gpu *gpu,
                                                                     ductile_write_fn write,
                                                                     void *user);

/* ---- Contents ------------------------------------------------------------------------------- */

/** Writes bytes, in stream order. ERR_DRIVER when the span is not mapped for writing. */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_upload(ductile_virtual_gpu *gpu,
                                                                  ductile_addr to, const void *from,
                                                                  uint64_t size,
                                                                  ductile_stream stream);

/** Fills bytes, in stream order. */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_fill(ductile_virtual_gpu *gpu,
                                                                ductile_addr to, uint8_t value,
                                                                uint64_t size,
                                                                ductile_stream stream);

/** Waits for the stream and reads bytes. */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_virtual_read_back(ductile_virtual_gpu *gpu,
                                                                     void *to, ductile_addr from,
                                                                     uint64_t size,
                                                                     ductile_stream stream);

#ifdef __cplusplus
}
#endif
#endif

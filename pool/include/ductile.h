/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ductile: an expandable-segments memory allocator for NVIDIA GPUs.
 *
 * Every stream owns one huge range of device addresses. Physical memory is mapped into it on
 * demand in 2 MiB handles, and moves to where it is needed instead of stranding in holes.
 * The memory is ordinary device memory: pass the address to kernels, cuBLAS, memcpy.
 *
 *     ductile_allocator *a;
 *     ductile_addr p;
 *     if (ductile_create(&a, NULL) != DUCTILE_OK) return 1;
 *     if (ductile_alloc(a, 1 << 20, stream, &p) == DUCTILE_OK) {
 *         launch_kernel(p, stream);
 *         (void)ductile_free(a, p);          // ordered after the work already on `stream`
 *     }
 *     (void)ductile_destroy(a);
 *
 * No CUDA toolkit is needed to compile or link: libcuda.so.1 is opened at run time.
 * One allocator serves one device; it may be used from any thread.
 * Contents of new memory are undefined unless the option `zero` is on.
 */
#ifndef DUCTILE_H
#define DUCTILE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ------------------------------------------------------------------------------ */

#define DUCTILE_VERSION_MAJOR 0
#define DUCTILE_VERSION_MINOR 1
#define DUCTILE_VERSION_PATCH 0

/* ---- Export and attributes ---------------------------------------------------------------- */

#if defined(__GNUC__)
#define DUCTILE_API __attribute__((visibility("default")))
#define DUCTILE_CHECKED __attribute__((warn_unused_result))
#else
#define DUCTILE_API
#define DUCTILE_CHECKED
#endif

/* ---- Status ------------------------------------------------------------------------------- */

/* X(name, value, sentence). Values are pinned: adding one is compatible, renumbering never. */
#define DUCTILE_STATUS_MAP(X)                                                                      \
    X(OK, 0, "success")                                                                            \
    X(ERR_INVALID_ARGUMENT, 1, "an argument is outside its documented range")                      \
    X(ERR_UNSUPPORTED, 2, "this build, device or option combination does not support the request") \
    X(ERR_BUSY, 3, "the object is in use and cannot be changed now")                               \
    X(ERR_FOREIGN_POINTER, 10, "the address lies outside every range of this allocator")           \
    X(ERR_INTERIOR_POINTER, 11, "the address lies inside a live block but is not its start")       \
    X(ERR_NOT_LIVE, 12, "the address is not a live block (freed already, or never allocated)")     \
    X(ERR_OUT_OF_MEMORY, 20, "the device or the limit has no physical memory left")                \
    X(ERR_OUT_OF_ADDRESSES, 21, "no range of virtual addresses is left for this request")          \
    X(ERR_OUT_OF_HOST_MEMORY, 22, "the host has no memory left for bookkeeping")                   \
    X(ERR_NO_DESCRIPTORS, 23, "too few file descriptors are left: raise the limit (ulimit -n)")    \
    X(ERR_NO_LIBRARY, 30, "libcuda.so.1 cannot be opened: no NVIDIA driver is installed")          \
    X(ERR_NO_DEVICE, 31, "the driver reports no such device")                                      \
    X(ERR_DRIVER_TOO_OLD, 32, "the driver lacks a function Ductile needs (CUDA 11.2 or newer)")    \
    X(ERR_NO_VMM, 33, "the device does not support virtual memory management")                     \
    X(ERR_DRIVER, 40, "the driver refused a call; the log callback has its name and code")         \
    X(ERR_DEVICE_LOST, 41, "an earlier error poisoned the device context; nothing more is called") \
    X(ERR_NOT_READY, 42, "the work has not completed yet")                                         \
    X(ERR_CAPTURING, 43, "the call is not allowed while a stream is being captured")               \
    X(ERR_BAD_MESSAGE, 44, "what the other process sent is no whole and valid export")             \
    X(ERR_EXITING, 50, "the process is exiting; the driver is not called any more")                \
    X(ERR_FORKED, 51, "the allocator belongs to the parent of this process")                       \
    X(ERR_CORRUPT, 60, "an invariant of the allocator does not hold; see the report")

typedef enum ductile_status {
#define DUCTILE_STATUS_ENUM(name, value, sentence) DUCTILE_##name = value,
    DUCTILE_STATUS_MAP(DUCTILE_STATUS_ENUM)
#undef DUCTILE_STATUS_ENUM
} ductile_status;

/**
 * The name of a status, such as "DUCTILE_ERR_OUT_OF_MEMORY".
 *
 * Returns:   a static string; "DUCTILE_ERR_UNKNOWN" for a value that is no status. Never NULL.
 * Threads:   safe.
 */
DUCTILE_API const char *ductile_status_name(ductile_status status);

/**
 * One sentence that says what a status means.
 *
 * Returns:   a static string. Never NULL.
 * Threads:   safe.
 */
DUCTILE_API const char *ductile_status_string(ductile_status status);

/** The library's version, "MAJOR.MINOR.PATCH". Static string, safe from any thread. */
DUCTILE_API const char *ductile_version(void);

/* ---- Types -------------------------------------------------------------------------------- */

/** A device address: the type of CUdeviceptr, so both pass without a cast. 0 is no address. */
typedef unsigned long long ductile_addr;

/** A stream: CUstream and cudaStream_t pass without a cast. NULL is the legacy default stream. */
typedef struct CUstream_st *ductile_stream;

/** One allocator for one device. Opaque. */
typedef struct ductile_allocator ductile_allocator;

/** A private pool of memory (see ductile_pools.h). {0,0} is the default pool. */
typedef struct ductile_pool_id {
    uint64_t first;
    uint64_t second;
} ductile_pool_id;

/** A virtual GPU (see ductile_virtual.h). Opaque. */
typedef struct ductile_virtual_gpu ductile_virtual_gpu;

/* ---- Options ------------------------------------------------------------------------------ */

typedef enum ductile_driver { DUCTILE_DRIVER_CUDA = 0, DUCTILE_DRIVER_VIRTUAL = 1 } ductile_driver;

typedef enum ductile_recycle {
    DUCTILE_RECYCLE_READY = 0,    /* free memory that is proven done serves before creating */
    DUCTILE_RECYCLE_PRESSURE = 2, /* create first, recycle when the limit is reached        */
    DUCTILE_RECYCLE_NEVER = 3     /* growth only                                            */
} ductile_recycle;

typedef enum ductile_record_policy {
    DUCTILE_RECORD_POLL = 0, /* reusable when the recorded work has completed */
    DUCTILE_RECORD_WAIT = 1  /* at once for its own stream, which waits on the GPU
                                when the memory is handed out                 */
} ductile_record_policy;

typedef enum ductile_cross_stream {
    DUCTILE_CROSS_STREAM_DONE = 0, /* memory crosses streams once its work is proven done */
    DUCTILE_CROSS_STREAM_OFF = 1,  /* never, except through the driver                    */
    DUCTILE_CROSS_STREAM_WAIT = 2  /* also unfinished, behind a GPU wait, when memory is short */
} ductile_cross_stream;

typedef enum ductile_log_level {
    DUCTILE_LOG_ERROR = 0,
    DUCTILE_LOG_WARNING = 1,
    DUCTILE_LOG_INFO = 2
} ductile_log_level;

/**
 * Receives one line about an event the caller may want to know: a driver error with its code,
 * memory lost in a failed undo, a broken invariant. The text is valid during the call only.
 * Called without any lock held; it may call back into the allocator.
 */
typedef void (*ductile_log_fn)(void *user, ductile_log_level level, const char *text);

/**
 * Options of an allocator. Fill with ductile_options_init, change fields, pass to
 * ductile_create, which copies them. A field left 0 means its default.
 * The keys of DUCTILE_CONF and ductile_options_set are the field names.
 */
typedef struct ductile_options {
    size_t struct_size;    /* set by ductile_options_init                                      */
    ductile_driver driver; /* default CUDA                                                     */
    int device;            /* ordinal; default 0                                               */
    uint64_t limit_bytes;  /* hard cap on physical memory held; 0: what the device has         */
    double per_process_memory_fraction; /* the same as a share of the device, (0,1]; 0: no cap   */
    uint64_t handle_bytes;     /* smallest handle created; 0: the driver's granule (2 MiB)       */
    uint64_t max_handle_bytes; /* largest handle created; 0: handle_bytes                        */
    ductile_recycle recycle;
    int compact_off;      /* key `compact` (on/off): 1 turns compaction off                    */
    uint64_t range_bytes; /* addresses reserved per range; 0: 9/8 of the device         */
    uint64_t address_budget_bytes; /* addresses reserved in all; 0: 64 TiB                       */
    ductile_record_policy record_stream;
    ductile_cross_stream cross_stream_reuse;
    uint64_t retain_bytes; /* unmapped handles kept above this go back to the driver; 0: no cap  */
    double garbage_collection_threshold; /* soft limit as a share of the limit, [0,1); 0: off    */
    uint32_t roundup_power2_divisions;   /* power of two; 0: off                                 */
    uint64_t max_split_size_mb;          /* accepted, without effect: blocks always split        */
    int caching_off; /* key `caching` (on/off): 1 sends every request straight to the driver     */
    int zero;        /* 1: memory is filled with zeros, in stream order, before it is returned   */
    int shareable;   /* 0 none, 1 fd, 8 fabric: how memory can go to other processes             */
    int rdma;        /* 1: memory can be registered for GPUDirect RDMA                           */
    int check;       /* ductile_check runs by itself: 0 never, 1 after a trim, 2 also after an
                        allocation that had to grow, 3 after every call. What it finds goes to the
                        log. Other checks are chosen when the library is built (DUCTILE_CHECK)  */
    ductile_log_fn log;
    void *log_user;
    ductile_virtual_gpu *virtual_gpu; /* driver VIRTUAL: the device; NULL: a private default one */
    uint64_t soft_limit_bytes; /* above it creating comes last (ductile_pressure.h); 0: none     */
    int time_driver_calls; /* 1: driver_time_ns and driver_host_ns of the statistics are kept  */
} ductile_options;

/**
 * Writes the size and every default.
 *
 * Arguments: options: not NULL.
 * Threads:   safe if different objects.
 */
DUCTILE_API void ductile_options_init(ductile_options *options);

/**
 * Sets one option from text, as in DUCTILE_CONF: sizes take K, M, G, T (powers of 1024), switches
 * take on/off.
 *
 * Arguments: message, message_size: receives one line that names the key when the call fails;
 *            NULL and 0 to ignore.
 * Returns:   DUCTILE_OK, or DUCTILE_ERR_INVALID_ARGUMENT when the key is unknown or the value
 *            malformed.
 * On error:  the options are unchanged.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_options_set(ductile_options *options,
                                                               const char *key, const char *value,
                                                               char *message, size_t message_size);

/**
 * Sets options from a list "key:value,key:value". ductile_create reads the environment variable
 * DUCTILE_CONF this way, after the caller's own fields.
 *
 * Returns and on error: as ductile_options_set; all or nothing.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_options_parse(ductile_options *options,
                                                                 const char *text, char *message,
                                                                 size_t message_size);

/**
 * Writes the options as one "key:value,..." line that ductile_options_parse accepts.
 *
 * Arguments: buffer, size: where to write, always terminated when size > 0.
 * Returns:   the length the whole line needs, without the terminator.
 */
DUCTILE_API size_t ductile_options_format(const ductile_options *options, char *buffer,
                                          size_t size);

/* ---- Life cycle --------------------------------------------------------------------------- */

/**
 * Creates an allocator: opens the driver, retains the device's primary context and proves with
 * one create/map/access/unmap that virtual memory management works.
 *
 * Arguments: options: NULL means all defaults. DUCTILE_CONF is applied on top.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (an option, or DUCTILE_CONF), ERR_NO_LIBRARY,
 *            ERR_NO_DEVICE, ERR_DRIVER_TOO_OLD, ERR_NO_VMM, ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER,
 *            ERR_UNSUPPORTED, ERR_FORKED.
 * On error:  *out is NULL; nothing is retained.
 * Ownership: release with ductile_destroy.
 * Threads:   safe.
 * Cost:      initialises CUDA on first use (up to a second); 5 driver calls for the probe.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_create(ductile_allocator **out,
                                                          const ductile_options *options);

/**
 * Waits for the streams that used the memory, gives all of it back and destroys the allocator.
 * Where another GPU has access, streams recorded on live blocks are named.
 * Live blocks become invalid.
 *
 * Arguments: allocator: NULL does nothing.
 * Returns:   DUCTILE_OK; ERR_DRIVER or ERR_DEVICE_LOST when something could not be given back
 *            (the rest is); ERR_EXITING, ERR_FORKED (nothing is called, no lock waited for).
 *            The allocator is gone in every case.
 * Threads:   no other call on this allocator may run or follow.
 * Cost:      synchronises; one unmap and one release per handle.
 */
DUCTILE_API ductile_status ductile_destroy(ductile_allocator *allocator);

/**
 * The options in effect, after defaults and DUCTILE_CONF.
 *
 * Arguments: allocator, out: not NULL. out: its struct_size must be set (ductile_options_init does
 *            it). In a forked child all of it is 0.
 */
DUCTILE_API void ductile_get_options(ductile_allocator *allocator, ductile_options *out);

/* ---- Allocate and free -------------------------------------------------------------------- */

/** Every address is a multiple of this. */
#define DUCTILE_ALIGNMENT 512

/**
 * Allocates device memory for use on one stream.
 *
 * Arguments: size: bytes; 0 succeeds with address 0. stream: one of the allocator's own GPU; NULL
 * is its legacy default stream. Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (out is NULL),
 * ERR_OUT_OF_MEMORY (recoverable: a smaller request may succeed), ERR_OUT_OF_ADDRESSES,
 * ERR_OUT_OF_HOST_MEMORY, ERR_CAPTURING (no free block fits, the stream is under capture and no
 * pool is open for it), ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED. On error:  *out is 0;
 * no block has changed. Ownership: release with ductile_free or ductile_free_on. Threads:   safe.
 * Streams:   usable on `stream` at once. For use on another stream, order that stream after this
 *            one, and call ductile_record_stream before the free.
 * Cost:      no driver call when a free block fits, except now and then: a marker where several
 *            streams are known, a question while freed blocks wait for recorded streams, a bounded
 *            piece of healing. Otherwise maps memory; waits for the GPU only when nothing else is
 *            left, or before it goes above the soft limit.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_alloc(ductile_allocator *allocator, size_t size,
                                                         ductile_stream stream, ductile_addr *out);

/**
 * Frees a block, ordered after the work already issued to its stream (and to recorded streams).
 *
 * Arguments: address: as returned by ductile_alloc; 0 does nothing.
 * Returns:   DUCTILE_OK; ERR_FOREIGN_POINTER, ERR_INTERIOR_POINTER, ERR_NOT_LIVE; ERR_DEVICE_LOST,
 *            ERR_EXITING and ERR_FORKED (nothing is called).
 * On error:  nothing has changed.
 * Threads:   safe, from any thread.
 * Cost:      no driver call; with recorded streams, one event record for each. Never waits.
 */
DUCTILE_API ductile_status ductile_free(ductile_allocator *allocator, ductile_addr address);

/**
 * ductile_record_stream(address, stream), then ductile_free(address).
 *
 * Returns:   as both. On ERR_OUT_OF_HOST_MEMORY the block stays live.
 */
DUCTILE_API ductile_status ductile_free_on(ductile_allocator *allocator, ductile_addr address,
                                           ductile_stream stream);

/* ---- Streams ------------------------------------------------------------------------------ */

/**
 * Tells that work on `stream` uses the block, so that after its free the memory is not reused
 * before that work has completed.
 *
 * Arguments: stream: the block's own stream does nothing.
 * Returns:   DUCTILE_OK; the pointer errors of ductile_free; ERR_OUT_OF_HOST_MEMORY.
 * On error:  nothing has changed.
 * Threads:   safe.
 * Cost:      no driver call.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_record_stream(ductile_allocator *allocator,
                                                                 ductile_addr address,
                                                                 ductile_stream stream);

/**
 * Tells that the stream will be destroyed: it is not named again in any driver call. Its live
 * blocks stay valid, its free memory serves other streams once its last work has completed.
 * While memory allocated on a stream, or a use recorded for it, is still known, the stream must be
 * named here before it is destroyed. Otherwise ductile_trim may name a stream that is gone, and a
 * new stream that gets the same handle shares its arena: memory that the old one's work still uses
 * may be handed out when work of the new one is done.
 *
 * Arguments: stream: still valid; a new stream may get the same handle afterwards.
 * Returns:   DUCTILE_OK, also for a stream never used here; ERR_CAPTURING, ERR_DRIVER and others
 *            when its progress could not be marked (the stream is let go all the same).
 * Threads:   safe. Waits for threads that are about to name the stream, and for those that wait for
 *            its work: trims, pauses, requests under pressure.
 * Cost:      one event record and one for each of its arenas; linear in live and pending blocks.
 */
DUCTILE_API ductile_status ductile_stream_done(ductile_allocator *allocator, ductile_stream stream);

/* ---- Give back and limit ------------------------------------------------------------------ */

/**
 * Gives physical memory back to the driver until at most `keep_bytes` are held, as far as free
 * memory allows: first unmapped handles, then free blocks from the top addresses down.
 *
 * Arguments: keep_bytes: 0 gives back all that is free. released: bytes given back; NULL to ignore.
 * Returns:   DUCTILE_OK, also when less could be given back; ERR_DRIVER, ERR_DEVICE_LOST,
 *            ERR_EXITING, ERR_FORKED.
 * Threads:   safe.
 * Cost:      synchronises the streams whose memory goes back; an unmap and a release per handle.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_trim(ductile_allocator *allocator,
                                                        uint64_t keep_bytes, uint64_t *released);

/** ductile_trim(allocator, 0, NULL): what torch.cuda.empty_cache does. */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_empty_cache(ductile_allocator *allocator);

/**
 * Changes the hard cap on physical memory held. Memory above a lower cap is given back by the
 * next ductile_trim or when requests need it; live blocks are never touched.
 *
 * Arguments: limit_bytes: 0 removes the cap.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_set_limit(ductile_allocator *allocator,
                                                             uint64_t limit_bytes);

/* ---- Statistics and inspection ------------------------------------------------------------ */

/*
 * X(name, meaning). All 64-bit. They obey, at any time:
 *   requested_bytes <= allocated_bytes
 *   reserved_bytes  = allocated_bytes + free_bytes + pending_bytes + cached_bytes
 *                     + quarantined_bytes
 * Each counts physical memory: an address still mapping memory that already serves elsewhere
 * (retiring) is not counted twice.
 */
#define DUCTILE_STATS_MAP(X)                                                                       \
    X(requested_bytes, "bytes asked for by live blocks")                                           \
    X(requested_peak_bytes, "its peak")                                                            \
    X(allocated_bytes, "bytes of live blocks, rounded")                                            \
    X(allocated_peak_bytes, "its peak")                                                            \
    X(reserved_bytes, "physical memory held, in use or cached")                                    \
    X(reserved_peak_bytes, "its peak")                                                             \
    X(free_bytes, "mapped and free")                                                               \
    X(pending_bytes, "freed, another stream still at work")                                        \
    X(cached_bytes, "in handles mapped nowhere")                                                   \
    X(quarantined_bytes, "lost where the driver failed to undo")                                   \
    X(retiring_bytes, "addresses waiting to be unmapped; their memory serves elsewhere")           \
    X(mapped_bytes, "addresses with memory behind them, retiring ones included")                   \
    X(address_bytes, "virtual addresses reserved")                                                 \
    X(address_span_bytes, "from the lowest to the highest mapped address, summed over ranges")     \
    X(address_span_peak_bytes, "its peak")                                                         \
    X(live_blocks, "live blocks")                                                                  \
    X(free_blocks, "free blocks")                                                                  \
    X(gap_blocks, "spans of addresses with no memory between mapped ones, tails included")         \
    X(pending_blocks, "pending blocks")                                                            \
    X(handles, "physical handles held")                                                            \
    X(segments, "ranges reserved")                                                                 \
    X(arenas, "streams known")                                                                     \
    X(allocs, "successful allocations")                                                            \
    X(frees, "successful frees")                                                                   \
    X(slow_allocs, "allocations that no free block served at once")                                \
    X(out_of_memory, "allocations refused for lack of memory")                                     \
    X(creates, "handles created")                                                                  \
    X(releases, "handles released")                                                                \
    X(maps, "mappings made")                                                                       \
    X(unmaps, "mappings removed")                                                                  \
    X(recycled_handles, "handles moved to serve a request")                                        \
    X(compacted_handles, "handles moved by compaction")                                            \
    X(stream_syncs, "times the host waited for a stream")                                          \
    X(event_waits, "times a stream was made to wait for another")                                  \
    X(event_records, "markers recorded")                                                           \
    X(driver_calls, "driver calls, all kinds")                                                     \
    X(driver_time_ns,                                                                              \
      "time in driver calls, modelled on the virtual GPU; 0: time_driver_calls off")               \
    X(driver_host_ns, "host time in driver calls as spent here; 0: time_driver_calls is off")      \
    X(host_bytes, "host memory of the allocator's own bookkeeping")                                \
    X(requested_total_bytes, "bytes asked for by all successful allocations")                      \
    X(allocated_total_bytes, "the same, rounded")                                                  \
    X(active_peak_bytes, "peak of allocated_bytes + pending_bytes")                                \
    X(live_peak_blocks, "peak of live_blocks")                                                     \
    X(created_total_bytes, "bytes of all handles created")                                         \
    X(pinned_bytes, "physical memory that stays where it is: pinned or exported")                  \
    X(exported_bytes, "of it, passed to other processes")                                          \
    X(imported_bytes, "memory of other processes mapped here; in no other statistic")              \
    X(paused_bytes, "bytes of paused blocks, which count as allocated no longer")                  \
    X(paused_blocks, "paused blocks, which count as live no longer")

typedef struct ductile_stats {
    size_t struct_size; /* set by the caller: sizeof(ductile_stats) */
#define DUCTILE_STATS_FIELD(name, meaning) uint64_t name;
    DUCTILE_STATS_MAP(DUCTILE_STATS_FIELD)
#undef DUCTILE_STATS_FIELD
} ductile_stats;

/**
 * Reads all statistics: all as of one moment, but the driver's counters (creates to event_records,
 * driver_*), which are read after the rest.
 *
 * Arguments: out: struct_size set by the caller; a smaller one gets the fields that fit.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_FORKED.
 * Threads:   safe.
 * Cost:      no driver call; linear in the number of streams, whatever the number of blocks.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_get_stats(ductile_allocator *allocator,
                                                             ductile_stats *out);

/** Sets every *_peak_* statistic to its current value. allocator: not NULL. Threads: safe. */
DUCTILE_API void ductile_reset_peaks(ductile_allocator *allocator);

typedef enum ductile_block_state {
    DUCTILE_BLOCK_LIVE = 0,
    DUCTILE_BLOCK_FREE = 1,
    DUCTILE_BLOCK_PENDING = 2,
    DUCTILE_BLOCK_BUSY = 3,
    DUCTILE_BLOCK_GAP = 4,
    DUCTILE_BLOCK_RETIRING = 5,
    DUCTILE_BLOCK_QUARANTINED = 6,
    DUCTILE_BLOCK_IMPORTED = 7, /* memory of another process; alone in its range */
    DUCTILE_BLOCK_PAUSED = 8    /* live, its memory given back for now: see ductile_pause */
} ductile_block_state;

/* What the memory behind a block is, in part at least. */
typedef enum ductile_block_flags {
    DUCTILE_BLOCK_PINNED = 1,  /* stays where it is; see ductile_share.h */
    DUCTILE_BLOCK_EXPORTED = 2 /* passed to another process              */
} ductile_block_flags;

typedef struct ductile_block_info {
    size_t struct_size; /* set by the caller */
    ductile_addr address;
    uint64_t size;           /* bytes, rounded                                            */
    uint64_t requested_size; /* bytes asked for; 0 unless live or pending                */
    ductile_block_state state;
    ductile_stream stream;      /* the stream whose arena holds it                        */
    ductile_addr segment;       /* start of the range                                     */
    uint64_t segment_bytes;     /* size of the range                                      */
    uint64_t free_before_bytes; /* free bytes just before the block; 0 if none            */
    uint64_t free_after_bytes;  /* free bytes just after the block; 0 if none             */
    ductile_pool_id pool;       /* the pool it is in; {0,0} for none                      */
    uint32_t flags;             /* of ductile_block_flags, or-ed                          */
} ductile_block_info;

/**
 * Describes the live block that starts at `address`.
 *
 * Returns:   DUCTILE_OK; the pointer errors of ductile_free; ERR_INVALID_ARGUMENT, ERR_FORKED.
 * Threads:   safe; true until the next call that changes the neighbourhood.
 * Cost:      no driver call; constant time for a live block. For an address that is none, linear in
 *            the blocks of its range.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_query_block(ductile_allocator *allocator,
                                                               ductile_addr address,
                                                               ductile_block_info *out);

/**
 * Receives one block of a walk. Other threads' calls wait meanwhile: it must not call back into an
 * allocator, nor wait for what such a thread may hold (an interpreter's lock). Non-zero ends the
 * walk.
 */
typedef int (*ductile_walk_fn)(void *user, const ductile_block_info *block);

/**
 * Visits every block of every range, by range and ascending address: blocks tile each range.
 *
 * Returns:   DUCTILE_OK, also when the callback ended the walk; ERR_INVALID_ARGUMENT, ERR_FORKED.
 * Threads:   safe; other threads' allocations wait while it runs.
 * Cost:      linear in the number of blocks.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_walk(ductile_allocator *allocator,
                                                        ductile_walk_fn visit, void *user);

/** Receives a piece of text. Non-zero ends the writing. */
typedef int (*ductile_write_fn)(void *user, const char *text, size_t length);

/**
 * Writes the whole state as one JSON object: version, options, statistics, segments with their
 * blocks. Valid JSON at any time; keys are only ever added within a major version.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY, ERR_FORKED.
 * Threads:   safe. The callback runs without any lock held.
 * Cost:      linear in the number of blocks.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_snapshot_json(ductile_allocator *allocator,
                                                                 ductile_write_fn write,
                                                                 void *user);

/**
 * Walks every invariant of docs/invariants.md that can be recounted.
 *
 * Arguments: report, report_size: receives the first broken invariant's number, both values and
 *            the place; NULL and 0 to ignore.
 * Returns:   DUCTILE_OK; ERR_CORRUPT; ERR_INVALID_ARGUMENT, ERR_FORKED (nothing was looked at).
 * Threads:   safe; other threads wait while it runs.
 * Cost:      linear in blocks and granules; no driver call on CUDA.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_check(ductile_allocator *allocator, char *report,
                                                         size_t report_size);

#ifdef __cplusplus
}
#endif

#include "ductile_pools.h"
#include "ductile_pressure.h"
#include "ductile_share.h"

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ductile: an expandable-segments memory allocator for NVIDIA GPUs.
 *
 * Every stream owns one huge range of device addresses. Ductile maps physical memory into the range
 * on demand, in handles that are a small share of what it holds, and moves free memory to where a
 * request needs it, so that little is lost to fragmentation. The memory is ordinary device memory:
 * pass the address to kernels, cuBLAS or memcpy.
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
 * No CUDA toolkit is needed to compile or link: Ductile opens libcuda.so.1 at run time.
 * One allocator serves one device.
 * The contents of new memory are undefined unless the option `zero` is on.
 *
 * For all functions of these headers, unless they say otherwise:
 *  - any thread may call them at any time, unless two calls share a struct of the caller's;
 *  - after an error nothing has changed, outputs included;
 *  - they make no driver call but those that `Cost:` names;
 *  - of a struct that begins with struct_size the caller sets that; a smaller struct, of an older
 *    header, gets the fields that fit.
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
#define DUCTILE_VERSION_MINOR 2
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
    X(ERR_ASLEEP, 4, "the memory sleeps: wake its pool first")                                     \
    X(ERR_AWAKE, 5, "the memory does not sleep")                                                   \
    X(ERR_FOREIGN_POINTER, 10, "the address lies outside every range of this allocator")           \
    X(ERR_INTERIOR_POINTER, 11, "the address lies inside a live block but is not its start")       \
    X(ERR_NOT_LIVE, 12, "no live block starts at the address: it was freed, or never allocated")   \
    X(ERR_OUT_OF_MEMORY, 20,                                                                       \
      "the device, or the limit, leaves no physical memory for the request")                       \
    X(ERR_OUT_OF_ADDRESSES, 21, "no virtual addresses are left for the request")                   \
    X(ERR_OUT_OF_HOST_MEMORY, 22, "the host has no memory left for bookkeeping")                   \
    X(ERR_NO_DESCRIPTORS, 23, "the process has too few file descriptors left: raise ulimit -n")    \
    X(ERR_NO_LIBRARY, 30,                                                                          \
      "no library to drive the device with; ductile_create_error() says which, and the remedy")    \
    X(ERR_NO_DEVICE, 31, "the driver reports no such device")                                      \
    X(ERR_DRIVER_TOO_OLD, 32, "the driver is too old: Ductile needs CUDA 11.2 or newer")           \
    X(ERR_NO_VMM, 33, "the device does not support virtual memory management")                     \
    X(ERR_DRIVER, 40, "a driver call failed; the log callback gets its name and code")             \
    X(ERR_DEVICE_LOST, 41, "an earlier error ended the CUDA context; Ductile calls it no more")    \
    X(ERR_NOT_READY, 42, "the work has not completed yet")                                         \
    X(ERR_CAPTURING, 43, "the call is not allowed while a stream is being captured")               \
    X(ERR_BAD_MESSAGE, 44, "the other process sent an incomplete or invalid export")               \
    X(ERR_LAYOUT, 45, "the tag has another layout than the importer expects")                      \
    X(ERR_EXITING, 50, "the process is exiting; Ductile no longer calls the driver")               \
    X(ERR_FORKED, 51, "the allocator belongs to the parent process")                               \
    X(ERR_CORRUPT, 60, "an invariant of the allocator is broken; see the report")

typedef enum ductile_status {
#define DUCTILE_STATUS_ENUM(name, value, sentence) DUCTILE_##name = value,
    DUCTILE_STATUS_MAP(DUCTILE_STATUS_ENUM)
#undef DUCTILE_STATUS_ENUM
} ductile_status;

/**
 * The name of a status, such as "DUCTILE_ERR_OUT_OF_MEMORY".
 *
 * Returns:   a static string; "DUCTILE_ERR_UNKNOWN" for any other value. Never NULL.
 */
DUCTILE_API const char *ductile_status_name(ductile_status status);

/**
 * One sentence that explains a status.
 *
 * Returns:   a static string. Never NULL.
 */
DUCTILE_API const char *ductile_status_string(ductile_status status);

/**
 * The version of the library, "MAJOR.MINOR.PATCH".
 *
 * Returns:   a static string. Never NULL.
 */
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

/** What a sleeping pool's live blocks hold once they are back (ductile_sleep.h). Memory that stays
 * mapped, as it is pinned or exported, holds what it did, or was given meanwhile. */
typedef enum ductile_contents {
    DUCTILE_CONTENTS_POLICY = 0, /* what the pool's policy says; without one KEEP for the default
                                    pool and for pools that streams under capture have requested
                                    memory of, else DROP                                        */
    DUCTILE_CONTENTS_KEEP = 1,   /* what they held: copied to page-locked host memory and back  */
    DUCTILE_CONTENTS_DROP = 2,   /* undefined                                                   */
    DUCTILE_CONTENTS_ZERO = 3,   /* zeros                                                       */
    DUCTILE_CONTENTS_POISON = 4  /* 0xFF in every byte, NaN in every float: finds who reads it  */
} ductile_contents;

/** The longest tag of a pool, with its terminator. */
#define DUCTILE_TAG_BYTES 64

/** A virtual GPU (see ductile_virtual.h). Opaque. */
typedef struct ductile_virtual_gpu ductile_virtual_gpu;

/* ---- Options ------------------------------------------------------------------------------ */

typedef enum ductile_driver { DUCTILE_DRIVER_CUDA = 0, DUCTILE_DRIVER_VIRTUAL = 1 } ductile_driver;

/** Where memory comes from, beside the handle cache and the driver. */
typedef enum ductile_reuse {
    DUCTILE_REUSE_STREAMS = 0, /* free memory of the stream, and of other streams once it is
                                  proven done                                                    */
    DUCTILE_REUSE_STREAM = 1,  /* of the same stream only; between streams memory passes through
                                  the driver, under pressure                                     */
    DUCTILE_REUSE_NEVER = 2,   /* free memory serves at its own address only, and moves nowhere  */
    DUCTILE_REUSE_WAIT = 3     /* as STREAMS; and rather than that memory is created, it also moves
                                  from a stream that is still at work: the new stream waits on the
                                  GPU                                                            */
} ductile_reuse;

typedef enum ductile_record_policy {
    DUCTILE_RECORD_POLL = 0, /* the memory is reused once the recorded work has completed */
    DUCTILE_RECORD_WAIT = 1  /* the block's own stream may reuse the memory at once; it waits
                                on the GPU for the recorded work first                */
} ductile_record_policy;

/**
 * How the allocator learns of stream captures. Memory moves between streams behind context markers:
 * events behind all work of the device's context (CUDA 12.5). While any stream of the context is
 * being captured, none may be recorded: the record would fail, and break the capture. Pools and
 * announcements count for all allocators of the process.
 */
typedef enum ductile_captures {
    DUCTILE_CAPTURES_POOLS = 0,       /* a capture is under way only while a pool of any kind is
                                         open (ductile_pools.h), or between ductile_capture_begin
                                         and ductile_capture_end                              */
    DUCTILE_CAPTURES_UNANNOUNCED = 1, /* a capture may begin at any time: none is recorded, and
                                         memory moves between streams only under pressure     */
    DUCTILE_CAPTURES_ANNOUNCED = 2    /* only between these two calls                         */
} ductile_captures;

/** Which mistakes of the program the allocator helps to find. Not for production. */
typedef enum ductile_find {
    DUCTILE_FIND_NONE = 0,
    DUCTILE_FIND_OVERRUNS = 1 /* every block ends where its granules do, and nothing is ever
                                 mapped behind it: an access there faults on the GPU       */
} ductile_find;

typedef enum ductile_log_level {
    DUCTILE_LOG_ERROR = 0,
    DUCTILE_LOG_WARNING = 1,
    DUCTILE_LOG_INFO = 2
} ductile_log_level;

/**
 * Receives one line about an event that the caller may want to know of: a driver error with its
 * code, memory lost because an undo failed, a broken invariant, freed memory that was written.
 *
 * Arguments: user: the option `log_user`. text: valid during the call only.
 * Threads:   runs on the thread that met the event, without any lock held; several threads may run
 *            it at once. It may call back into the allocator.
 */
typedef void (*ductile_log_fn)(void *user, ductile_log_level level, const char *text);

/** A limit as a share, in (0,1]: DUCTILE_SHARE(0.8) is what the text "80%" says. */
#define DUCTILE_SHARE(fraction)                                                                    \
    (DUCTILE_SHARE_FLAG | (uint64_t)((fraction) * (double)((uint64_t)1 << 62)))
#define DUCTILE_SHARE_FLAG ((uint64_t)1 << 63)

/**
 * The options of an allocator. Fill the struct with ductile_options_init, change fields, and pass
 * it to ductile_create, which copies it. A field of 0 or NULL means the default, unless it says
 * more. DUCTILE_CONF and ductile_options_set use the field names as keys, except where a comment
 * names the key. docs/tuning.md lists all keys.
 */
typedef struct ductile_options {
    size_t struct_size;        /* set by ductile_options_init                                    */
    ductile_driver driver;     /* default CUDA                                                   */
    int device;                /* ordinal of the GPU; default 0                                  */
    uint64_t limit_bytes;      /* hard cap on the physical memory held, in bytes or as a
                                  DUCTILE_SHARE of the device; 0: what the device has            */
    uint64_t soft_limit_bytes; /* above it memory is created only as a last resort
                                  (ductile_pressure.h), in bytes or as a DUCTILE_SHARE of the hard
                                  cap; 0: none                                                   */
    uint64_t sizes;            /* the largest handle in bytes, a multiple of the driver's granule
                                  (2 MiB), at most 64 GiB; 0, key value `auto`: by what is held
                                  and what is left                                               */
    ductile_reuse reuse;
    int compact_off;               /* key `compact` (on/off): 1 turns compaction off             */
    uint64_t address_budget_bytes; /* most addresses reserved in all; 0: 64 TiB                  */
    ductile_captures captures;     /* when a capture may be under way                            */
    ductile_record_policy record_stream;
    int caching_off; /* key `caching` (on/off): 1 sends every request straight to the driver     */
    int zero;        /* 1: memory is filled with zeros, in stream order, before it is returned   */
    int shareable;   /* how memory can be passed to other processes: 0 none, 1 fd, 8 fabric      */
    int rdma;        /* 1: memory can be registered for GPUDirect RDMA                           */
    int check;       /* when the allocator runs ductile_check by itself: 0 never, 1 after a trim,
                        2 also after an allocation that had to grow, 3 after every call. The log
                        callback gets what it finds                                       */
    ductile_find find;
    ductile_log_fn log;
    void *log_user;
    ductile_virtual_gpu *virtual_gpu; /* driver VIRTUAL: the device; NULL: a private default one */
    uint64_t sleep_host_bytes; /* page-locked host memory for contents of what sleeps, made by
                                  ductile_create as by ductile_sleep_host_reserve; 0: at first
                                  use                                                          */
    uint64_t spill_bytes; /* page-locked host memory that requests may get before they are refused
                             (ductile_pressure.h), in bytes or as a DUCTILE_SHARE of the host's; 0:
                             none                                                              */
} ductile_options;

/**
 * Fills in the size and every default.
 *
 * Arguments: options: not NULL.
 */
DUCTILE_API void ductile_options_init(ductile_options *options);

/**
 * Sets one option from text, as DUCTILE_CONF does. Sizes take K, M, G or T (powers of 1024),
 * limits also a share ("80%"); switches take on or off.
 *
 * Arguments: options, key, value: not NULL. message, message_size: on error the buffer receives one
 *            line that names the key; NULL and 0 to ignore.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (the key is unknown, the value is malformed, or an
 *            argument is NULL).
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_options_set(ductile_options *options,
                                                               const char *key, const char *value,
                                                               char *message, size_t message_size);

/**
 * Sets options from a list "key:value,key:value"; key=value is the same. ductile_create reads the
 * environment variable DUCTILE_CONF this way, after the caller's own fields.
 *
 * Arguments: options, text: not NULL. message, message_size: on error the buffer receives one line
 *            that names the key; NULL and 0 to ignore.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (an unknown key, a malformed value or pair, or an
 *            argument is NULL).
 * On error:  the options are unchanged: all pairs are applied, or none.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_options_parse(ductile_options *options,
                                                                 const char *text, char *message,
                                                                 size_t message_size);

/**
 * Writes the options as one "key:value,..." line that ductile_options_parse accepts.
 *
 * Arguments: buffer, size: where to write. The text is always terminated when size > 0; NULL and 0
 *            ask for the length.
 * Returns:   the length of the whole line, without the terminator.
 */
DUCTILE_API size_t ductile_options_format(const ductile_options *options, char *buffer,
                                          size_t size);

/* ---- Life cycle --------------------------------------------------------------------------- */

/**
 * Creates an allocator. It opens the driver, retains the device's primary context, and proves with
 * one create, map, access and unmap that virtual memory management works.
 *
 * Arguments: out: receives the allocator; not NULL. options: NULL means all defaults. DUCTILE_CONF
 *            is applied on top of them.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (out, an option, or DUCTILE_CONF), ERR_NO_LIBRARY,
 *            ERR_NO_DEVICE, ERR_DRIVER_TOO_OLD, ERR_NO_VMM, ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER,
 *            ERR_UNSUPPORTED, ERR_FORKED.
 * On error:  *out is NULL and nothing is retained. ductile_create_error says the reason, and the
 *            log callback gets it.
 * Ownership: release with ductile_destroy.
 * Cost:      initialises CUDA on first use (up to a second); 5 driver calls for the probe.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_create(ductile_allocator **out,
                                                          const ductile_options *options);

/**
 * Why the last ductile_create of this thread was refused: one line that names the option, and
 * DUCTILE_CONF where that has it, or what is missing and the remedy.
 *
 * Returns:   valid until the thread calls ductile_create again; empty when that succeeded, or was
 *            never called. Never NULL.
 */
DUCTILE_API const char *ductile_create_error(void);

/**
 * Waits for all work of the device, gives all memory back and destroys the allocator. Live blocks
 * become invalid.
 *
 * Arguments: allocator: NULL does nothing.
 * Returns:   DUCTILE_OK; ERR_DRIVER or ERR_DEVICE_LOST (some memory could not be given back, the
 *            rest was); ERR_EXITING, ERR_FORKED (no driver call was made and no lock taken).
 *            ERR_DRIVER also while another thread's capture is announced, or a pool of another
 *            allocator is open, if graphs, imports or streams recorded on live blocks may use the
 *            memory: the wait for the device would break the capture, so all memory is left to the
 *            end of the process. Otherwise it then waits for each stream.
 * On error:  the allocator is gone in every case.
 * Threads:   no other call on this allocator may be running, or follow.
 * Streams:   where another GPU has access, streams recorded on live blocks are passed to the
 *            driver, so they must still exist unless ductile_stream_done was called for them.
 * Cost:      synchronises; one unmap and one release per handle.
 */
DUCTILE_API ductile_status ductile_destroy(ductile_allocator *allocator);

/**
 * Reads the options in effect: the caller's, the defaults and DUCTILE_CONF, with the limits and
 * `captures` as they are now.
 *
 * Arguments: allocator: not NULL. out: not NULL, with struct_size set (ductile_options_init does
 *            it). In a forked child all other fields become 0.
 */
DUCTILE_API void ductile_get_options(ductile_allocator *allocator, ductile_options *out);

/* ---- Allocate and free -------------------------------------------------------------------- */

/** Every address is a multiple of this. */
#define DUCTILE_ALIGNMENT 512

/**
 * Allocates device memory for use on one stream.
 *
 * Arguments: size: bytes; 0 succeeds with address 0. stream: a stream of the allocator's own GPU;
 *            NULL is its legacy default stream. out: receives the address; not NULL.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (allocator or out is NULL), ERR_OUT_OF_MEMORY (a
 *            smaller request may still succeed), ERR_OUT_OF_ADDRESSES, ERR_OUT_OF_HOST_MEMORY,
 *            ERR_ASLEEP (the request belongs to a pool that sleeps: ductile_sleep_refusal names
 *            it), ERR_BUSY (it comes from a map callback and would map memory), ERR_CAPTURING (the
 *            stream is being captured, no pool is open for it, and no free block fits),
 *            ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  *out is 0; no block has changed.
 * Ownership: release with ductile_free or ductile_free_ex.
 * Streams:   the memory is usable on `stream` at once. To use it on another stream, order that
 *            stream after this one, and call ductile_record_stream before the free.
 * Cost:      usually no driver call when a free block fits. Now and then such a call also records a
 *            marker (several streams are known, and memory was freed), asks the driver about a
 *            marker (freed blocks wait for recorded streams), or moves a bounded amount of memory
 *            (compaction). When no free block fits, the call maps memory; it waits for the GPU only
 *            as a last resort, or before it goes above the soft limit.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_alloc(ductile_allocator *allocator, size_t size,
                                                         ductile_stream stream, ductile_addr *out);

/**
 * Frees a block. The free is ordered after the work already issued to the block's stream and to the
 * streams recorded on it. All work that uses the block, on whatever stream, must be issued before
 * this call.
 *
 * Arguments: address: as returned by ductile_alloc; 0 does nothing.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (allocator is NULL), ERR_FOREIGN_POINTER,
 *            ERR_INTERIOR_POINTER, ERR_NOT_LIVE, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * Cost:      one event record for each recorded stream, otherwise no driver call. It never waits
 *            for the GPU, except with the option `caching` off.
 */
DUCTILE_API ductile_status ductile_free(ductile_allocator *allocator, ductile_addr address);

/**
 * Calls ductile_record_stream for each of the streams, then ductile_free. It may tell whether the
 * memory has to wait: for a trace, which notes when a freed block becomes free.
 *
 * Arguments: address: as returned by ductile_alloc; 0 does nothing. streams: those whose work uses
 *            the block; NULL if n_streams is 0. is_pending: receives 1 when the block became
 *            DUCTILE_BLOCK_PENDING (by the time the call returns another one may have made it
 *            free), 0 when it became free at once; NULL to ignore.
 * Returns:   DUCTILE_OK; ERR_OUT_OF_HOST_MEMORY; the errors of ductile_free; ERR_INVALID_ARGUMENT
 *            also when streams is NULL though n_streams is not 0.
 * On error:  the block stays live, and some of the streams may be recorded on it. *is_pending is 0.
 * Cost:      as ductile_free.
 */
DUCTILE_API ductile_status ductile_free_ex(ductile_allocator *allocator, ductile_addr address,
                                           const ductile_stream *streams, size_t n_streams,
                                           int *is_pending);

/* ---- Streams ------------------------------------------------------------------------------ */

/**
 * Tells the allocator that work on `stream` uses the block. After the block is freed, its memory is
 * not reused before that work has completed.
 *
 * Arguments: address: the start of a live block; 0 does nothing. stream: the block's own stream
 *            does nothing.
 * Returns:   DUCTILE_OK; the errors of ductile_free; ERR_OUT_OF_HOST_MEMORY.
 * Streams:   the stream must exist until the block is freed, or until ductile_stream_done is called
 *            for it. It may be of another GPU that has access, or of another context of this GPU:
 *            if such a stream uses a block and is joined only after the free, it must be recorded.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_record_stream(ductile_allocator *allocator,
                                                                 ductile_addr address,
                                                                 ductile_stream stream);

/**
 * Tells the allocator that a stream is about to be destroyed. No later driver call passes this
 * stream. Its live blocks stay valid. A new stream with the same handle shares nothing with it; its
 * free memory serves every stream once it is proven done.
 *
 * Call it while the allocator still knows memory that was allocated on the stream or a use that was
 * recorded for it. Otherwise two things go wrong after the stream is destroyed. A new stream with
 * the same handle is taken for the old one, and may be handed memory that the old one's work still
 * uses. And where no context marker may be recorded (ductile_captures), ductile_trim and other
 * calls may pass a dead stream to the driver.
 *
 * Arguments: stream: must still be valid. A new stream may get the same handle afterwards.
 * Returns:   DUCTILE_OK, also for a stream never used here; ERR_INVALID_ARGUMENT (allocator is
 *            NULL); ERR_CAPTURING, ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  the stream's progress could not be marked. The allocator forgets the stream all the
 *            same, except after ERR_EXITING, ERR_FORKED or ERR_INVALID_ARGUMENT.
 * Threads:   safe. It waits for threads that are about to pass the stream to the driver, and for
 *            threads that wait for its work: trims, sleeps, and requests that are short of memory.
 * Cost:      one event record for the uses, and a context marker or one record for each arena;
 *            linear in live and pending blocks.
 */
DUCTILE_API ductile_status ductile_stream_done(ductile_allocator *allocator, ductile_stream stream);

/* ---- Give back and limit ------------------------------------------------------------------ */

/**
 * Gives physical memory back to the driver until the allocator, or one of its pools, holds at most
 * `keep_bytes`, as far as free memory allows. Unmapped handles go first, then free blocks, highest
 * addresses first. A capture pool with references gives nothing, because graphs may use all of its
 * memory.
 *
 * Arguments: pool: NULL: of all pools. {0,0}: of the memory outside private pools. Of one pool
 *            handles that are mapped nowhere stay, for they belong to none. keep_bytes: 0 gives
 *            back everything that is free. released: receives the number of bytes given back; NULL
 *            to ignore.
 * Returns:   DUCTILE_OK, also when less could be given back; ERR_INVALID_ARGUMENT (allocator is
 *            NULL, there is no such pool), ERR_BUSY (called from a map callback), ERR_DRIVER,
 *            ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  *released counts what went before the error.
 * Streams:   where no context marker may be recorded (ductile_captures), the streams whose memory
 *            goes back are passed to the driver, unless ductile_stream_done was called for them.
 * Cost:      if memory is not proven done, waits for all work issued so far; while a capture is
 *            known of, for its streams, and then keeps what they freed since their last allocation;
 *            an unmap and a release per handle.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_trim(ductile_allocator *allocator,
                                                        const ductile_pool_id *pool,
                                                        uint64_t keep_bytes, uint64_t *released);

/* ---- Statistics and inspection ------------------------------------------------------------ */

/*
 * X(name, meaning). All are 64-bit. At any time:
 *   requested_bytes <= allocated_bytes
 *   reserved_bytes + spilled_bytes = allocated_bytes + free_bytes + pending_bytes + cached_bytes
 *                                    + quarantined_bytes
 * These count physical memory, each byte once: while memory already serves at a new address, its
 * old (retiring) address is not counted.
 */
#define DUCTILE_STATS_MAP(X)                                                                       \
    X(requested_bytes, "bytes requested for live blocks")                                          \
    X(requested_peak_bytes, "its peak")                                                            \
    X(allocated_bytes, "bytes of live blocks, rounded")                                            \
    X(allocated_peak_bytes, "its peak")                                                            \
    X(reserved_bytes, "physical memory held of the device, in use or cached")                      \
    X(reserved_peak_bytes, "its peak")                                                             \
    X(free_bytes, "mapped, in free blocks")                                                        \
    X(pending_bytes, "freed, but another stream may still use them")                               \
    X(cached_bytes, "in handles that are mapped nowhere")                                          \
    X(quarantined_bytes, "lost because the driver failed to undo a call")                          \
    X(retiring_bytes, "old addresses not unmapped yet; their memory serves elsewhere")             \
    X(mapped_bytes, "addresses with memory behind them, retiring ones included")                   \
    X(address_bytes, "virtual addresses reserved")                                                 \
    X(address_span_bytes, "from the lowest to the highest mapped address, summed over ranges")     \
    X(address_span_peak_bytes, "its peak")                                                         \
    X(live_blocks, "live blocks")                                                                  \
    X(free_blocks, "free blocks")                                                                  \
    X(gap_blocks, "spans of addresses without memory, range ends included")                        \
    X(pending_blocks, "pending blocks")                                                            \
    X(handles, "physical handles held")                                                            \
    X(segments, "address ranges reserved")                                                         \
    X(arenas, "streams known, counted once for each pool")                                         \
    X(allocs, "successful allocations")                                                            \
    X(frees, "successful frees")                                                                   \
    X(slow_allocs, "allocations that no free block served at once")                                \
    X(out_of_memory, "requests refused for lack of memory")                                        \
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
    X(driver_time_ns, "time in driver calls, modelled on the virtual GPU; 0: not timed")           \
    X(driver_host_ns, "time in driver calls, as this host spent it; 0: not timed")                 \
    X(host_bytes, "host memory of the allocator's own bookkeeping")                                \
    X(requested_total_bytes, "bytes requested by all successful allocations")                      \
    X(allocated_total_bytes, "bytes of all successful allocations, rounded")                       \
    X(active_peak_bytes, "peak of allocated_bytes + pending_bytes")                                \
    X(live_peak_blocks, "peak of live_blocks")                                                     \
    X(created_total_bytes, "bytes of all handles created")                                         \
    X(pinned_bytes, "physical memory that must not move: pinned or exported")                      \
    X(exported_bytes, "of pinned_bytes, passed to other processes")                                \
    X(imported_bytes, "memory of other processes, mapped here; in no other statistic")             \
    X(asleep_bytes, "bytes of sleeping blocks; not in allocated_bytes")                            \
    X(asleep_blocks, "sleeping blocks; not in live_blocks")                                        \
    X(pressure_waits, "times the host waited for the GPU because a request lacked memory")         \
    X(pressure_returns, "times memory went back to the driver because a request lacked it")        \
    X(pressure_returned_total_bytes, "bytes that went back so")                                    \
    X(readdressed_handles, "handles back at an earlier address, without a driver call")            \
    X(spilled_bytes, "memory of the host behind blocks, or lost; not in reserved_bytes")           \
    X(spilled_peak_bytes, "its peak")                                                              \
    X(spill_locked_bytes, "page-locked for that, in use or cached")                                \
    X(spills, "requests that got memory of the host")                                              \
    X(spilled_total_bytes, "bytes of the host that they got")                                      \
    X(spilled_live_bytes, "of spilled_bytes, behind live, pending and sleeping blocks")            \
    X(promoted_total_bytes, "bytes that ductile_promote moved to the device")

typedef struct ductile_stats {
    size_t struct_size; /* set by the caller: sizeof(ductile_stats) */
#define DUCTILE_STATS_FIELD(name, meaning) uint64_t name;
    DUCTILE_STATS_MAP(DUCTILE_STATS_FIELD)
#undef DUCTILE_STATS_FIELD
} ductile_stats;

/**
 * Reads the statistics, of all pools or of one, as of one moment, except the driver's counters
 * (creates to event_records and driver_*), which are read after the rest. Of one pool, fields that
 * are counted only for the whole allocator are 0: peaks, calls, handles; reserved_bytes is the
 * memory mapped behind its blocks, and `arenas` counts its streams.
 *
 * Arguments: pool: NULL: all. {0,0}: the memory outside private pools. out: not NULL.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (also: there is no such pool), ERR_FORKED.
 * Cost:      linear in the number of streams, independent of the number of blocks, but for those of
 *            a sleeping pool in which memory stayed mapped. Of one pool linear in its blocks.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_get_stats(ductile_allocator *allocator,
                                                             const ductile_pool_id *pool,
                                                             ductile_stats *out);

/**
 * From now on the statistics driver_time_ns and driver_host_ns are kept.
 *
 * Arguments: allocator: NULL does nothing. In a forked child the call does nothing.
 * Threads:   safe; calls of other threads that are under way may count or not.
 * Cost:      later two readings of the clock for each driver call.
 */
DUCTILE_API void ductile_time_driver_calls(ductile_allocator *allocator);

/**
 * Sets every *_peak_* statistic to its current value.
 *
 * Arguments: allocator: NULL does nothing. In a forked child the call does nothing.
 */
DUCTILE_API void ductile_reset_peaks(ductile_allocator *allocator);

typedef enum ductile_block_state {
    DUCTILE_BLOCK_LIVE = 0,
    DUCTILE_BLOCK_FREE = 1,
    DUCTILE_BLOCK_PENDING = 2,
    DUCTILE_BLOCK_BUSY = 3,
    DUCTILE_BLOCK_GAP = 4,
    DUCTILE_BLOCK_RETIRING = 5,
    DUCTILE_BLOCK_QUARANTINED = 6,
    DUCTILE_BLOCK_IMPORTED = 7, /* memory of another process, alone in its range */
    DUCTILE_BLOCK_ASLEEP = 8    /* live, but without memory until ductile_wake */
} ductile_block_state;

/* True of a block when it is true of any part of the memory behind it. */
typedef enum ductile_block_flags {
    DUCTILE_BLOCK_PINNED = 1,   /* must not move; see ductile_share.h                   */
    DUCTILE_BLOCK_EXPORTED = 2, /* passed to another process                            */
    DUCTILE_BLOCK_ELASTIC = 4   /* of an elastic range, where no request finds room     */
} ductile_block_flags;

typedef struct ductile_block_info {
    size_t struct_size; /* set by the caller */
    ductile_addr address;
    uint64_t size;           /* bytes, rounded                                            */
    uint64_t requested_size; /* bytes asked for; 0 unless live, pending, asleep, imported */
    ductile_block_state state;
    ductile_stream stream;      /* the stream that the memory belongs to                  */
    ductile_addr segment;       /* start of the range that holds the block                */
    uint64_t segment_bytes;     /* size of that range, without the guard behind it        */
    uint64_t free_before_bytes; /* size of the free block just before; 0: there is none   */
    uint64_t free_after_bytes;  /* size of the free block just after; 0: there is none    */
    ductile_pool_id pool;       /* the private pool that holds it; {0,0}: none            */
    uint32_t flags;             /* of ductile_block_flags, or-ed                          */
    uint64_t spilled_bytes;     /* at its end, in the host's memory; 0 while its pool falls asleep,
                                   wakes or is promoted                                           */
} ductile_block_info;

/**
 * Describes the live block that starts at `address`.
 *
 * Arguments: address: the start of a live or sleeping block, or of an import. out: not NULL.
 * Returns:   DUCTILE_OK; ERR_FOREIGN_POINTER, ERR_INTERIOR_POINTER, ERR_NOT_LIVE;
 *            ERR_INVALID_ARGUMENT, ERR_FORKED.
 * On error:  for the pointer errors all fields but struct_size are 0; otherwise *out is unchanged.
 * Threads:   safe; the answer holds until the block or a neighbour changes.
 * Cost:      constant time for a live block, otherwise linear in the blocks of the range that holds
 *            the address.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_query_block(ductile_allocator *allocator,
                                                               ductile_addr address,
                                                               ductile_block_info *out);

/**
 * Receives one block of a walk. Calls of other threads wait meanwhile, so the callback must not
 * call into an allocator, nor wait for something that such a thread may hold (an interpreter's
 * lock).
 *
 * Arguments: block: valid during the call only.
 * Returns:   0 to go on; anything else ends the walk.
 */
typedef int (*ductile_walk_fn)(void *user, const ductile_block_info *block);

/**
 * Visits every block of every range, or of those of one pool, in ascending order of address within
 * each range. The blocks of a range cover it without gap or overlap. An import is one block, which
 * may begin after its range does and end before it; it is in no pool.
 *
 * The live blocks of a pool are a checkpoint of it. To restore a checkpoint, free the blocks that
 * are live now but were not then, and call ductile_pool_alloc_at for those that were live then but
 * are not now.
 *
 * Arguments: pool: NULL: all. {0,0}: the memory outside private pools. visit: not NULL. user:
 *            passed to it.
 * Returns:   DUCTILE_OK, also when the callback ended the walk; ERR_INVALID_ARGUMENT (also: there
 *            is no such pool), ERR_FORKED.
 * Threads:   safe; calls of other threads wait while it runs.
 * Cost:      linear in the number of blocks.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_walk(ductile_allocator *allocator,
                                                        const ductile_pool_id *pool,
                                                        ductile_walk_fn visit, void *user);

/**
 * Receives one piece of a text, not terminated.
 *
 * Returns:   0 to go on; anything else ends the writing.
 */
typedef int (*ductile_write_fn)(void *user, const char *text, size_t length);

/**
 * Writes the whole state as one JSON object: version, options, statistics, and segments with their
 * blocks. A later version only adds keys, as long as the major version is the same. Its JSON schema
 * is snapshot.schema.json, installed as share/ductile/snapshot.schema.json.
 *
 * Arguments: write: not NULL; gets the text piece by piece. user: passed to it.
 * Returns:   DUCTILE_OK, also when the callback ended the writing; ERR_INVALID_ARGUMENT,
 *            ERR_OUT_OF_HOST_MEMORY, ERR_FORKED.
 * Threads:   safe. The callback runs without any lock held.
 * Cost:      linear in the number of blocks.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_snapshot_json(ductile_allocator *allocator,
                                                                 ductile_write_fn write,
                                                                 void *user);

/**
 * Recounts every invariant of docs/dev/invariants.md that can be recounted.
 *
 * Arguments: report, report_size: the buffer receives the number of the first broken invariant, the
 *            two values that differ, and the place; NULL and 0 to ignore.
 * Returns:   DUCTILE_OK; ERR_CORRUPT (an invariant is broken); ERR_INVALID_ARGUMENT, ERR_FORKED
 *            (nothing was checked).
 * On error:  the report says what is broken; it is empty where nothing was checked.
 * Threads:   safe; calls of other threads wait while it runs.
 * Cost:      linear in blocks and granules; no driver call on CUDA.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_check(ductile_allocator *allocator, char *report,
                                                         size_t report_size);

#ifdef __cplusplus
}
#endif

#include "ductile_elastic.h"
#include "ductile_handover.h"
#include "ductile_pools.h"
#include "ductile_pressure.h"
#include "ductile_share.h"
#include "ductile_sleep.h"

#endif

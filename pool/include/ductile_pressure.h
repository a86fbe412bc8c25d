/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory pressure: limits that can change at run time, callbacks that give memory back before a
 * request is refused, and a report on a request that was refused.
 *
 * Included by ductile.h; compiles alone.
 */
#ifndef DUCTILE_PRESSURE_H
#define DUCTILE_PRESSURE_H

#include "ductile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Limits -------------------------------------------------------------------------------- */

/** How much physical memory may be held, in bytes. */
typedef struct ductile_limits {
    size_t struct_size;        /* set by the caller */
    uint64_t limit_bytes;      /* the hard cap */
    uint64_t soft_limit_bytes; /* above it memory is created only as a last resort               */
    uint64_t device_bytes;     /* physical memory of the device; ductile_set_limits ignores it   */
    uint64_t margin_bytes;     /* see ductile_set_margin; ductile_set_limits ignores it          */
} ductile_limits;

/** Of ductile_set_limits: this limit stays as it is. */
#define DUCTILE_LIMIT_KEEP UINT64_MAX

/**
 * Reads the limits in effect, in bytes: soft_limit_bytes <= limit_bytes <= device_bytes. Where
 * there is no soft limit it equals the hard one. ductile_get_options has the limits as they were
 * set.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_FORKED.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_get_limits(ductile_allocator *allocator,
                                                              ductile_limits *out);

/**
 * Changes the limits: the options limit_bytes and soft_limit_bytes, both at once.
 *
 * If more is held than a new, lower hard cap, the next ductile_trim or the next requests that need
 * memory give the surplus back. Live blocks are never touched.
 *
 * A request that would create memory above the soft limit first tries everything that disturbs no
 * other part of the program: memory of any stream that is proven done, cached memory, memory that
 * the options allow to move only through the driver, and waiting for memory that recorded streams
 * use. Only what is still missing is then created, up to the hard cap. The soft limit refuses no
 * request, asks no callback, and takes nothing back while no request needs memory.
 *
 * Arguments: limits: not NULL; the caller sets struct_size, and limits that do not fit into it stay
 *            as they are. Each limit: bytes, a DUCTILE_SHARE (the hard cap: of the device; the soft
 *            limit: of the hard cap), 0: none, or DUCTILE_LIMIT_KEEP.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (an argument is NULL, struct_size is not set, or a
 *            share is not in (0,1]), ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * Threads:   safe; waits for a thread that is mapping memory.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_set_limits(ductile_allocator *allocator,
                                                              const ductile_limits *limits);

/**
 * Keeps memory of the device free for others that share it: libraries that allocate by themselves
 * (NCCL, cuBLAS), other processes. Memory is created, for a request or a wake, only where the
 * driver reports so much more free; otherwise it counts as out of memory, with all that follows
 * (callbacks, trims). What is held already stays: several threads or processes that create at the
 * same moment may each see the same free memory.
 *
 * Arguments: margin_bytes: 0: none, as in a new allocator.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (allocator is NULL), ERR_DEVICE_LOST, ERR_EXITING,
 *            ERR_FORKED.
 * Threads:   safe; waits for a thread that is mapping memory.
 * Cost:      no driver call. While there is a margin, one more for each handle that is created.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_set_margin(ductile_allocator *allocator,
                                                              uint64_t margin_bytes);

/* ---- Callbacks that give memory back ------------------------------------------------------- */

/**
 * Gives memory back when a request lacks device memory. The allocator asks the callback long before
 * it refuses the request, and before it waits on the host, except for the waits that the soft limit
 * asks for. The callback may free blocks of any allocator, shrink caches of its own, and call any
 * function of this library except ductile_destroy. A request made inside a callback, of any
 * allocator, asks no callback.
 *
 * Arguments: user: as registered. allocator: the one that lacks memory. missing: the bytes of
 *            device memory that the latest try of the request lacked. stream: the request's.
 * Returns:   the bytes given back to this allocator or to the device; 0: none. After any other
 *            answer the allocator tries the request again. If memory is still missing, it asks the
 *            callback again, at most 16 times for one request.
 * Threads:   runs on the requesting thread, without any lock held. Several threads may run it at
 *            once.
 */
typedef uint64_t (*ductile_oom_fn)(void *user, ductile_allocator *allocator, uint64_t missing,
                                   ductile_stream stream);

/**
 * Registers a callback. Several may be registered; the same one may be registered more than once.
 *
 * Arguments: callback: not NULL. user: passed to it. priority: callbacks with smaller numbers are
 *            asked first; of equal ones, the one registered first. id: receives a number for
 *            ductile_remove_oom_callback, never 0; not NULL.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY, ERR_FORKED.
 * On error:  *id is 0.
 * Ownership: unregister with ductile_remove_oom_callback; ductile_destroy drops what is left.
 * Threads:   safe, also from inside a callback.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_add_oom_callback(ductile_allocator *allocator,
                                                                    ductile_oom_fn callback,
                                                                    void *user, int priority,
                                                                    uint64_t *id);

/**
 * Unregisters a callback. Once the call returns, no other thread is inside the callback or will
 * enter it, so `user` may be freed.
 *
 * Arguments: id: from ductile_add_oom_callback.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no such id), ERR_FORKED.
 * Threads:   safe. It waits for other threads that are inside the callback, so hold no lock that
 *            the callback takes. From inside the callback it does not wait for its own thread. Two
 *            callbacks that remove each other at the same time wait for ever.
 */
DUCTILE_API ductile_status ductile_remove_oom_callback(ductile_allocator *allocator, uint64_t id);

/* ---- Spilling: memory of the host before a refusal ------------------------------------------ */

/*
 * With the option `spill_bytes` a request of 2 MiB or more that would be refused gets page-locked
 * memory of the host for what is missing of the device's: a GPU reads and writes that as any other,
 * over the link. It is the last resort, once all else was given up, and goes when the block is
 * freed. Memory of captures and elastic ranges, pinned, exported and dedicated memory never lies
 * there, nor any while another GPU has access. docs/spilling.md.
 */

/**
 * From now on no request spills, until ductile_spill_allow was called as often: for those who probe
 * for out-of-memory, such as what looks for the largest batch. What has spilled stays.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (allocator is NULL), ERR_FORKED.
 * Threads:   safe. It holds for requests of all threads.
 * Cost:      no driver call.
 */
DUCTILE_API ductile_status ductile_spill_forbid(ductile_allocator *allocator);

/**
 * Ends a ductile_spill_forbid.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (allocator is NULL, or none holds), ERR_FORKED.
 */
DUCTILE_API ductile_status ductile_spill_allow(ductile_allocator *allocator);

/* ---- The report on a refused request -------------------------------------------------------- */

#define DUCTILE_OOM_HOLDERS 8
#define DUCTILE_OOM_SIZES 32

/** What one stream holds in one pool, in bytes. */
typedef struct ductile_oom_holder {
    ductile_stream stream;
    ductile_pool_id pool;    /* {0,0}: outside private pools                            */
    uint64_t held_bytes;     /* physical memory mapped here: live, free and pending     */
    uint64_t live_bytes;     /* in live blocks                                          */
    uint64_t free_bytes;     /* in free blocks                                          */
    uint64_t pending_bytes;  /* freed, but another stream may still use them            */
    uint64_t unproven_bytes; /* free whole granules that may not leave the stream yet   */
    uint64_t kept_bytes;     /* free whole granules that a capture pool keeps for its
                                graphs; 0 for the requesting stream in its pool         */
    uint64_t largest_free_bytes;
} ductile_oom_holder;

/**
 * Why a request was refused, in numbers taken at that moment. Fields are in bytes unless they say
 * otherwise. They obey: held + spilled = live + free + pending + cached + quarantined.
 */
typedef struct ductile_oom_report {
    size_t struct_size; /* set by the caller */
    uint64_t number;    /* which refusal of this allocator, counted from 1; 0: this thread has had
                           none, and all fields below are 0                                      */
    int device;         /* ordinal */
    int captured;       /* 1: streams were being captured, so the allocator could not wait for all
                           work of the device                                                    */
    ductile_stream stream;
    ductile_pool_id pool;     /* of the request; {0,0}: none                                     */
    uint64_t requested_bytes; /* as the caller asked                                             */
    uint64_t rounded_bytes;   /* the size of the block that it would have become                 */
    uint64_t missing_bytes;   /* physical memory that was missing to serve it                    */
    uint64_t needed_bytes;    /* what would be held in all if it were served: more than limit_bytes
                                 where the limit refused it                                      */
    uint64_t limit_bytes;     /* hard cap in effect                                              */
    uint64_t soft_limit_bytes;
    uint64_t margin_bytes;      /* of the device, kept free: ductile_set_margin                  */
    uint64_t device_bytes;      /* physical memory of the device                                 */
    uint64_t device_free_bytes; /* free on the device, as the driver says; 0 also when it does not
                                   say                                                           */
    uint64_t others_bytes;      /* used on the device but not held here: by other processes, CUDA
                                   contexts and other allocators                                 */
    uint64_t held_bytes;        /* physical memory held by this allocator                        */
    uint64_t live_bytes;
    uint64_t free_bytes;
    uint64_t pending_bytes;
    uint64_t cached_bytes;
    uint64_t quarantined_bytes;
    uint64_t retiring_bytes;          /* old addresses not unmapped yet; their memory serves
                                         elsewhere                                               */
    uint64_t unproven_bytes;          /* free on other streams, or in the elastic range that asked,
                                         but not proven done                                     */
    uint64_t kept_bytes;              /* free, but kept for graphs by other capture pools         */
    uint64_t pinned_bytes;            /* free, but in granules that live blocks also use         */
    uint64_t largest_free_bytes;      /* the largest free block of any stream                    */
    uint64_t largest_free_here_bytes; /* the largest free block of the requesting stream         */
    uint64_t unvisited_bytes;         /* free, in blocks too small and too many to be counted by
                                         size                                                    */
    uint64_t granule_bytes;
    const char *limit_name; /* what the text calls the setting behind limit_bytes; NULL:
                               "limit_bytes". Who caps the allocator for a reason of its own may
                               set it before the text is written                             */
    uint64_t n_holders;     /* streams that hold memory               */
    ductile_oom_holder holders[DUCTILE_OOM_HOLDERS]; /* those that hold most, largest first    */
    uint64_t free_blocks_by_size[DUCTILE_OOM_SIZES]; /* [i]: number of free blocks of 2^(i+9) to
                                                        2^(i+10)-1 bytes; the last entry also
                                                        counts all larger ones                 */
    uint64_t free_bytes_by_size[DUCTILE_OOM_SIZES];  /* the bytes of those blocks              */
    uint64_t spilled_bytes;      /* of the host behind blocks, or lost; not in held_bytes      */
    uint64_t spill_locked_bytes; /* page-locked of the host for that, in use or cached         */
    uint64_t spill_limit_bytes;  /* the option spill_bytes; 0: off                             */
} ductile_oom_report;

/**
 * Reads the report on this thread's latest request that this allocator refused for lack of memory.
 *
 * Returns:   DUCTILE_OK, also when there was none (out->number is 0); ERR_INVALID_ARGUMENT,
 *            ERR_FORKED.
 * Threads:   safe; every thread has its own report. A thread keeps one report only, of the
 *            allocator that refused last.
 * Cost:      a copy. Taking the report costs a refused request one cuMemGetInfo and a look at up to
 *            65536 of its free blocks, in pieces between which other threads run.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_get_oom_report(ductile_allocator *allocator,
                                                                  ductile_oom_report *out);

typedef enum ductile_report_format {
    DUCTILE_REPORT_TEXT = 0, /* for people: what was requested, who holds memory, what would help */
    DUCTILE_REPORT_JSON = 1  /* one JSON object. It has every number under its field's name, and
                                "advice", a list of sentences. A later version only adds keys, as
                                long as the major version is the same */
} ductile_report_format;

/**
 * Writes a report.
 *
 * Arguments: report: from ductile_get_oom_report; not NULL. format: any other value is TEXT.
 *            buffer, size: where to write. The text is always terminated when size > 0; NULL and 0
 *            ask for the length.
 * Returns:   the length of the whole text, without the terminator.
 */
DUCTILE_API size_t ductile_oom_report_format(const ductile_oom_report *report,
                                             ductile_report_format format, char *buffer,
                                             size_t size);

/* ---- Who else uses a GPU -------------------------------------------------------------------- */

/** A process that uses memory of a GPU, by the word of the driver's management library. */
typedef struct ductile_gpu_process {
    uint64_t pid; /* where processes have numbers of their own in a container: maybe not these */
    uint64_t used_bytes; /* all of it: held by allocators, CUDA's context, libraries             */
} ductile_gpu_process;

/**
 * Lists the processes that use memory of a GPU, this one among them. The library asked is NVML,
 * libnvidia-ml.so.1, opened when first asked; nothing else in Ductile needs it.
 *
 * Arguments: pci_bus_id: of the GPU, as cudaDeviceGetPCIBusId writes it; not NULL. out, room: the
 *            array to fill and how many it has room for; NULL and 0 to count. found: receives how
 *            many there are; not NULL.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT; ERR_UNSUPPORTED (there is no NVML, it may not be
 *            used here, or it does not know the GPU); ERR_DRIVER (it does not say who uses it).
 * On error:  *found is 0. Processes whose bytes NVML does not tell are left out.
 * Threads:   safe; takes no lock of any allocator.
 * Cost:      calls of NVML, of which the first opens the driver: not for a hot path.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_list_gpu_processes(const char *pci_bus_id,
                                                                      ductile_gpu_process *out,
                                                                      size_t room, size_t *found);

#ifdef __cplusplus
}
#endif
#endif

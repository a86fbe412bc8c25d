/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory pressure: limits that change at run time, callbacks that are asked for memory before a
 * request is refused, and the report about a request that was. Included by ductile.h.
 */
#ifndef DUCTILE_PRESSURE_H
#define DUCTILE_PRESSURE_H

#include "ductile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Limits -------------------------------------------------------------------------------- */

typedef struct ductile_limits {
    size_t struct_size;   /* set by the caller */
    uint64_t limit_bytes; /* what may be held: the smallest of limit_bytes, the fraction and
                             the device                                                     */
    uint64_t
        soft_limit_bytes;  /* the smallest of soft_limit_bytes and the share of the limit that
                              garbage_collection_threshold is; limit_bytes when neither is set */
    uint64_t device_bytes; /* what the device has                                            */
    double fraction;       /* per_process_memory_fraction; 0 when not set                    */
} ductile_limits;

/**
 * The limits in effect.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_FORKED.
 * Threads:   safe. Cost: no driver call.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_get_limits(ductile_allocator *allocator,
                                                              ductile_limits *out);

/**
 * Changes the soft limit. A request that would create memory above it first tries everything that
 * disturbs nobody else: memory of any stream that is proven done, cached memory, memory that goes
 * through the driver because the options keep it from moving, and waiting for memory that recorded
 * streams hold. Only what is still missing then is created, up to the hard limit. The soft limit
 * refuses nothing, asks no callback, and takes nothing away while no request needs memory.
 *
 * Arguments: soft_limit_bytes: 0 removes it.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * Threads:   safe; waits for a thread that is mapping memory. Cost: no driver call.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_set_soft_limit(ductile_allocator *allocator,
                                                                  uint64_t soft_limit_bytes);

/**
 * Changes per_process_memory_fraction: the hard cap as a share of the device. It counts beside
 * limit_bytes; the smaller one holds.
 *
 * Arguments: fraction: in (0,1]; 0 removes it.
 * Returns, threads, cost: as ductile_set_soft_limit.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_set_memory_fraction(ductile_allocator *allocator,
                                                                       double fraction);

/* ---- Callbacks that are asked for memory --------------------------------------------------- */

/**
 * Is asked for device memory that a request lacks, before the allocator waits on the host (but for
 * what the soft limit asks for) and long before it refuses. It may free blocks of any allocator,
 * shrink caches of its own, and call anything of this library but ductile_destroy; a request made
 * inside it, on whatever allocator, asks no callback. It runs on the requesting thread without any
 * lock held, and several threads may run it at once.
 *
 * Arguments: missing: bytes of device memory that would have served the request, counted when it
 *            was last tried. stream: the request's.
 * Returns:   bytes given back, to this allocator or to the device; 0 for none. After any other
 *            answer the request is tried again, and the callback asked again if that was not
 *            enough, 16 times for one request at most.
 */
typedef uint64_t (*ductile_oom_fn)(void *user, ductile_allocator *allocator, uint64_t missing,
                                   ductile_stream stream);

/**
 * Registers a callback. Several may be registered, also the same one more than once.
 *
 * Arguments: priority: the smaller is asked first; among equals the one registered first.
 *            id: receives what ductile_remove_oom_callback takes; not 0.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (callback or id is NULL), ERR_OUT_OF_HOST_MEMORY,
 *            ERR_FORKED.
 * On error:  *id is 0.
 * Threads:   safe, also from inside a callback.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_add_oom_callback(ductile_allocator *allocator,
                                                                    ductile_oom_fn callback,
                                                                    void *user, int priority,
                                                                    uint64_t *id);

/**
 * Unregisters a callback: it is not entered any more, and once this returns no other thread is
 * inside it, so `user` may be freed. Called from inside the callback itself it does not wait for
 * its own thread.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no such id), ERR_FORKED.
 * Threads:   safe. Waits for threads inside the callback: hold no lock that the callback takes.
 *            Two callbacks that remove each other from inside at the same time wait for ever.
 */
DUCTILE_API ductile_status ductile_remove_oom_callback(ductile_allocator *allocator, uint64_t id);

/* ---- The report about a refused request ----------------------------------------------------- */

#define DUCTILE_OOM_HOLDERS 8
#define DUCTILE_OOM_SIZES 32

/** What one stream holds in one pool. */
typedef struct ductile_oom_holder {
    ductile_stream stream;
    ductile_pool_id pool;    /* {0,0}: in no private pool                               */
    uint64_t held_bytes;     /* physical memory mapped here: live, free and pending     */
    uint64_t live_bytes;     /* of live blocks                                          */
    uint64_t free_bytes;     /* of free blocks                                          */
    uint64_t pending_bytes;  /* freed, another stream still at work                     */
    uint64_t unproven_bytes; /* free, in whole granules, its work not proven done       */
    uint64_t largest_free_bytes;
} ductile_oom_holder;

/**
 * Why a request was refused, in numbers taken while it was refused. All in bytes unless said
 * otherwise. physical memory held = live + free + pending + cached + quarantined.
 */
typedef struct ductile_oom_report {
    size_t struct_size; /* set by the caller */
    uint64_t number;    /* which refusal of this allocator, counted from 1; 0: none yet on this
                           thread, and all that follows is 0                                     */
    int device;         /* ordinal */
    int captured;       /* 1: streams under capture kept the allocator from waiting for all work */
    ductile_stream stream;
    ductile_pool_id pool;     /* of the request; {0,0}: none                                     */
    uint64_t requested_bytes; /* as asked for                                                    */
    uint64_t rounded_bytes;   /* the block it would have become                                  */
    uint64_t missing_bytes;   /* physical memory that would have served it                       */
    uint64_t limit_bytes;     /* hard cap in effect                                              */
    uint64_t soft_limit_bytes;
    uint64_t device_bytes;      /* what the device has                                           */
    uint64_t device_free_bytes; /* of it, free by the driver's word; 0 also when it would not say */
    uint64_t others_bytes;      /* used on the device and not held here: other processes, contexts,
                                   other allocators                                              */
    uint64_t held_bytes;        /* physical memory held by this allocator                        */
    uint64_t live_bytes;
    uint64_t free_bytes;
    uint64_t pending_bytes;
    uint64_t cached_bytes;
    uint64_t quarantined_bytes;
    uint64_t retiring_bytes;          /* addresses only: their memory serves elsewhere            */
    uint64_t unproven_bytes;          /* free on other streams whose work is not proven done      */
    uint64_t pinned_bytes;            /* free in granules that a live block also uses, so stuck   */
    uint64_t largest_free_bytes;      /* the largest free block of any stream                     */
    uint64_t largest_free_here_bytes; /* the same of the requesting stream                        */
    uint64_t unvisited_bytes;         /* free, in blocks smaller than those counted by size       */
    uint64_t granule_bytes;
    ductile_recycle recycle; /* options that decide what could have been done */
    ductile_record_policy record_stream;
    ductile_cross_stream cross_stream_reuse;
    int reserved;
    uint64_t n_holders;                              /* streams that hold memory              */
    ductile_oom_holder holders[DUCTILE_OOM_HOLDERS]; /* those that hold most, largest first   */
    uint64_t free_blocks_by_size[DUCTILE_OOM_SIZES]; /* [i]: blocks of 2^(i+9) to 2^(i+10)-1;  */
    uint64_t free_bytes_by_size[DUCTILE_OOM_SIZES];  /* the last: all larger ones too          */
} ductile_oom_report;

/**
 * The report about this thread's latest request that this allocator refused for lack of memory.
 *
 * Arguments: out: struct_size set by the caller; a smaller one gets the fields that fit.
 * Returns:   DUCTILE_OK, also when there was none (out->number is 0); ERR_INVALID_ARGUMENT,
 *            ERR_FORKED.
 * Threads:   safe; every thread has its own. A thread keeps one report, of whichever allocator
 *            refused last.
 * Cost:      a copy. Taking the report costs a refused request one cuMemGetInfo and a look at its
 *            free blocks, 65536 of them at most, in pieces between which other threads go on.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_get_oom_report(ductile_allocator *allocator,
                                                                  ductile_oom_report *out);

/**
 * Writes a report as text for people: what was asked, who holds what, and what would help.
 *
 * Arguments: report: as ductile_get_oom_report gave it. buffer, size: where to write, always
 *            terminated when size > 0; NULL and 0 to ask for the length.
 * Returns:   the length the whole text needs, without the terminator.
 * Threads:   safe if different objects.
 */
DUCTILE_API size_t ductile_oom_report_text(const ductile_oom_report *report, char *buffer,
                                           size_t size);

/** The same as one JSON object: every number by its field's name, and "advice", a list of
 * sentences. Keys are only ever added within a major version. */
DUCTILE_API size_t ductile_oom_report_json(const ductile_oom_report *report, char *buffer,
                                           size_t size);

#ifdef __cplusplus
}
#endif
#endif

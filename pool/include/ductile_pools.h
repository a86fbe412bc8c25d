/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private pools: memory that is kept apart, for captured graphs or for any other purpose.
 *
 * Two numbers identify a pool, as in PyTorch. While a pool is open, it serves the requests that
 * belong to it from ranges of its own. A freed block goes back to its pool, whichever thread frees
 * it. A pool exists as long as the program holds a reference, a block of it is live, or memory of
 * it has not gone yet.
 *
 *     ductile_pool_id id = {1, 0};
 *     (void)ductile_pool_begin(a, id, is_in_my_capture, me);     // takes a reference
 *     ... capture: the pool serves requests for which the filter returns non-zero ...
 *     (void)ductile_pool_end(a, id);
 *     ... launch the graph as often as you like ...
 *     (void)ductile_pool_release(a, id);                         // the graph is destroyed
 *
 * Included by ductile.h; compiles alone.
 */
#ifndef DUCTILE_POOLS_H
#define DUCTILE_POOLS_H

#include "ductile.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * What a pool promises while the program holds references to it.
 *
 * CAPTURE: graphs may use all of the pool's memory, free memory included, because each launch of a
 *   graph writes what was allocated and freed while it was captured. Inside the pool blocks split,
 *   merge and are reused. None of its memory moves, serves other requests, or goes back to the
 *   driver. After the last reference is dropped, its free memory counts as in use until all work of
 *   the device that was issued by then is done: the graphs may have been launched on any stream.
 *   Launch none of them later, and do not begin the pool again under its id while their work is
 *   under way: its streams reuse its free memory at once.
 * PLAIN: memory may move inside the pool (recycling, compaction) and goes back to the driver in
 *   trims. Under pressure it serves other requests. Both happen only once it is proven done.
 *
 * A new pool is CAPTURE, which is always safe. When a stream that is being captured requests memory
 * from a plain pool, the pool becomes a capture pool.
 */
typedef enum ductile_pool_kind {
    DUCTILE_POOL_CAPTURE = 0,
    DUCTILE_POOL_PLAIN = 1
} ductile_pool_kind;

/* ---- Captures ------------------------------------------------------------------------------ */

/**
 * Announces to all allocators of the process that a stream capture is about to begin, on any stream
 * and in any thread, and that it has ended. Each begin needs an end; captures may overlap.
 * Meanwhile no context marker is recorded. To allocators with the option `captures:pools` an open
 * pool announces a capture by itself; with `captures:announced` only these calls do.
 *
 * Threads:   safe. The first waits until a record that is under way in another thread has ended.
 * Cost:      one lock of the process; no driver call.
 */
DUCTILE_API void ductile_capture_begin(void);
DUCTILE_API void ductile_capture_end(void);

/**
 * Changes the option `captures`. When a context marker meets a capture that was not announced, that
 * capture is broken, the log callback gets a warning, and the allocator takes it from then on that
 * captures are unannounced; this call tells it otherwise.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_FORKED.
 * Threads:   safe. A record that is under way in another thread may still end after the call.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_set_captures(ductile_allocator *allocator,
                                                                ductile_captures captures);

/* ---- Pools --------------------------------------------------------------------------------- */

/**
 * Decides whether requests for a stream belong to a pool. Every thread that allocates while the
 * pool is open calls it, without any lock held; several threads may be inside it at once. It may
 * call the driver. It must not call this allocator.
 *
 * Returns:   non-zero if the request belongs to the pool, otherwise 0.
 */
typedef int (*ductile_pool_filter)(void *user, ductile_stream stream);

/**
 * Adds a reference to the pool. Creates the pool if it does not exist.
 *
 * Arguments: id: not {0,0}, which is the default pool.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST,
 *            ERR_EXITING, ERR_FORKED.
 * Ownership: give the reference back with ductile_pool_release.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_retain(ductile_allocator *allocator,
                                                               ductile_pool_id id);

/**
 * Opens the pool and adds a reference. Creates the pool if it does not exist. From now on, until
 * the matching ductile_pool_end, the pool serves the requests that belong to it. If a request
 * belongs to several open pools, the one opened last serves it. A pool may be open several times.
 *
 * Arguments: id: not {0,0}. filter: decides which requests belong to the pool; NULL: those of the
 *            calling thread. user: passed to the filter.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST,
 *            ERR_EXITING, ERR_FORKED.
 * On error:  nothing has changed; no reference was added.
 * Ownership: the reference stays after ductile_pool_end: give it back with ductile_pool_release.
 * Threads:   safe. If a thread that opened a pool without a filter ends, the pool stays open until
 *            ductile_pool_end, but gets no requests by that route.
 * Streams:   open a capture pool before the capture begins, and end it after the capture has ended:
 *            Ductile knows of the capture only between the two calls.
 * Cost:      records a context marker if memory was freed, because during the capture none can be.
 *            Where none may be recorded, it waits for the whole device instead, when released
 *            capture pools hold memory and no other capture pool is open. It also waits until no
 *            thread is inside such a wait or such a record, since those would break the capture.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_begin(ductile_allocator *allocator,
                                                              ductile_pool_id id,
                                                              ductile_pool_filter filter,
                                                              void *user);

/**
 * Ends one ductile_pool_begin of this pool: the last one by the calling thread, or, if it made
 * none, the last one by any thread. After the call returns, no thread is inside its filter or
 * enters it again.
 *
 * Arguments: id: not {0,0}.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (the pool is not open), ERR_DEVICE_LOST, ERR_EXITING,
 *            ERR_FORKED.
 * Threads:   safe, from any thread, but not from inside the filter. Waits for threads inside the
 *            filter.
 * Streams:   some blocks may have been freed while a stream recorded on them was being captured. If
 *            the capture has ended, this call records an event on that stream, so the stream must
 *            still exist unless ductile_stream_done was called for it.
 * Cost:      one event record for each such use.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_end(ductile_allocator *allocator,
                                                            ductile_pool_id id);

/**
 * Drops a reference. After the last one, the pool's free memory may serve other requests and go
 * back to the driver once the work that used it is proven done: all work of the device that was
 * issued before this call. Live blocks stay valid until they are freed.
 *
 * Arguments: id: not {0,0}.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no reference is held), ERR_DEVICE_LOST, ERR_EXITING,
 *            ERR_FORKED.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_release(ductile_allocator *allocator,
                                                                ductile_pool_id id);

/**
 * Sets the kind of a pool. The kind holds as long as the program holds references.
 *
 * Arguments: id: not {0,0}.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no reference is held, or no such kind); ERR_BUSY
 *            (the pool is open, or already holds memory and cannot become PLAIN); ERR_DEVICE_LOST,
 *            ERR_EXITING, ERR_FORKED.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_set_kind(ductile_allocator *allocator,
                                                                 ductile_pool_id id,
                                                                 ductile_pool_kind kind);

/** See ductile_sleep.h. */
typedef enum ductile_pool_state {
    DUCTILE_POOL_AWAKE = 0,
    DUCTILE_POOL_FALLING_ASLEEP = 1, /* a call that puts it to sleep is under way */
    DUCTILE_POOL_ASLEEP = 2,
    DUCTILE_POOL_WAKING = 3 /* a call that wakes it is under way */
} ductile_pool_state;

typedef struct ductile_pool_info {
    size_t struct_size; /* set by the caller */
    ductile_pool_id id;
    uint64_t references; /* held now; 0: other requests may take its free memory */
    uint64_t open;       /* how many times it is open now */
    ductile_pool_kind kind;
    int asleep; /* 1: state is not AWAKE                                   */
    ductile_pool_state state;
    ductile_contents policy;     /* as ductile_pool_set_tag set it                          */
    ductile_contents contents;   /* unless AWAKE: what the sleep promised; else POLICY      */
    uint64_t kept_bytes;         /* of contents on the host; 0 while falling asleep, waking */
    char tag[DUCTILE_TAG_BYTES]; /* "": none                                                */
} ductile_pool_info;

/** Receives one pool of a walk, valid during the call only, under the rules of ductile_walk_fn. */
typedef int (*ductile_pool_walk_fn)(void *user, const ductile_pool_info *pool);

/**
 * Visits every pool: the default one, then the private ones, the newest first.
 *
 * Arguments: visit: not NULL. user: passed to it.
 * Returns:   DUCTILE_OK, also when the callback ended the walk; ERR_INVALID_ARGUMENT, ERR_FORKED.
 * Threads:   safe; calls of other threads wait while it runs.
 * Cost:      linear in the number of pools.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_walk_pools(ductile_allocator *allocator,
                                                              ductile_pool_walk_fn visit,
                                                              void *user);

/**
 * Describes one pool, or all in the order of ductile_walk_pools, without a callback: for languages
 * whose functions need a lock of their own.
 *
 * Arguments: pool: NULL: all. {0,0} is the default pool, which counts as plain and without
 *            references. out: an array of `room` descriptions, whose size the caller sets in the
 *            struct_size of the first; a smaller struct gets the fields that fit; not NULL. room:
 *            at least 1. found: receives how many pools there are, which may be more than were
 *            written; NULL to ignore.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (also: there is no such pool), ERR_FORKED.
 * Threads:   safe; calls of other threads wait while it runs.
 * Cost:      linear in the number of pools.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_list_pools(ductile_allocator *allocator,
                                                              const ductile_pool_id *pool,
                                                              ductile_pool_info *out, size_t room,
                                                              size_t *found);

/**
 * Makes a live block at a given address in free memory of the pool. A framework uses it to put a
 * pool back into an earlier state. The memory of a capture pool with references never moves, so an
 * address that once held a block there can hold one again, unless it is in use. The contents are
 * whatever the memory holds. The block belongs to the stream that the memory belongs to.
 *
 * Arguments: id: {0,0} means all memory outside private pools. address: a multiple of
 *            DUCTILE_ALIGNMENT. size: bytes, not 0.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (also: there is no such pool); ERR_FOREIGN_POINTER
 *            (the address lies in no range of the pool); ERR_BUSY (not all of it is free memory: it
 *            is live, or the GPU is not known to be done with it; or it is of an elastic range and
 *            no whole unit); ERR_ASLEEP (the pool sleeps); ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST,
 *            ERR_EXITING, ERR_FORKED.
 * Ownership: release with ductile_free or ductile_free_ex.
 * Streams:   names none. What recorded streams have used is free once that work is done. Where the
 *            free could not mark such a stream (the default stream of another thread, also of one
 *            that has ended), this call may only begin to ask; the next one, a little later, knows.
 * Cost:      linear in the blocks of the range. Before ERR_BUSY it also asks the driver what freed
 *            blocks of all pools wait for, and may record an event; it never waits for the GPU.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_alloc_at(ductile_allocator *allocator,
                                                                 ductile_pool_id id,
                                                                 ductile_addr address, size_t size);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private pools: memory that is kept apart, for captured graphs and for whoever asks.
 *
 * A pool is named by two numbers, as PyTorch's pools are. While a pool is open, the requests that
 * belong to it get memory of its own ranges; a block goes back to the pool it came from, whoever
 * frees it. A pool lives as long as somebody holds a reference or a block of it is live.
 *
 *     ductile_pool_id id = {1, 0};
 *     (void)ductile_pool_begin(a, id, is_in_my_capture, me);     // takes a reference
 *     ... capture: requests for which the filter says yes go to the pool ...
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

/*
 * What a pool promises while references are held.
 *
 * CAPTURE: live graphs may own its memory, free memory included: a graph writes, at every launch,
 *   what was allocated and freed while it was captured. Blocks split, merge and are reused inside;
 *   no memory of it moves, serves others, or goes back to the driver. After the last reference its
 *   free memory counts as in use until the host has waited for the whole device once, because
 *   nobody can say on which streams the graphs were launched.
 * PLAIN: a pool of the user's. Memory moves and heals inside, goes back to the driver in trims, and
 *   serves others under pressure, once it is proven done.
 *
 * A new pool is CAPTURE, which is always safe. A plain pool of which a stream under capture asks
 * memory becomes a capture pool by itself.
 */
typedef enum ductile_pool_kind {
    DUCTILE_POOL_CAPTURE = 0,
    DUCTILE_POOL_PLAIN = 1
} ductile_pool_kind;

/**
 * Does a request for this stream belong to the pool? Non-zero: yes. Called by every thread that
 * allocates while the pool is open, without any lock held; it may call the driver, and must not
 * call this allocator.
 */
typedef int (*ductile_pool_filter)(void *user, ductile_stream stream);

/**
 * Makes the pool with one reference, or adds a reference to it.
 *
 * Arguments: id: not {0,0}, which is the default pool.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY, ERR_FORKED and others of
 *            the process's end.
 * On error:  nothing has changed.
 * Ownership: give back with ductile_pool_release.
 * Threads:   safe.
 * Cost:      no driver call.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_retain(ductile_allocator *allocator,
                                                               ductile_pool_id id);

/**
 * Opens the pool: makes it if needed, adds a reference, and from now on requests that belong to it
 * are served from it, until the matching ductile_pool_end. Of several open pools that a request
 * belongs to, the one opened last serves it; the same pool may be open several times.
 *
 * Arguments: filter: says which requests; NULL: those of the calling thread. user: passed on to it.
 * Returns:   as ductile_pool_retain.
 * On error:  nothing has changed; no reference was added.
 * Ownership: the reference stays after ductile_pool_end: give it back with ductile_pool_release.
 * Threads:   safe. A thread that ends inside leaves the pool open, for nobody, until the end.
 * Streams:   open a capture pool before the capture begins, and end it after the capture ended:
 *            only between the two does Ductile know of the capture.
 * Cost:      waits for the whole device when released capture pools hold memory, and no other pool
 *            of captures is open: during the capture nobody could. Also waits for a thread that is
 *            inside such a wait for this allocator, which would break the capture.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_begin(ductile_allocator *allocator,
                                                              ductile_pool_id id,
                                                              ductile_pool_filter filter,
                                                              void *user);

/**
 * Ends what a ductile_pool_begin opened: of those for this pool that are open, the last one by the
 * calling thread; if there is none, the last one by anybody. When it returns, no thread is inside
 * the filter, nor will be.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT when the pool is not open.
 * Threads:   safe, from any thread; not from inside the filter. Waits for threads that are.
 * Streams:   blocks that were freed while a stream recorded on them was under capture are marked
 *            here, on those streams, where the capture has ended: they must still exist, unless
 *            named done.
 * Cost:      one event record for each such use.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_end(ductile_allocator *allocator,
                                                            ductile_pool_id id);

/**
 * Drops a reference. With the last one the pool's free memory may serve others and go back to the
 * driver, when the work that used it is proven done; live blocks stay valid until they are freed.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT when no reference is held.
 * Threads:   safe.
 * Cost:      no driver call.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_release(ductile_allocator *allocator,
                                                                ductile_pool_id id);

/**
 * Says what kind of pool it is, for as long as references are held.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no reference is held, or no such kind); ERR_BUSY
 *            (the pool is open, or it holds memory already and cannot become PLAIN).
 * Threads:   safe.
 * Cost:      no driver call.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_set_kind(ductile_allocator *allocator,
                                                                 ductile_pool_id id,
                                                                 ductile_pool_kind kind);

/**
 * Gives back to the driver what the pool does not use and no live graph may own: the free memory of
 * a plain pool, or of one without references. Of a capture pool with references: nothing.
 *
 * Arguments: id: {0,0} is all memory that is in no private pool. released: bytes given back; NULL
 *            to ignore.
 * Returns:   as ductile_trim; ERR_INVALID_ARGUMENT when there is no such pool.
 * Threads:   safe.
 * Cost:      as ductile_trim; handles that are mapped nowhere stay.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_trim(ductile_allocator *allocator,
                                                             ductile_pool_id id,
                                                             uint64_t *released);

/**
 * Statistics of one pool, as of one moment: the bytes and blocks it holds now, its ranges and its
 * streams (`arenas`). Fields that only the whole allocator counts are 0: peaks, calls, handles.
 * reserved_bytes is the memory mapped behind the pool's blocks.
 *
 * Arguments: id: {0,0} is what is in no private pool. out: struct_size set by the caller.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (also when there is no such pool), ERR_FORKED.
 * Threads:   safe.
 * Cost:      no driver call; linear in the pool's blocks.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_get_stats(ductile_allocator *allocator,
                                                                  ductile_pool_id id,
                                                                  ductile_stats *out);

typedef struct ductile_pool_info {
    size_t struct_size; /* set by the caller */
    ductile_pool_id id;
    uint64_t references; /* held now; 0: freeable */
    uint64_t open;       /* times it is open now  */
    ductile_pool_kind kind;
    int paused; /* 1: paused, or on the way there or back */
} ductile_pool_info;

/**
 * What a pool is.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (also when there is no such pool), ERR_FORKED.
 * Threads:   safe.
 * Cost:      no driver call; linear in the number of pools.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_query(ductile_allocator *allocator,
                                                              ductile_pool_id id,
                                                              ductile_pool_info *out);

/**
 * Visits every block of one pool, as ductile_walk does those of all. A checkpoint of a pool is what
 * this shows of its live blocks: restore it by freeing what is live and was not, then
 * ductile_pool_alloc_at for what was live and is not.
 *
 * Arguments: id: {0,0} is what is in no private pool.
 * Returns:   as ductile_walk; ERR_INVALID_ARGUMENT when there is no such pool.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_walk(ductile_allocator *allocator,
                                                             ductile_pool_id id,
                                                             ductile_walk_fn visit, void *user);

/**
 * Makes a live block at an address that lies in free memory of the pool: how a framework puts a
 * pool back into an earlier state. In a capture pool with references memory never moves, so what
 * once was a block there can be one again, unless it is in use. Contents are whatever the memory
 * holds.
 *
 * Arguments: address: a multiple of DUCTILE_ALIGNMENT. size: bytes, not 0. The block belongs to
 *            the stream whose memory it is.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (also when there is no such pool);
 *            ERR_FOREIGN_POINTER: the address lies in no range of the pool; ERR_BUSY: not all of
 *            it is free memory; ERR_OUT_OF_HOST_MEMORY.
 * On error:  nothing has changed.
 * Ownership: release with ductile_free or ductile_free_on.
 * Threads:   safe.
 * Cost:      no driver call; linear in the blocks of the range.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_alloc_at(ductile_allocator *allocator,
                                                                 ductile_pool_id id,
                                                                 ductile_addr address, size_t size);

/* ---- Pause and resume --------------------------------------------------------------------- */

/** Flag of ductile_pause: contents are copied to page-locked host memory, and back by resume. */
#define DUCTILE_PAUSE_KEEP_CONTENTS 1u

/**
 * Gives the physical memory behind a pool's live blocks, and its free memory, back to the driver,
 * while every address stays reserved: the pool's blocks are paused. What is to be paused together
 * is allocated in a pool of its own, so that it shares no physical memory with anything else.
 * Graphs keep their addresses, and may be launched again after ductile_resume.
 *
 * Arguments: flags: 0, contents are lost; or DUCTILE_PAUSE_KEEP_CONTENTS.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no such pool, unknown flag); ERR_BUSY: it is paused,
 *            or others keep freeing blocks that streams still use; ERR_CAPTURING: a capture is
 *            under way, and the pool is one of captures, or has blocks recorded on streams;
 *            where another GPU has access, also: such a stream is being captured;
 *            ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  the pool is as before: its blocks are live, with their contents.
 * Ownership: paused blocks can be freed. Requests for a paused pool get ERR_BUSY.
 * Threads:   safe. From the call on no thread may use the pool's memory, nor launch its graphs.
 * Streams:   work issued before is waited for: the whole device's, or, while a capture is under
 *            way, that of the pool's own streams. Where another GPU has access, streams recorded on
 *            its blocks are named and waited for too.
 * Cost:      waits for the device; with peers, an event for each recorded stream; an unmap and a
 *            release per handle, 512 granules at a time, between which other threads' requests get
 *            through; copies with KEEP_CONTENTS. What the driver will not unmap, or is pinned,
 *            stays in use, and counts as free_bytes. A block of ductile_alloc_one_handle that is
 *            not pinned may be of several handles afterwards.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pause(ductile_allocator *allocator,
                                                         ductile_pool_id id, unsigned flags);

/**
 * Puts physical memory behind a paused pool again, at the same addresses, with the contents that
 * were kept; without them they are undefined.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no such pool), ERR_BUSY (not paused);
 *            ERR_OUT_OF_MEMORY: recoverable, free memory and call again; ERR_OUT_OF_HOST_MEMORY,
 *            ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  the pool is paused as before, kept contents included; when a copy failed, its memory
 *            stays mapped until the next try.
 * Threads:   safe.
 * Streams:   contents are in place when it returns.
 * Cost:      a map per handle, as in growth, while other threads' requests that no free block
 *            serves wait; when memory is short, first a ductile_trim of what is missing; waits for
 *            the copies.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_resume(ductile_allocator *allocator,
                                                          ductile_pool_id id);

#ifdef __cplusplus
}
#endif
#endif

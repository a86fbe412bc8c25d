/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unmapping addresses that were in use:
 *
 *     1. The host learns that the GPU is done with them.   cuStreamSynchronize, a query, ...
 *     2. The handles are unmapped.                         cuMemUnmap
 *     3. They go to the handle cache, which may release    cuMemRelease
 *        them to the driver.
 *
 * Step 1 must come before step 2. cuMemUnmap does not wait for the GPU: a kernel that still runs on
 * the addresses faults, and the error stays with the context permanently. The order among streams
 * does not help: a stream that waits for another one delays the GPU, while the host continues and
 * unmaps at once. So every function here that unmaps takes a dseg_idle, and only a wait or an
 * answer of the driver makes one (U3). tests/lint/check_tree.cmake checks that no other file makes
 * one.
 *
 * Step 3 comes last because the cache gives its handles to any request.
 *
 * (Addresses that were mapped a moment ago and given to no caller need no proof: grow.c undoes its
 * own maps.)
 */
#ifndef DUCTILE_SEGMENTS_UNMAP_HANDLES_H
#define DUCTILE_SEGMENTS_UNMAP_HANDLES_H

#include "segments/granules.h"

#include "vmm/marker.h"

/*
 * Proof that the host knows the GPU to be done with some memory. All zero: no proof. Made of a
 * proof for all work of the context, or of one for a single stream where nothing else can use the
 * memory (dseg_idle_if_joined). The pool stores with each proof up to which age it holds. Streams
 * of other GPUs and contexts that used a block have markers of their own (U12).
 *
 * docs/dev/proofs.md lists every place that makes one, and how it knows; a lint holds the list.
 */
typedef struct dseg_idle {
    uint32_t made_by; /* private to unmap_handles.c */
} dseg_idle;

/* Proof for the work of one stream alone: nothing that unmaps takes it. */
typedef struct dseg_stream_idle {
    uint32_t made_by; /* private to unmap_handles.c */
} dseg_stream_idle;

/* Waits on the host for the stream. Proves that all work submitted to this stream before the call
 * is done, and nothing about other streams. */
ductile_status dseg_sync(dvmm_handle_store *store, ductile_stream stream, dseg_stream_idle *proof);

/* The same by a marker of a stream that is known done (dvmm_marker_query, dvmm_marker_wait), for
 * the work before it was recorded; no proof when it is not. */
dseg_stream_idle dseg_stream_idle_by_marker(const dvmm_marker *marker);

/* For memory that only this stream can use: before the proven work was submitted, the stream was
 * ordered behind all other work on the memory. The caller says how it knows. */
dseg_idle dseg_idle_if_joined(dseg_stream_idle proof);

/* Waits on the host for the context of the device. Proves that all work submitted to any of its
 * streams before the call is done, and nothing about streams of other GPUs with access (U12). Pre:
 * no capture is known to be under way. */
ductile_status dseg_sync_device(dvmm_marker_pool *markers, dseg_idle *proof);

/* The same by a marker of the context that is known done; no proof when it is not, or when it is a
 * marker of one stream. */
dseg_idle dseg_idle_by_marker(const dvmm_marker *marker);

static inline bool dseg_is_proven(dseg_idle proof) {
    return proof.made_by != 0;
}

/* Makes whole handles RETIRING that were MAPPED: they now have a second address. No driver call. */
void dseg_retire(dseg_segment *seg, uint32_t first, uint32_t n_granules);

/* Makes whole handles MAPPED here that were RETIRING. Pre: the same handles have just retired where
 * they were MAPPED. No driver call. */
void dseg_serve_again(dseg_segment *seg, uint32_t first, uint32_t n_granules);

/*
 * Unmaps whole handles: their granules become EMPTY. MAPPED handles go to the handle cache, from
 * which they can go back to the driver; no other address of theirs may be retiring. RETIRING
 * handles serve elsewhere and lose only the old address. Granules that the driver refuses to unmap
 * become QUARANTINED, and a handle that was MAPPED there is lost; the first such error is returned.
 * Pre: the proof covers the span.
 */
ductile_status dseg_unmap_handles(dseg_segment *seg, uint32_t first, uint32_t n_granules,
                                  dseg_idle proof);

/* Unmaps all handles of the segment in the given state, MAPPED or RETIRING, as dseg_unmap_handles
 * unmaps a span. Pre: the proof covers the segment. */
ductile_status dseg_unmap_all(dseg_segment *seg, dseg_state state, dseg_idle proof);

/*
 * Unmaps the MAPPED handles of the span, from its front on, and leaves them to the caller: in
 * `taken`, with room for one of each granule. Their granules are EMPTY. A handle that the driver
 * refuses to unmap ends it: that one is as before, or, where the driver cannot tell (*is_known is
 * false), MAPPED all the same.
 * Pre: the span consists of whole handles that can go; the proof covers it.
 */
ductile_status dseg_take_out(dseg_segment *seg, dseg_span s, dseg_idle proof, dvmm_handle **taken,
                             uint32_t *n_taken, bool *is_known);

/* ---- Sleep --------------------------------------------------------------------------------- */

/* Marks the handles that must stay when a sleep unmaps the segment, whatever happens to their pins
 * until it wakes; dseg_unmap_for_sleep skips them: those that cannot go, and those that do not
 * begin in the span. Marks of an earlier sleep go. */
void dseg_mark_what_stays(dseg_segment *seg, dseg_span may_go);

/* Is the handle that begins there marked? */
bool dseg_is_marked(const dseg_segment *seg, uint32_t first);

/* The first run of granules of the span that lie behind marked handles. */
dseg_span dseg_marked_in(const dseg_segment *seg, dseg_span s);

/* Is all of the span behind handles that are marked or pinned? */
bool dseg_has_stayed(const dseg_segment *seg, dseg_span s);

/*
 * Unmaps the handles between granules *at and `end` that have no other address, no pin and no mark,
 * and puts them into the handle cache, until about `most` granules are EMPTY. *at: where to
 * continue; at least `end` when nothing is left, unless a handle reaches beyond it: then where that
 * begins. Handles that the driver refuses to unmap, or may have refused, stay
 * MAPPED. Returns how many granules became EMPTY. Pre: the proof covers the segment.
 */
uint32_t dseg_unmap_for_sleep(dseg_segment *seg, uint32_t *at, uint32_t end, uint32_t most,
                              dseg_idle proof);

/* Asks the driver whether a handle that dseg_unmap_for_sleep left is mapped. If not, its granules
 * become EMPTY and it goes to the cache. ERR_DRIVER when the driver cannot tell; then nothing has
 * changed. */
ductile_status dseg_confirm(dseg_segment *seg, uint32_t granule);

#endif

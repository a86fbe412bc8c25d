/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking memory away from addresses that were in use:
 *
 *     1. the host learns that the GPU is done with them    cuStreamSynchronize, or one of its kin
 *     2. the handles are unmapped                          cuMemUnmap
 *     3. they go to the handle cache, and from there       cuMemRelease
 *        to the driver
 *
 * The first step has to come before the second. cuMemUnmap does not wait for the GPU: a kernel that
 * still runs on the addresses faults, and the error stays with the context for good. Nor does order
 * among streams help: a stream that waits for another one delays the GPU, while the host goes on
 * and unmaps at once. So nothing here unmaps without a dseg_idle in hand, and only a wait or an
 * answer of the driver makes one (U3). tests/lint/check_tree.cmake sees to it that no other file
 * does.
 *
 * The third comes last because the cache gives handles to anybody.
 *
 * (What was mapped a moment ago and handed to nobody needs no proof: grow.c undoes its own maps.)
 */
#ifndef DUCTILE_SEGMENTS_UNMAP_HANDLES_H
#define DUCTILE_SEGMENTS_UNMAP_HANDLES_H

#include "segments/granules.h"

#include "vmm/marker.h"

/*
 * Proof that the host knows the GPU to be done. All zero: no proof. What it proves depends on who
 * made it. Whether that covers all work on the granules is for the caller to know: the pool notes
 * with each proof how young the memory is that it covers, and other streams that used a block have
 * markers of their own.
 */
typedef struct dseg_idle {
    uint32_t made_by; /* nobody's but unmap_handles.c */
} dseg_idle;

/* Waits on the host for the stream. Proves: all that was submitted to this stream before the call
 * is done. Nothing about other streams. */
ductile_status dseg_sync(dvmm_handle_store *store, ductile_stream stream, dseg_idle *proof);

/* Of a marker that is known done (dvmm_marker_query, dvmm_marker_wait); no proof of any other.
 * Proves: all that was submitted to the marker's stream before it was recorded is done. */
dseg_idle dseg_idle_by_marker(const dvmm_marker *marker);

/* Waits on the host for the device's context. Proves: all that was submitted to any of its streams
 * before the call is done; nothing about streams of other GPUs that have access (U12). Pre: no
 * capture is known to be under way. */
ductile_status dseg_sync_device(dvmm_marker_pool *markers, dseg_idle *proof);

static inline bool dseg_is_proven(dseg_idle proof) {
    return proof.made_by != 0;
}

/* MAPPED -> RETIRING for whole handles: they have a second address from now on. No driver call. */
void dseg_retire(dseg_segment *seg, uint32_t first, uint32_t n_granules);

/*
 * -> EMPTY for whole handles. From MAPPED they go to the handle cache: the way of memory back to
 * the driver; no other address of theirs may be retiring. From RETIRING only the old address goes,
 * they serve elsewhere. Granules that the driver will not unmap become QUARANTINED, and a handle
 * that was MAPPED there is lost; the first such error is returned. Pre: the proof covers the span.
 */
ductile_status dseg_unmap_handles(dseg_segment *seg, uint32_t first, uint32_t n_granules,
                                  dseg_idle proof);

/* The same for all granules in one of these two states. */
ductile_status dseg_unmap_all(dseg_segment *seg, dseg_state state, dseg_idle proof);

/* ---- Pause --------------------------------------------------------------------------------- */

/* Marks the handles that have to stay when a pause takes the segment's memory, whatever becomes of
 * their pins until it resumes; or takes the marks away. dseg_unmap_for_pause goes by them. */
void dseg_mark_what_stays(dseg_segment *seg);
void dseg_unmark_all(dseg_segment *seg);

/* Is the handle that begins there marked? */
bool dseg_is_marked(const dseg_segment *seg, uint32_t first);

/* Is all of the span behind handles that are marked or pinned? */
bool dseg_has_stayed(const dseg_segment *seg, dseg_span s);

/*
 * MAPPED -> EMPTY for every handle from granule *at on that has no other address, no
 * pin and no mark that it stays, into the handle cache, until about `most` granules have gone; *at:
 * where to go on, n_granules at the end. What the driver will not unmap, and what it may not have
 * unmapped, stays MAPPED. Returns how many granules became EMPTY. Pre: the proof covers the
 * segment.
 */
uint32_t dseg_unmap_for_pause(dseg_segment *seg, uint32_t *at, uint32_t most, dseg_idle proof);

/* Looks at a handle that dseg_unmap_for_pause left: it is mapped, or it is not and goes to the
 * cache. ERR_DRIVER when nobody can tell; then nothing has changed. */
ductile_status dseg_confirm(dseg_segment *seg, uint32_t granule);

#endif

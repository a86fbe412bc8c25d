/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When retiring addresses become gaps again. As soon as their markers are done, bounded for each
 * call; but with record_stream:wait, whose promise is that memory held does not depend on how far
 * the GPU is, gaps must not come at a time that the GPU chooses, since requests are placed in them.
 * There an arena keeps a fixed amount of addresses retiring, the latest, and the others go in its
 * own next slow call, all of them; should their marker not be done by then, the host waits for it
 * first. The amount is such that a host has to run far ahead for that.
 */
#include "pool/streams/progress.h"

#include "vmm/base/align.h"
#include "vmm/capture_mode.h"

enum { KEPT_SHARE = 32 }; /* of the device's bytes are kept retiring */

bool dpool_retires_in_order(const ductile_allocator *a) {
    return a->options.record_stream == DUCTILE_RECORD_WAIT;
}

static uint64_t kept_bytes(const ductile_allocator *a, const dpool_arena *arena) {
    bool is_kept = dpool_retires_in_order(a) && !arena->is_gone;
    return is_kept ? dti_max(a->device_bytes / KEPT_SHARE, a->granule) : 0;
}

void dpool_retire_locked(ductile_allocator *a, dpool_block *b, uint64_t seq) {
    dpool_arena *arena = b->region->arena;
    b->state = DPOOL_RETIRING;
    dpool_set_epoch(b, seq);
    if (dpool_retires_in_order(a)) {
        dpool_list_append(&arena->retiring, b);
    } else {
        dpool_list_insert_by_epoch(&arena->retiring, b);
    }
    arena->retiring_bytes += b->size;
    a->counts.retiring += b->size;
}

static dpool_block *next_retired(ductile_allocator *a, dpool_arena *arena, uint64_t keep,
                                 dseg_idle *idle) {
    dti_lock_take(&a->index_lock);
    dpool_block *b = arena->retiring.first;
    bool may_go = b != NULL && arena->retiring_bytes > keep && b->epoch <= arena->done_seq;
    if (may_go) {
        dpool_list_remove(&arena->retiring, b);
        arena->retiring_bytes -= b->size;
        *idle = arena->proven_by;
    }
    dti_lock_open(&a->index_lock);
    return may_go ? b : NULL;
}

static void settle_retired(ductile_allocator *a, dpool_block *b, ductile_status status) {
    dti_lock_take(&a->index_lock);
    a->counts.retiring -= b->size;
    dpool_settle_unmapped_locked(a, b, status);
    dti_lock_open(&a->index_lock);
}

static void reclaim(ductile_allocator *a, dpool_arena *arena, uint32_t most, uint64_t keep) {
    uint32_t n = 0;
    dpool_block *b;
    dseg_idle idle;
    while (n < most && (b = next_retired(a, arena, keep, &idle)) != NULL) {
        dseg_segment *seg = b->region->seg;
        uint32_t granules = (uint32_t)(b->size / a->granule);
        ductile_status status = dseg_unmap_handles(seg, dseg_granule(seg, b->addr), granules, idle);
        n += granules;
        settle_retired(a, b, status);
    }
}

void dpool_reclaim(ductile_allocator *a, dpool_arena *arena, uint32_t most) {
    bool is_kept = most != UINT32_MAX && kept_bytes(a, arena) > 0;
    if (!is_kept) {
        reclaim(a, arena, most, 0);
    }
}

void dpool_reclaim_own(ductile_allocator *a, dpool_arena *arena, uint32_t most) {
    uint64_t keep = kept_bytes(a, arena);
    reclaim(a, arena, keep > 0 ? UINT32_MAX : most, keep);
}

/* The marker behind all that is more than is kept; NULL when it is done, or there is none. */
static dvmm_marker *marker_of_surplus_locked(const ductile_allocator *a, const dpool_arena *arena) {
    uint64_t left = arena->retiring_bytes;
    uint64_t keep = kept_bytes(a, arena);
    uint64_t seq = 0;
    for (const dpool_block *b = arena->retiring.first; b != NULL && left > keep; b = b->list_next) {
        seq = dti_max(seq, b->epoch);
        left -= b->size;
    }
    for (uint32_t i = 0; i < arena->n_marks && seq > arena->done_seq; i++) {
        if (arena->ring[i].seq >= seq) {
            return arena->ring[i].marker;
        }
    }
    return NULL;
}

void dpool_wait_retired(ductile_allocator *a, struct dpool_private *pool, ductile_stream stream) {
    if (!dpool_retires_in_order(a)) {
        return;
    }
    dti_lock_take(&a->index_lock);
    const dpool_arena *arena = dpool_arena_find_locked(a, pool, stream);
    dvmm_marker *m = arena != NULL ? marker_of_surplus_locked(a, arena) : NULL;
    if (m != NULL) {
        dvmm_marker_hold(m);
    }
    dti_lock_open(&a->index_lock);
    if (m == NULL) {
        return;
    }
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    if (dvmm_marker_query(&a->markers, m) != DUCTILE_OK) {
        (void)dvmm_marker_wait(&a->markers, m);
    }
    dvmm_capture_restore(a->driver, mode);
    dvmm_marker_drop(&a->markers, m);
}

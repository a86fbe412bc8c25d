/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/progress.h"

#include "pool/base/map_callbacks.h"
#include "pool/blocks/age.h"
#include "pool/blocks/proofs.h"
#include "pool/blocks/region.h"
#include "pool/blocks/transitions.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/marks.h"
#include "pool/streams/pending.h"

#include "vmm/base/align.h"

enum {
    KEPT_SHARE = 32,        /* of the device's bytes are kept retiring           */
    OLD_ADDRESSES_SHARE = 2 /* at most this part of what is mapped is kept besides */
};

/* ---- Retiring addresses --------------------------------------------------------------------- */

/*
 * When retiring addresses become gaps again. Normally as soon as the work on them is proven done, a
 * bounded number in each call. But with record_stream:wait, which promises that the held memory
 * does not depend on the progress of the GPU, gaps must not appear at a time that the GPU chooses,
 * since requests are placed in them. There an arena keeps a fixed amount of addresses retiring, the
 * latest ones; its own next slow call unmaps all others, and waits on the host for a marker if
 * they are not proven. The amount is so large that only a host far ahead of the GPU waits.
 */

bool dpool_retires_in_order(const ductile_allocator *a) {
    return a->options.record_stream == DUCTILE_RECORD_WAIT;
}

static uint64_t kept_bytes(const ductile_allocator *a, const dpool_arena *arena) {
    bool is_kept = dpool_retires_in_order(a) && !arena->is_gone;
    return is_kept ? dti_max(a->device_bytes / KEPT_SHARE, a->granule) : 0;
}

/* While handles of one granule are made, and few move: larger ones are exchanged for such, for
 * which each has one address, and where every step moves others an old address is seldom wanted
 * again, and costs the search for a place. Where other streams of the pool take its memory, it is
 * less well used with several (docs/dev/decisions/0037). Nor where calls alone decide, or where a
 * user is told what is mapped where. */
bool dpool_keeps_old_addresses_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    return dpool_goes_home(a) && arena->pool->n_arenas == 1 && !dpool_retires_in_order(a) &&
           !dpool_announces(a);
}

/* A larger handle is a donor by itself. */
static bool is_of_granules(const dpool_block *donor) {
    const dseg_segment *seg = donor->region->seg;
    return dseg_handle_at(seg, dseg_granule(seg, donor->addr))->n_granules == 1;
}

/* No request will use what streams and pools have left. */
static uint64_t most_kept_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_left = arena->is_gone || dpool_is_released(arena->pool);
    bool keeps = dpool_keeps_old_addresses_locked(a, arena) && !is_left;
    return keeps ? arena->blocks.mapped_bytes / OLD_ADDRESSES_SHARE : 0;
}

static void list_kept(dpool_arena *arena, dpool_block *b) {
    dpool_list_insert_by_age(&arena->retiring.kept, b);
    arena->retiring.kept_bytes += b->size;
}

static void unlist_kept(dpool_arena *arena, dpool_block *b) {
    if (b != NULL) {
        dpool_list_remove(&arena->retiring.kept, b);
        arena->retiring.kept_bytes -= b->size;
    }
}

static void list_retiring(const ductile_allocator *a, dpool_arena *arena, dpool_block *b) {
    if (dpool_retires_in_order(a)) {
        dpool_list_append(&arena->retiring.list, b);
    } else {
        dpool_list_insert_by_age(&arena->retiring.list, b);
    }
    arena->retiring.bytes += b->size;
}

void dpool_retire_locked(ductile_allocator *a, dpool_block *b, bool stays_in_arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_arena *arena = b->region->arena;
    b->state = DPOOL_RETIRING;
    b->age = dpool_age_of(b) & DPOOL_AGE_MASK;
    b->is_mixed = false;
    if (stays_in_arena && is_of_granules(b) && dpool_keeps_old_addresses_locked(a, arena)) {
        list_kept(arena, b);
    } else {
        list_retiring(a, arena, b);
    }
    a->counts.retiring += b->size;
}

dpool_block *dpool_carve_kept_locked(ductile_allocator *a, dpool_block *b, ductile_addr from,
                                     ductile_addr to) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_arena *arena = b->region->arena;
    unlist_kept(arena, b);
    dpool_block *middle = dpool_cut(&a->nodes, b, from);
    dpool_block *after = dpool_cut(&a->nodes, middle, to);
    if (after != middle) {
        list_kept(arena, after);
    }
    if (middle != b) {
        list_kept(arena, b);
    }
    a->counts.retiring -= middle->size;
    return middle;
}

static bool may_go(const dpool_block *b, uint64_t proven) {
    return b != NULL && b->age < proven;
}

/* Of the kept ones the oldest, where more of them lie than may stay. */
static dpool_block *next_retired(ductile_allocator *a, dpool_arena *arena, uint64_t keep,
                                 bool with_kept, dseg_idle *idle) {
    dti_lock_acquire(&a->index_lock);
    uint64_t kept = with_kept ? 0 : most_kept_locked(a, arena);
    dpool_proof proof = dpool_proof_to_unmap(a, arena);
    *idle = proof.idle;
    dpool_block *b = arena->retiring.bytes > keep ? arena->retiring.list.first : NULL;
    dpool_block *old = arena->retiring.kept_bytes > kept ? arena->retiring.kept.first : NULL;
    if (may_go(b, proof.age)) {
        dpool_list_remove(&arena->retiring.list, b);
        arena->retiring.bytes -= b->size;
    } else {
        b = may_go(old, proof.age) ? old : NULL;
        unlist_kept(arena, b);
    }
    dti_lock_release(&a->index_lock);
    return b;
}

static void finish_retired(ductile_allocator *a, dpool_block *b, ductile_status status) {
    dti_lock_acquire(&a->index_lock);
    a->counts.retiring -= b->size;
    dpool_unmapped_to_gap_locked(a, b, status);
    dti_lock_release(&a->index_lock);
}

static uint32_t unmap_retired(ductile_allocator *a, dpool_block *b, dseg_idle idle) {
    dseg_segment *seg = b->region->seg;
    uint32_t granules = (uint32_t)(b->size / a->granule);
    ductile_status status = dseg_unmap_handles(seg, dseg_granule(seg, b->addr), granules, idle);
    finish_retired(a, b, status);
    return granules;
}

static void reclaim(ductile_allocator *a, dpool_arena *arena, uint32_t most, uint64_t keep) {
    bool with_kept = most == UINT32_MAX;
    dpool_block *b;
    dseg_idle idle;
    for (uint32_t n = 0;
         n < most && (b = next_retired(a, arena, keep, with_kept, &idle)) != NULL;) {
        n += unmap_retired(a, b, idle);
    }
}

static dpool_block *take_kept_over(ductile_allocator *a, const dpool_region *region,
                                   ductile_addr from, ductile_addr to, dseg_idle *idle) {
    dpool_arena *arena = region->arena;
    dti_lock_acquire(&a->index_lock);
    dpool_proof proof = dpool_proof_to_unmap(a, arena);
    dpool_block *b = arena->retiring.kept.first;
    while (b != NULL && !(b->addr < to && dpool_end(b) > from && may_go(b, proof.age))) {
        b = b->list_next;
    }
    unlist_kept(arena, b);
    *idle = proof.idle;
    dti_lock_release(&a->index_lock);
    return b;
}

bool dpool_unmap_kept(ductile_allocator *a, const dpool_region *region, ductile_addr from,
                      ductile_addr to) {
    bool any = false;
    dpool_block *b;
    dseg_idle idle;
    while ((b = take_kept_over(a, region, from, to, &idle)) != NULL) {
        (void)unmap_retired(a, b, idle);
        any = true;
    }
    return any;
}

void dpool_reclaim_own(ductile_allocator *a, dpool_arena *arena, uint32_t most) {
    uint64_t keep = kept_bytes(a, arena);
    reclaim(a, arena, keep > 0 ? UINT32_MAX : most, keep);
}

/* A marker that covers all retiring addresses up to that age, held for the caller; NULL when there
 * is none. Of the arena's stream alone only one is under way: where it is older, it covers some of
 * them, and the next one the others. */
static dvmm_marker *hold_marker_locked(const ductile_allocator *a, const dpool_arena *arena,
                                       uint64_t age) {
    DTI_ASSERT_HELD(&a->index_lock);
    dvmm_marker *m = arena->is_foreign ? NULL : dpool_hold_mark_of_locked(a, age);
    if (m == NULL && arena->proofs.own_mark.marker != NULL) {
        m = arena->proofs.own_mark.marker;
        dvmm_marker_hold(m);
    }
    return m;
}

dvmm_marker *dpool_hold_marker_of_surplus_locked(const ductile_allocator *a,
                                                 const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t left = arena->retiring.bytes;
    uint64_t keep = kept_bytes(a, arena);
    uint64_t age = 0;
    bool is_surplus = left > keep;
    for (const dpool_block *b = arena->retiring.list.first; b != NULL && left > keep;
         b = b->list_next) {
        age = dti_max(age, b->age);
        left -= b->size;
    }
    bool is_unproven = is_surplus && age >= dpool_proof_to_unmap(a, arena).age;
    return is_unproven ? hold_marker_locked(a, arena, age) : NULL;
}

/* ---- All of it ------------------------------------------------------------------------------ */

void dpool_poll(ductile_allocator *a, dpool_arena *arena, uint32_t most) {
    dpool_poll_pending_all(a, arena);
    if (most == UINT32_MAX || kept_bytes(a, arena) == 0) {
        reclaim(a, arena, most, 0);
    }
}

/* The next arena from this one on that a poll may change something in; NULL for none. */
static dpool_arena *find_busy(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    while (arena != NULL && arena->pending.list.first == NULL && !dpool_has_old_addresses(arena)) {
        arena = arena->next;
    }
    dti_lock_release(&a->index_lock);
    return arena;
}

void dpool_poll_all(ductile_allocator *a, uint32_t most) {
    dpool_poll_marks(a);
    for (dpool_arena *arena = find_busy(a, a->arenas); arena != NULL;
         arena = find_busy(a, arena->next)) {
        dpool_poll(a, arena, most);
    }
    dpool_wait_poll(a, most);
}

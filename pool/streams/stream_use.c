/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/stream_use.h"

#include "pool/blocks/address_map.h"
#include "pool/blocks/age.h"
#include "pool/blocks/region.h"
#include "pool/blocks/transitions.h"
#include "pool/streams/gpu_waits.h"

#include "vmm/base/align.h"

enum { FREED_PER_HOLD = 16 }; /* blocks freed under one hold of the index lock */

static bool is_use_of(const dpool_use *use, ductile_stream stream, uint64_t thread) {
    return use->stream == stream && use->thread == thread && !use->is_gone;
}

static bool has_use_of(const dpool_use *uses, ductile_stream stream) {
    const dpool_use *use = uses;
    while (use != NULL && !is_use_of(use, stream, dpool_thread_of(stream))) {
        use = use->next;
    }
    return use != NULL;
}

/* Takes a spare use and adds it; ERR_BUSY when one is needed and there is none. */
static ductile_status add_locked(ductile_allocator *a, ductile_addr addr, ductile_stream stream) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = dpool_map_find(&a->map, addr);
    if (b == NULL) {
        return dpool_explain_miss_locked(a, addr);
    }
    if (dpool_arena_is_of(b->region->arena, stream) || has_use_of(b->uses, stream)) {
        return DUCTILE_OK;
    }
    dpool_use *use = dpool_use_take_locked(a);
    if (use == NULL) {
        return DUCTILE_ERR_BUSY;
    }
    *use = (dpool_use){.stream = stream, .thread = dpool_thread_of(stream), .next = b->uses};
    b->uses = use;
    return DUCTILE_OK;
}

static ductile_status try_to_add(ductile_allocator *a, ductile_addr addr, ductile_stream stream) {
    dti_lock_acquire(&a->index_lock);
    ductile_status status = add_locked(a, addr, stream);
    dti_lock_release(&a->index_lock);
    return status;
}

ductile_status dpool_use_add(ductile_allocator *a, ductile_addr addr, ductile_stream stream) {
    ductile_status status = try_to_add(a, addr, stream);
    while (status == DUCTILE_ERR_BUSY) { /* other threads may take the spare use first */
        status = dpool_uses_make_spare(a);
        if (status == DUCTILE_OK) {
            status = try_to_add(a, addr, stream);
        }
    }
    return status;
}

static bool is_to_be_marked(const dpool_use *use) {
    return !use->is_gone && dpool_may_name(use->stream, use->thread);
}

static void number_marks_locked(ductile_allocator *a, dpool_use *uses) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (dpool_use *use = uses; use != NULL; use = use->next) {
        if (is_to_be_marked(use)) {
            use->number = ++a->last_mark;
        }
    }
}

void dpool_pending_begin_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    b->state = DPOOL_PENDING;
    dpool_make_young_locked(a, b);
    b->uses->block = b;
    b->uses->pending_next = b->uses; /* in transit */
    number_marks_locked(a, b->uses);
    b->region->arena->blocks.pending_bytes += b->size;
    a->counts.pending += b->size;
    a->counts.pending_blocks++;
}

/* Frees the block for its own stream, behind a wait on the GPU; false when that is impossible. */
static bool becomes_free_at_once(ductile_allocator *a, dpool_use *uses) {
    dti_lock_acquire(&a->index_lock);
    bool is_possible = dpool_wait_is_possible(uses);
    if (is_possible) {
        dpool_wait_add_locked(a, uses);
    }
    dti_lock_release(&a->index_lock);
    return is_possible;
}

/* Plans the next poll, unless a poll holds the list and the next one is already planned. */
static void plan_poll_locked(const ductile_allocator *a, dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (arena->pending.next_poll_at <= arena->calls.n) {
        arena->pending.since = arena->calls.n;
        arena->pending.next_poll_at = arena->calls.n + 1;
    }
    arena->calls.maintenance_at = dti_min(arena->calls.maintenance_at, arena->pending.next_poll_at);
}

/* At the end of its arena's list. */
static void append(ductile_allocator *a, dpool_use *uses) {
    dpool_arena *arena = uses->block->region->arena;
    dti_lock_acquire(&a->index_lock);
    if (arena->pending.list.first == NULL) {
        plan_poll_locked(a, arena);
    }
    dpool_pending_push(&arena->pending.list, uses);
    dti_lock_release(&a->index_lock);
}

/* A block was freed while a stream recorded on it could not be marked. */
static void record_unmarked(ductile_allocator *a) {
    atomic_store(&a->has_unmarked, true);
}

bool dpool_pending_record(ductile_allocator *a, dpool_use *uses) {
    bool is_unmarked = false;
    for (dpool_use *use = uses; use != NULL; use = use->next) {
        if (is_to_be_marked(use)) {
            (void)dvmm_marker_record(&a->markers, use->stream, &use->marker);
            use->is_foreign = use->marker == NULL && !dvmm_markers_cover(&a->markers, use->stream);
        }
        is_unmarked |= use->marker == NULL;
    }
    bool waits_on_gpu = a->options.record_stream == DUCTILE_RECORD_WAIT;
    bool pends = !waits_on_gpu || !becomes_free_at_once(a, uses);
    if (pends) {
        append(a, uses);
    }
    if (is_unmarked) {
        record_unmarked(a);
    }
    return pends;
}

/* A stream that ends. */
typedef struct last_mark {
    dvmm_marker *marker; /* NULL: it could not be recorded */
    uint64_t number;
    uint64_t retired_id; /* stands for the stream from now on */
    bool is_foreign;     /* no context marker covers it */
} last_mark;

/* Keeps an existing marker, as that of a stream that is gone. A new stream may get the handle, so a
 * number that no other stream has tells them apart. */
static void end_uses_of(dpool_use *uses, ductile_stream stream, const last_mark *last) {
    uint64_t thread = dpool_thread_of(stream);
    for (dpool_use *use = uses; use != NULL; use = use->next) {
        if (!is_use_of(use, stream, thread)) {
            continue;
        }
        use->is_gone = true;
        use->thread = last->retired_id;
        use->is_foreign = last->is_foreign;
        if (use->marker == NULL && last->marker != NULL) {
            use->marker = last->marker;
            use->number = last->number;
            dvmm_marker_hold(last->marker);
        }
    }
}

/* Makes the uses of live blocks by the stream refer to the marker (without one they wait for the
 * whole context), and the uses of pending blocks whose marker was still to be recorded. */
static void end_uses_locked(ductile_allocator *a, ductile_stream stream, const last_mark *last) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t cursor = 0;
    for (dpool_block *b = dpool_map_next(&a->map, &cursor); b != NULL;
         b = dpool_map_next(&a->map, &cursor)) {
        end_uses_of(b->uses, stream, last);
    }
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (dpool_use *uses = arena->pending.list.first; uses != NULL; uses = uses->pending_next) {
            end_uses_of(uses, stream, last);
        }
    }
}

static bool is_named_in(const dpool_region *r, ductile_stream stream) {
    const dpool_block *b = r->first;
    while (b != NULL && !(b->state == DPOOL_PENDING && dpool_is_in_transit(b->uses) &&
                          has_use_of(b->uses, stream))) {
        b = b->next;
    }
    return b != NULL;
}

/* An arena without pending blocks, which may have a million live ones, is not walked. */
bool dpool_uses_name_locked(const ductile_allocator *a, ductile_stream stream) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_region *r = dpool_next_region(a, NULL, NULL);
    while (r != NULL && !(r->arena->blocks.pending_bytes > 0 && is_named_in(r, stream))) {
        r = dpool_next_region(a, NULL, r);
    }
    return r != NULL;
}

ductile_status dpool_uses_end(ductile_allocator *a, ductile_stream stream, bool *is_named) {
    last_mark last = {.marker = NULL};
    dti_lock_acquire(&a->index_lock);
    last.number = ++a->last_mark;
    last.retired_id = ++a->last_mark;
    dti_lock_release(&a->index_lock);
    ductile_status status = dvmm_marker_record(&a->markers, stream, &last.marker);
    last.is_foreign = status != DUCTILE_OK && !dvmm_markers_cover(&a->markers, stream);
    dti_lock_acquire(&a->index_lock);
    end_uses_locked(a, stream, &last);
    *is_named = dpool_uses_name_locked(a, stream);
    dti_lock_release(&a->index_lock);
    dvmm_marker_drop(&a->markers, last.marker);
    return status;
}

static void free_pending_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_leave_pending_locked(a, b);
    /* the age stays that of the free: all work on it was issued before then */
    (void)dpool_make_free_locked(a, b);
}

dpool_use *dpool_pending_finish_some_locked(ductile_allocator *a, dpool_use *done) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (int i = 0; i < FREED_PER_HOLD && done != NULL; i++) {
        dpool_use *rest = done->pending_next;
        free_pending_locked(a, done->block);
        dpool_uses_drop_locked(a, done);
        done = rest;
    }
    return done;
}

void dpool_pending_finish(ductile_allocator *a, dpool_use *done) {
    while (done != NULL) {
        dti_lock_acquire(&a->index_lock);
        done = dpool_pending_finish_some_locked(a, done);
        dti_lock_release(&a->index_lock);
    }
}

/* ---- Lists of pending blocks, taken out of their arena while they are looked at ------------- */

dpool_pending_list dpool_pending_take(ductile_allocator *a, dpool_arena *arena,
                                      uint64_t *proven_age) {
    dti_lock_acquire(&a->index_lock);
    dpool_pending_list all = arena->pending.list;
    arena->pending.list = (dpool_pending_list){NULL, NULL};
    *proven_age = a->proven.age;
    dti_lock_release(&a->index_lock);
    return all;
}

void dpool_pending_put_back_locked(ductile_allocator *a, dpool_arena *arena,
                                   dpool_pending_list kept) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (kept.first != NULL) {
        arena->calls.maintenance_at =
            dti_min(arena->calls.maintenance_at, arena->pending.next_poll_at);
    }
    dpool_pending_join(&kept, arena->pending.list);
    arena->pending.list = kept;
    if (arena->pending.list.first == NULL) {
        arena->pending.next_poll_at = 0;
    }
}

void dpool_pending_put_back(ductile_allocator *a, dpool_arena *arena, dpool_pending_list kept) {
    dti_lock_acquire(&a->index_lock);
    dpool_pending_put_back_locked(a, arena, kept);
    dti_lock_release(&a->index_lock);
}

/* ---- What a capture put off ------------------------------------------------------------------ */

static bool is_unmarked(const dpool_use *use) {
    return use->marker == NULL && !use->is_gone;
}

/* Pre: this thread may name its stream. */
static void mark(ductile_allocator *a, dpool_use *use) {
    dti_lock_acquire(&a->index_lock);
    use->number = ++a->last_mark;
    dti_lock_release(&a->index_lock);
    (void)dvmm_marker_record(&a->markers, use->stream, &use->marker);
}

/* True when a use could still not be marked. */
static bool mark_uses(ductile_allocator *a, dpool_use *uses, ductile_stream stream, bool all) {
    bool is_left = false;
    for (dpool_use *use = uses; use != NULL; use = use->next) {
        if (!is_unmarked(use)) {
            continue;
        }
        bool is_named = all || use->stream == stream;
        if (is_named && dpool_may_name(use->stream, use->thread)) {
            mark(a, use);
        }
        is_left |= use->marker == NULL;
    }
    return is_left;
}

/* Takes the list out meanwhile, as every poll does:
 * other threads read markers of the blocks in it. */
static bool mark_arena(ductile_allocator *a, dpool_arena *arena, ductile_stream stream, bool all) {
    bool is_left = false;
    uint64_t proven_age;
    dpool_pending_list waiting = dpool_pending_take(a, arena, &proven_age);
    for (dpool_use *uses = waiting.first; uses != NULL; uses = uses->pending_next) {
        is_left |= mark_uses(a, uses, stream, all);
    }
    dpool_pending_put_back(a, arena, waiting);
    return is_left;
}

void dpool_mark_unmarked(ductile_allocator *a, ductile_stream stream, bool all) {
    if (!atomic_exchange(&a->has_unmarked, false)) {
        return;
    }
    bool is_left = false;
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        is_left |= mark_arena(a, arena, stream, all);
    }
    if (is_left) {
        record_unmarked(a);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/stream_use.h"

#include "pool/captures.h"
#include "pool/serve.h"
#include "pool/wait_map.h"

#include "vmm/base/align.h"

#include <stdlib.h>

enum { FREED_PER_HOLD = 16 }; /* blocks freed under one hold of the hot lock */

static bool has_use(const dpool_block *b, ductile_stream stream) {
    for (const dpool_use *use = b->uses; use != NULL; use = use->next) {
        if (use->stream == stream && !use->is_gone && use->thread == dpool_thread_of(stream)) {
            return true;
        }
    }
    return false;
}

/* Adds a use from the spare ones; ERR_BUSY when one is needed and there is none. */
static ductile_status add_locked(ductile_allocator *a, ductile_addr addr, ductile_stream stream) {
    dpool_block *b = dpool_map_find(&a->map, addr);
    if (b == NULL) {
        return dpool_explain_miss_locked(a, addr);
    }
    if (dpool_arena_is_of(b->region->arena, stream) || has_use(b, stream)) {
        return DUCTILE_OK;
    }
    dpool_use *use = a->spare_uses;
    if (use == NULL) {
        return DUCTILE_ERR_BUSY;
    }
    a->spare_uses = use->next;
    *use = (dpool_use){.stream = stream, .thread = dpool_thread_of(stream), .next = b->uses};
    b->uses = use;
    return DUCTILE_OK;
}

static ductile_status try_to_add(ductile_allocator *a, ductile_addr addr, ductile_stream stream) {
    dti_lock_take(&a->hot);
    ductile_status status = add_locked(a, addr, stream);
    dti_lock_open(&a->hot);
    return status;
}

static ductile_status make_spare(ductile_allocator *a) {
    dpool_use *use = malloc(sizeof *use);
    if (use == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_take(&a->hot);
    use->next = a->spare_uses;
    a->spare_uses = use;
    a->counts.use_host_bytes += sizeof *use;
    dti_lock_open(&a->hot);
    return DUCTILE_OK;
}

ductile_status dpool_use_add(ductile_allocator *a, ductile_addr addr, ductile_stream stream) {
    ductile_status status = try_to_add(a, addr, stream);
    while (status == DUCTILE_ERR_BUSY) { /* others may take the spare one before us */
        status = make_spare(a);
        if (status == DUCTILE_OK) {
            status = try_to_add(a, addr, stream);
        }
    }
    return status;
}

void dpool_pending_begin_locked(ductile_allocator *a, dpool_block *b) {
    dpool_arena *arena = b->region->arena;
    b->state = DPOOL_PENDING;
    dpool_set_epoch(b, arena->alloc_epoch);
    b->uses->block = b;
    b->uses->pending_next = b->uses; /* in transit */
    arena->pending_bytes += b->size;
    a->counts.pending += b->size;
    a->counts.pending_blocks++;
}

/* Free for its own stream, behind a wait on the GPU; false where that cannot be. */
static bool becomes_free_at_once(ductile_allocator *a, dpool_use *uses) {
    dti_lock_take(&a->hot);
    bool is_possible = dpool_wait_is_possible_locked(a, uses);
    if (is_possible) {
        dpool_wait_add_locked(a, uses);
    }
    dti_lock_open(&a->hot);
    return is_possible;
}

/* Unless a poll has the list in hand, and when the next one is due is known. */
static void plan_poll_locked(dpool_arena *arena) {
    if (arena->next_poll_at <= arena->alloc_epoch) {
        arena->pending_since = arena->alloc_epoch;
        arena->next_poll_at = arena->alloc_epoch + 1;
    }
    arena->chores_at = dti_min(arena->chores_at, arena->next_poll_at);
}

/* At the end of its arena's list. */
static void append(ductile_allocator *a, dpool_use *uses) {
    dpool_arena *arena = uses->block->region->arena;
    dti_lock_take(&a->hot);
    uses->pending_next = NULL;
    if (arena->pending_last != NULL) {
        arena->pending_last->pending_next = uses;
    } else {
        arena->pending_first = uses;
        plan_poll_locked(arena);
    }
    arena->pending_last = uses;
    dti_lock_open(&a->hot);
}

void dpool_pending_record(ductile_allocator *a, dpool_use *uses) {
    bool is_unmarked = false;
    for (dpool_use *use = uses; use != NULL; use = use->next) {
        if (!use->is_gone && dpool_may_name(use->stream, use->thread)) {
            (void)dvmm_marker_record(&a->markers, use->stream, &use->marker);
        }
        is_unmarked |= use->marker == NULL;
    }
    if (a->options.record_stream != DUCTILE_RECORD_WAIT || !becomes_free_at_once(a, uses)) {
        append(a, uses);
    }
    if (is_unmarked) {
        dpool_note_unmarked(a);
    }
}

static bool is_use_of(const dpool_use *use, ductile_stream stream, uint64_t thread) {
    return use->stream == stream && use->thread == thread && !use->is_gone;
}

/* A marker that is there stays, as that of a stream that is gone: a new one may get its handle, so
 * a number that no other stream has tells them apart. */
static void end_uses_of(dpool_use *uses, ductile_stream stream, dvmm_marker *m, uint64_t grave) {
    uint64_t thread = dpool_thread_of(stream);
    for (dpool_use *use = uses; use != NULL; use = use->next) {
        if (!is_use_of(use, stream, thread)) {
            continue;
        }
        use->is_gone = true;
        use->thread = grave;
        if (use->marker == NULL && m != NULL) {
            use->marker = m;
            dvmm_marker_hold(m);
        }
    }
}

/* The stream's uses of live blocks refer to the marker from now on (NULL: they wait for the whole
 * context), and so do those of pending ones whose marker was to be made up for later. */
static void end_uses_locked(ductile_allocator *a, ductile_stream stream, dvmm_marker *m) {
    uint64_t grave = 1 + atomic_fetch_add(&a->markers.last_number, 1);
    uint64_t cursor = 0;
    for (dpool_block *b = dpool_map_next(&a->map, &cursor); b != NULL;
         b = dpool_map_next(&a->map, &cursor)) {
        end_uses_of(b->uses, stream, m, grave);
    }
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (dpool_use *uses = arena->pending_first; uses != NULL; uses = uses->pending_next) {
            end_uses_of(uses, stream, m, grave);
        }
    }
}

static bool has_use_of(const dpool_use *uses, ductile_stream stream) {
    const dpool_use *use = uses;
    while (use != NULL && !is_use_of(use, stream, dpool_thread_of(stream))) {
        use = use->next;
    }
    return use != NULL;
}

bool dpool_uses_name_locked(const ductile_allocator *a, ductile_stream stream) {
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (const dpool_region *r = arena->pending_bytes > 0 ? arena->regions : NULL; r != NULL;
             r = r->next) {
            for (const dpool_block *b = r->first; b != NULL; b = b->next) {
                bool is_under_way = b->state == DPOOL_PENDING && dpool_is_in_transit(b->uses);
                if (is_under_way && has_use_of(b->uses, stream)) {
                    return true;
                }
            }
        }
    }
    return false;
}

ductile_status dpool_uses_end(ductile_allocator *a, ductile_stream stream, bool *is_named) {
    dvmm_marker *m = NULL;
    ductile_status status = dvmm_marker_record(&a->markers, stream, &m);
    dti_lock_take(&a->hot);
    end_uses_locked(a, stream, m);
    *is_named = dpool_uses_name_locked(a, stream);
    dti_lock_open(&a->hot);
    if (m != NULL) {
        dvmm_marker_drop(&a->markers, m);
    }
    return status;
}

static void free_pending_locked(ductile_allocator *a, dpool_block *b) {
    dpool_arena *arena = b->region->arena;
    arena->pending_bytes -= b->size;
    a->counts.pending -= b->size;
    a->counts.pending_blocks--;
    /* the epoch stays that of the free: its own stream's work on it was issued before then */
    (void)dpool_make_free_locked(a, b);
}

static dpool_use *last_of(dpool_use *uses) {
    while (uses->next != NULL) {
        uses = uses->next;
    }
    return uses;
}

/* Frees some, and puts their uses into one list. Returns the rest. */
static dpool_use *free_some(ductile_allocator *a, dpool_use *done, dpool_use **uses) {
    *uses = NULL;
    dti_lock_take(&a->hot);
    for (int i = 0; i < FREED_PER_HOLD && done != NULL; i++) {
        dpool_use *rest = done->pending_next;
        free_pending_locked(a, done->block);
        last_of(done)->next = *uses;
        *uses = done;
        done = rest;
    }
    dti_lock_open(&a->hot);
    return done;
}

void dpool_pending_finish(ductile_allocator *a, dpool_use *done) {
    while (done != NULL) {
        dpool_use *uses;
        done = free_some(a, done, &uses);
        dpool_uses_drop(a, uses);
    }
}

void dpool_uses_drop(ductile_allocator *a, dpool_use *uses) {
    dvmm_marker *idle = NULL;
    for (dpool_use *use = uses; use != NULL; use = use->next) {
        if (use->marker != NULL) {
            dvmm_marker_drop_into(use->marker, &idle);
        }
    }
    dvmm_markers_give_back(&a->markers, idle);
    if (uses != NULL) {
        dpool_use *last = last_of(uses);
        dti_lock_take(&a->hot);
        last->next = a->spare_uses;
        a->spare_uses = uses;
        dti_lock_open(&a->hot);
    }
}

void dpool_spare_uses_free(ductile_allocator *a) {
    while (a->spare_uses != NULL) {
        dpool_use *use = a->spare_uses;
        a->spare_uses = use->next;
        free(use);
    }
}

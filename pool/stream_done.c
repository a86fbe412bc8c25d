/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a stream. Its arenas, its uses and its imports are marked a last time and parted from
 * it, so that nobody begins to name it any more. Who had begun before is waited for: a free that
 * records its marker, a wait on the host (dpool_stream_ref_begin), the close of an import.
 */
#include "pool/blocks/arena.h"
#include "pool/sharing/import.h"
#include "pool/streams/progress.h"
#include "pool/streams/stream_use.h"

/* An arena of the stream, of whatever pool. */
static dpool_arena *next_of_stream(ductile_allocator *a, ductile_stream stream) {
    dti_lock_acquire(&a->index_lock);
    dpool_arena *arena = dpool_arena_any_locked(a, stream);
    if (arena != NULL) {
        arena->alloc_epoch++; /* the last marker proves all frees before this call */
    }
    dti_lock_release(&a->index_lock);
    return arena;
}

static ductile_status part(ductile_allocator *a, dpool_arena *arena) {
    ductile_status status = dpool_mark(a, arena, NULL);
    dti_lock_acquire(&a->index_lock);
    dpool_arena_part_locked(a, arena);
    dti_lock_release(&a->index_lock);
    return status;
}

static ductile_status part_all(ductile_allocator *a, ductile_stream stream) {
    ductile_status first = DUCTILE_OK;
    dpool_arena *arena = next_of_stream(a, stream);
    while (arena != NULL) {
        ductile_status status = part(a, arena);
        first = first == DUCTILE_OK ? status : first;
        arena = next_of_stream(a, stream);
    }
    return first;
}

static void unbar(ductile_allocator *a, ductile_stream stream) {
    dti_lock_acquire(&a->index_lock);
    dpool_unbar_locked(a, stream);
    dti_lock_release(&a->index_lock);
}

/* Parted arenas stay in the list for as long as somebody names their stream. */
static bool has_namers_locked(const ductile_allocator *a, ductile_stream stream) {
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        if (arena->n_stream_refs > 0 && arena->stream == dpool_canonical_stream(stream) &&
            dpool_may_name(arena->stream, arena->thread)) {
            return true;
        }
    }
    return false;
}

/* By somebody who began before this call? Grow lock held. */
static bool is_named(ductile_allocator *a, ductile_stream stream) {
    dti_lock_acquire(&a->index_lock);
    bool is = dpool_uses_name_locked(a, stream) || dpool_imports_name_locked(a, stream) ||
              has_namers_locked(a, stream);
    dti_lock_release(&a->index_lock);
    return is;
}

static void wait_while_named(ductile_allocator *a, ductile_stream stream) {
    bool is = true;
    while (is) {
        dpool_pause_briefly();
        dti_lock_acquire(&a->grow_lock);
        is = is_named(a, stream);
        dti_lock_release(&a->grow_lock);
    }
}

/* Nobody begins to name the stream any more. *again: who had begun may leave something to end. */
static ductile_status end_stream(ductile_allocator *a, ductile_stream stream, bool *again) {
    bool by_free = false;
    bool by_close = false;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    ductile_status status = dpool_uses_end(a, stream, &by_free);
    unbar(a, stream);
    ductile_status ended = dpool_imports_end(a, stream, &by_close);
    ductile_status parted = part_all(a, stream);
    *again = by_free || by_close || is_named(a, stream);
    dpool_grow_unlock(a, mode);
    status = status == DUCTILE_OK ? ended : status;
    return status == DUCTILE_OK ? parted : status;
}

ductile_status ductile_stream_done(ductile_allocator *a, ductile_stream stream) {
    if (a == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dvmm_usable(a->driver);
    if (status != DUCTILE_OK) {
        return status;
    }
    bool again = false;
    status = end_stream(a, stream, &again);
    while (again) {
        wait_while_named(a, stream);
        ductile_status then = end_stream(a, stream, &again);
        status = status == DUCTILE_OK ? then : status;
    }
    /* of a lost device a marker only says that it cannot be recorded */
    ductile_status usable = dvmm_usable(a->driver);
    return usable == DUCTILE_OK ? status : usable;
}

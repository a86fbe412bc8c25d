/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a stream. Records last markers for its arenas, uses and imports, and detaches them, so
 * that no thread starts another driver call with the stream. Then waits for calls that started
 * before: a free that records a marker, a wait on the host (dpool_stream_ref_begin), or the close
 * of an import.
 */
#include "pool/base/guards.h"
#include "pool/blocks/arena.h"
#include "pool/sharing/import.h"
#include "pool/streams/marks.h"
#include "pool/streams/stream_use.h"

/* An arena of the stream, in any pool. */
static dpool_arena *next_of_stream(ductile_allocator *a, ductile_stream stream) {
    dti_lock_acquire(&a->index_lock);
    dpool_arena *arena = dpool_arena_any_locked(a, stream);
    dti_lock_release(&a->index_lock);
    return arena;
}

/* Without the last mark of a foreign stream, an earlier one must not be taken for it. */
static ductile_status part(ductile_allocator *a, dpool_arena *arena) {
    ductile_status status = dpool_record_last_mark(a, arena);
    dti_lock_acquire(&a->index_lock);
    if (arena->is_foreign && status != DUCTILE_OK) {
        dpool_drop_own_mark_locked(a, arena);
    }
    dpool_arena_part_locked(a, arena);
    dti_lock_release(&a->index_lock);
    return status;
}

static ductile_status part_all(ductile_allocator *a, ductile_stream stream) {
    ductile_status first = DUCTILE_OK;
    dpool_arena *arena;
    while ((arena = next_of_stream(a, stream)) != NULL) {
        first = dti_first_error(first, part(a, arena));
    }
    return first;
}

/* Detached arenas stay in the list while a thread passes their stream to the driver. */
static bool has_stream_refs_locked(const ductile_allocator *a, ductile_stream stream) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        if (arena->users.n_stream_refs > 0 && arena->stream == dpool_canonical_stream(stream) &&
            dpool_may_name(arena->stream, arena->thread)) {
            return true;
        }
    }
    return false;
}

/* Does a call that started before use the stream? Grow lock held. */
static bool is_named(ductile_allocator *a, ductile_stream stream) {
    dti_lock_acquire(&a->index_lock);
    bool is = dpool_uses_name_locked(a, stream) || dpool_imports_name_locked(a, stream) ||
              has_stream_refs_locked(a, stream);
    dti_lock_release(&a->index_lock);
    return is;
}

static void wait_while_named(ductile_allocator *a, ductile_stream stream) {
    bool is = true;
    while (is) {
        dpool_wait_briefly();
        dti_lock_acquire(&a->grow_lock);
        is = is_named(a, stream);
        dti_lock_release(&a->grow_lock);
    }
}

/* Detaches everything from the stream. *again: a call that started before may leave more to do. */
static ductile_status end_stream(ductile_allocator *a, ductile_stream stream, bool *again) {
    bool by_free = false;
    bool by_close = false;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    ductile_status status = dpool_uses_end(a, stream, &by_free);
    status = dti_first_error(status, dpool_imports_end(a, stream, &by_close));
    status = dti_first_error(status, part_all(a, stream));
    *again = by_free || by_close || is_named(a, stream);
    dpool_grow_unlock(a, mode);
    return status;
}

ductile_status ductile_stream_done(ductile_allocator *a, ductile_stream stream) {
    DTI_TRY(dpool_may_change(a));
    bool again = false;
    ductile_status status = end_stream(a, stream, &again);
    while (again) {
        wait_while_named(a, stream);
        status = dti_first_error(status, end_stream(a, stream, &again));
    }
    /* on a lost device, a marker only says that it cannot be recorded */
    return dti_first_error(dvmm_usable(a->driver), status);
}

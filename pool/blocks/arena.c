/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/arena.h"

#include "vmm/base/array.h"

#include <stdlib.h>

static dpool_arena **bucket_of(ductile_allocator *a, ductile_stream stream, uint64_t thread) {
    uint64_t h = ((uint64_t)(uintptr_t)stream ^ thread) * UINT64_C(0x9E3779B97F4A7C15);
    return &a->buckets[h >> 56];
}

_Static_assert(DPOOL_ARENA_BUCKETS == 256, "8 bits of the hash choose the bucket");

dpool_arena *dpool_arena_find_locked(ductile_allocator *a, const dpool_private_pool *pool,
                                     ductile_stream stream) {
    DTI_ASSERT_HELD(&a->index_lock);
    stream = dpool_canonical_stream(stream);
    uint64_t thread = dpool_thread_of(stream);
    dpool_arena *arena = *bucket_of(a, stream, thread);
    while (arena != NULL &&
           (arena->stream != stream || arena->thread != thread || arena->pool != pool)) {
        arena = arena->next_in_bucket;
    }
    return arena;
}

dpool_arena *dpool_arena_any_locked(ductile_allocator *a, ductile_stream stream) {
    DTI_ASSERT_HELD(&a->index_lock);
    stream = dpool_canonical_stream(stream);
    dpool_arena *arena = *bucket_of(a, stream, dpool_thread_of(stream));
    while (arena != NULL && !dpool_arena_is_of(arena, stream)) {
        arena = arena->next_in_bucket;
    }
    for (dpool_arena *at = a->arenas; at != NULL && arena == NULL; at = at->next) {
        arena = at->is_elastic && dpool_arena_is_of(at, stream) ? at : NULL;
    }
    return arena;
}

bool dpool_arena_is_of(const dpool_arena *arena, ductile_stream stream) {
    stream = dpool_canonical_stream(stream);
    return arena->stream == stream && arena->thread == dpool_thread_of(stream) && !arena->is_gone;
}

static dpool_arena *new_arena(const ductile_allocator *a, dpool_private_pool *pool,
                              ductile_stream stream) {
    dpool_arena *arena = calloc(1, sizeof *arena);
    if (arena != NULL) {
        arena->pool = pool;
        arena->stream = dpool_canonical_stream(stream);
        arena->thread = dpool_thread_of(arena->stream);
        arena->is_foreign = !dvmm_markers_cover(&a->markers, arena->stream);
        arena->compaction.gaps_tolerated = DPOOL_GAPS_TOLERATED;
    }
    return arena;
}

/* Arenas of the default pool come first in their bucket, so that pools never lengthen the way to
 * them. */
static void link_in_bucket_locked(ductile_allocator *a, dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_arena **link = bucket_of(a, arena->stream, arena->thread);
    while (!dpool_is_default(arena->pool) && *link != NULL) {
        link = &(*link)->next_in_bucket;
    }
    arena->next_in_bucket = *link;
    *link = arena;
}

static void link_arena_locked(ductile_allocator *a, dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (!arena->is_elastic) {
        link_in_bucket_locked(a, arena);
    }
    arena->pool->n_arenas++;
    arena->next = a->arenas;
    a->arenas = arena;
    a->counts.arenas++;
    if (a->counts.arenas == 2) {
        arena->next->calls.maintenance_at = 0; /* marks are of use from now on */
    }
    a->counts.table_host_bytes += sizeof *arena;
}

ductile_status dpool_arena_get(ductile_allocator *a, dpool_private_pool *pool,
                               ductile_stream stream, dpool_arena **out) {
    dti_lock_acquire(&a->index_lock);
    *out = dpool_arena_find_locked(a, pool, stream);
    dti_lock_release(&a->index_lock);
    if (*out != NULL) {
        return DUCTILE_OK;
    }
    dpool_arena *arena = new_arena(a, pool, stream);
    if (arena == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_acquire(&a->index_lock);
    link_arena_locked(a, arena);
    dti_lock_release(&a->index_lock);
    *out = arena;
    return DUCTILE_OK;
}

dpool_arena *dpool_arena_make_elastic(ductile_allocator *a, dpool_private_pool *pool,
                                      ductile_stream stream) {
    dpool_arena *arena = new_arena(a, pool, stream);
    if (arena != NULL) {
        arena->is_elastic = true;
        arena->users.n_waiters = 1;
        dti_lock_acquire(&a->index_lock);
        link_arena_locked(a, arena);
        dti_lock_release(&a->index_lock);
    }
    return arena;
}

void dpool_arena_part_locked(ductile_allocator *a, dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (arena->is_gone) {
        return;
    }
    if (!arena->is_elastic) {
        DTI_UNLINK(*bucket_of(a, arena->stream, arena->thread), arena, next_in_bucket);
    }
    a->recent = a->recent == arena ? NULL : a->recent;
    arena->is_gone = true;
}

/* Returns the pool of the arena when it is to be freed with it. */
static dpool_private_pool *unlink_arena_locked(ductile_allocator *a, dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_arena_part_locked(a, arena);
    DTI_UNLINK(a->arenas, arena, next);
    a->counts.arenas--;
    a->counts.table_host_bytes -= sizeof *arena;
    return dpool_leave_pool_locked(a, arena->pool);
}

void dpool_arena_drop_if_empty(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    bool is_empty = arena->blocks.regions == NULL && arena->users.n_waiters == 0;
    dpool_private_pool *pool = is_empty ? unlink_arena_locked(a, arena) : NULL;
    if (is_empty) {
        dpool_drop_own_mark_locked(a, arena);
    }
    dti_lock_release(&a->index_lock);
    dpool_free_pool(pool);
    if (is_empty) {
        free(arena);
    }
}

void dpool_drop_own_mark_locked(ductile_allocator *a, dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (arena->proofs.own_mark.marker != NULL) {
        dvmm_marker_drop(&a->markers, arena->proofs.own_mark.marker);
        arena->proofs.own_mark.marker = NULL;
        a->marks.n_own--;
    }
}

bool dpool_arena_may_be_named(const dpool_arena *arena) {
    return !arena->is_gone && dpool_may_name(arena->stream, arena->thread);
}

bool dpool_stream_ref_begin(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    bool may = dpool_arena_may_be_named(arena);
    arena->users.n_stream_refs += may;
    dti_lock_release(&a->index_lock);
    return may;
}

void dpool_stream_ref_end(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    arena->users.n_stream_refs--;
    dti_lock_release(&a->index_lock);
}

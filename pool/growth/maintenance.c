/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/maintenance.h"

#include "pool/blocks/proofs.h"
#include "pool/growth/compact.h"
#include "pool/growth/drop_empty.h"
#include "pool/growth/give_back.h"
#include "pool/growth/sizes.h"
#include "pool/streams/marks.h"
#include "pool/streams/pending.h"
#include "pool/streams/progress.h"
#include "pool/streams/stream_use.h"

#include "vmm/base/align.h"

enum {
    CALLS_BETWEEN_LOOKS = 64,
    FREED_BETWEEN_MARKS = 8 << 20 /* bytes */
};

/* A hit of the default pool pins nothing. Where it gives up the lock, its arena is kept by
 * n_waiters, and its pool awake by n_users: no pool ends with it, since a private one is
 * pinned besides. */

static bool wants_poll(const dpool_arena *arena) {
    return arena->pending.list.first != NULL && arena->calls.n >= arena->pending.next_poll_at;
}

/* A poll that finds nothing costs as much as several hits. So it runs at the 1st, 2nd, 4th, ...
 * allocation since nothing was pending, later at regular distances. The index lock is unlocked
 * meanwhile. */
static void poll_locked(ductile_allocator *a, dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t age = arena->calls.n - arena->pending.since;
    uint64_t next = arena->calls.n + dti_min(age, CALLS_BETWEEN_LOOKS);
    arena->users.n_waiters++;
    arena->pool->n_users++;
    dti_lock_release(&a->index_lock);
    bool is_mine = dti_lock_try_acquire(&a->grow_lock); /* otherwise perhaps the next time */
    if (is_mine) {
        dpool_poll_pending_some(a, arena);
        dti_lock_release(&a->grow_lock);
    }
    dti_lock_acquire(&a->index_lock);
    arena->users.n_waiters--;
    arena->pool->n_users--;
    if (is_mine && arena->pending.list.first != NULL) {
        arena->pending.next_poll_at = next;
    }
}

/* So that what one stream has freed in a burst is proven by the time another stream wants it. */
static bool wants_mark_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_of_use = a->counts.arenas > 1 || arena->blocks.leaving.count > 0;
    return is_of_use && dpool_mark_is_due_locked(a, FREED_BETWEEN_MARKS);
}

/* A sleep may have begun during the poll: then hits go on to stop here (allocator.c). */
static uint64_t next_at(const dpool_arena *arena) {
    if (!dpool_is_awake(arena->pool)) {
        return 0;
    }
    uint64_t at = arena->calls.n + CALLS_BETWEEN_LOOKS;
    return arena->pending.list.first != NULL ? dti_min(at, arena->pending.next_poll_at) : at;
}

__attribute__((noinline)) unsigned dpool_maintenance_begin_locked(ductile_allocator *a,
                                                                  dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (!dpool_is_awake(arena->pool)) {
        return DPOOL_MAINTENANCE_STOP;
    }
    if (wants_poll(arena)) {
        poll_locked(a, arena);
    }
    arena->compaction.is_due = arena->compaction.is_due && a->options.compact_off == 0;
    bool may_move = !dpool_is_frozen(arena);
    bool compacts = may_move && arena->compaction.is_due;
    unsigned what = (wants_mark_locked(a, arena) ? DPOOL_MAINTENANCE_MARK : 0u) |
                    (compacts ? DPOOL_MAINTENANCE_COMPACT : 0u);
    arena->calls.maintenance_at = compacts ? 0 : next_at(arena);
    if (what != 0) {
        arena->users.n_waiters++;
        arena->pool->n_users++;
    }
    return what;
}

__attribute__((noinline)) void dpool_maintenance_do(ductile_allocator *a, dpool_arena *arena,
                                                    unsigned what) {
    if ((what & DPOOL_MAINTENANCE_MARK) != 0) {
        (void)dpool_record_mark(a, arena);
    }
    if ((what & DPOOL_MAINTENANCE_COMPACT) != 0) {
        dpool_compact(a, arena);
    }
    dti_lock_acquire(&a->index_lock);
    arena->users.n_waiters--;
    arena->pool->n_users--;
    dti_lock_release(&a->index_lock);
}

void dpool_tidy(ductile_allocator *a, dpool_arena *arena, ductile_stream stream, uint32_t most) {
    DTI_ASSERT_HELD(&a->grow_lock);
    dpool_sizes_look(a);
    (void)dpool_record_mark(a, arena);
    dpool_mark_unmarked(a, stream, false);
    dpool_poll_all(a, most);
    if (!dpool_retires_in_order(a)) { /* else not at a time that the GPU chooses */
        (void)dpool_unmap_unused(a, DPOOL_UNUSED_GONE, most);
    }
    dpool_drop_empty(a, false);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/compact.h"

#include "pool/blocks/proofs.h"
#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/growth/homes.h"
#include "pool/growth/plan.h"
#include "pool/growth/sizes.h"
#include "pool/streams/marks.h"
#include "pool/streams/progress.h"

#include "vmm/base/align.h"

enum {
    HANDLES_PER_CALL = 32, /* of the size that is made now,      */
    MOST_GRANULES = 256    /* but older handles may have one each */
};

static uint32_t granules_per_call(const ductile_allocator *a) {
    uint64_t most = (uint64_t)HANDLES_PER_CALL * dpool_handle_granules(a, 0);
    return (uint32_t)dti_min(most, MOST_GRANULES);
}

/* A capture may have begun in the pool of the arena since compaction became due (G1). */
static bool plan_any_locked(ductile_allocator *a, dpool_plan *p, dpool_arena *arena,
                            uint32_t budget) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (dpool_is_frozen(arena) || a->nodes.n_spare < dpool_plan_nodes(a, budget * a->granule)) {
        return false;
    }
    for (dpool_block *gap = arena->blocks.gaps.first; gap != NULL; gap = gap->list_next) {
        if (dpool_plan_compaction_locked(a, p, arena, gap, budget)) {
            return true;
        }
    }
    return false;
}

static void finish_locked(const ductile_allocator *a, dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    arena->compaction.is_due = false;
    arena->compaction.gaps_tolerated = dti_max(DPOOL_GAPS_TOLERATED, 2 * arena->blocks.gaps.count);
}

/* What compaction moves stays where it is. */
static void move_home(const dpool_plan *p) {
    for (uint32_t i = 0; i < p->n_handles; i++) {
        p->handles[i]->home = 0;
    }
}

/* Moves up to `budget` granules. Returns how many moved: 0 when compaction is finished or stuck. */
static uint32_t compact_once(ductile_allocator *a, dpool_plan *p, dpool_arena *arena,
                             uint32_t budget) {
    dti_lock_acquire(&a->index_lock);
    bool planned = plan_any_locked(a, p, arena, budget);
    if (!planned) {
        finish_locked(a, arena);
    }
    dti_lock_release(&a->index_lock);
    if (!planned) {
        return 0;
    }
    ductile_status status = dpool_plan_execute(a, p);
    uint32_t moved = 0;
    dti_lock_acquire(&a->index_lock);
    if (status == DUCTILE_OK) {
        moved = (uint32_t)p->n_granules;
        a->counts.compacted_handles += p->n_handles;
        move_home(p);
        (void)dpool_plan_commit_locked(a, p, 0);
    } else {
        dpool_plan_abort_locked(a, p);
        finish_locked(a, arena); /* the driver or a capture is in the way: wait for the next dip */
    }
    dti_lock_release(&a->index_lock);
    return moved;
}

/* Nothing can be filled now, nor after a look at what the GPU has done. Then no mark is recorded
 * for it, which would cost a driver call, and make memory that is freed before and after it
 * unlike. */
static bool finish_if_idle(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    bool is_idle = arena->retiring.list.count == 0 && arena->pending.list.first == NULL &&
                   !dpool_can_be_compacted_locked(a, arena);
    if (is_idle) {
        finish_locked(a, arena);
    }
    dti_lock_release(&a->index_lock);
    return is_idle;
}

static void compact_piece(ductile_allocator *a, dpool_plan *p, dpool_arena *arena) {
    (void)dpool_go_home(a, arena);
    if (finish_if_idle(a, arena)) {
        return;
    }
    uint32_t budget = granules_per_call(a);
    if (dpool_reserve_room(a, dpool_plan_nodes(a, budget * a->granule)) != DUCTILE_OK) {
        return;
    }
    dpool_prove_own(a, arena);
    dpool_poll_marks(a);          /* old addresses that are done become gaps */
    dpool_poll(a, arena, budget); /* pending blocks that are done divide the runs */
    while (budget > 0) {
        uint32_t moved = compact_once(a, p, arena, budget);
        if (moved == 0) {
            return;
        }
        budget -= moved < budget ? moved : budget;
    }
}

void dpool_compact(ductile_allocator *a, dpool_arena *arena) {
    if (dpool_is_inside_callback(DPOOL_CALLBACK_MAP) || !dti_lock_try_acquire(&a->grow_lock)) {
        return; /* another thread grows: the next allocation compacts */
    }
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    dpool_plan *p = dpool_plan_take(a, granules_per_call(a) * a->granule);
    if (p != NULL) {
        compact_piece(a, p, arena);
        dpool_plan_give(a, p);
    }
    dpool_grow_unlock(a, mode);
}

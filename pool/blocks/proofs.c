/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/proofs.h"

#include "pool/blocks/age.h"
#include "pool/blocks/wait_spans.h"

/* ---- An arena, by its pool ----------------------------------------------------------------- */

bool dpool_may_serve(const dpool_arena *arena, const dpool_arena *other, bool under_pressure) {
    const dpool_private_pool *pool = arena->pool;
    if (pool == other->pool || !dpool_is_held(pool)) {
        return true;
    }
    return pool->kind == DUCTILE_POOL_PLAIN && under_pressure;
}

/* Graphs may have used its memory, and launches of them may come or be under way. */
static bool has_graphs(const ductile_allocator *a, const dpool_arena *arena) {
    return dpool_had_graphs(arena) &&
           (dpool_is_held(arena->pool) || dpool_least_age(arena) >= a->proven.age);
}

/* ---- What is proven of it ------------------------------------------------------------------ */

void dpool_raise_proof(dpool_proof *proof, dpool_proof by) {
    if (by.age > proof->age) {
        *proof = by;
    }
}

static dpool_proof later_proof(dpool_proof p, dpool_proof q) {
    return p.age > q.age ? p : q;
}

static dpool_proof proof_if(bool may_be, const dpool_arena *arena, dpool_proof p) {
    bool holds = may_be && dpool_least_age(arena) < p.age;
    return holds ? p : (dpool_proof){0};
}

dpool_proof dpool_restrict_proof(const dpool_arena *arena, dpool_proof p) {
    return proof_if(!dpool_is_frozen(arena), arena, p);
}

dpool_proof dpool_proof_to_unmap(const ductile_allocator *a, const dpool_arena *arena) {
    bool is_of_graphs = has_graphs(a, arena);
    if (arena->is_foreign && !arena->is_silent) {
        bool is_later = is_of_graphs && arena->proofs.own.age > a->proven.age;
        return is_later ? a->proven : arena->proofs.own; /* graphs: as far as both prove */
    }
    return is_of_graphs ? a->proven : later_proof(arena->proofs.own, a->proven);
}

dpool_proof dpool_proof_to_leave(const ductile_allocator *a, const dpool_arena *arena) {
    if (!arena->is_foreign) {
        return dpool_restrict_proof(arena, a->proven);
    }
    return has_graphs(a, arena) ? (dpool_proof){0}
                                : dpool_restrict_proof(arena, dpool_proof_to_unmap(a, arena));
}

dpool_proof dpool_proof_to_return(const ductile_allocator *a, const dpool_arena *arena) {
    return has_graphs(a, arena) ? dpool_proof_to_leave(a, arena)
                                : dpool_restrict_proof(arena, dpool_proof_to_unmap(a, arena));
}

dpool_proof dpool_proof_to_go(const ductile_allocator *a, const dpool_arena *arena) {
    return dpool_is_awake(arena->pool)
               ? dpool_proof_to_return(a, arena)
               : proof_if(dpool_lets_go(arena), arena, dpool_proof_to_unmap(a, arena));
}

/* ---- One block ----------------------------------------------------------------------------- */

bool dpool_is_proven_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    return b->age < dpool_proof_to_go(a, b->region->arena).age &&
           !dpool_wait_is_due_locked(a, b->addr, dpool_end(b));
}

dseg_span dpool_proven_part_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    dseg_span all = dseg_granules_in(b->region->seg, b->addr, dpool_end(b));
    bool is_due = dseg_is_empty(all) || dpool_wait_is_due_locked(a, b->addr, dpool_end(b));
    return is_due ? (dseg_span){all.first, all.first}
                  : dpool_older_part(b, all, dpool_proof_to_return(a, b->region->arena).age);
}

dseg_span dpool_leaving_part(const dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    dseg_span all = dseg_granules_in(seg, b->addr, dpool_end(b));
    bool is_whole = dpool_is_awake(b->region->arena->pool);
    return dseg_topmost_run(seg, is_whole ? all : dseg_marked_in(seg, all), UINT64_MAX, 1);
}

dpool_block *dpool_find_leaving_locked(const ductile_allocator *a, const dpool_arena *arena,
                                       bool is_proven) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = arena->blocks.leaving.first;
    while (b != NULL &&
           (dpool_is_proven_locked(a, b) != is_proven || dseg_is_empty(dpool_leaving_part(b)))) {
        b = b->list_next;
    }
    return b;
}

/* ---- Is there anything to wait for? -------------------------------------------------------- */

bool dpool_awaits_leaving_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    return dpool_lets_go(arena) && dpool_find_leaving_locked(a, arena, false) != NULL;
}

/* May its memory serve other streams (U2)? */
static bool may_leave_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    return b->age < dpool_proof_to_leave(a, b->region->arena).age &&
           !dpool_wait_is_due_locked(a, b->addr, dpool_end(b));
}

bool dpool_awaits_proof_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (arena->pending.list.first != NULL || dpool_awaits_leaving_locked(a, arena)) {
        return true;
    }
    const dpool_block *b = dpool_is_frozen(arena) ? NULL : dpool_index_below(&arena->index, NULL);
    while (b != NULL && b->size >= a->granule && may_leave_locked(a, b)) {
        b = dpool_index_below(&arena->index, b);
    }
    return b != NULL && b->size >= a->granule;
}

bool dpool_awaits_device(ductile_allocator *a) {
    bool is = false;
    dti_lock_acquire(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL && !is; arena = arena->next) {
        is = has_graphs(a, arena) && !dpool_is_held(arena->pool) && arena->blocks.mapped_bytes > 0;
    }
    dti_lock_release(&a->index_lock);
    return is;
}

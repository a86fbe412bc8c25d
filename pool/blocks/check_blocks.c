/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/check_blocks.h"

#include "pool/blocks/address_map.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/wait_spans.h"

#include "segments/check.h"
#include "segments/granules.h"

typedef struct recount {
    const ductile_allocator *a;
    const dpool_arena *arena;
    dpool_block_sums sums;
    dti_fault *fault;
} recount;

/* ---- One block ----------------------------------------------------------------------------- */

static uint64_t wanted_slot(uint64_t state) {
    switch ((dpool_state)state) {
    case DPOOL_LIVE:
    case DPOOL_FREE:
    case DPOOL_PENDING:
    case DPOOL_ASLEEP:
        return DSEG_MAPPED;
    case DPOOL_RETIRING:
        return DSEG_RETIRING;
    case DPOOL_GAP:
    case DPOOL_BUSY:
    case DPOOL_QUARANTINED:
        break;
    }
    return DSEG_EMPTY;
}

static void check_granules(recount *c, const dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    uint32_t first = dseg_granule(seg, b->addr);
    uint32_t last = dseg_granule(seg, dpool_end(b) - 1);
    uint64_t wanted = wanted_slot(b->state);
    uint32_t from = b->state == DPOOL_GAP ? first < seg->low ? seg->low : first : first;
    uint32_t to = b->state == DPOOL_GAP && last >= seg->high ? seg->high : last + 1;
    for (uint32_t g = from; g < to && dti_is_sound(c->fault); g++) {
        uint64_t state = dseg_state_at(seg, g);
        bool lost = (b->state == DPOOL_QUARANTINED && state == DSEG_QUARANTINED) ||
                    (dpool_is_unbacked(b->region->arena->pool) && wanted == DSEG_MAPPED &&
                     state != DSEG_RETIRING);
        dti_expect(c->fault, "S2", lost || state == wanted, "state of a granule under a block",
                   state, wanted, dseg_addr(seg, g));
    }
}

static void count_block(recount *c, const dpool_block *b) {
    dpool_block_sums *n = &c->sums;
    bool live = b->state == DPOOL_LIVE;
    bool pending = b->state == DPOOL_PENDING;
    bool is_free = b->state == DPOOL_FREE;
    bool retiring = b->state == DPOOL_RETIRING;
    bool asleep = b->state == DPOOL_ASLEEP;
    n->live += live ? b->size : 0;
    n->requested += live ? b->requested : 0;
    n->pending += pending ? b->size : 0;
    n->asleep += asleep ? b->size : 0;
    n->mapped += live || pending || is_free || asleep ? b->size : 0;
    n->retiring += retiring ? b->size : 0;
    n->live_blocks += live;
    n->pending_blocks += pending;
    n->free_blocks += is_free && !b->region->is_closed;
    bool is_pad = is_free && b->next != NULL && !b->region->is_spilled; /* if it is closed */
    n->leaving_blocks += is_free && b->region->is_closed && !is_pad;
    n->pads += is_pad && b->region->is_closed;
    n->gap_blocks += b->state == DPOOL_GAP && !b->region->is_closed;
    n->closed_gap_blocks += b->state == DPOOL_GAP && b->region->is_closed;
    n->retiring_blocks += retiring;
    n->asleep_blocks += asleep;
}

static bool is_in_own_structure(const recount *c, const dpool_block *b) {
    if (dpool_is_in_use(b)) {
        return dpool_map_find(&c->a->map, b->addr) == b;
    }
    if (b->state == DPOOL_FREE && !b->region->is_closed) {
        return dpool_index_holds(&b->region->arena->index, b);
    }
    return true;
}

static void check_shape(recount *c, const dpool_block *b) {
    bool whole =
        b->state == DPOOL_GAP || b->state == DPOOL_RETIRING || b->state == DPOOL_QUARANTINED;
    uint64_t unit = whole ? c->a->granule : DPOOL_UNIT;
    uint64_t offset = b->addr - b->region->seg->range.addr;
    dti_expect_equal(c->fault, "B2", "a block's place within its unit", offset % unit, 0, b->addr);
    dti_expect_equal(c->fault, "B2", "a block's size within its unit", b->size % unit, 0, b->addr);
    dti_expect(c->fault, "B2", b->size > 0, "a block's size", b->size, unit, b->addr);
}

static void check_block(recount *c, const dpool_block *b) {
    check_shape(c, b);
    dti_expect(c->fault, "B3", b->state != DPOOL_BUSY, "a block's state", b->state, DPOOL_FREE,
               b->addr);
    dti_expect(c->fault, "B5", is_in_own_structure(c, b), "a block in its index or map", 0, 1,
               b->addr);
    dti_expect(c->fault, "A5", b->state != DPOOL_FREE || b->age <= c->a->age, "a free block's age",
               b->age, c->a->age, b->addr);
    bool merges = b->state == DPOOL_FREE || b->state == DPOOL_GAP;
    dti_expect(c->fault, "B4", !merges || b->next == NULL || b->next->state != b->state,
               "two neighbours in the state", b->state, 0, b->addr);
    dti_expect(c->fault, "B6", b->state != DPOOL_LIVE || b->requested <= b->size,
               "a live block's request", b->state == DPOOL_LIVE ? b->requested : 0, b->size,
               b->addr);
    bool may_wait = b->state == DPOOL_FREE || b->state == DPOOL_LIVE;
    dti_expect(c->fault, "W1", may_wait || !dpool_wait_covers_locked(c->a, b->addr, dpool_end(b)),
               "a span with waits over a block in the state", b->state, DPOOL_FREE, b->addr);
    check_granules(c, b);
    count_block(c, b);
}

/* ---- One region ---------------------------------------------------------------------------- */

static void check_region(recount *c, const dpool_region *region) {
    const dvmm_range *range = &region->seg->range;
    ductile_addr at = range->addr;
    const dpool_block *before = NULL;
    for (const dpool_block *b = region->first; b != NULL && dti_is_sound(c->fault); b = b->next) {
        dti_expect_equal(c->fault, "B1", "where a block begins", b->addr, at, at);
        dti_expect(c->fault, "B1", b->prev == before, "a block's link back", 0, 1, b->addr);
        dti_expect(c->fault, "B1", b->region == region, "a block's region", 0, 1, b->addr);
        check_block(c, b);
        at = dpool_end(b);
        before = b;
    }
    dti_expect_equal(c->fault, "B1", "where the last block ends", at, range->addr + range->size,
                     at);
    dti_expect_equal(c->fault, "S4", "the published span", region->span_bytes,
                     dseg_span_bytes(region->seg), range->addr);
    (void)dseg_check(region->seg, c->fault);
}

/* Gaps may lie beside what is left of a spilled one that was freed: see asleep_blocks.h. */
static bool is_left_of_spilled(const dpool_block *b) {
    while (b != NULL && b->region->is_spilled && !dpool_has_request(b)) {
        b = b->next;
    }
    return b == NULL;
}

static bool is_one_block(const ductile_allocator *a, const dpool_block *first) {
    if (is_left_of_spilled(first)) {
        return true;
    }
    bool has_pad = first->next != NULL && first->state == DPOOL_FREE && first->size < a->granule;
    return first->next == NULL || (has_pad && first->next->next == NULL);
}

static bool is_unit(const dpool_region *region, const dpool_block *b) {
    const dseg_segment *seg = region->seg;
    uint64_t unit = seg->unit_granules * seg->store->granule_bytes;
    return (b->addr - seg->range.addr) % unit == 0 && b->size == unit;
}

static void check_units(recount *c, const dpool_region *region) {
    for (const dpool_block *b = region->first; b != NULL && dti_is_sound(c->fault); b = b->next) {
        bool is_sound = dpool_has_request(b) ? is_unit(region, b) : b->state != DPOOL_RETIRING;
        dti_expect(c->fault, "B8", is_sound, "the size of a block of an elastic range", b->size,
                   region->seg->unit_granules * c->a->granule, b->addr);
    }
}

/* ---- One arena ----------------------------------------------------------------------------- */

/* Checks the links back, so that no block is visited twice and the loop ends. */
static void check_list(recount *c, const dpool_list *list, dpool_state state) {
    uint64_t n = 0;
    const dpool_block *before = NULL;
    for (const dpool_block *b = list->first; b != NULL && dti_is_sound(c->fault);
         b = b->list_next) {
        dti_expect(c->fault, "A3", b->list_prev == before, "a listed block's link back", 0, 1,
                   b->addr);
        dti_expect_equal(c->fault, "A3", "a listed block's state", b->state, (uint64_t)state,
                         b->addr);
        dti_expect(c->fault, "A3", b->region->arena == c->arena, "a listed block's arena", 0, 1,
                   b->addr);
        before = b;
        n++;
    }
    uint64_t where = (uint64_t)(uintptr_t)c->arena->stream;
    dti_expect_equal(c->fault, "A3", "a list's count", list->count, n, where);
    dti_expect(c->fault, "A3", list->last == before, "a list's end", 0, 1, where);
}

/* While a pool is unbacked, only what the driver did not unmap is mapped. */
static uint64_t mapped_in(const recount *c) {
    if (!dpool_is_unbacked(c->arena->pool)) {
        return c->sums.mapped;
    }
    uint64_t granules = 0;
    for (const dpool_region *r = c->arena->blocks.regions; r != NULL; r = r->next) {
        granules += r->seg->n_mapped;
    }
    return granules * c->a->granule;
}

static void check_phase(recount *c, uint64_t where) {
    const dpool_block_sums *n = &c->sums;
    uint64_t in_use = n->live_blocks + n->pending_blocks + n->retiring_blocks;
    dpool_phase_check_locked(c->a, c->arena->pool, n->asleep_blocks, in_use, where, c->fault);
}

static void check_sums(recount *c, uint64_t where) {
    const dpool_arena *arena = c->arena;
    const dpool_block_sums *n = &c->sums;
    dti_expect_equal(c->fault, "A1", "an arena's live bytes", arena->live.bytes, n->live, where);
    dti_expect_equal(c->fault, "A1", "an arena's pending bytes", arena->blocks.pending_bytes,
                     n->pending, where);
    dti_expect_equal(c->fault, "A1", "an arena's mapped bytes", arena->blocks.mapped_bytes,
                     n->mapped, where);
    check_phase(c, where);
    dti_expect_equal(c->fault, "A2", "blocks in the free index", dpool_index_count(&arena->index),
                     n->free_blocks, where);
    dti_expect_equal(c->fault, "A3", "blocks in the gap list", arena->blocks.gaps.count,
                     n->gap_blocks, where);
    dti_expect_equal(c->fault, "A3", "blocks in the list of leaving memory",
                     arena->blocks.leaving.count, n->leaving_blocks, where);
    dti_expect_equal(c->fault, "A3", "pads before blocks of closed regions", arena->blocks.n_pads,
                     n->pads, where);
    dti_expect_equal(c->fault, "A3", "gaps of closed regions", arena->blocks.n_closed_gaps,
                     n->closed_gap_blocks, where);
    dti_expect_equal(c->fault, "A3", "blocks in the retire queue, and kept ones",
                     arena->retiring.list.count + arena->retiring.kept.count, n->retiring_blocks,
                     where);
    dti_expect_equal(c->fault, "A3", "bytes in the retire queue, and kept ones",
                     arena->retiring.bytes + arena->retiring.kept_bytes, n->retiring, where);
    dti_expect(c->fault, "A4", arena->proofs.own.age <= c->a->age, "the age that is proven",
               arena->proofs.own.age, c->a->age, where);
}

static void add_up(dpool_block_sums *to, const dpool_block_sums *n) {
    to->live += n->live;
    to->pending += n->pending;
    to->mapped += n->mapped;
    to->retiring += n->retiring;
    to->requested += n->requested;
    to->asleep += n->asleep;
    to->live_blocks += n->live_blocks;
    to->pending_blocks += n->pending_blocks;
    to->asleep_blocks += n->asleep_blocks;
}

void dpool_arena_check_locked(const ductile_allocator *a, const dpool_arena *arena,
                              dpool_block_sums *all, dti_fault *fault) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t where = (uint64_t)(uintptr_t)arena->stream;
    recount c = {.a = a, .arena = arena, .fault = fault};
    dti_expect(fault, "A8", dpool_index_check(&arena->index), "the free index", 0, 1, where);
    for (const dpool_region *r = arena->blocks.regions; r != NULL; r = r->next) {
        check_region(&c, r);
        if (arena->is_elastic) {
            check_units(&c, r);
        }
        dti_expect(fault, "B7", !r->is_closed || is_one_block(a, r->first),
                   "blocks of a region for one: it, behind its pad", 0, 1, r->seg->range.addr);
    }
    c.sums.mapped = mapped_in(&c);
    check_sums(&c, where);
    check_list(&c, &arena->blocks.gaps, DPOOL_GAP);
    check_list(&c, &arena->blocks.leaving, DPOOL_FREE);
    check_list(&c, &arena->retiring.list, DPOOL_RETIRING);
    check_list(&c, &arena->retiring.kept, DPOOL_RETIRING);
    add_up(all, &c.sums);
}

/* ---- One private pool ---------------------------------------------------------------------- */

void dpool_private_pool_check_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                                     dti_fault *fault) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t n_arenas = 0;
    uint64_t n_routes = 0;
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        n_arenas += arena->pool == pool;
    }
    for (const dpool_route *route = a->routes; route != NULL; route = route->next) {
        n_routes += route->pool == pool;
    }
    dti_expect_equal(fault, "G2", "a pool's arenas", pool->n_arenas, n_arenas, pool->id.first);
    dti_expect_equal(fault, "G2", "how often a pool is open", pool->n_routes, n_routes,
                     pool->id.first);
    dti_expect(fault, "G3", pool->released_age <= a->age, "when a pool was released",
               pool->released_age, a->age, pool->id.first);
}

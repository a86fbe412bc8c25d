/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile_check: recounts everything that is cached, and says which invariant of
 * docs/invariants.md does not hold, with both values. Both locks are held, so no plan is under
 * way: no block is BUSY.
 */
#include "pool/arena.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct recount {
    uint64_t live, pending, mapped, retiring, requested;
    uint64_t live_blocks, pending_blocks, free_blocks, gap_blocks, retiring_blocks;
} recount;

typedef struct check {
    const ductile_allocator *a;
    char *report;
    size_t size;
    bool broken;
    recount arena; /* of the arena under way */
    recount all;
} check;

static void expect_at(check *c, const char *id, bool holds, const char *what, uint64_t is,
                      uint64_t should, uint64_t where) {
    if (holds || c->broken) {
        return;
    }
    c->broken = true;
    if (c->report != NULL && c->size > 0) {
        (void)snprintf(c->report, c->size,
                       "%s: %s: is %" PRIu64 ", should be %" PRIu64 ", at 0x%" PRIx64, id, what, is,
                       should, where);
    }
}

static void expect_equal(check *c, const char *id, const char *what, uint64_t is, uint64_t should,
                         uint64_t where) {
    expect_at(c, id, is == should, what, is, should, where);
}

/* ---- One block ----------------------------------------------------------------------------- */

static uint64_t wanted_slot(uint64_t state) {
    switch ((dpool_state)state) {
    case DPOOL_LIVE:
    case DPOOL_FREE:
    case DPOOL_PENDING:
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

static void check_granules(check *c, const dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    uint32_t first = dseg_granule(seg, b->addr);
    uint32_t last = dseg_granule(seg, dpool_end(b) - 1);
    uint64_t wanted = wanted_slot(b->state);
    uint32_t from = b->state == DPOOL_GAP ? first < seg->low ? seg->low : first : first;
    uint32_t to = b->state == DPOOL_GAP && last >= seg->high ? seg->high : last + 1;
    for (uint32_t g = from; g < to && !c->broken; g++) {
        uint64_t state = seg->slots[g].state;
        bool lost = b->state == DPOOL_QUARANTINED && state == DSEG_QUARANTINED;
        expect_at(c, "S2", lost || state == wanted, "state of a granule under a block", state,
                  wanted, dseg_addr(seg, g));
        bool has_handle = seg->slots[g].handle != NULL;
        expect_at(c, "S1", has_handle == (state != DSEG_EMPTY), "a granule's handle", has_handle,
                  state != DSEG_EMPTY, dseg_addr(seg, g));
    }
}

static void count_block(check *c, const dpool_block *b) {
    recount *n = &c->arena;
    bool live = b->state == DPOOL_LIVE;
    bool pending = b->state == DPOOL_PENDING;
    bool is_free = b->state == DPOOL_FREE;
    bool retiring = b->state == DPOOL_RETIRING;
    n->live += live ? b->size : 0;
    n->requested += live ? b->requested : 0;
    n->pending += pending ? b->size : 0;
    n->mapped += live || pending || is_free ? b->size : 0;
    n->retiring += retiring ? b->size : 0;
    n->live_blocks += live;
    n->pending_blocks += pending;
    n->free_blocks += is_free;
    n->gap_blocks += b->state == DPOOL_GAP;
    n->retiring_blocks += retiring;
}

static bool is_in_own_structure(const check *c, const dpool_block *b) {
    if (b->state == DPOOL_LIVE) {
        return dpool_map_find(&c->a->map, b->addr) == b;
    }
    if (b->state == DPOOL_FREE) {
        return dpool_index_holds(&b->region->arena->index, b);
    }
    return true;
}

static void check_block(check *c, const dpool_block *b) {
    uint64_t granule = c->a->granule;
    bool whole =
        b->state == DPOOL_GAP || b->state == DPOOL_RETIRING || b->state == DPOOL_QUARANTINED;
    uint64_t unit = whole ? granule : DPOOL_UNIT;
    uint64_t offset = b->addr - b->region->seg->range.addr;
    expect_equal(c, "B2", "a block's place within its unit", offset % unit, 0, b->addr);
    expect_equal(c, "B2", "a block's size within its unit", b->size % unit, 0, b->addr);
    expect_at(c, "B2", b->size > 0, "a block's size", b->size, unit, b->addr);
    expect_at(c, "B3", b->state != DPOOL_BUSY, "a block's state", b->state, DPOOL_FREE, b->addr);
    expect_at(c, "B5", is_in_own_structure(c, b), "a block in its index or map", 0, 1, b->addr);
    expect_at(c, "A5", b->state != DPOOL_FREE || b->epoch <= b->region->arena->alloc_epoch,
              "a free block's epoch", b->epoch, b->region->arena->alloc_epoch, b->addr);
    bool merges = b->state == DPOOL_FREE || b->state == DPOOL_GAP;
    expect_at(c, "B4", !merges || b->next == NULL || b->next->state != b->state,
              "two neighbours in the state", b->state, 0, b->addr);
    expect_at(c, "B6", b->state != DPOOL_LIVE || b->requested <= b->size, "a live block's request",
              b->state == DPOOL_LIVE ? b->requested : 0, b->size, b->addr);
    check_granules(c, b);
    count_block(c, b);
}

/* ---- Regions, arenas, the whole ------------------------------------------------------------ */

static void check_slots(check *c, const dseg_segment *seg) {
    uint64_t n[4] = {0};
    for (uint32_t g = seg->low; g < seg->high; g++) {
        n[seg->slots[g].state]++;
    }
    expect_equal(c, "S3", "mapped granules", seg->n_mapped, n[DSEG_MAPPED], seg->range.addr);
    expect_equal(c, "S3", "retiring granules", seg->n_retiring, n[DSEG_RETIRING], seg->range.addr);
    expect_equal(c, "S3", "quarantined granules", seg->n_quarantined, n[DSEG_QUARANTINED],
                 seg->range.addr);
}

static void check_region(check *c, const dpool_region *region) {
    const dvmm_range *range = &region->seg->range;
    ductile_addr at = range->addr;
    const dpool_block *before = NULL;
    for (const dpool_block *b = region->first; b != NULL && !c->broken; b = b->next) {
        expect_equal(c, "B1", "where a block begins", b->addr, at, at);
        expect_at(c, "B1", b->prev == before, "a block's link back", 0, 1, b->addr);
        expect_at(c, "B1", b->region == region, "a block's region", 0, 1, b->addr);
        check_block(c, b);
        at = dpool_end(b);
        before = b;
    }
    expect_equal(c, "B1", "where the last block ends", at, range->addr + range->size, at);
    expect_equal(c, "S4", "the published span", region->span_bytes, dseg_span_bytes(region->seg),
                 range->addr);
    check_slots(c, region->seg);
}

static void add_up(recount *to, const recount *n) {
    to->live += n->live;
    to->pending += n->pending;
    to->mapped += n->mapped;
    to->retiring += n->retiring;
    to->requested += n->requested;
    to->live_blocks += n->live_blocks;
    to->pending_blocks += n->pending_blocks;
}

static void check_arena(check *c, const dpool_arena *arena) {
    uint64_t where = (uint64_t)(uintptr_t)arena->stream;
    c->arena = (recount){0};
    for (const dpool_region *r = arena->regions; r != NULL; r = r->next) {
        check_region(c, r);
    }
    const recount *n = &c->arena;
    expect_equal(c, "A1", "an arena's live bytes", arena->live_bytes, n->live, where);
    expect_equal(c, "A1", "an arena's pending bytes", arena->pending_bytes, n->pending, where);
    expect_equal(c, "A1", "an arena's mapped bytes", arena->mapped_bytes, n->mapped, where);
    expect_equal(c, "A2", "blocks in the free index", arena->index.n_blocks, n->free_blocks, where);
    expect_equal(c, "A3", "blocks in the gap list", arena->gaps.count, n->gap_blocks, where);
    expect_equal(c, "A3", "blocks in the retire queue", arena->retiring.count, n->retiring_blocks,
                 where);
    expect_at(c, "A4", arena->done_seq <= arena->marker_seq, "the last marker done",
              arena->done_seq, arena->marker_seq, where);
    expect_at(c, "A4", arena->proven_epoch <= arena->alloc_epoch, "the proven epoch",
              arena->proven_epoch, arena->alloc_epoch, where);
    add_up(&c->all, n);
}

static void check_totals(check *c) {
    const ductile_allocator *a = c->a;
    const dpool_counts *n = &a->counts;
    expect_equal(c, "P1", "allocated bytes", n->allocated, c->all.live, 0);
    expect_equal(c, "P1", "requested bytes", n->requested, c->all.requested, 0);
    expect_equal(c, "P1", "pending bytes", n->pending, c->all.pending, 0);
    expect_equal(c, "P1", "mapped bytes", n->mapped, c->all.mapped, 0);
    expect_equal(c, "P1", "retiring bytes", n->retiring, c->all.retiring, 0);
    expect_equal(c, "P1", "pending blocks", n->pending_blocks, c->all.pending_blocks, 0);
    expect_equal(c, "P2", "entries of the address map", a->map.count, c->all.live_blocks, 0);
    expect_equal(c, "P3", "physical memory held", a->store.held_bytes,
                 n->mapped + a->store.cached_bytes + a->store.lost_bytes, 0);
    expect_equal(c, "P4", "published memory held", n->held, a->store.held_bytes, 0);
    expect_equal(c, "P4", "published cached memory", n->cached, a->store.cached_bytes, 0);
}

static void check_all(check *c) {
    uint64_t n_regions = 0;
    for (const dpool_arena *arena = c->a->arenas; arena != NULL; arena = arena->next) {
        check_arena(c, arena);
        for (const dpool_region *r = arena->regions; r != NULL; r = r->next) {
            n_regions++;
        }
    }
    expect_equal(c, "P5", "segments in the set", c->a->segments.count, n_regions, 0);
    check_totals(c);
}

ductile_status ductile_check(ductile_allocator *a, char *report, size_t report_size) {
    if (report != NULL && report_size > 0) {
        report[0] = '\0';
    }
    if (a == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    check c = {.a = a, .report = report, .size = report_size};
    dti_lock_take(&a->slow);
    dti_lock_take(&a->hot);
    check_all(&c);
    dti_lock_open(&a->hot);
    dti_lock_open(&a->slow);
    return c.broken ? DUCTILE_ERR_CORRUPT : DUCTILE_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile_check: recounts everything that is cached, and says which invariant of
 * docs/invariants.md does not hold, with both values. Both locks are held, so no plan is under
 * way: no block is BUSY.
 */
#include "pool/base/guards.h"
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/wait_spans.h"
#include "pool/sharing/import.h"
#include "pool/sharing/pin.h"
#include "pool/streams/stream_use.h"

#include "segments/check.h"
#include "segments/granules.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct recount {
    uint64_t live, pending, mapped, retiring, requested;
    uint64_t live_blocks, pending_blocks, free_blocks, gap_blocks, retiring_blocks;
    uint64_t paused, paused_blocks;
    uint64_t in_transit; /* PENDING blocks whose markers a thread is recording just now */
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
    case DPOOL_PAUSED:
        return DSEG_MAPPED;
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
        uint64_t state = dseg_state_at(seg, g);
        bool lost =
            (b->state == DPOOL_QUARANTINED && state == DSEG_QUARANTINED) ||
            (dpool_is_bare(b->region->arena) && wanted == DSEG_MAPPED && state != DSEG_RETIRING);
        expect_at(c, "S2", lost || state == wanted, "state of a granule under a block", state,
                  wanted, dseg_addr(seg, g));
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
    bool paused = b->state == DPOOL_PAUSED;
    n->paused += paused ? b->size : 0;
    n->paused_blocks += paused;
    n->mapped += live || pending || is_free || paused ? b->size : 0;
    n->retiring += retiring ? b->size : 0;
    n->live_blocks += live;
    n->pending_blocks += pending;
    n->in_transit += pending && dpool_is_in_transit(b->uses);
    n->free_blocks += is_free;
    n->gap_blocks += b->state == DPOOL_GAP;
    n->retiring_blocks += retiring;
}

static bool is_in_own_structure(const check *c, const dpool_block *b) {
    if (b->state == DPOOL_LIVE || b->state == DPOOL_PAUSED) {
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
    bool may_wait = b->state == DPOOL_FREE || b->state == DPOOL_LIVE;
    expect_at(c, "W1", may_wait || !dpool_wait_covers_locked(c->a, b->addr, dpool_end(b)),
              "a span with waits over a block in the state", b->state, DPOOL_FREE, b->addr);
    check_granules(c, b);
    count_block(c, b);
}

/* ---- Lists of an arena --------------------------------------------------------------------- */

/* Links back are looked at, so that no block is met twice and the walk ends. */
static void check_list(check *c, const dpool_arena *arena, const dpool_list *list,
                       dpool_state state) {
    uint64_t n = 0;
    const dpool_block *before = NULL;
    for (const dpool_block *b = list->first; b != NULL && !c->broken; b = b->list_next) {
        expect_at(c, "A3", b->list_prev == before, "a listed block's link back", 0, 1, b->addr);
        expect_equal(c, "A3", "a listed block's state", b->state, (uint64_t)state, b->addr);
        expect_at(c, "A3", b->region->arena == arena, "a listed block's arena", 0, 1, b->addr);
        before = b;
        n++;
    }
    uint64_t where = (uint64_t)(uintptr_t)arena->stream;
    expect_equal(c, "A3", "a list's count", list->count, n, where);
    expect_at(c, "A3", list->last == before, "a list's end", 0, 1, where);
}

static void check_pending(check *c, const dpool_arena *arena) {
    uint64_t where = (uint64_t)(uintptr_t)arena->stream;
    uint64_t listed = c->arena.pending_blocks - c->arena.in_transit;
    uint64_t n = 0;
    const dpool_use *last = NULL;
    for (const dpool_use *use = arena->pending_first; use != NULL && n <= listed && !c->broken;
         use = use->pending_next) {
        const dpool_block *b = use->block;
        expect_at(c, "A7", b->state == DPOOL_PENDING && b->uses == use,
                  "a block in the pending list, its state", b->state, DPOOL_PENDING, b->addr);
        expect_at(c, "A7", b->region->arena == arena, "a pending block's arena", 0, 1, b->addr);
        last = use;
        n++;
    }
    expect_equal(c, "A7", "blocks in the pending list", n, listed, where);
    expect_at(c, "A7", arena->pending_last == last, "the pending list's end", 0, 1, where);
}

static void check_ring(check *c, const dpool_arena *arena) {
    uint64_t where = (uint64_t)(uintptr_t)arena->stream;
    expect_at(c, "A6", arena->n_marks <= DPOOL_RING, "markers under way", arena->n_marks,
              DPOOL_RING, where);
    uint64_t seq = 0;
    uint64_t epoch = 0;
    for (uint32_t i = 0; i < arena->n_marks && !c->broken; i++) {
        const dpool_ring_mark *mark = &arena->ring[i];
        expect_at(c, "A6", mark->marker != NULL, "a marker", 0, 1, where);
        expect_at(c, "A6", mark->seq > seq, "a marker's number", mark->seq, seq + 1, where);
        expect_at(c, "A6", mark->epoch >= epoch, "a marker's epoch", mark->epoch, epoch, where);
        seq = mark->seq;
        epoch = mark->epoch;
    }
    expect_at(c, "A6", seq <= arena->marker_seq, "the newest marker's number", seq,
              arena->marker_seq, where);
    expect_at(c, "A6", epoch <= arena->alloc_epoch, "the newest marker's epoch", epoch,
              arena->alloc_epoch, where);
}

static void check_lists(check *c, const dpool_arena *arena) {
    check_list(c, arena, &arena->gaps, DPOOL_GAP);
    check_list(c, arena, &arena->retiring, DPOOL_RETIRING);
    check_pending(c, arena);
    check_ring(c, arena);
}

/* ---- Handles ------------------------------------------------------------------------------- */

/* What the segments find of themselves. */
static void expect_no_fault(check *c, bool holds, const dseg_fault *f) {
    if (!holds) {
        expect_at(c, f->invariant, false, f->what, f->is, f->should, f->where);
    }
}

static void check_handles(check *c) {
    dseg_handle_sums sums;
    dseg_fault fault;
    if (c->broken) {
        return; /* what is counted may not exist */
    }
    bool holds = dseg_check_handles(&c->a->segments, &c->a->store, &sums, &fault);
    expect_no_fault(c, holds, &fault);
    expect_equal(c, "P10", "pinned bytes", c->a->store.totals.pinned_bytes, sums.pinned_bytes, 0);
    expect_equal(c, "P10", "exported bytes", c->a->store.totals.exported_bytes, sums.exported_bytes,
                 0);
}

/* ---- Pins and imports ---------------------------------------------------------------------- */

static void check_record(check *c, const dpool_pin *pin, ductile_addr above) {
    expect_at(c, "P9", pin->addr > above, "a pin's place in the list", pin->addr, above, pin->addr);
    expect_at(c, "P9", pin->n_pins + pin->n_exports > 0, "a pin's count", 0, 1, pin->addr);
    for (uint32_t g = pin->first; g < pin->first + pin->n_granules && !c->broken; g++) {
        expect_equal(c, "P9", "state of a pinned granule", dseg_state_at(pin->seg, g), DSEG_MAPPED,
                     dseg_addr(pin->seg, g));
    }
}

/* Adds to the counts of every handle that the record covers. */
static void add_to_pins(const dpool_pin *pin, uint32_t change) {
    for (uint32_t g = pin->first; g < pin->first + pin->n_granules;) {
        dvmm_handle *h = dseg_handle_at(pin->seg, g, NULL);
        h->n_pins += change;
        h->n_exports += pin->n_exports > 0 ? change : 0;
        g += h->n_granules;
    }
}

static void add_all_to_pins(const dpool_pins *pins, uint32_t change) {
    for (uint32_t i = 0; i < pins->count; i++) {
        add_to_pins(&pins->items[i], change);
    }
}

static void expect_no_pins(check *c, const dseg_segment *seg) {
    for (uint32_t g = dseg_next_mapped(seg, 0); g < seg->n_granules && !c->broken;
         g = dseg_next_mapped(seg, g + 1)) {
        const dvmm_handle *h = dseg_handle_at(seg, g, NULL);
        expect_equal(c, "P9", "a handle's pins, records deducted", h->n_pins, 0, dseg_addr(seg, g));
        expect_equal(c, "P9", "a handle's exports, records deducted", h->n_exports, 0,
                     dseg_addr(seg, g));
    }
}

/* As with addresses: deducted for a moment, under the lock that guards them. */
static void check_pins(check *c) {
    const dpool_pins *pins = &c->a->pins;
    for (uint32_t i = 0; i < pins->count && !c->broken; i++) {
        check_record(c, &pins->items[i], i > 0 ? pins->items[i - 1].addr : 0);
    }
    if (c->broken) {
        return;
    }
    add_all_to_pins(pins, UINT32_MAX); /* minus 1 */
    for (uint32_t i = 0; i < c->a->segments.count; i++) {
        expect_no_pins(c, c->a->segments.items[i]);
    }
    add_all_to_pins(pins, 1);
}

static void check_imports(check *c) {
    const dpool_imports *all = &c->a->imports;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        const dpool_import *import = all->items[i];
        expect_equal(c, "P11", "an import's range", import->in.range.size, import->in.mapped_bytes,
                     import->addr);
        bytes += import->in.mapped_bytes;
    }
    expect_equal(c, "P11", "imported bytes", c->a->counts.imported, bytes, 0);
}

/* ---- Regions, arenas, the whole ------------------------------------------------------------ */

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
    dseg_fault fault;
    bool holds = dseg_check(region->seg, &fault);
    expect_no_fault(c, holds, &fault);
}

static void add_up(recount *to, const recount *n) {
    to->live += n->live;
    to->pending += n->pending;
    to->mapped += n->mapped;
    to->retiring += n->retiring;
    to->requested += n->requested;
    to->live_blocks += n->live_blocks;
    to->pending_blocks += n->pending_blocks;
    to->paused += n->paused;
    to->paused_blocks += n->paused_blocks;
}

/* In a bare pool memory is only where the driver would not unmap. */
static uint64_t mapped_in(const check *c, const dpool_arena *arena) {
    if (!dpool_is_bare(arena)) {
        return c->arena.mapped;
    }
    uint64_t granules = 0;
    for (const dpool_region *r = arena->regions; r != NULL; r = r->next) {
        granules += r->seg->n_mapped;
    }
    return granules * c->a->granule;
}

static void check_phase(check *c, const dpool_arena *arena) {
    uint64_t where = (uint64_t)(uintptr_t)arena->stream;
    const recount *n = &c->arena;
    dpool_phase phase = arena->pool != NULL ? arena->pool->phase : DPOOL_RUNNING;
    bool is_bare = dpool_is_bare(arena);
    expect_at(c, "G4", n->paused_blocks == 0 || phase != DPOOL_RUNNING,
              "paused blocks of a pool that runs", n->paused_blocks, 0, where);
    expect_at(c, "G4", !is_bare || n->live_blocks + n->pending_blocks + n->retiring_blocks == 0,
              "blocks with memory in a bare pool",
              n->live_blocks + n->pending_blocks + n->retiring_blocks, 0, where);
    expect_at(c, "G4",
              is_bare == (phase == DPOOL_PAUSED_PHASE) || phase == DPOOL_PAUSING ||
                  phase == DPOOL_RESUMING,
              "a bare pool's phase", (uint64_t)phase, DPOOL_PAUSED_PHASE, where);
}

static void check_arena(check *c, const dpool_arena *arena) {
    uint64_t where = (uint64_t)(uintptr_t)arena->stream;
    c->arena = (recount){0};
    expect_at(c, "A8", dpool_index_check(&arena->index), "the free index", 0, 1, where);
    for (const dpool_region *r = arena->regions; r != NULL; r = r->next) {
        check_region(c, r);
    }
    const recount *n = &c->arena;
    expect_equal(c, "A1", "an arena's live bytes", arena->live_bytes, n->live, where);
    expect_equal(c, "A1", "an arena's pending bytes", arena->pending_bytes, n->pending, where);
    c->arena.mapped = mapped_in(c, arena);
    expect_equal(c, "A1", "an arena's mapped bytes", arena->mapped_bytes, n->mapped, where);
    check_phase(c, arena);
    expect_equal(c, "A2", "blocks in the free index", dpool_index_count(&arena->index),
                 n->free_blocks, where);
    expect_equal(c, "A3", "blocks in the gap list", arena->gaps.count, n->gap_blocks, where);
    expect_equal(c, "A3", "blocks in the retire queue", arena->retiring.count, n->retiring_blocks,
                 where);
    expect_equal(c, "A3", "bytes in the retire queue", arena->retiring_bytes, n->retiring, where);
    expect_at(c, "A4", arena->done_seq <= arena->marker_seq, "the last marker done",
              arena->done_seq, arena->marker_seq, where);
    expect_at(c, "A4", arena->proven_epoch <= arena->alloc_epoch, "the proven epoch",
              arena->proven_epoch, arena->alloc_epoch, where);
    check_lists(c, arena);
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
    expect_equal(c, "P1", "paused bytes", n->paused, c->all.paused, 0);
    expect_equal(c, "P1", "paused blocks", n->paused_blocks, c->all.paused_blocks, 0);
    expect_equal(c, "P2", "entries of the address map", a->map.count,
                 c->all.live_blocks + c->all.paused_blocks, 0);
    expect_equal(c, "P3", "physical memory held", a->store.totals.held_bytes,
                 n->mapped + a->store.totals.cached_bytes + a->store.totals.lost_bytes, 0);
}

static void check_pool(check *c, const dpool_private_pool *pool) {
    uint64_t n_arenas = 0;
    uint64_t n_routes = 0;
    for (const dpool_arena *arena = c->a->arenas; arena != NULL; arena = arena->next) {
        n_arenas += arena->pool == pool;
    }
    for (const dpool_route *route = c->a->routes; route != NULL; route = route->next) {
        n_routes += route->pool == pool;
    }
    expect_equal(c, "G2", "a pool's arenas", pool->n_arenas, n_arenas, pool->id.first);
    expect_equal(c, "G2", "how often a pool is open", pool->n_routes, n_routes, pool->id.first);
    bool may_be_proven = pool->kind == DUCTILE_POOL_PLAIN || !dpool_is_held(pool);
    expect_at(c, "G3", pool->awaits_context || may_be_proven, "a capture pool's proof", 1, 0,
              pool->id.first);
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
    for (const dpool_private_pool *pool = c->a->pools; pool != NULL; pool = pool->next) {
        check_pool(c, pool);
    }
    expect_at(c, "W1", dpool_wait_check_locked(c->a), "the map of waits", 0, 1, 0);
    check_totals(c);
    if (!c->broken) { /* what is broken may lead anywhere */
        check_handles(c);
        check_pins(c);
        check_imports(c);
    }
}

ductile_status ductile_check(ductile_allocator *a, char *report, size_t report_size) {
    if (report != NULL && report_size > 0) {
        report[0] = '\0';
    }
    ductile_status may = dpool_may_look(a);
    if (may != DUCTILE_OK) {
        return may;
    }
    check c = {.a = a, .report = report, .size = report_size};
    dti_lock_acquire(&a->grow_lock);
    dti_lock_acquire(&a->index_lock);
    if (a->n_announcing == 0) { /* otherwise a plan is under way */
        check_all(&c);
    }
    dti_lock_release(&a->index_lock);
    dti_lock_release(&a->grow_lock);
    return c.broken ? DUCTILE_ERR_CORRUPT : DUCTILE_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Making a plan: the place, the window, the donors. */
#include "pool/growth/plan.h"

#include "pool/blocks/age.h"
#include "pool/blocks/proofs.h"
#include "pool/blocks/transitions.h"
#include "pool/blocks/wait_spans.h"
#include "pool/growth/sizes.h"
#include "pool/streams/marks.h"
#include "pool/streams/progress.h"

#include "segments/granules.h"
#include "vmm/base/align.h"
#include "vmm/base/check.h"

#include <stdlib.h>
#include <string.h>

enum {
    LEAST_ROOM = 64,   /* granules that any plan has room for                              */
    WINDOW_NODES = 10, /* splits at both ends, of blocks and of granules, and behind them  */
    /* Compaction fills a gap up to this many times its smaller free neighbour, */
    FILLED_TIMES = 16,
    EXCHANGED_TIMES = 2 /* and this many with larger handles, where memory does not strand */
};

/* ---- Room ---------------------------------------------------------------------------------- */

static uint64_t most_granules(const ductile_allocator *a, uint64_t size) {
    /* a window may begin and end inside a granule */
    return size / a->granule + 2;
}

uint64_t dpool_plan_nodes(const ductile_allocator *a, uint64_t size) {
    return 2 * most_granules(a, size) + WINDOW_NODES;
}

static bool resize(void **array, uint64_t n, size_t element) {
    void *larger = realloc(*array, n * element);
    if (larger != NULL) {
        *array = larger;
    }
    return larger != NULL;
}

static bool reserve(dpool_plan *p, uint64_t n) {
    if (n <= p->room) {
        return true;
    }
    n += n / 2;
    bool has_room = resize((void **)&p->parts, n, sizeof *p->parts) &&
                    resize((void **)&p->pieces, n, sizeof *p->pieces) &&
                    resize((void **)&p->donors, n, sizeof *p->donors) &&
                    resize((void **)&p->donations, n, sizeof *p->donations) &&
                    resize((void **)&p->handles, n, sizeof *p->handles);
    p->room = has_room ? (uint32_t)n : p->room;
    return has_room;
}

static void destroy(dpool_plan *p) {
    if (p != NULL) {
        free(p->parts);
        free(p->pieces);
        free(p->donors);
        free(p->donations);
        free(p->handles);
        free(p);
    }
}

/* Empties the plan. The arrays stay. */
static void clear(dpool_plan *p, dpool_arena *arena, dpool_region *region) {
    *p = (dpool_plan){.arena = arena,
                      .region = region,
                      .parts = p->parts,
                      .pieces = p->pieces,
                      .donors = p->donors,
                      .donations = p->donations,
                      .handles = p->handles,
                      .room = p->room};
}

dpool_plan *dpool_plan_take(ductile_allocator *a, uint64_t size) {
    DTI_ASSERT_HELD(&a->grow_lock);
    dpool_plan *p = a->spare_plan != NULL ? a->spare_plan : calloc(1, sizeof *p);
    a->spare_plan = NULL;
    if (p == NULL) {
        return NULL;
    }
    clear(p, NULL, NULL);
    if (!reserve(p, dti_max(most_granules(a, size), LEAST_ROOM))) {
        dpool_plan_give(a, p);
        return NULL;
    }
    return p;
}

void dpool_plan_give(ductile_allocator *a, dpool_plan *p) {
    DTI_ASSERT_HELD(&a->grow_lock);
    destroy(a->spare_plan); /* the plan of another thread that was under way beside this one */
    a->spare_plan = p;
}

void dpool_plan_fini(ductile_allocator *a) {
    destroy(a->spare_plan);
    a->spare_plan = NULL;
}

/* ---- The place of a request ----------------------------------------------------------------- */

static bool is_open(const dpool_block *b) {
    return b != NULL && (b->state == DPOOL_FREE || b->state == DPOOL_GAP);
}

static bool is_free(const dpool_block *b) {
    return b != NULL && b->state == DPOOL_FREE;
}

/* The granules that a window needs from a gap when it covers `bytes` from one end. */
static uint64_t granules_of(const ductile_allocator *a, uint64_t bytes) {
    return (bytes + a->granule - 1) / a->granule;
}

static ductile_addr granule_floor(const ductile_allocator *a, const dpool_region *r,
                                  ductile_addr addr) {
    return r->seg->range.addr + dti_round_down(addr - r->seg->range.addr, a->granule);
}

static ductile_addr granule_ceil(const ductile_allocator *a, const dpool_region *r,
                                 ductile_addr addr) {
    return r->seg->range.addr + dti_round_up(addr - r->seg->range.addr, a->granule);
}

/* What a granule of a window costs, in parts of one that is empty (docs/dev/decisions/0037). */
enum { COST_EMPTY = 64, COST_RETURN = 40, COST_UNMAP = 77, COST_UNMAP_HOME = 128 };

typedef struct place_search {
    const ductile_allocator *a;
    uint64_t size;
    bool opens_old;   /* considers kept addresses, */
    uint32_t stamp;   /* and those handles free    */
    uint64_t proven;  /* the age below which an old address can be unmapped */
    bool wants_whole; /* prefers, at equal cost, a window that begins with a granule */
    bool has_whole;   /* the best one does */
    uint64_t least;   /* cost, of the best */
    dpool_place best;
} place_search;

/* Memory that comes and goes is whole granules if it begins and ends with one, and can give them
 * all. Without any as large, the program may be laying down what it keeps: closely, then
 * (docs/dev/decisions/0025). */
static bool wants_whole(const ductile_allocator *a, const dpool_arena *arena, uint64_t size) {
    const dpool_block *largest = dpool_index_below(&arena->index, NULL);
    return size % a->granule == 0 && largest != NULL && largest->size >= size / 2;
}

static void consider(place_search *s, dpool_block *first, ductile_addr start, uint64_t cost) {
    bool is_whole = s->wants_whole && start == granule_floor(s->a, first->region, start);
    bool is_better = cost < s->least;
    if (cost == s->least) {
        is_better = is_whole != s->has_whole ? is_whole : start < s->best.start;
    }
    if (s->best.block == NULL || is_better) {
        s->best = (dpool_place){first, start, cost / COST_EMPTY};
        s->least = cost;
        s->has_whole = is_whole;
    }
}

/* Of the window from `start` on, what lies in old addresses.
 * UINT64_MAX when one of them must stay. */
static uint64_t cost_of_old(const place_search *s, const dpool_block *b, ductile_addr start) {
    const dseg_segment *seg = b->region->seg;
    ductile_addr end = start + s->size;
    dseg_span all = dseg_granules_over(seg, dti_max(start, b->addr), dti_min(end, dpool_end(b)));
    uint64_t cost = 0;
    for (uint32_t g = all.first; g < all.end; g++) {
        const dvmm_handle *h = dseg_handle_at(seg, g);
        ductile_addr place_end = h->place + dvmm_handle_bytes(&s->a->store, h);
        bool may_return = h->n_granules == 1 && h->stamp == s->stamp;
        bool returns = may_return && (h->place >= end || place_end <= start);
        if (!returns && b->age >= s->proven) {
            return UINT64_MAX;
        }
        uint64_t unmap = h->home == dseg_addr(seg, g) ? COST_UNMAP_HOME : COST_UNMAP;
        cost += returns ? COST_RETURN : unmap;
    }
    return cost;
}

/* UINT64_MAX: it bars the window. */
static uint64_t cost_of(const place_search *s, const dpool_block *b, uint64_t part,
                        ductile_addr start) {
    if (b != NULL && s->opens_old && b->state == DPOOL_RETIRING) {
        return cost_of_old(s, b, start);
    }
    if (!is_open(b)) {
        return UINT64_MAX;
    }
    return b->state == DPOOL_GAP ? COST_EMPTY * granules_of(s->a, part) : 0;
}

/* Considers the window that begins with block b, or that ends with it to the left. */
static void try_window(place_search *s, dpool_block *b, bool to_left) {
    ductile_addr start = to_left ? dpool_end(b) - s->size : b->addr;
    uint64_t covered = 0;
    uint64_t cost = 0;
    dpool_block *first = b;
    for (dpool_block *at = b; covered < s->size; at = to_left ? at->prev : at->next) {
        uint64_t part = at != NULL ? dti_min(at->size, s->size - covered) : 0;
        uint64_t more = cost_of(s, at, part, start);
        if (more == UINT64_MAX || cost > s->least) {
            return;
        }
        cost += more;
        covered += part;
        first = to_left ? at : b;
    }
    consider(s, first, start, cost);
}

/* Windows that begin, or end to the left, with the gap or with free memory before it. */
static void try_windows(place_search *s, dpool_block *gap, dpool_block *neighbour, bool to_left) {
    if (is_free(neighbour)) {
        try_window(s, neighbour, to_left);
    }
    if (!is_free(neighbour) || s->wants_whole) {
        try_window(s, gap, to_left);
    }
}

static void try_list(place_search *s, const dpool_list *list) {
    for (dpool_block *b = list->first; b != NULL; b = b->list_next) {
        try_windows(s, b, b->prev, false);
        if (b->next != NULL) {
            try_windows(s, b, b->next, true);
        }
    }
}

static place_search search_of(const ductile_allocator *a, const dpool_arena *arena, uint64_t size) {
    return (place_search){.a = a,
                          .size = size,
                          .wants_whole = wants_whole(a, arena, size),
                          .least = UINT64_MAX,
                          .best = {NULL, 0, UINT64_MAX}};
}

dpool_place dpool_place_choose_locked(const ductile_allocator *a, const dpool_arena *arena,
                                      uint64_t size) {
    DTI_ASSERT_HELD(&a->index_lock);
    place_search s = search_of(a, arena, size);
    try_list(&s, &arena->blocks.gaps);
    return s.best;
}

dpool_place dpool_place_over_old_locked(const ductile_allocator *a, const dpool_arena *arena,
                                        uint64_t size, uint32_t stamp) {
    DTI_ASSERT_HELD(&a->index_lock);
    place_search s = search_of(a, arena, size);
    s.opens_old = true;
    s.stamp = stamp;
    s.proven = dpool_proof_to_unmap(a, arena).age;
    try_list(&s, &arena->blocks.gaps);
    try_list(&s, &arena->retiring.kept);
    return s.best;
}

dpool_place dpool_place_in_gap_locked(const ductile_allocator *a, const dpool_arena *arena,
                                      uint64_t size) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t lacks = granules_of(a, size);
    dpool_block *best = NULL;
    for (dpool_block *gap = arena->blocks.gaps.first; gap != NULL; gap = gap->list_next) {
        bool fits = gap->size >= lacks * a->granule;
        best = fits && (best == NULL || gap->addr < best->addr) ? gap : best;
    }
    return (dpool_place){best, best != NULL ? best->addr : 0, lacks};
}

/* ---- The window ---------------------------------------------------------------------------- */

static void add_piece(ductile_allocator *a, dpool_plan *p, ductile_addr from, ductile_addr to) {
    uint32_t first = dseg_granule(p->region->seg, from);
    uint32_t n = (uint32_t)((to - from) / a->granule);
    p->pieces[p->n_pieces++] = (dseg_piece){.first = first, .n_granules = n};
    p->n_granules += n;
}

/* Marks the part of block b in [start, end) BUSY; of a gap, whole granules, whose surplus becomes
 * head or rest. Returns the block that begins the part. */
static dpool_block *busy_part(ductile_allocator *a, dpool_plan *p, dpool_block *b,
                              ductile_addr start, ductile_addr end) {
    ductile_addr from = dti_max(start, b->addr);
    ductile_addr to = dti_min(end, dpool_end(b));
    if (b->state == DPOOL_FREE) {
        return dpool_carve_free_locked(a, b, from, to);
    }
    ductile_addr low = granule_floor(a, p->region, from);
    ductile_addr high = granule_ceil(a, p->region, to);
    dpool_block *part = dpool_carve_gap_locked(a, b, low, high);
    add_piece(a, p, low, high);
    dpool_block *body = dpool_cut(&a->nodes, part, from);
    p->head = body != part ? part : p->head;
    dpool_block *surplus = dpool_cut(&a->nodes, body, to);
    p->rest = surplus != body ? surplus : p->rest;
    return body;
}

static void busy_window(ductile_allocator *a, dpool_plan *p, const dpool_place *place,
                        uint64_t size) {
    ductile_addr end = place->start + size;
    p->body_bytes = size;
    p->body = busy_part(a, p, place->block, place->start, end);
    for (dpool_block *b = p->body; dpool_end(b) < end;) {
        b = busy_part(a, p, b->next, place->start, end);
    }
}

/* ---- Waits on the GPU ---------------------------------------------------------------------- */

/* One marker covers all streams: the oldest that proves all donors of other streams. */
static void choose_wait_locked(const ductile_allocator *a, dpool_plan *p) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t age = 0;
    for (uint32_t i = p->n_own_donors; i < p->n_donors; i++) {
        const dpool_arena *from = p->donors[i]->region->arena;
        uint64_t of_donor = dpool_age_of(p->donors[i]);
        bool is_proven = of_donor < dpool_proof_to_leave(a, from).age;
        age = is_proven ? age : dti_max(age, of_donor);
    }
    p->wait = age > 0 ? dpool_hold_mark_of_locked(a, age) : NULL;
}

/* ---- Donors -------------------------------------------------------------------------------- */

/* The granules of b that are backed by whole handles inside it, and that begin and end with a
 * handle that may move. */
static dseg_span movable_in(const dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    return dseg_movable_in(seg, dseg_granules_in(seg, b->addr, dpool_end(b)));
}

static bool is_gap(const dpool_block *b) {
    return b != NULL && b->state == DPOOL_GAP;
}

static bool is_beside_gap(const dpool_block *b) {
    return is_gap(b->prev) || is_gap(b->next);
}

/* Taking from the side of a gap makes no new one. */
static bool take_from_top(const dpool_block *b) {
    return is_gap(b->next) || !is_gap(b->prev);
}

/* A walk over what an arena can donate. Blocks beside a gap come first, because every new gap
 * leaves two slivers that no large request can use; then the largest blocks, for the same reason.
 * Of 7 orders that were tried, this one kept most memory usable (docs/dev/decisions/0003). */
typedef struct donations {
    dpool_arena *from;
    dpool_proof of; /* what was freed at an age below it */
    bool unmaps;    /* instead of moving: the proof says that it may */
    uint32_t least; /* granules of a handle that is unmapped    */
    uint32_t most;  /* granules of a handle that moves by itself */
    bool beside_gaps;
    dpool_block *next; /* where the walk goes on */
    dpool_block *block;
    dseg_span span; /* of the block, to be looked at */
    bool is_singly; /* handle by handle */
    bool has_given; /* some of the block, since the span was found */
} donations;

/* The part of free memory of another stream on which no recorded work may be under way. */
static dseg_span spare_due_waits(const ductile_allocator *a, const dseg_segment *seg, dseg_span s) {
    while (!dseg_is_empty(s)) {
        const dpool_use *due =
            dpool_wait_find_due_locked(a, dseg_addr(seg, s.first), dseg_addr(seg, s.end));
        if (due == NULL) {
            break;
        }
        if (due->addr >= dseg_addr(seg, s.first + 1)) {
            s.end = dseg_granule(seg, due->addr);
        } else {
            s.first = dseg_granule(seg, due->end - 1) + 1;
        }
    }
    return dseg_movable_in(seg, s);
}

/* Finds what the block can give: whole handles that may move, old enough, from the top down.
 * Handles of several granules are separate donors, because some may fit no piece. So are handles
 * between others that must stay. */
static void look_at(const ductile_allocator *a, const dpool_plan *p, donations *d, dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    dseg_span s = movable_in(b);
    if (!dpool_waits_are_none(a) && (d->from != p->arena || d->unmaps)) {
        s = spare_due_waits(a, seg, s);
    }
    s = b->age < d->of.age ? s : dseg_movable_in(seg, dpool_older_part(b, s, d->of.age));
    d->block = b;
    d->span = s;
    d->is_singly = !d->unmaps && (dpool_has_large_handles(a) || dseg_ties_of(seg, s).pinned);
    d->has_given = false;
}

static bool look_at_next(const ductile_allocator *a, const dpool_plan *p, donations *d) {
    dpool_block *b = d->next;
    while (b != NULL && b->size >= a->granule && is_beside_gap(b) != d->beside_gaps) {
        b = dpool_index_below(&d->from->index, b);
    }
    if (b != NULL && b->size >= a->granule) {
        d->next = dpool_index_below(&d->from->index, b);
        look_at(a, p, d, b);
        return true;
    }
    bool is_first = d->beside_gaps;
    d->beside_gaps = false;
    d->next = dpool_index_below(&d->from->index, NULL);
    return is_first && look_at_next(a, p, d);
}

/* The topmost handle of the span that may move. */
static dseg_span take_handle(donations *d) {
    const dseg_segment *seg = d->block->region->seg;
    while (!dseg_is_empty(d->span)) {
        uint32_t end = d->span.end;
        d->span.end -= dseg_handle_at(seg, end - 1)->n_granules;
        if (end - d->span.end <= d->most && !dseg_is_pinned(seg, end - 1)) {
            return (dseg_span){d->span.end, end};
        }
    }
    return d->span;
}

/* The topmost run of the span that can go, and the span is what is left below it. */
static dseg_span take_topmost(donations *d, uint64_t need) {
    dseg_span run = dseg_topmost_run(d->block->region->seg, d->span, need, d->least);
    d->span.end = dseg_is_empty(run) ? d->span.first : run.first;
    return run;
}

/* What the span gives next, from the side of a gap: of a run that is unmapped the last handle may
 * be larger than needed, since the one made of it may be smaller. An elastic range, whose memory
 * leaves in no other way, gives what lies between handles that must stay, too, and so does an arena
 * whose granules stay. */
static dseg_span take_of_span(donations *d, uint64_t need) {
    dseg_span s = d->span;
    if (dseg_is_empty(s)) {
        return s;
    }
    if (d->is_singly) {
        return take_handle(d);
    }
    if (d->unmaps && (d->from->is_elastic || d->least > 1)) {
        return take_topmost(d, need);
    }
    d->span.end = s.first;
    bool at_top = take_from_top(d->block);
    if (d->unmaps) {
        return dseg_run_at_end(d->block->region->seg, s, need, at_top);
    }
    uint32_t n = (uint32_t)dti_min(s.end - s.first, need);
    return at_top ? (dseg_span){s.end - n, s.end} : (dseg_span){s.first, s.first + n};
}

/* Each run of old granules in a block of several ages is a donation; the block is what remains
 * below. */
static bool look_on(const ductile_allocator *a, const dpool_plan *p, donations *d) {
    bool is_more = d->has_given && d->block->state == DPOOL_FREE && d->block->age >= d->of.age;
    if (is_more) {
        look_at(a, p, d, d->block);
    }
    return is_more || look_at_next(a, p, d);
}

/* The next donation, about `need` granules of it; empty at the end. */
static dseg_span next_donation(const ductile_allocator *a, const dpool_plan *p, donations *d,
                               uint64_t need) {
    dseg_span run = take_of_span(d, need);
    while (dseg_is_empty(run) && look_on(a, p, d)) {
        run = take_of_span(d, need);
    }
    d->has_given = true;
    return run;
}

static void add_donor(ductile_allocator *a, dpool_plan *p, const donations *d, dseg_span run) {
    dseg_segment *seg = d->block->region->seg;
    p->donations[p->n_donors] = (dseg_donor){.seg = seg,
                                             .first = run.first,
                                             .n_granules = run.end - run.first,
                                             .state = d->unmaps ? DSEG_TO_UNMAP : DSEG_MAY_MOVE,
                                             .idle = d->of.idle};
    p->donors[p->n_donors++] =
        dpool_carve_free_locked(a, d->block, dseg_addr(seg, run.first), dseg_addr(seg, run.end));
    p->donated += run.end - run.first;
}

static void take_donations(ductile_allocator *a, dpool_plan *p, donations *d) {
    while (p->donated < p->need && p->n_donors < p->room && a->nodes.n_spare >= 2) {
        dseg_span run = next_donation(a, p, d, p->need - p->donated);
        if (dseg_is_empty(run)) {
            return;
        }
        add_donor(a, p, d, run);
    }
}

/* With larger handles, the memory that the GPU is known to be done with is taken first, and
 * unmapped. Memory leaves an elastic range in no other way: the next commit would meet the old
 * address of what has moved. */
static bool may_take(const ductile_allocator *a, const dpool_arena *from, bool unmaps) {
    return unmaps ? from->is_elastic || dpool_may_exchange(a) : !from->is_elastic;
}

/* Handles of at most so many granules. */
static void take_small_from(ductile_allocator *a, dpool_plan *p, dpool_arena *from, dpool_proof of,
                            bool unmaps, uint32_t most) {
    bool stays = !from->is_elastic && dpool_keeps_old_addresses_locked(a, from);
    if (of.age > 0 && may_take(a, from, unmaps)) {
        take_donations(a, p,
                       &(donations){.from = from,
                                    .of = of,
                                    .unmaps = unmaps,
                                    .least = stays ? 2 : 1,
                                    .most = most,
                                    .beside_gaps = true,
                                    .next = dpool_index_below(&from->index, NULL)});
    }
}

static void take_from(ductile_allocator *a, dpool_plan *p, dpool_arena *from, dpool_proof of,
                      bool unmaps) {
    take_small_from(a, p, from, of, unmaps, UINT32_MAX);
}

/* Granules first, where they stay: they fit, and may come back. */
void dpool_plan_take_own_locked(ductile_allocator *a, dpool_plan *p) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (!dpool_is_frozen(p->arena)) {
        if (dpool_may_exchange(a) && dpool_keeps_old_addresses_locked(a, p->arena)) {
            take_small_from(a, p, p->arena, (dpool_proof){.age = UINT64_MAX}, false, 1);
        }
        take_from(a, p, p->arena, dpool_proof_to_return(a, p->arena), true);
        take_from(a, p, p->arena, (dpool_proof){.age = UINT64_MAX}, false);
        p->n_own_donors = p->n_donors;
    }
}

static void take_other(ductile_allocator *a, dpool_plan *p, dpool_arena *from, bool behind_wait) {
    if (behind_wait) {
        take_from(a, p, from, (dpool_proof){.age = dpool_marked_age_locked(a, from)}, false);
        return;
    }
    dpool_proof proof = dpool_proof_to_leave(a, from);
    take_from(a, p, from, proof, true);
    take_from(a, p, from, proof, false);
}

static bool may_give(const dpool_plan *p, const dpool_arena *arena, bool from_pools) {
    return arena != p->arena && dpool_may_serve(arena, p->arena, from_pools);
}

static uint64_t spare_bytes(const dpool_arena *arena) {
    return arena->blocks.mapped_bytes - arena->live.bytes - arena->blocks.pending_bytes;
}

/* From the arena with most free memory first: a stream with little free memory soon needs it again
 * (docs/dev/decisions/0026). */
void dpool_plan_take_others_locked(ductile_allocator *a, dpool_plan *p, bool behind_wait,
                                   bool from_pools) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_arena *richest = NULL;
    for (dpool_arena *at = a->arenas; at != NULL; at = at->next) {
        bool is_richer = richest == NULL || spare_bytes(at) > spare_bytes(richest);
        richest = may_give(p, at, from_pools) && is_richer ? at : richest;
    }
    if (richest != NULL) {
        take_other(a, p, richest, behind_wait);
    }
    for (dpool_arena *at = a->arenas; at != NULL && p->donated < p->need; at = at->next) {
        if (at != richest && may_give(p, at, from_pools)) {
            take_other(a, p, at, behind_wait);
        }
    }
}

/* ---- Requests and compaction --------------------------------------------------------------- */

void dpool_prove_own(ductile_allocator *a, dpool_arena *arena) {
    if (!dpool_may_exchange(a)) {
        return;
    }
    dti_lock_acquire(&a->index_lock);
    const dpool_block *largest = dpool_index_below(&arena->index, NULL);
    bool has_granule = largest != NULL && largest->size >= a->granule;
    dti_lock_release(&a->index_lock);
    if (has_granule) {
        (void)dpool_record_mark(a, arena);
        dpool_poll_marks(a);
    }
}

/* The handle cache serves every request first. */
static void deduct_cached(const ductile_allocator *a, dpool_plan *p) {
    p->need = p->n_granules - dti_min(p->n_granules, a->store.totals.cached_bytes / a->granule);
}

void dpool_plan_begin_locked(ductile_allocator *a, dpool_plan *p, dpool_arena *arena,
                             const dpool_place *place, uint64_t size, uint64_t max_held) {
    DTI_ASSERT_HELD(&a->index_lock);
    clear(p, arena, place->block->region);
    p->max_held = max_held;
    busy_window(a, p, place, size);
    deduct_cached(a, p);
}

void dpool_plan_begin_units_locked(ductile_allocator *a, dpool_plan *p, const dpool_units *units,
                                   uint64_t max_held) {
    DTI_ASSERT_HELD(&a->index_lock);
    clear(p, units->range->arena, units->range->region);
    p->max_held = max_held;
    dpool_block *next = NULL;
    for (dpool_block *b = dpool_units_first_locked(a, units); b != NULL && b->addr < units->to;
         b = next) {
        if (is_open(b)) {
            b = busy_part(a, p, b, units->from, units->to);
            p->parts[p->n_parts++] = b;
        }
        next = b->next;
    }
    deduct_cached(a, p);
}

/* A limit that was lowered below the held bytes lacks that much more. */
ductile_status dpool_plan_end_locked(ductile_allocator *a, dpool_plan *p) {
    DTI_ASSERT_HELD(&a->index_lock);
    choose_wait_locked(a, p);
    uint64_t after = a->store.totals.held_bytes + p->created * a->granule;
    p->needs = after;
    p->lacks = p->created > 0 ? dpool_above_limits(a, after, p->max_held) : 0;
    if (p->lacks > 0) {
        dpool_plan_abort_locked(a, p);
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    return DUCTILE_OK;
}

/* The topmost FREE block above the gap, in its run, that can give a handle; NULL for none. */
static dpool_block *top_of_run(dpool_block *gap) {
    dpool_block *top = NULL;
    for (dpool_block *b = gap->next; b != NULL; b = b->next) {
        if (b->state == DPOOL_FREE && !dseg_is_empty(movable_in(b))) {
            top = b;
        } else if (b->state != DPOOL_GAP && b->state != DPOOL_FREE) {
            break;
        }
    }
    return top;
}

/* What larger handles cost to move is not repaid while next to nothing strands. */
static uint64_t most_times(const ductile_allocator *a) {
    bool is_worth = !dpool_has_large_handles(a) || dpool_strands_locked(a);
    return is_worth ? FILLED_TIMES : EXCHANGED_TIMES;
}

/* Filling a gap joins the free memory on both sides of it. A wide gap beside a sliver costs more
 * moves than the sliver is worth (docs/dev/decisions/0004, 0046). */
static bool is_worth_filling(const ductile_allocator *a, const dpool_block *gap) {
    const dpool_block *before = gap->prev;
    const dpool_block *after = gap->next;
    if (before == NULL || after == NULL || before->state != DPOOL_FREE ||
        after->state != DPOOL_FREE) {
        return false;
    }
    return gap->size <= most_times(a) * dti_min(before->size, after->size);
}

bool dpool_can_be_compacted_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *gap = arena->blocks.gaps.first;
    while (gap != NULL && (!is_worth_filling(a, gap) || top_of_run(gap) == NULL)) {
        gap = gap->list_next;
    }
    return gap != NULL;
}

bool dpool_plan_compaction_locked(ductile_allocator *a, dpool_plan *p, dpool_arena *arena,
                                  dpool_block *gap, uint32_t budget) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (!is_worth_filling(a, gap)) {
        return false;
    }
    dpool_block *top = top_of_run(gap);
    if (top == NULL) {
        return false;
    }
    clear(p, arena, gap->region);
    p->max_held = UINT64_MAX; /* the limit alone */
    uint64_t wide = gap->size / a->granule;
    p->need = dti_min(wide, budget);
    dpool_proof proof = dpool_proof_to_return(a, arena);
    bool stays = dpool_keeps_old_addresses_locked(a, arena);
    donations d = {.from = arena,
                   .of = {UINT64_MAX, proof.idle},
                   .unmaps = dpool_may_exchange(a) && top->age < proof.age && !stays,
                   .least = 1,
                   .most = UINT32_MAX};
    look_at(a, p, &d, top);
    take_donations(a, p, &d);
    bool fits = p->donated <= wide || d.unmaps; /* otherwise: handles that move, and are larger */
    if (p->donated == 0 || !fits) {
        dpool_plan_abort_locked(a, p);
        return false;
    }
    p->n_own_donors = p->n_donors;
    uint64_t filled = d.unmaps ? dti_min(p->donated, p->need) : p->donated;
    ductile_addr end = gap->addr + filled * a->granule;
    p->head = dpool_carve_gap_locked(a, gap, gap->addr, end);
    add_piece(a, p, p->head->addr, end);
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/homes.h"

#include "pool/blocks/age.h"
#include "pool/blocks/proofs.h"
#include "pool/blocks/region.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/plan.h"
#include "pool/streams/progress.h"

#include "segments/granules.h"
#include "vmm/base/align.h"

enum {
    NODES = 2048,      /* reserved for one hold of the index lock */
    NODES_OF_A_RUN = 4 /* two cuts where it leaves, two where it arrives */
};

/* May memory of the arena return to an old address now? */
static bool may_return_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool may_keep = dpool_keeps_old_addresses_locked(a, arena);
    return may_keep && arena->retiring.kept.count > 0 && !dpool_is_frozen(arena);
}

/* ---- What is free --------------------------------------------------------------------------- */

static dseg_span granules_of(const dpool_block *b) {
    return dseg_granules_in(b->region->seg, b->addr, dpool_end(b));
}

static dvmm_handle *handle_at(const dpool_block *b, uint32_t granule) {
    return dseg_handle_at(b->region->seg, granule);
}

static void stamp(const dpool_block *b, uint32_t number) {
    dseg_span s = dseg_movable_in(b->region->seg, granules_of(b));
    for (uint32_t g = s.first; g < s.end;) {
        dvmm_handle *h = handle_at(b, g);
        if (h->n_pins == 0) {
            h->stamp = number;
            h->place = dseg_addr(b->region->seg, g);
            h->home = h->home == 0 ? h->place : h->home;
        }
        g += h->n_granules;
    }
}

/* The block of a granule or more that comes next downwards in size; `last` is a copy of the last
 * one, of size 0 at the start. NULL at the end. */
static dpool_block *next_free(const ductile_allocator *a, const dpool_arena *arena,
                              dpool_block *last) {
    dpool_block *b = dpool_index_below(&arena->index, last->size == 0 ? NULL : last);
    if (b == NULL || b->size < a->granule) {
        return NULL;
    }
    *last = *b;
    return b;
}

/* Of the three numbers of a walk, the first says that a handle is free. */
enum { CHOSEN = 1, ARRIVED = 2, NUMBERS = 3 };

/* Stamps the handles that are free and not pinned with a new number, and with where they are.
 * Returns the number. Linear in the free granules. */
static uint32_t stamp_free_locked(ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint32_t number = a->sizes.stamp += NUMBERS;
    dpool_block last = {.size = 0};
    for (const dpool_block *b; (b = next_free(a, arena, &last)) != NULL;) {
        stamp(b, number);
    }
    return number;
}

/* ---- A walk --------------------------------------------------------------------------------- */

/* From addr up to end. */
typedef struct addresses {
    ductile_addr addr, end;
} addresses;

/* Some handles change places, between free memory and kept addresses of one arena. */
typedef struct walk {
    ductile_allocator *a;
    dpool_arena *arena;
    addresses to;                    /* where memory is to arrive; none: at home */
    uint32_t number;                 /* of free handles                                        */
    uint64_t n_runs;                 /* chosen                                                 */
    uint64_t n;                      /* handles chosen                                         */
    uint64_t age;                    /* of the youngest memory that left                       */
    ductile_addr next_from, next_to; /* where a handle would continue the run   */
    bool is_full;                    /* more are left than nodes are spare      */
} walk;

static bool overlaps(const walk *w, ductile_addr addr, uint64_t bytes) {
    return addr < w->to.end && addr + bytes > w->to.addr;
}

static bool is_wanted(const walk *w, const dvmm_handle *h, ductile_addr at) {
    if (w->to.addr == w->to.end) {
        return h->home == at;
    }
    uint64_t bytes = dvmm_handle_bytes(&w->a->store, h);
    return overlaps(w, at, bytes) && !overlaps(w, h->place, bytes);
}

static bool have_nodes(walk *w, const dvmm_handle *h, ductile_addr at) {
    bool goes_on = h->place == w->next_from && at == w->next_to;
    w->n_runs += !goes_on;
    w->next_from = h->place + dvmm_handle_bytes(&w->a->store, h);
    w->next_to = at + dvmm_handle_bytes(&w->a->store, h);
    return w->n_runs * NODES_OF_A_RUN <= w->a->nodes.n_spare;
}

static void choose_in(walk *w, const dpool_block *old) {
    const dseg_segment *seg = old->region->seg;
    dseg_span all = granules_of(old);
    for (uint32_t g = all.first; g < all.end && !w->is_full;) {
        dvmm_handle *h = handle_at(old, g);
        if (h->stamp == w->number && is_wanted(w, h, dseg_addr(seg, g))) {
            w->is_full = !have_nodes(w, h, dseg_addr(seg, g));
            h->stamp += w->is_full ? 0 : CHOSEN;
            w->n += !w->is_full;
        }
        g += h->n_granules;
    }
}

static void choose_locked(walk *w) {
    DTI_ASSERT_HELD(&w->a->index_lock);
    w->number = stamp_free_locked(w->a, w->arena);
    for (const dpool_block *b = w->arena->retiring.kept.first; b != NULL && !w->is_full;
         b = b->list_next) {
        choose_in(w, b);
    }
}

/* ---- Leaving -------------------------------------------------------------------------------- */

/* The topmost run of handles in the span with that stamp. Cuts the span below it. */
static dseg_span take_stamped(const dpool_block *b, dseg_span *s, uint32_t number) {
    while (!dseg_is_empty(*s) && handle_at(b, s->end - 1)->stamp != number) {
        s->end -= handle_at(b, s->end - 1)->n_granules;
    }
    dseg_span run = {s->end, s->end};
    while (run.first > s->first && handle_at(b, run.first - 1)->stamp == number) {
        run.first -= handle_at(b, run.first - 1)->n_granules;
    }
    s->end = run.first;
    return run;
}

/* From the top down: the block itself is what remains below. */
static void leave_locked(walk *w, dpool_block *b) {
    DTI_ASSERT_HELD(&w->a->index_lock);
    dseg_segment *seg = b->region->seg;
    dseg_span rest = dseg_movable_in(seg, granules_of(b));
    dseg_span run;
    while (!dseg_is_empty(run = take_stamped(b, &rest, w->number + CHOSEN))) {
        dpool_block *gone =
            dpool_carve_free_locked(w->a, b, dseg_addr(seg, run.first), dseg_addr(seg, run.end));
        dpool_count_mapped_locked(w->a, w->arena, -(int64_t)gone->size);
        dseg_retire(seg, run.first, run.end - run.first);
        dpool_retire_locked(w->a, gone, true);
        w->age = dti_max(w->age, gone->age);
    }
}

/* ---- Arriving ------------------------------------------------------------------------------- */

/* As take_stamped, of those that want to arrive here; each arrives once. */
static dseg_span take_arriving(const walk *w, const dpool_block *old, dseg_span *s) {
    const dseg_segment *seg = old->region->seg;
    dseg_span run = {s->end, s->end};
    while (run.first > s->first) {
        dvmm_handle *h = handle_at(old, run.first - 1);
        uint32_t first = run.first - h->n_granules;
        bool arrives = h->stamp == w->number + CHOSEN && is_wanted(w, h, dseg_addr(seg, first));
        if (!arrives && run.first < run.end) {
            break;
        }
        h->stamp += arrives ? ARRIVED - CHOSEN : 0;
        run = (dseg_span){first, arrives ? run.end : first};
    }
    s->end = run.first;
    return run;
}

/* As young as all that came: not of each run the age was kept. */
static void serve_again_locked(walk *w, dpool_block *b) {
    DTI_ASSERT_HELD(&w->a->index_lock);
    dseg_segment *seg = b->region->seg;
    dseg_serve_again(seg, dseg_granule(seg, b->addr), (uint32_t)(b->size / w->a->granule));
    dpool_count_mapped_locked(w->a, w->arena, (int64_t)b->size);
    b->age = dti_max(b->age, w->age) & DPOOL_AGE_MASK;
    (void)dpool_make_free_locked(w->a, b);
}

static void arrive_locked(walk *w, dpool_block *old) {
    DTI_ASSERT_HELD(&w->a->index_lock);
    const dseg_segment *seg = old->region->seg;
    dseg_span rest = granules_of(old);
    dseg_span run;
    while (!dseg_is_empty(rest) && !dseg_is_empty(run = take_arriving(w, old, &rest))) {
        serve_again_locked(w, dpool_carve_kept_locked(w->a, old, dseg_addr(seg, run.first),
                                                      dseg_addr(seg, run.end)));
    }
}

static void exchange_locked(walk *w) {
    DTI_ASSERT_HELD(&w->a->index_lock);
    if (w->n == 0) {
        return;
    }
    dpool_block last = {.size = 0};
    for (dpool_block *b; (b = next_free(w->a, w->arena, &last)) != NULL;) {
        leave_locked(w, b);
    }
    for (dpool_block *b = w->arena->retiring.kept.first, *next; b != NULL; b = next) {
        next = b->list_next;
        arrive_locked(w, b);
    }
}

/* In pieces, each as large as there are nodes for. True when any memory changed places. */
static bool change_places(ductile_allocator *a, dpool_arena *arena, addresses to) {
    bool any = false;
    walk w = {.is_full = arena->retiring.kept.count > 0}; /* changes under the grow lock too */
    while (w.is_full && dpool_reserve_room(a, NODES) == DUCTILE_OK) {
        w = (walk){.a = a, .arena = arena, .to = to};
        dti_lock_acquire(&a->index_lock);
        if (may_return_locked(a, arena)) {
            choose_locked(&w);
        }
        exchange_locked(&w);
        a->counts.readdressed_handles += w.n;
        dti_lock_release(&a->index_lock);
        w.is_full &= w.n > 0;
        any |= w.n > 0;
    }
    return any;
}

/* ---- Going home, and coming back ------------------------------------------------------------ */

bool dpool_go_home(ductile_allocator *a, dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->grow_lock);
    return change_places(a, arena, (addresses){0, 0});
}

static bool lies_on_old_address(const dpool_place *place, uint64_t size) {
    const dpool_block *b = place->block;
    while (b != NULL && b->addr < place->start + size && b->state != DPOOL_RETIRING) {
        b = b->next;
    }
    return b != NULL && b->addr < place->start + size;
}

/* With a fresh look at what is free. */
static dpool_place choose_place_locked(ductile_allocator *a, const dpool_arena *arena,
                                       uint64_t size) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (!may_return_locked(a, arena)) {
        return (dpool_place){.block = NULL};
    }
    return dpool_place_over_old_locked(a, arena, size, stamp_free_locked(a, arena));
}

bool dpool_open_place(ductile_allocator *a, dpool_arena *arena, uint64_t size) {
    DTI_ASSERT_HELD(&a->grow_lock);
    dti_lock_acquire(&a->index_lock);
    dpool_place place = choose_place_locked(a, arena, size);
    dpool_region *region = place.block != NULL ? place.block->region : NULL;
    bool is_in_the_way = region != NULL && lies_on_old_address(&place, size);
    dti_lock_release(&a->index_lock);
    if (!is_in_the_way) {
        return false;
    }
    bool came = change_places(a, arena, (addresses){place.start, place.start + size});
    return dpool_unmap_kept(a, region, place.start, place.start + size) || came;
}

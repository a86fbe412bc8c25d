/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which blocks make room at least cost. Whatever is freed, the hole is a run of free blocks and
 * candidates; costs are not negative, so the cheapest run is one from which neither end can be left
 * out. For each last block there is one such run, and its first block only moves forward: two
 * pointers find all of them in one pass over a region.
 */
#include "pool/base/guards.h"
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/region.h"

#include <ductile_pressure.h>

#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    ductile_addr address;
    uint64_t cost;
} candidate;

/* Blocks from `first` to `last`. */
typedef struct run {
    const dpool_block *first; /* NULL: there are none */
    const dpool_block *last;
    const candidate *next; /* the first candidate at `first` or behind it */
    uint64_t bytes;
    uint64_t cost;
    uint64_t n_blocks;
} run;

typedef struct plan {
    const candidate *candidates; /* by address */
    const candidate *end;
    uint64_t need;
    uint64_t largest; /* hole with all candidates freed */
    run best;
} plan;

/* ---- Candidates ---------------------------------------------------------------------------- */

static int compare_addresses(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    return (a->address > b->address) - (a->address < b->address);
}

/* Copies the candidates in the order of addresses. */
static ductile_status sort_candidates(size_t n, const ductile_addr *addresses,
                                      const uint64_t *costs, candidate *sorted) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        sorted[i] = (candidate){addresses[i], costs[i]};
        if (__builtin_add_overflow(total, costs[i], &total)) {
            return DUCTILE_ERR_INVALID_ARGUMENT;
        }
    }
    qsort(sorted, n, sizeof *sorted, compare_addresses);
    for (size_t i = 1; i < n; i++) {
        if (sorted[i].address == sorted[i - 1].address) {
            return DUCTILE_ERR_INVALID_ARGUMENT;
        }
    }
    return DUCTILE_OK;
}

static ductile_status check_live_locked(const ductile_allocator *a, const plan *p,
                                        ductile_eviction *found) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (const candidate *c = p->candidates; c < p->end; c++) {
        if (dpool_map_find(&a->map, c->address) == NULL) {
            found->address = c->address;
            return dpool_explain_miss_locked(a, c->address);
        }
    }
    return DUCTILE_OK;
}

/* The first candidate at `address` or behind it. */
static const candidate *find_from(const plan *p, ductile_addr address) {
    const candidate *from = p->candidates;
    for (size_t n = (size_t)(p->end - from); n > 0;) {
        size_t half = n / 2;
        bool is_before = from[half].address < address;
        from = is_before ? from + half + 1 : from;
        n = is_before ? n - half - 1 : half;
    }
    return from;
}

/* ---- Runs ---------------------------------------------------------------------------------- */

static bool is_at(const plan *p, const candidate *c, const dpool_block *b) {
    return c < p->end && c->address == b->addr;
}

static bool is_better(const run *r, const run *best) {
    if (best->first == NULL || r->cost != best->cost) {
        return best->first == NULL || r->cost < best->cost;
    }
    return r->n_blocks != best->n_blocks ? r->n_blocks < best->n_blocks : r->bytes < best->bytes;
}

static void append(run *r, const dpool_block *b, const candidate *c) {
    if (r->first == NULL) {
        *r = (run){.first = b, .next = c};
    }
    r->last = b;
    r->bytes += b->size;
    if (b->state == DPOOL_LIVE) {
        r->cost += c->cost;
        r->n_blocks++;
    }
}

static void leave_out_first(run *r) {
    r->bytes -= r->first->size;
    if (r->first->state == DPOOL_LIVE) {
        r->cost -= r->next->cost;
        r->n_blocks--;
        r->next++;
    }
    r->first = r->first->next;
}

static void search_region_locked(const ductile_allocator *a, const dpool_region *region, plan *p) {
    DTI_ASSERT_HELD(&a->index_lock);
    const candidate *c = find_from(p, region->first->addr);
    uint64_t hole = 0;
    run r = {0};
    for (const dpool_block *b = region->first; b != NULL; b = b->next) {
        bool is_candidate = is_at(p, c, b);
        if (b->state == DPOOL_FREE || (is_candidate && b->state == DPOOL_LIVE)) {
            append(&r, b, c);
            hole += b->size;
        } else {
            r = (run){0};
            hole = 0;
        }
        c += is_candidate;
        while (r.first != r.last && r.bytes - r.first->size >= p->need) {
            leave_out_first(&r);
        }
        p->largest = dti_max(p->largest, hole);
        if (r.first != NULL && r.bytes >= p->need && is_better(&r, &p->best)) {
            p->best = r;
        }
    }
}

static void describe_best_locked(const ductile_allocator *a, const run *best, ductile_addr *chosen,
                                 ductile_eviction *found) {
    DTI_ASSERT_HELD(&a->index_lock);
    ductile_addr *next = chosen;
    const dpool_block *before = best->first->prev, *after = best->last->next;
    for (const dpool_block *b = best->first; b != after; b = b->next) {
        if (b->state == DPOOL_LIVE) {
            *next++ = b->addr;
        }
    }
    bool joins_before = before != NULL && before->state == DPOOL_FREE;
    bool joins_after = after != NULL && after->state == DPOOL_FREE;
    found->address = joins_before ? before->addr : best->first->addr;
    found->size = (joins_after ? dpool_end(after) : dpool_end(best->last)) - found->address;
    found->cost = best->cost;
    found->n_blocks = best->n_blocks;
}

static ductile_status make_plan_locked(ductile_allocator *a, ductile_stream stream, plan *p,
                                       ductile_addr *chosen, ductile_eviction *found) {
    DTI_ASSERT_HELD(&a->index_lock);
    DTI_TRY(check_live_locked(a, p, found));
    const dpool_arena *arena = dpool_arena_find_locked(a, a->default_pool, stream);
    for (const dpool_region *r = arena != NULL ? arena->regions : NULL; r != NULL; r = r->next) {
        if (!r->is_dedicated) {
            search_region_locked(a, r, p);
        }
    }
    if (p->best.first == NULL) {
        found->size = p->largest;
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    describe_best_locked(a, &p->best, chosen, found);
    return DUCTILE_OK;
}

/* ---- The call ------------------------------------------------------------------------------ */

ductile_status ductile_plan_eviction(ductile_allocator *a, size_t size, ductile_stream stream,
                                     size_t n_candidates, const ductile_addr *addresses,
                                     const uint64_t *costs, ductile_addr *chosen,
                                     ductile_eviction *out) {
    ductile_status status = dpool_may_fill(a, out, sizeof *out);
    bool has_arrays = addresses != NULL && costs != NULL && chosen != NULL;
    if (status != DUCTILE_OK || size == 0 || (n_candidates > 0 && !has_arrays)) {
        return status != DUCTILE_OK ? status : DUCTILE_ERR_INVALID_ARGUMENT;
    }
    candidate *sorted = calloc(n_candidates + 1, sizeof *sorted);
    if (sorted == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    status = sort_candidates(n_candidates, addresses, costs, sorted);
    if (status == DUCTILE_OK) {
        ductile_eviction found = {.struct_size = out->struct_size};
        plan p = {.candidates = sorted,
                  .end = sorted + n_candidates,
                  .need = size > DPOOL_MAX_REQUEST ? UINT64_MAX : dpool_rounded_size(a, size)};
        dti_lock_acquire(&a->index_lock);
        status = make_plan_locked(a, stream, &p, chosen, &found);
        dti_lock_release(&a->index_lock);
        memcpy(out, &found, found.struct_size);
    }
    free(sorted);
    return status;
}

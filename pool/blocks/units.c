/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/units.h"

#include "pool/blocks/address_map.h"
#include "pool/blocks/transitions.h"
#include "pool/blocks/wait_spans.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"

/* ---- Finding ------------------------------------------------------------------------------- */

/* A block in use at most `distance` units away, below or above. */
static dpool_block *in_use_at(const ductile_allocator *a, const dpool_units *u, uint64_t distance) {
    const dvmm_range *all = &u->range->region->seg->range;
    uint64_t away = distance * u->range->unit_bytes;
    dpool_block *b = NULL;
    if (away <= u->from - all->addr) {
        b = dpool_map_find(&a->map, u->from - away);
    }
    if (b == NULL && away < all->addr + all->size - u->from) {
        b = dpool_map_find(&a->map, u->from + away);
    }
    return b;
}

/* Ranges are long, and grow and shrink at few places: some unit nearby is mostly in use. Where none
 * is, few blocks lie before them. So both are tried in turn. */
static dpool_block *near_block(const ductile_allocator *a, const dpool_units *u) {
    dpool_block *from_first = u->range->region->first;
    dpool_block *b = NULL;
    for (uint64_t distance = 0; dpool_end(from_first) <= u->from && b == NULL; distance++) {
        b = in_use_at(a, u, distance);
        from_first = from_first->next;
    }
    return b != NULL ? b : from_first;
}

dpool_block *dpool_units_first_locked(const ductile_allocator *a, const dpool_units *u) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = near_block(a, u);
    while (b->addr > u->from) {
        b = b->prev;
    }
    while (dpool_end(b) <= u->from) {
        b = b->next;
    }
    return b;
}

void dpool_units_sum_locked(const ductile_allocator *a, const dpool_units *u,
                            uint64_t bytes[DPOOL_STATES]) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (int i = 0; i < DPOOL_STATES; i++) {
        bytes[i] = 0;
    }
    for (const dpool_block *b = dpool_units_first_locked(a, u); b != NULL && b->addr < u->to;
         b = b->next) {
        bytes[b->state] += dti_min(dpool_end(b), u->to) - dti_max(b->addr, u->from);
    }
}

/* ---- Taking -------------------------------------------------------------------------------- */

/* Nothing is missing of them but that they are LIVE. */
static bool are_open_locked(const ductile_allocator *a, const dpool_units *u, uint64_t *n_free) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t bytes[DPOOL_STATES];
    dpool_units_sum_locked(a, u, bytes);
    *n_free = bytes[DPOOL_FREE] / u->range->unit_bytes;
    bool needs_wait = !dpool_waits_are_none(a) && dpool_wait_covers_locked(a, u->from, u->to);
    return bytes[DPOOL_FREE] + bytes[DPOOL_LIVE] == dpool_units_bytes(u) && !needs_wait;
}

/* Units that this call has made LIVE, until it ends: no other thread sees them. */
enum { FRESH = 1 };

/* Makes [b, end of b), BUSY, a row of units. False when the address map became crowded; what is
 * left is FREE again then. */
static bool make_live(ductile_allocator *a, dpool_block *b, uint64_t unit_bytes) {
    for (dpool_block *rest = b; rest != NULL; b = rest) {
        if (!dpool_map_has_room(&a->map)) {
            (void)dpool_make_free_locked(a, b);
            return false;
        }
        rest = b->size > unit_bytes ? dpool_split(&a->nodes, b, unit_bytes) : NULL;
        dpool_make_live_locked(a, b, unit_bytes);
        b->priority = FRESH;
    }
    return true;
}

/* By their addresses, since free memory merges. */
static void give_back_fresh(ductile_allocator *a, const dpool_units *u) {
    for (ductile_addr at = u->from; at < u->to; at += u->range->unit_bytes) {
        dpool_block *b = dpool_map_find(&a->map, at);
        if (b != NULL && b->priority == FRESH) {
            dpool_unserve_locked(a, b);
        }
    }
}

static void keep_fresh(dpool_block *first, const dpool_units *u) {
    for (dpool_block *b = first; b != NULL && b->addr < u->to; b = b->next) {
        b->priority = 0;
    }
}

bool dpool_units_take_locked(ductile_allocator *a, const dpool_units *u) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t n_free = 0;
    if (!are_open_locked(a, u, &n_free) || a->nodes.n_spare < n_free + 2 ||
        a->map.count + n_free >= a->map.max_count) {
        return false;
    }
    bool is_done = true;
    for (dpool_block *b = dpool_units_first_locked(a, u); b != NULL && b->addr < u->to && is_done;
         b = b->next) {
        if (b->state == DPOOL_FREE) {
            b = dpool_carve_free_locked(a, b, dti_max(b->addr, u->from),
                                        dti_min(dpool_end(b), u->to));
            is_done = make_live(a, b, u->range->unit_bytes);
        }
    }
    if (is_done) {
        keep_fresh(dpool_units_first_locked(a, u), u);
    } else {
        give_back_fresh(a, u);
    }
    return is_done;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Carrying a plan out: marker, handles, mappings; and undoing them in reverse. */
#include "pool/base/map_callbacks.h"
#include "pool/blocks/wait_spans.h"
#include "pool/growth/announce.h"
#include "pool/growth/plan.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/progress.h"

#include "segments/grow.h"
#include "vmm/base/align.h"
#include "vmm/base/check.h"

enum { SMALL_SHARE = 4 }; /* a handle of less than a quarter of what could be made is small */

/* ---- Handles ------------------------------------------------------------------------------- */

/* Walks the donors' handles in order. */
typedef struct donor_cursor {
    uint32_t donor;
    uint32_t granule; /* within the donor */
} donor_cursor;

static void add_handle(dpool_plan *p, dvmm_handle *h, dpool_origin origin) {
    DTI_ASSERT(p->n_handles < p->max_handles);
    p->handles[p->n_handles] = h;
    p->origins[p->n_handles++] = (uint8_t)origin;
}

static uint32_t granules_of(const ductile_allocator *a, const dpool_block *b) {
    return (uint32_t)(b->size / a->granule);
}

/* The next donated handle of at most `most` granules; donors with a larger one stay unused. */
static dvmm_handle *next_donated(ductile_allocator *a, donor_cursor *at, uint32_t most) {
    dpool_plan *p = a->plan;
    while (at->donor < p->n_donors) {
        dpool_block *b = p->donors[at->donor];
        if (p->donations[at->donor] > DPOOL_MOVED) {
            at->donor++;
            continue;
        }
        const dseg_segment *seg = b->region->seg;
        dvmm_handle *h = dseg_handle_at(seg, dseg_granule(seg, b->addr) + at->granule, NULL);
        bool fits = h->n_granules <= most;
        if (fits) {
            at->granule += h->n_granules;
            p->donations[at->donor] = DPOOL_MOVED;
        }
        if (!fits || at->granule == granules_of(a, b)) {
            at->donor++;
            at->granule = 0;
        }
        if (fits) {
            return h;
        }
    }
    return NULL;
}

/* Many small handles where one large one would do cost a map each: from a cache that holds enough
 * to make the large one of, they are not taken. */
static dvmm_handle *take_cached(ductile_allocator *a, uint32_t most) {
    dvmm_handle_store *store = &a->store;
    if (a->plan->one_handle) {
        return dvmm_store_take_exact(store, most);
    }
    uint32_t best = (uint32_t)dti_min(most, a->max_handle_granules);
    bool may_create = store->held_bytes <= store->limit_bytes; /* else cached ones must do */
    bool is_enough = may_create && store->cached_bytes >= best * a->granule;
    dvmm_handle *h = dvmm_store_take(store, most);
    if (h != NULL && is_enough && h->n_granules < best / SMALL_SHARE) {
        dvmm_store_put(store, h);
        return NULL;
    }
    return h;
}

/* Cached handles that do not suit make room for one that does, so that no more is held than before.
 */
static ductile_status create(ductile_allocator *a, uint32_t most, dvmm_handle **out) {
    const dpool_plan *p = a->plan;
    uint32_t n = p->one_handle ? most : (uint32_t)dti_min(most, a->max_handle_granules);
    uint64_t bytes = n * a->granule;
    if (!p->one_handle) {
        (void)dvmm_store_release_cached(&a->store, p->held_before - dti_min(p->held_before, bytes));
    }
    return dvmm_store_create(&a->store, n, out);
}

/* Donors come first: the plan has already deducted the cached handles from what donors must give,
 * and a donor may be a run of handles, which moves as a whole or not at all. */
static ductile_status next_handle(ductile_allocator *a, donor_cursor *at, uint32_t most,
                                  uint32_t *got) {
    dvmm_handle *h = next_donated(a, at, most);
    dpool_origin origin = DPOOL_FROM_DONOR;
    if (h == NULL) {
        h = take_cached(a, most);
        origin = DPOOL_FROM_CACHE;
    }
    if (h == NULL) {
        ductile_status status = create(a, most, &h);
        if (status != DUCTILE_OK) {
            return status;
        }
        origin = DPOOL_CREATED;
    }
    add_handle(a->plan, h, origin);
    *got = h->n_granules;
    return DUCTILE_OK;
}

static ductile_status fill_piece(ductile_allocator *a, dpool_piece *piece, donor_cursor *at) {
    piece->first_handle = a->plan->n_handles;
    uint32_t lacks = piece->n_granules;
    while (lacks > 0) {
        uint32_t got = 0;
        ductile_status status = next_handle(a, at, lacks, &got);
        if (status != DUCTILE_OK) {
            return status;
        }
        lacks -= got;
    }
    piece->n_handles = a->plan->n_handles - piece->first_handle;
    return DUCTILE_OK;
}

/* What no handle was found for, when the device had less than the limit allows. */
static uint64_t bytes_not_gathered(const ductile_allocator *a) {
    const dpool_plan *p = a->plan;
    uint64_t n = p->n_granules;
    for (uint32_t i = 0; i < p->n_handles; i++) {
        n -= p->handles[i]->n_granules;
    }
    return n * a->granule;
}

/* U3: the host knows the work on them complete. */
static void unmap_donors(ductile_allocator *a) {
    dpool_plan *p = a->plan;
    for (uint32_t i = 0; i < p->n_donors; i++) {
        if (p->donations[i] == DPOOL_TO_UNMAP) {
            dpool_block *b = p->donors[i];
            dseg_segment *seg = b->region->seg;
            dti_lock_acquire(&a->index_lock);
            dseg_idle idle = b->region->arena->proven_by;
            dti_lock_release(&a->index_lock);
            ductile_status status =
                dseg_unmap_handles(seg, dseg_granule(seg, b->addr), granules_of(a, b), idle);
            p->donations[i] = status == DUCTILE_OK ? DPOOL_UNMAPPED : DPOOL_STUCK;
        }
    }
}

static ductile_status gather_handles(ductile_allocator *a) {
    dpool_plan *p = a->plan;
    p->held_before = a->store.held_bytes - a->store.lost_bytes;
    unmap_donors(a);
    donor_cursor at = {0, 0};
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        ductile_status status = fill_piece(a, &p->pieces[i], &at);
        if (status != DUCTILE_OK) {
            p->lacks = bytes_not_gathered(a);
            return status;
        }
    }
    return DUCTILE_OK;
}

/* Handles that no piece holds go to the cache; one stuck at a quarantined address is lost. */
static void put_handles_back(ductile_allocator *a) {
    dpool_plan *p = a->plan;
    for (uint32_t i = 0; i < p->n_handles; i++) {
        dvmm_handle *h = p->handles[i];
        if (p->origins[i] == DPOOL_FROM_DONOR) {
            continue;
        }
        if (h->n_mappings == 0) {
            dvmm_store_put(&a->store, h);
        } else {
            dvmm_store_lose(&a->store, h);
        }
    }
    p->n_handles = 0;
}

/* ---- Mappings ------------------------------------------------------------------------------ */

static ductile_status map_pieces(ductile_allocator *a, uint32_t *n_mapped) {
    dpool_plan *p = a->plan;
    for (*n_mapped = 0; *n_mapped < p->n_pieces; (*n_mapped)++) {
        const dpool_piece *piece = &p->pieces[*n_mapped];
        bool quarantined = false;
        ductile_status status =
            dseg_map(p->region->seg, piece->first, &p->handles[piece->first_handle],
                     piece->n_handles, &quarantined);
        if (status != DUCTILE_OK) {
            return status;
        }
    }
    return DUCTILE_OK;
}

static void unmap_pieces(ductile_allocator *a, uint32_t n) {
    dpool_plan *p = a->plan;
    while (n-- > 0) {
        dseg_undo_map(p->region->seg, p->pieces[n].first, p->pieces[n].n_granules);
    }
}

static void retire_donors(ductile_allocator *a) {
    dpool_plan *p = a->plan;
    for (uint32_t i = 0; i < p->n_donors; i++) {
        dpool_block *b = p->donors[i];
        if (p->donations[i] == DPOOL_MOVED) {
            dseg_segment *seg = b->region->seg;
            dseg_retire(seg, dseg_granule(seg, b->addr), granules_of(a, b));
        }
    }
}

/* The stream waits for other streams' work on what it gets or moves. */
static ductile_status settle_waits(ductile_allocator *a) {
    dpool_plan *p = a->plan;
    ductile_status status = DUCTILE_OK;
    for (uint32_t i = 0; i < p->n_own_donors && status == DUCTILE_OK; i++) {
        if (p->donations[i] == DPOOL_MAY_MOVE) {
            status = dpool_wait_settle(a, p->donors[i]);
        }
    }
    uint64_t seen = 0;
    for (dpool_block *b = p->body; seen < p->body_bytes && status == DUCTILE_OK; b = b->next) {
        seen += b->size;
        status = dpool_wait_settle(a, b);
    }
    return status;
}

static bool moves_own(const dpool_plan *p) {
    for (uint32_t i = 0; i < p->n_own_donors; i++) {
        if (p->donations[i] == DPOOL_MAY_MOVE) {
            return true;
        }
    }
    return false;
}

static ductile_status execute(ductile_allocator *a) {
    dpool_plan *p = a->plan;
    uint32_t n_mapped = 0;
    /* Waits and the marker come before the maps (U5), so that undoing them never depends on either:
     * donors are FREE, so all work that used them was issued before now. */
    ductile_status status = dpool_plan_make_waits(a);
    if (status == DUCTILE_OK && !dpool_waits_are_none(a)) {
        status = settle_waits(a);
    }
    p->wait_failed = status != DUCTILE_OK;
    if (status == DUCTILE_OK && moves_own(p)) {
        status = dpool_mark(a, p->arena, &p->seq);
        p->mark_failed = status != DUCTILE_OK;
    }
    if (status == DUCTILE_OK) {
        status = gather_handles(a);
    }
    if (status == DUCTILE_OK) {
        status = map_pieces(a, &n_mapped);
    }
    if (status == DUCTILE_OK) {
        retire_donors(a); /* nothing below can fail */
        return DUCTILE_OK;
    }
    unmap_pieces(a, n_mapped);
    put_handles_back(a);
    return status;
}

ductile_status dpool_plan_execute(ductile_allocator *a) {
    if (!dpool_announces(a)) {
        return execute(a);
    }
    dpool_announce_plan_begin(a);
    ductile_status status = execute(a);
    dpool_announce_plan_end(a, status == DUCTILE_OK);
    return status;
}

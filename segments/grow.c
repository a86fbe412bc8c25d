/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps memory behind empty granules, and undoes it. The undo unmaps without a proof that the GPU is
 * done (unmap_handles.h), because it needs none: it unmaps what was mapped a moment ago and given
 * to no caller, so no work on the addresses can have been submitted.
 */
#include "segments/grow.h"

#include "segments/slots.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 64 }; /* handles mapped at once where there is no list of them */

/* ---- Undo ---------------------------------------------------------------------------------- */

static void undo_one(dseg_segment *seg, uint32_t first) {
    uint64_t bytes = dvmm_handle_bytes(seg->store, seg->slots[first].handle);
    ductile_status status = dvmm_unmap(seg->store->driver, dseg_addr(seg, first), bytes);
    dseg_book_unmap(seg, first, status);
}

/* Unmaps the last handle first. */
static void undo_map(dseg_segment *seg, uint32_t first, uint32_t n_granules) {
    for (uint32_t end = first + n_granules; end > first;) {
        end -= 1 + seg->slots[end - 1].offset;
        undo_one(seg, end);
    }
}

/* A failed map call may have mapped the handle: mapping over it would fail later, and unmapping an
 * empty address is an error of its own. An address whose state is unknown is never used again. */
static void undo_failed_map(dseg_segment *seg, uint32_t first, dvmm_handle *h) {
    dseg_reading found = dseg_read_mapping(seg, first, h->n_granules);
    if (found == DSEG_READ_EMPTY) {
        return;
    }
    dseg_book_map(seg, first, h);
    if (found == DSEG_READ_MAPPED) {
        undo_one(seg, first);
    } else {
        dseg_set_states(seg, first, h->n_granules, DSEG_QUARANTINED);
    }
}

/* ---- Map ----------------------------------------------------------------------------------- */

static ductile_status map_one(dseg_segment *seg, uint32_t first, dvmm_handle *h) {
    ductile_status status = dvmm_map(seg->store->driver, dseg_addr(seg, first),
                                     dvmm_handle_bytes(seg->store, h), h->phys);
    if (status == DUCTILE_OK) {
        dseg_book_map(seg, first, h);
    } else {
        undo_failed_map(seg, first, h);
    }
    return status;
}

ductile_status dseg_map(dseg_segment *seg, uint32_t first, dvmm_handle *const *handles,
                        uint32_t n_handles) {
    uint32_t at = first;
    ductile_status status = DUCTILE_OK;
    for (uint32_t i = 0; i < n_handles && status == DUCTILE_OK; i++) {
        status = map_one(seg, at, handles[i]);
        at += status == DUCTILE_OK ? handles[i]->n_granules : 0;
    }
    if (status == DUCTILE_OK) {
        status = dvmm_store_grant(seg->store, dseg_addr(seg, first),
                                  (at - first) * seg->store->granule_bytes, DVMM_ACCESS_RW);
    }
    if (status != DUCTILE_OK) {
        undo_map(seg, first, at - first);
    }
    return status;
}

/* ---- Handles: from the cache, or new ------------------------------------------------------- */

typedef struct supply {
    dvmm_handle_store *store;
    uint32_t max_created;
    uint64_t max_held;
    bool takes_any; /* what is cached comes first, of whatever size */
    uint64_t held_before;
} supply;

static supply supply_of(dvmm_handle_store *store, uint32_t max_created, uint64_t max_held) {
    return (supply){store, max_created, dti_min(max_held, store->limit_bytes), false,
                    store->totals.held_bytes};
}

/* Each handle costs a map call. While the cache holds enough memory to make one large handle of, it
 * gives no smaller one. A larger one than requests get serves as it is only where nothing at all
 * may be created. */
static dvmm_handle *take_cached(const supply *s, uint32_t most) {
    dvmm_handle_store *store = s->store;
    bool may_create = store->totals.held_bytes <= s->max_held;
    bool may_exchange = store->totals.held_bytes <= store->limit_bytes;
    uint32_t best = may_exchange && !s->takes_any ? (uint32_t)dti_min(most, s->max_created) : most;
    bool is_enough = may_create && store->totals.cached_bytes >= best * store->granule_bytes;
    dvmm_handle *h = dvmm_store_take(store, best);
    if (h != NULL && is_enough && !s->takes_any && h->n_granules < best) {
        dvmm_store_put(store, h);
        return NULL;
    }
    return h;
}

/* What may be held now, beside what is lost and cannot go: with that not more than before, nor than
 * the limit, which may have been lowered. */
static uint64_t most_to_keep(const supply *s) {
    uint64_t most = dti_min(s->held_before, s->store->limit_bytes);
    return most - dti_min(most, s->store->totals.lost_bytes);
}

/* Releases cached handles of other sizes before creating a handle, so that the held bytes do not
 * grow: that is allowed also above a soft limit. */
static ductile_status create(const supply *s, uint32_t most, dvmm_handle **out) {
    uint32_t n = (uint32_t)dti_min(most, s->max_created);
    uint64_t bytes = n * s->store->granule_bytes;
    uint64_t keep = most_to_keep(s);
    (void)dvmm_store_release_cached(s->store, keep - dti_min(keep, bytes));
    return dvmm_store_create(s->store, n, dti_max(s->max_held, s->held_before), out);
}

static ductile_status take_or_create(const supply *s, uint32_t most, dvmm_handle **out) {
    *out = take_cached(s, most);
    return *out != NULL ? DUCTILE_OK : create(s, most, out);
}

/* Puts the handles into the cache; a handle that is stuck at a quarantined address is lost. */
static void put_back(dvmm_handle_store *store, dvmm_handle *const *handles, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (handles[i]->n_mappings == 0) {
            dvmm_store_put(store, handles[i]);
        } else {
            dvmm_store_lose(store, handles[i]);
        }
    }
}

/* ---- Handles: of donors -------------------------------------------------------------------- */

/* Iterates over the handles of the donors: each moves as a whole, or not at all. */
typedef struct donor_cursor {
    uint32_t first;   /* none before it moves any more          */
    uint32_t at;      /* the one whose handles are being taken   */
    uint32_t granule; /* within that one; 0: it has given all    */
} donor_cursor;

static bool can_move(const dseg_donor *d, uint32_t most) {
    return d->state == DSEG_MAY_MOVE && d->seg->slots[d->first].handle->n_granules <= most;
}

/* With room, one that does not fit is left where it is, and more is created: in a piece of another
 * stream it would strand more. Where granules are made, it stays for other pieces. */
static bool is_left(const dseg_growth *g, const dseg_donor *d, uint32_t most) {
    return d->state != DSEG_MAY_MOVE || (g->max_created > 1 && !can_move(d, most));
}

/* Those of a run are granules, which fit everywhere. */
static dvmm_handle *take_donated(dseg_donor *d, uint32_t *granule) {
    dvmm_handle *h = d->seg->slots[d->first + *granule].handle;
    d->state = DSEG_MOVED;
    *granule += h->n_granules;
    *granule = *granule < d->n_granules ? *granule : 0;
    return h;
}

/* The next donated handle of at most `most` granules. */
static dvmm_handle *next_donated(const dseg_growth *g, donor_cursor *c, uint32_t most) {
    if (c->granule > 0) {
        return take_donated(&g->donors[c->at], &c->granule);
    }
    while (c->first < g->n_donors && is_left(g, &g->donors[c->first], most)) {
        c->first++;
    }
    for (c->at = c->first; c->at < g->n_donors; c->at++) {
        if (can_move(&g->donors[c->at], most)) {
            return take_donated(&g->donors[c->at], &c->granule);
        }
    }
    return NULL;
}

/* The addresses of the piece were empty before. A donor's handle is mapped at its old one, too. */
static void lose_what_is_stuck(const dseg_growth *g, const dseg_piece *piece) {
    for (uint32_t i = 0; i < piece->n_granules; i++) {
        const dseg_slot *slot = &g->seg->slots[piece->first + i];
        bool is_stuck = slot->state == DSEG_QUARANTINED && slot->offset == 0;
        if (is_stuck && slot->handle->n_mappings == 1) {
            dvmm_store_lose(g->seg->store, slot->handle);
        }
    }
}

/* After a failure: donors keep theirs. */
static void put_back_others(const dseg_growth *g) {
    for (uint32_t i = 0; i < g->n_handles; i++) {
        if (g->handles[i]->n_mappings == 0) {
            dvmm_store_put(g->seg->store, g->handles[i]);
        }
    }
    for (uint32_t i = 0; i < g->n_pieces; i++) {
        lose_what_is_stuck(g, &g->pieces[i]);
    }
}

static void unmap_donors(dseg_growth *g) {
    for (uint32_t i = 0; i < g->n_donors; i++) {
        dseg_donor *d = &g->donors[i];
        if (d->state == DSEG_TO_UNMAP) {
            ductile_status status = dseg_unmap_handles(d->seg, d->first, d->n_granules, d->idle);
            d->state = status == DUCTILE_OK ? DSEG_UNMAPPED : DSEG_STUCK;
        }
    }
}

static void retire_donors(dseg_growth *g) {
    for (uint32_t i = 0; i < g->n_donors; i++) {
        dseg_donor *d = &g->donors[i];
        if (d->state == DSEG_MOVED) {
            dseg_retire(d->seg, d->first, d->n_granules);
        }
    }
}

/* ---- Grow ---------------------------------------------------------------------------------- */

/* Takes from donors first: the plan has already deducted the cached handles from what donors must
 * give. */
static ductile_status next_handle(dseg_growth *g, const supply *s, donor_cursor *at, uint32_t most,
                                  uint32_t *got) {
    dvmm_handle *h = next_donated(g, at, most);
    g->n_moved += h != NULL;
    ductile_status status = h != NULL ? DUCTILE_OK : take_or_create(s, most, &h);
    if (status == DUCTILE_OK) {
        DTI_ASSERT(g->n_handles < g->max_handles);
        g->handles[g->n_handles++] = h;
        *got = h->n_granules;
    }
    return status;
}

static ductile_status fill_piece(dseg_growth *g, const supply *s, donor_cursor *at,
                                 dseg_piece *piece) {
    piece->first_handle = g->n_handles;
    uint32_t lacks = piece->n_granules;
    while (lacks > 0) {
        uint32_t got = 0;
        uint32_t first = piece->first + piece->n_granules - lacks;
        DTI_TRY(next_handle(g, s, at, dseg_within_unit(g->seg, first, lacks), &got));
        lacks -= got;
    }
    piece->n_handles = g->n_handles - piece->first_handle;
    return DUCTILE_OK;
}

/* The granules for which no handle was found, when the device had less memory than the limit
 * allows. */
static uint64_t count_lacked(const dseg_growth *g) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->n_pieces; i++) {
        n += g->pieces[i].n_granules;
    }
    for (uint32_t i = 0; i < g->n_handles; i++) {
        n -= g->handles[i]->n_granules;
    }
    return n;
}

static ductile_status gather_handles(dseg_growth *g) {
    supply s = supply_of(g->seg->store, g->max_created, g->max_held);
    unmap_donors(g);
    donor_cursor at = {.first = 0};
    for (uint32_t i = 0; i < g->n_pieces; i++) {
        ductile_status status = fill_piece(g, &s, &at, &g->pieces[i]);
        if (status != DUCTILE_OK) {
            g->granules_lacked = count_lacked(g);
            return status;
        }
    }
    return DUCTILE_OK;
}

static ductile_status map_pieces(const dseg_growth *g, uint32_t *n_mapped) {
    for (*n_mapped = 0; *n_mapped < g->n_pieces; (*n_mapped)++) {
        const dseg_piece *piece = &g->pieces[*n_mapped];
        DTI_TRY(dseg_map(g->seg, piece->first, &g->handles[piece->first_handle], piece->n_handles));
    }
    return DUCTILE_OK;
}

static void undo_pieces(const dseg_growth *g, uint32_t n) {
    while (n-- > 0) {
        undo_map(g->seg, g->pieces[n].first, g->pieces[n].n_granules);
    }
}

ductile_status dseg_grow(dseg_growth *g) {
    uint32_t n_mapped = 0;
    g->n_handles = g->n_moved = 0;
    g->granules_lacked = 0;
    ductile_status status = gather_handles(g);
    if (status == DUCTILE_OK) {
        status = map_pieces(g, &n_mapped);
    }
    if (status == DUCTILE_OK) {
        retire_donors(g); /* nothing below can fail */
        return DUCTILE_OK;
    }
    undo_pieces(g, n_mapped);
    put_back_others(g);
    g->n_handles = g->n_moved = 0;
    return status;
}

/* ---- Refill -------------------------------------------------------------------------------- */

static ductile_status fill_batch(dseg_segment *seg, const supply *s, uint32_t *first,
                                 uint32_t end) {
    dvmm_handle *handles[BATCH] = {NULL};
    uint32_t n = 0;
    uint32_t at = *first;
    ductile_status status = DUCTILE_OK;
    while (status == DUCTILE_OK && n < BATCH && at < end) {
        status = take_or_create(s, dseg_within_unit(seg, at, end - at), &handles[n]);
        at += status == DUCTILE_OK ? handles[n++]->n_granules : 0;
    }
    if (status == DUCTILE_OK) {
        status = dseg_map(seg, *first, handles, n);
    }
    if (status != DUCTILE_OK) {
        put_back(s->store, handles, n);
    }
    *first = at;
    return status;
}

/* Fills the run of EMPTY granules from *first on, and moves *first behind what was filled. */
static ductile_status fill_run(dseg_segment *seg, const supply *s, uint32_t *first, uint32_t end) {
    uint32_t run_end = *first;
    while (run_end < end && seg->slots[run_end].state == DSEG_EMPTY) {
        run_end++;
    }
    ductile_status status = DUCTILE_OK;
    while (*first < run_end && status == DUCTILE_OK) {
        status = fill_batch(seg, s, first, run_end);
    }
    return status;
}

ductile_status dseg_refill(dseg_segment *seg, uint32_t first, uint32_t end, uint32_t max_created) {
    supply s = supply_of(seg->store, max_created, UINT64_MAX);
    s.takes_any = true; /* what a pool had must come back, though nothing can be created */
    ductile_status status = DUCTILE_OK;
    while (first < end && status == DUCTILE_OK) {
        if (seg->slots[first].state == DSEG_MAPPED) {
            status = dseg_confirm(seg, first);
        }
        if (status == DUCTILE_OK && seg->slots[first].state == DSEG_MAPPED) {
            first++;
        } else if (status == DUCTILE_OK && seg->slots[first].state == DSEG_EMPTY) {
            status = fill_run(seg, &s, &first, end);
        } else if (status == DUCTILE_OK) {
            status = DUCTILE_ERR_DRIVER; /* quarantined: its address is lost permanently */
        }
    }
    return status;
}

/* ---- Spilled memory ------------------------------------------------------------------------ */

/* Handles of the device, and of the host, which lie behind them. There is room for a handle of each
 * granule of the segment. */
typedef struct gathered {
    dvmm_handle **all;
    uint32_t n;
    uint32_t n_granules;
} gathered;

/* At least `need` granules, or what the cache has. A cached handle may be larger than what is
 * missing, for it replaces memory of the device then. */
static void gather_host(dseg_segment *seg, uint32_t need, gathered *host) {
    while (host->n_granules < need) {
        dvmm_handle *h = dvmm_store_take_host(seg->store, seg->n_granules - host->n_granules);
        if (h == NULL) {
            return;
        }
        host->all[host->n++] = h;
        host->n_granules += h->n_granules;
    }
}

/* `need` granules, or as far as there is some: a refusal ends it. */
static void gather_device(dseg_segment *seg, uint32_t max_created, uint64_t max_held, uint32_t need,
                          gathered *device) {
    supply s = supply_of(seg->store, max_created, max_held);
    s.takes_any = true;
    dvmm_handle *h = NULL;
    while (device->n_granules < need &&
           take_or_create(&s, need - device->n_granules, &h) == DUCTILE_OK) {
        device->all[device->n++] = h;
        device->n_granules += h->n_granules;
    }
}

static ductile_status map_gathered(dseg_segment *seg, const gathered *device,
                                   const gathered *host) {
    memmove(&device->all[device->n], host->all, host->n * sizeof *host->all);
    return dseg_map(seg, 0, device->all, device->n + host->n);
}

static ductile_status fill_spilled(dseg_segment *seg, dseg_spill *how, gathered *device,
                                   gathered *host) {
    uint32_t need = seg->n_granules - (uint32_t)dti_min(how->most_device, seg->n_granules);
    gather_host(seg, need, host);
    uint32_t of_device = seg->n_granules - (uint32_t)dti_max(host->n_granules, need);
    gather_device(seg, how->max_created, how->max_held, of_device, device);
    how->lacks = seg->n_granules - host->n_granules - device->n_granules;
    how->lacks_device = of_device - device->n_granules;
    return how->lacks == 0 ? map_gathered(seg, device, host) : DUCTILE_ERR_OUT_OF_MEMORY;
}

ductile_status dseg_fill_spilled(dseg_segment *seg, dseg_spill *how) {
    const uint32_t n = seg->n_granules;
    how->lacks = how->lacks_device = 0;
    dvmm_handle **handles = calloc(2 * (size_t)n, sizeof *handles);
    if (handles == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    gathered device = {.all = handles};
    gathered host = {.all = handles + n};
    ductile_status status = fill_spilled(seg, how, &device, &host);
    if (status != DUCTILE_OK) {
        put_back(seg->store, host.all, host.n);
        put_back(seg->store, device.all, device.n);
    }
    free(handles);
    return status;
}

/* ---- In place of spilled memory ------------------------------------------------------------- */

/* What was taken out is mapped again where it was, at the front of the span. */
static bool map_back(dseg_segment *seg, dseg_span s, const gathered *host) {
    bool may_map = !dseg_has_state(seg, s, DSEG_QUARANTINED);
    return host->n == 0 || (may_map && dseg_map(seg, s.first, host->all, host->n) == DUCTILE_OK);
}

static ductile_status exchange(dseg_segment *seg, dseg_exchanged *x, gathered *device,
                               gathered *host) {
    bool is_known = true;
    ductile_status status = dseg_take_out(seg, x->span, x->idle, host->all, &host->n, &is_known);
    status = status == DUCTILE_OK ? dseg_map(seg, x->span.first, device->all, device->n) : status;
    if (status == DUCTILE_OK) {
        put_back(seg->store, host->all, host->n);
        return status;
    }
    put_back(seg->store, device->all, device->n);
    bool is_mapped = map_back(seg, x->span, host);
    x->is_back = is_mapped && is_known;
    if (!is_mapped) {
        put_back(seg->store, host->all, host->n);
    }
    return status;
}

ductile_status dseg_exchange(dseg_segment *seg, dseg_exchanged *x) {
    const uint32_t n = x->span.end - x->span.first;
    x->is_back = true;
    dvmm_handle **handles = calloc(2 * (size_t)n, sizeof *handles);
    if (handles == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    gathered device = {.all = handles};
    gathered host = {.all = handles + n};
    ductile_status status = DUCTILE_ERR_OUT_OF_MEMORY;
    gather_device(seg, x->max_created, x->max_held, n, &device);
    if (device.n_granules == n) {
        status = exchange(seg, x, &device, &host);
    } else {
        put_back(seg->store, device.all, device.n);
    }
    free(handles);
    return status;
}

/* ---- One handle ---------------------------------------------------------------------------- */

static ductile_status map_one_handle(dseg_segment *seg, uint64_t max_held) {
    supply s = supply_of(seg->store, seg->n_granules, max_held);
    dvmm_handle *h = dvmm_store_take_exact(seg->store, seg->n_granules);
    DTI_TRY(h != NULL ? DUCTILE_OK : create(&s, seg->n_granules, &h));
    ductile_status status = dseg_map(seg, 0, &h, 1);
    if (status != DUCTILE_OK) {
        put_back(seg->store, &h, 1);
    }
    return status;
}

ductile_status dseg_fill_with_one(dseg_segment *seg, uint64_t max_held) {
    if (seg->slots[0].state == DSEG_MAPPED) {
        ductile_status status = dseg_confirm(seg, 0);
        if (status != DUCTILE_OK || seg->slots[0].state == DSEG_MAPPED) {
            return status;
        }
    }
    bool is_empty = seg->slots[0].state == DSEG_EMPTY;
    return is_empty ? map_one_handle(seg, max_held) : DUCTILE_ERR_DRIVER;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "segments/check.h"

/* Does the slot name a handle that exists? A QUARANTINED slot may name a handle that was freed. */
static bool is_usable(const dseg_slot *slot) {
    return slot->state == DSEG_MAPPED || slot->state == DSEG_RETIRING;
}

static bool begins_mapping(const dseg_slot *slot) {
    return is_usable(slot) && slot->offset == 0;
}

/* ---- One segment --------------------------------------------------------------------------- */

/* Does the granule continue the handle of the granule before it? */
static bool goes_on(const dseg_segment *seg, uint32_t g) {
    const dseg_slot *slot = &seg->slots[g];
    if (g == seg->low || g >= seg->high || slot->offset == 0) {
        return false;
    }
    const dseg_slot *before = slot - 1;
    return before->handle == slot->handle && before->state == slot->state &&
           before->offset + 1 == slot->offset;
}

static void check_run(const dseg_segment *seg, uint32_t g, dti_fault *fault) {
    const dseg_slot *slot = &seg->slots[g];
    if (!is_usable(slot)) {
        return;
    }
    bool is_last = slot->offset + 1 == slot->handle->n_granules;
    uint64_t where = dseg_addr(seg, g);
    dti_expect(fault, "S5", slot->offset == 0 || goes_on(seg, g), "a granule's place in its handle",
               slot->offset, 0, where);
    dti_expect(fault, "S5", is_last != goes_on(seg, g + 1), "a handle's last granule", slot->offset,
               slot->handle->n_granules - 1, where);
    bool is_inside =
        slot->offset > 0 || dseg_within_unit(seg, g, UINT32_MAX) >= slot->handle->n_granules;
    dti_expect(fault, "S6", is_inside, "a handle's granules, of a unit", slot->handle->n_granules,
               seg->unit_granules, where);
}

bool dseg_check(const dseg_segment *seg, dti_fault *fault) {
    uint64_t n[4] = {0};
    for (uint32_t g = seg->low; g < seg->high; g++) {
        const dseg_slot *slot = &seg->slots[g];
        n[slot->state]++;
        dti_expect_equal(fault, "S1", "a granule's handle", slot->handle != NULL,
                         slot->state != DSEG_EMPTY, dseg_addr(seg, g));
    }
    for (uint32_t g = seg->low; g < seg->high && dti_is_sound(fault); g++) {
        check_run(seg, g, fault);
    }
    uint64_t where = seg->range.addr;
    dti_expect_equal(fault, "S3", "mapped granules", seg->n_mapped, n[DSEG_MAPPED], where);
    dti_expect_equal(fault, "S3", "retiring granules", seg->n_retiring, n[DSEG_RETIRING], where);
    dti_expect_equal(fault, "S3", "quarantined granules", seg->n_quarantined, n[DSEG_QUARANTINED],
                     where);
    return dti_is_sound(fault);
}

/* ---- Handles ------------------------------------------------------------------------------- */

/* Adds `change` to the mapping count of each handle, once for each known address that maps it. */
static void add_to_mappings(const dseg_set *segments, uint32_t change) {
    for (uint32_t i = 0; i < segments->count; i++) {
        const dseg_segment *seg = segments->items[i];
        for (uint32_t g = seg->low; g < seg->high; g++) {
            if (begins_mapping(&seg->slots[g])) {
                seg->slots[g].handle->n_mappings += change;
            }
        }
    }
}

typedef struct recount {
    const dvmm_handle_store *store;
    dseg_handle_sums *sums;
    dti_fault *fault;
    uint64_t handles;
    uint64_t spilled; /* bytes of mapped ones of the host */
    uint64_t left;    /* addresses counted by handles, not found */
    uint64_t lost;    /* QUARANTINED granules: as many may be left */
} recount;

static void count_handle(recount *n, const dvmm_handle *h, uint64_t where) {
    uint64_t bytes = dvmm_handle_bytes(n->store, h);
    n->handles++;
    n->sums->pinned_bytes += h->n_pins > 0 ? bytes : 0;
    n->sums->exported_bytes += h->n_exports > 0 ? bytes : 0;
    n->left += h->n_mappings;
    dti_expect(n->fault, "P6", n->left <= n->lost, "a handle's addresses, found ones deducted",
               n->left, n->lost, where);
}

static void count_mapped(recount *n, const dseg_set *segments) {
    for (uint32_t i = 0; i < segments->count; i++) {
        const dseg_segment *seg = segments->items[i];
        for (uint32_t g = seg->low; g < seg->high && dti_is_sound(n->fault); g++) {
            if (begins_mapping(&seg->slots[g]) && seg->slots[g].state == DSEG_MAPPED) {
                const dvmm_handle *h = seg->slots[g].handle;
                count_handle(n, h, dseg_addr(seg, g));
                n->spilled += h->is_host ? dvmm_handle_bytes(n->store, h) : 0;
            }
        }
    }
}

static void count_cached(recount *n, dvmm_handle *const *lists, uint64_t should) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < DVMM_HANDLE_SIZES; i++) {
        const dvmm_handle *h = lists[i];
        for (; h != NULL && n->handles <= n->store->totals.n_handles && dti_is_sound(n->fault);
             h = h->next) {
            dti_expect_equal(n->fault, "P7", "a cached handle's list, of its granules",
                             (uint64_t)h->n_granules >> i, 1, h->phys);
            count_handle(n, h, h->phys);
            dti_expect_equal(n->fault, "P9", "a cached handle's pins", h->n_pins, 0, h->phys);
            bytes += dvmm_handle_bytes(n->store, h);
        }
    }
    dti_expect_equal(n->fault, "P7", "cached bytes", should, bytes, 0);
}

/* Deducts the found mappings from the counts of the handles for a moment, which needs no memory. */
bool dseg_check_handles(const dseg_set *segments, const dvmm_handle_store *store,
                        dseg_handle_sums *sums, dti_fault *fault) {
    recount n = {.store = store, .sums = sums, .fault = fault};
    *sums = (dseg_handle_sums){0, 0};
    for (uint32_t i = 0; i < segments->count; i++) {
        n.lost += segments->items[i]->n_quarantined;
    }
    add_to_mappings(segments, UINT32_MAX); /* minus 1 */
    count_mapped(&n, segments);
    dti_expect_equal(fault, "P12", "spilled bytes", store->totals.spilled_bytes, n.spilled, 0);
    count_cached(&n, store->cached, store->totals.cached_bytes);
    count_cached(&n, store->cached_host, store->totals.spill_cached_bytes);
    add_to_mappings(segments, 1);
    dti_expect_equal(fault, "P8", "handles", store->totals.n_handles, n.handles, 0);
    return dti_is_sound(fault);
}

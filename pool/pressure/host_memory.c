/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/pressure/host_memory.h"

#include "pool/base/guards.h"
#include "pool/blocks/proofs.h"

#include "vmm/base/align.h"

#include <ductile_pressure.h>

enum { PIECE = 16 }; /* granules locked at once: other allocators wait meanwhile */

/* ---- Who spills ---------------------------------------------------------------------------- */

static bool is_shared(ductile_allocator *a) {
    dti_lock_acquire(&a->grow_lock);
    bool is = a->store.n_devices > 1;
    dti_lock_release(&a->grow_lock);
    return is;
}

static bool is_allowed(ductile_allocator *a, const dpool_request *r) {
    dti_lock_acquire(&a->index_lock);
    const dpool_arena *arena = dpool_arena_find_locked(a, r->pool, r->stream);
    bool is_of_graphs =
        r->pool->kind == DUCTILE_POOL_CAPTURE || (arena != NULL && dpool_had_graphs(arena));
    bool is = a->spill.n_forbidden == 0 && !is_of_graphs;
    dti_lock_release(&a->index_lock);
    return is;
}

bool dpool_may_spill(ductile_allocator *a, const dpool_request *r) {
    return a->options.spill_bytes > 0 && r->requested >= a->granule && !r->is_alone &&
           r->units == NULL && is_allowed(a, r) && !is_shared(a) &&
           !dvmm_is_surely_capturing(a->driver, r->stream);
}

/* ---- Memory of the host --------------------------------------------------------------------- */

static ductile_status begin(ductile_allocator *a, uint32_t n_granules, dvmm_handle **h,
                            uint64_t *locked_before) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    *locked_before = a->store.totals.spill_bytes;
    ductile_status status = dvmm_store_begin_host(&a->store, n_granules, h);
    dpool_grow_unlock(a, mode);
    return status;
}

static ductile_status make_piece(ductile_allocator *a, uint32_t n_granules) {
    dvmm_handle *h = NULL;
    uint64_t locked_before = 0;
    DTI_TRY(begin(a, n_granules, &h, &locked_before));
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    ductile_status status = dvmm_store_make_host(&a->store, h, locked_before);
    dvmm_capture_restore(a->driver, mode);
    mode = dpool_grow_lock(a);
    dvmm_store_end_host(&a->store, h, status);
    dpool_grow_unlock(a, mode);
    return status;
}

/* What the cache has in handles that did not fit makes room. */
static bool make_or_exchange(ductile_allocator *a, uint32_t n_granules) {
    if (make_piece(a, n_granules) == DUCTILE_OK) {
        return true;
    }
    dvmm_capture_mode mode = dpool_grow_lock(a);
    bool has_more = a->store.totals.spill_cached_bytes > 0;
    (void)dvmm_store_shrink_host(&a->store, 0);
    dpool_grow_unlock(a, mode);
    return has_more && make_piece(a, n_granules) == DUCTILE_OK;
}

/* By the option, once the cache has made room. *cached: what it has. */
static bool is_within_limit(ductile_allocator *a, uint64_t bytes, uint64_t *cached) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    const dvmm_store_totals *t = &a->store.totals;
    uint64_t kept = t->spill_bytes - t->spill_cached_bytes;
    bool is = kept + bytes <= a->store.spill_limit_bytes;
    *cached = t->spill_cached_bytes;
    dpool_grow_unlock(a, mode);
    return is;
}

/* Two threads that lock memory at once may both come to the limit. What they have locked by then is
 * enough for one of them. */
static bool has_others(ductile_allocator *a, uint64_t cached) {
    return dvmm_store_read(&a->store).spill_cached_bytes >= cached;
}

/* Only the first piece may take the place of what is cached: later ones would take that of the
 * first. */
bool dpool_make_host_memory(ductile_allocator *a, uint64_t bytes) {
    uint64_t left = dti_round_up(bytes, a->granule) / a->granule;
    uint64_t cached = 0;
    if (!is_within_limit(a, left * a->granule, &cached)) {
        return false;
    }
    uint64_t wanted = cached + left * a->granule;
    uint64_t now = dti_min(left, PIECE);
    bool is_made = left == 0 || make_or_exchange(a, (uint32_t)now);
    for (left -= now; left > 0 && is_made; left -= now) {
        now = dti_min(left, PIECE);
        is_made = make_piece(a, (uint32_t)now) == DUCTILE_OK;
    }
    return is_made || has_others(a, wanted);
}

/* ---- Climbs that found nothing -------------------------------------------------------------- */

static uint64_t freed_locked(const ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    return a->counts.allocated_total - a->counts.allocated - a->counts.asleep;
}

void dpool_note_futile(ductile_allocator *a, uint64_t bytes) {
    dti_lock_acquire(&a->index_lock);
    a->spill.futile_bytes = bytes;
    a->spill.freed_before = freed_locked(a);
    dti_lock_release(&a->index_lock);
}

bool dpool_is_futile(ductile_allocator *a, uint64_t missing) {
    dti_lock_acquire(&a->index_lock);
    bool is = freed_locked(a) - a->spill.freed_before < dti_min(a->spill.futile_bytes, missing);
    dti_lock_release(&a->index_lock);
    return is;
}

/* ---- The public calls ---------------------------------------------------------------------- */

static ductile_status change_forbidden(ductile_allocator *a, bool more) {
    DTI_TRY(dpool_may_read(a));
    ductile_status status = DUCTILE_OK;
    dti_lock_acquire(&a->index_lock);
    if (!more && a->spill.n_forbidden == 0) {
        status = DUCTILE_ERR_INVALID_ARGUMENT;
    } else {
        a->spill.n_forbidden += more ? 1 : UINT32_MAX;
    }
    dti_lock_release(&a->index_lock);
    return status;
}

ductile_status ductile_spill_forbid(ductile_allocator *a) {
    return change_forbidden(a, true);
}

ductile_status ductile_spill_allow(ductile_allocator *a) {
    return change_forbidden(a, false);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/pools/promote.h"

#include "pool/base/map_callbacks.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"
#include "pool/growth/asleep_memory.h"
#include "pool/growth/give_back.h"
#include "pool/growth/sizes.h"
#include "pool/growth/spill.h"

#include "segments/granules.h"
#include "segments/grow.h"
#include "vmm/base/align.h"

#include <stdlib.h>

static const uint64_t part_bytes = 256 * DTI_MIB; /* copied at once */

/* One call, and the part that is on its way. */
typedef struct promotion {
    ductile_allocator *a;
    dpool_private_pool *pool;
    ductile_sleep_report *report;
    dpool_region *region;
    dseg_span part;
    dvmm_host_copy copy;
    bool is_asleep; /* the pool stays so */
} promotion;

/* ---- Which part ---------------------------------------------------------------------------- */

static bool is_promotable_locked(const ductile_allocator *a, const dpool_region *region) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_block *b = region->first;
    return dpool_is_in_use(b) && !dseg_is_empty(dpool_host_granules(b));
}

static dpool_region *next_spilled_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                                         const dpool_region *after) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_region *r = dpool_next_region(a, pool, after);
    while (r != NULL && !is_promotable_locked(a, r)) {
        r = dpool_next_region(a, pool, r);
    }
    return r;
}

bool dpool_has_spilled_locked(const ductile_allocator *a, const dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    return next_spilled_locked(a, pool, NULL) != NULL;
}

/* The first handles of the host, as many as there is room for; of those that are copied at once, or
 * one that is larger. */
static dseg_span cut_part(const ductile_allocator *a, const dseg_segment *seg, dseg_span host,
                          uint64_t room) {
    uint64_t wished = part_bytes / a->granule;
    dseg_span part = {host.first, host.first};
    while (part.end < host.end) {
        uint32_t end = part.end + dseg_handle_at(seg, part.end)->n_granules;
        uint64_t n = end - host.first;
        if (n > room || (n > wished && !dseg_is_empty(part))) {
            break;
        }
        part.end = end;
    }
    return part;
}

/* False: nothing is left of the region that could go. */
static bool find_part(promotion *p) {
    ductile_allocator *a = p->a;
    uint64_t most = 0;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    uint64_t room = dpool_room_beside_small(a, &most);
    dti_lock_acquire(&a->index_lock);
    bool is_in_use = is_promotable_locked(a, p->region);
    dseg_span host = dpool_host_granules(p->region->first);
    dti_lock_release(&a->index_lock);
    p->part = is_in_use ? cut_part(a, p->region->seg, host, room) : (dseg_span){0, 0};
    dpool_grow_unlock(a, mode);
    return !dseg_is_empty(p->part);
}

/* ---- One part ------------------------------------------------------------------------------ */

static ductile_addr first_of(const promotion *p) {
    return dseg_addr(p->region->seg, p->part.first);
}

static ductile_addr end_of(const promotion *p) {
    return dseg_addr(p->region->seg, p->part.end);
}

/* The copy stands behind all work on the part, and is done when this returns. */
static ductile_status save(promotion *p) {
    dvmm_piece *piece = calloc(1, sizeof *piece);
    if (piece == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    *piece = (dvmm_piece){.addr = first_of(p), .size = end_of(p) - first_of(p)};
    ductile_addr until = 0;
    ductile_status status = dvmm_host_copy_save(&p->copy, &p->a->host_arena, piece, 1);
    while (status == DUCTILE_OK && until != UINT64_MAX) {
        status = dvmm_host_copy_wait_next(&p->copy, &until);
    }
    p->report->copied_bytes += p->copy.copied_bytes;
    return status;
}

static bool wants_all(void *user, ductile_addr addr) {
    (void)user;
    (void)addr;
    return true;
}

static ductile_status restore(promotion *p) {
    dvmm_host_copy *copy = &p->copy;
    DTI_TRY(dvmm_host_copy_begin_restore(copy));
    DTI_TRY(dvmm_host_copy_restore_between(copy, first_of(p), end_of(p), wants_all, NULL));
    p->report->copied_bytes += copy->copied_bytes;
    return dvmm_host_copy_end_restore(copy);
}

static void announce(promotion *p, ductile_map_change change) {
    if (dpool_announces(p->a)) {
        dpool_notify_granules(p->a, change, p->region, p->part.first, p->part.end - p->part.first);
    }
}

/* What was created for a failure goes back. */
static ductile_status exchange(promotion *p, bool *is_back) {
    ductile_allocator *a = p->a;
    dseg_segment *seg = p->region->seg;
    dseg_exchanged x = {.span = p->part, .idle = p->pool->idle};
    dvmm_capture_mode mode = dpool_grow_lock(a);
    uint64_t cached = a->store.totals.cached_bytes;
    uint64_t before = seg->n_mapped;
    (void)dpool_room_beside_small(a, &x.max_held);
    x.max_created = dpool_handle_granules(a, 0);
    ductile_status status = dseg_exchange(seg, &x);
    if (status != DUCTILE_OK) {
        (void)dvmm_store_shrink_cache(&a->store, cached);
    }
    if (!x.is_back) {
        dpool_set_unbacked(a, p->pool, true);
    }
    dti_lock_acquire(&a->index_lock);
    dpool_count_mapped_locked(a, p->region->arena,
                              (int64_t)((seg->n_mapped - before) * a->granule));
    dpool_count_span_locked(a, p->region);
    dti_lock_release(&a->index_lock);
    dpool_grow_unlock(a, mode);
    *is_back = x.is_back;
    return status;
}

/* ---- A pool that sleeps on ------------------------------------------------------------------ */

/* Nothing is unmapped but what is left of the part. */
static void mark_what_stays(promotion *p) {
    ductile_allocator *a = p->a;
    dti_lock_acquire(&a->grow_lock);
    for (dpool_region *r = dpool_next_region(a, p->pool, NULL); r != NULL;
         r = dpool_next_region(a, p->pool, r)) {
        dseg_mark_what_stays(r->seg, r == p->region ? p->part : (dseg_span){0, 0});
    }
    dti_lock_release(&a->grow_lock);
}

/* The part's contents are in the host arena alone. */
static void sleep_on(promotion *p) {
    dpool_private_pool *pool = p->pool;
    dvmm_host_copy_drop(&pool->host_copy);
    pool->host_copy = p->copy;
    pool->retains = false;
    p->copy = (dvmm_host_copy){.n_pieces = 0};
    p->is_asleep = true;
    mark_what_stays(p);
    dpool_unmap_pool(p->a, pool);
    dpool_finish_sleep(p->a, pool);
}

/* ---- All of them --------------------------------------------------------------------------- */

static void count_part(promotion *p) {
    uint64_t bytes = end_of(p) - first_of(p);
    p->report->bytes += bytes;
    dti_lock_acquire(&p->a->index_lock);
    p->a->counts.promoted_total += bytes;
    dti_lock_release(&p->a->index_lock);
}

/* *is_full: the device has no memory for it after all, and nothing has changed. */
static ductile_status promote_part(promotion *p, bool *is_full) {
    bool is_back = true;
    DTI_TRY(save(p));
    announce(p, DUCTILE_MAP_LEAVING);
    ductile_status status = exchange(p, &is_back);
    if (status == DUCTILE_OK) {
        status = restore(p);
        is_back = status == DUCTILE_OK;
    }
    if (!is_back) {
        sleep_on(p);
        return status;
    }
    announce(p, DUCTILE_MAP_MAPPED);
    *is_full = status == DUCTILE_ERR_OUT_OF_MEMORY;
    if (status == DUCTILE_OK) {
        count_part(p);
    }
    return *is_full ? DUCTILE_OK : status;
}

static ductile_status promote_region(promotion *p) {
    ductile_status status = DUCTILE_OK;
    bool is_full = false;
    while (status == DUCTILE_OK && !is_full && find_part(p)) {
        status = promote_part(p, &is_full);
    }
    return status;
}

static dpool_region *next_spilled(const promotion *p, const dpool_region *after) {
    dti_lock_acquire(&p->a->index_lock);
    dpool_region *r = next_spilled_locked(p->a, p->pool, after);
    dti_lock_release(&p->a->index_lock);
    return r;
}

/* A region with a block that was in use when the pool was claimed stays until the claim ends. */
static ductile_status promote_pool(promotion *p) {
    ductile_status status = DUCTILE_OK;
    p->region = next_spilled(p, NULL);
    while (p->region != NULL && status == DUCTILE_OK) {
        status = promote_region(p);
        p->region = status == DUCTILE_OK ? next_spilled(p, p->region) : NULL;
    }
    return status;
}

static uint64_t spilled_live(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    uint64_t bytes = dpool_spilled_live_locked(a, dvmm_store_read(&a->store).spilled_bytes);
    dti_lock_release(&a->index_lock);
    return bytes;
}

ductile_status dpool_promote_set(ductile_allocator *a, dpool_private_pool *set,
                                 ductile_sleep_report *report, bool *sleeps_on) {
    promotion p = {.a = a, .report = report};
    ductile_status status = dpool_still_set(a, set, report);
    for (p.pool = set; p.pool != NULL; p.pool = p.pool->next_in_set) {
        p.is_asleep = false;
        if (status == DUCTILE_OK) {
            status = promote_pool(&p);
            dpool_report_pool(report, p.pool); /* if it is the last one, it has failed */
        }
        if (!p.is_asleep) {
            dpool_run_again(a, p.pool);
        }
        *sleeps_on |= p.is_asleep;
    }
    dvmm_host_copy_drop(&p.copy);
    report->stayed_bytes = spilled_live(a);
    return status;
}

/* Free memory of the device goes, before the pools that hold it are claimed. */
void dpool_make_room_for_spilled(ductile_allocator *a) {
    uint64_t most = 0;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    (void)dpool_room_beside_small(a, &most);
    uint64_t used = a->store.totals.held_bytes - a->store.totals.cached_bytes;
    dpool_grow_unlock(a, mode);
    uint64_t wanted = used + spilled_live(a);
    if (wanted > most) {
        (void)dpool_give_back(a, wanted - most, true);
    }
}

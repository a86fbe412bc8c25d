/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/spill.h"

#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"
#include "pool/growth/dedicated.h"
#include "pool/growth/give_back.h"
#include "pool/growth/sizes.h"

#include "segments/grow.h"
#include "vmm/base/align.h"

/* Of the room, and granules: for small requests. */
enum { SHARE_FOR_SMALL = 256, LEAST_FOR_SMALL = 16 };

/* ---- What is kept for small requests -------------------------------------------------------- */

static uint64_t beside_small(const ductile_allocator *a, uint64_t room) {
    uint64_t share = dti_round_up(room / SHARE_FOR_SMALL, a->granule);
    return room - dti_min(room, dti_max(share, LEAST_FOR_SMALL * a->granule));
}

uint64_t dpool_most_beside_small(const ductile_allocator *a, uint64_t size) {
    DTI_ASSERT_HELD(&a->grow_lock);
    bool is_any = a->store.totals.spilled_bytes > 0 && size >= a->granule;
    return is_any ? beside_small(a, a->sizes.room_bytes) : UINT64_MAX;
}

/* ---- Device memory for it ------------------------------------------------------------------- */

/* What is cached and what may be created, so that no more than `most` bytes are held. */
static uint64_t granules_to_have(const ductile_allocator *a, uint64_t most) {
    const dvmm_store_totals *t = &a->store.totals;
    uint64_t used = t->held_bytes - t->cached_bytes;
    return (most - dti_min(most, used)) / a->granule;
}

uint64_t dpool_room_beside_small(ductile_allocator *a, uint64_t *max_held) {
    *max_held = beside_small(a, dpool_room(a));
    return granules_to_have(a, *max_held);
}

/* Of the granules of a request those that it can serve, with what is free and proven. */
static uint64_t take_device(ductile_allocator *a, uint64_t n_granules, uint64_t most) {
    uint64_t has = granules_to_have(a, most);
    if (has < n_granules) {
        (void)dpool_unmap_unused(a, DPOOL_UNUSED_FREE, n_granules - has);
        has = granules_to_have(a, most);
    }
    return dti_min(has, n_granules);
}

/* ---- One attempt --------------------------------------------------------------------------- */

static ductile_status fill(dseg_segment *seg, void *how) {
    return dseg_fill_spilled(seg, how);
}

static void count_spill(ductile_allocator *a, uint64_t bytes) {
    dti_lock_acquire(&a->index_lock);
    a->counts.spills += bytes > 0;
    a->counts.spilled_total += bytes;
    dti_lock_release(&a->index_lock);
}

dpool_spill dpool_spill_prepare(ductile_allocator *a, uint64_t size, uint64_t refused) {
    uint64_t n = dti_round_up(size, a->granule) / a->granule;
    uint64_t most = beside_small(a, dpool_room(a));
    uint64_t n_device = take_device(a, n, most);
    n_device -= dti_min(n_device, refused);
    uint64_t host = (n - n_device) * a->granule;
    (void)dvmm_store_release_cached(&a->store, most); /* what failed attempts have made */
    return (dpool_spill){.n_granules = n,
                         .n_device = n_device,
                         .max_held = most,
                         .lacks_host = host - dti_min(host, a->store.totals.spill_cached_bytes)};
}

ductile_status dpool_spill_fill(ductile_allocator *a, dpool_region *region, dpool_spill *spill,
                                uint64_t requested, dpool_block **out) {
    dseg_spill how = {.most_device = (uint32_t)spill->n_device,
                      .max_created = dpool_handle_granules(a, 0),
                      .max_held = spill->max_held};
    dti_lock_acquire(&a->index_lock);
    region->is_spilled = true;
    dti_lock_release(&a->index_lock);
    ductile_status status = dpool_closed_fill(a, region, fill, &how, requested, out);
    spill->lacks_host = how.lacks * a->granule;
    spill->n_refused = how.lacks_device;
    if (status == DUCTILE_OK) {
        count_spill(a, (*out)->size - dpool_device_bytes(*out));
    }
    return status;
}

/* ---- How much of it is in use ---------------------------------------------------------------- */

/* While a pool falls asleep or wakes, its thread changes granules without the index lock. */
uint64_t dpool_host_bytes_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_private_pool *pool = b->region->arena->pool;
    bool is_still = dpool_is_awake(pool) || dpool_is_asleep(pool);
    return is_still ? b->size - dpool_device_bytes(b) : 0;
}

static uint64_t spilled_leaving_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t bytes = 0;
    for (const dpool_block *b = arena->blocks.leaving.first; b != NULL; b = b->list_next) {
        bytes += dpool_host_bytes_locked(a, b);
    }
    return bytes;
}

uint64_t dpool_spilled_live_locked(const ductile_allocator *a, uint64_t spilled) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t bytes = spilled;
    const dpool_arena *arena = bytes > 0 ? a->arenas : NULL;
    for (; arena != NULL; arena = arena->next) {
        bytes -= dti_min(bytes, spilled_leaving_locked(a, arena));
    }
    return bytes;
}

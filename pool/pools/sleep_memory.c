/* SPDX-License-Identifier: Apache-2.0 */
/* Maps the memory of a sleeping pool again, all or nothing. */
#include "pool/blocks/address_map.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"
#include "pool/growth/asleep_memory.h"
#include "pool/growth/sizes.h"
#include "pool/pools/sleep.h"

#include "segments/granules.h"
#include "segments/grow.h"
#include "vmm/base/align.h"

#include <stdlib.h>

static const uint64_t part_bytes = 256 * DTI_MIB; /* mapped before copies in of it begin */

/* ---- What needs memory --------------------------------------------------------------------- */

/* A stretch between gaps, of ASLEEP and FREE blocks: [first, end) in granules of a region. */
typedef struct stretch {
    dpool_region *region;
    uint32_t first;
    uint32_t end;
    uint64_t block_bytes; /* of the one block that it is of; 0: of several */
} stretch;

typedef struct stretches {
    stretch *all;
    uint64_t n;
    uint64_t room;
    uint64_t n_empty; /* granules of all of them that have no memory */
} stretches;

static bool needs_memory(const dpool_block *b) {
    return b->state == DPOOL_ASLEEP || b->state == DPOOL_FREE;
}

static uint64_t count_empty(const stretch *s) {
    uint64_t n = 0;
    for (uint32_t g = s->first; g < s->end; g++) {
        n += dseg_state_at(s->region->seg, g) != DSEG_MAPPED;
    }
    return n;
}

static void add_stretch(stretches *s, dpool_region *region, ductile_addr from, ductile_addr to,
                        uint64_t block_bytes) {
    if (from >= to) {
        return;
    }
    stretch found = {region, dseg_granule(region->seg, from), dseg_granule(region->seg, to - 1) + 1,
                     block_bytes};
    if (s->n < s->room) {
        s->all[s->n] = found;
    }
    s->n++;
    s->n_empty += count_empty(&found);
}

static bool is_alone(const ductile_allocator *a, const dpool_block *b) {
    bool has_tag = b->region->arena->pool->tag[0] != '\0';
    return has_tag && b->state == DPOOL_ASLEEP && dpool_is_alone_in_handles(a, b->size);
}

/* Its whole granules, behind what came before it. Returns where the next stretch begins. */
static ductile_addr add_alone(const ductile_allocator *a, stretches *s, ductile_addr from,
                              const dpool_block *b) {
    ductile_addr first = dti_round_up(b->addr, a->granule);
    ductile_addr end = dti_round_down(dpool_end(b), a->granule);
    add_stretch(s, b->region, from, first, 0);
    add_stretch(s, b->region, first, end, b->size);
    return end;
}

static void find_in_region(const ductile_allocator *a, dpool_region *region, stretches *s) {
    ductile_addr from = 0;
    for (const dpool_block *b = region->first; b != NULL; b = b->next) {
        if (!needs_memory(b)) {
            from = 0;
            continue;
        }
        from = from == 0 ? b->addr : from;
        from = is_alone(a, b) ? add_alone(a, s, from, b) : from;
        if (b->next == NULL || !needs_memory(b->next)) {
            add_stretch(s, region, from, dpool_end(b), 0);
        }
    }
}

static void find_stretches(ductile_allocator *a, const dpool_private_pool *pool, stretches *s) {
    s->n = s->n_empty = 0;
    dti_lock_acquire(&a->index_lock);
    for (dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
         r = dpool_next_region(a, pool, r)) {
        find_in_region(a, r, s);
    }
    dti_lock_release(&a->index_lock);
}

/* Blocks may be freed meanwhile, but gaps appear and disappear only in the phase ASLEEP. */
static ductile_status collect_stretches(ductile_allocator *a, const dpool_private_pool *pool,
                                        stretches *s) {
    find_stretches(a, pool, s);
    s->room = s->n;
    s->all = calloc(s->room + 1, sizeof *s->all);
    if (s->all == NULL) {
        s->n = 0;
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    find_stretches(a, pool, s);
    return DUCTILE_OK;
}

uint64_t dpool_bytes_to_map(ductile_allocator *a, const dpool_private_pool *pool) {
    stretches s = {.room = 0};
    dti_lock_acquire(&a->grow_lock);
    find_stretches(a, pool, &s);
    dti_lock_release(&a->grow_lock);
    return s.n_empty * a->granule;
}

/* ---- Mapping it again ---------------------------------------------------------------------- */

typedef struct waking {
    ductile_allocator *allocator;
    dpool_private_pool *pool;
} waking;

static uint32_t most_granules(ductile_allocator *a, const stretch *s) {
    return dpool_granules_in_block(a, s->region->arena->pool, s->block_bytes);
}

/* A cached handle of any size may have come. */
static ductile_status refill(ductile_allocator *a, const stretch *s) {
    dseg_segment *seg = s->region->seg;
    ductile_status status = dseg_refill(seg, s->first, s->end, most_granules(a, s));
    for (uint32_t g = s->first; g < s->end; g++) {
        bool is_mapped = dseg_state_at(seg, g) == DSEG_MAPPED;
        dpool_sizes_note(a, is_mapped ? dseg_handle_at(seg, g)->n_granules : 1);
    }
    return status;
}

/* Counts what was mapped also after a failure, so that unmapping the pool unmaps it again. */
static ductile_status map_stretch(ductile_allocator *a, const stretch *s) {
    dpool_region *region = s->region;
    uint64_t before = region->seg->n_mapped;
    bool is_one = region->is_closed && !region->is_spilled;
    ductile_status status = is_one ? dseg_fill_with_one(region->seg, UINT64_MAX) : refill(a, s);
    uint64_t added = (region->seg->n_mapped - before) * a->granule;
    dti_lock_acquire(&a->index_lock);
    dpool_count_mapped_locked(a, region->arena, (int64_t)added);
    dpool_count_span_locked(a, region);
    dti_lock_release(&a->index_lock);
    return status;
}

/* A block that was freed meanwhile needs no contents. When its range has gone, a block of another
 * pool may be asleep at that address. Of a spilled block a part may be kept. */
static bool is_still_asleep(void *user, ductile_addr addr) {
    const waking *r = user;
    ductile_allocator *a = r->allocator;
    dti_lock_acquire(&a->index_lock);
    const dseg_segment *seg = dseg_set_find(&a->segments, addr);
    const dpool_region *region = seg != NULL ? seg->owner : NULL;
    bool is_spilled = region != NULL && region->is_spilled;
    const dpool_block *b = dpool_map_find(&a->map, is_spilled ? region->seg->range.addr : addr);
    bool is_asleep = b != NULL && b->state == DPOOL_ASLEEP && b->region->arena->pool == r->pool;
    dti_lock_release(&a->index_lock);
    return is_asleep;
}

/* The first part of a stretch, which copies in follow while the next is mapped: whole handles. */
static stretch cut(const waking *r, stretch *rest) {
    ductile_allocator *a = r->allocator;
    uint32_t handle = most_granules(a, rest);
    uint32_t most = (uint32_t)dti_max(part_bytes / a->granule / handle, 1) * handle;
    bool is_whole = rest->region->is_closed || r->pool->host_copy.n_pieces == 0;
    stretch part = *rest;
    part.end = is_whole ? rest->end : (uint32_t)dti_min(rest->end, rest->first + (uint64_t)most);
    rest->first = part.end;
    return part;
}

static ductile_status map_and_restore(waking *r, stretch rest) {
    const dseg_segment *seg = rest.region->seg;
    ductile_status status = DUCTILE_OK;
    while (rest.first < rest.end && status == DUCTILE_OK) {
        stretch part = cut(r, &rest);
        status = map_stretch(r->allocator, &part);
        if (status == DUCTILE_OK) {
            status = dvmm_host_copy_restore_between(&r->pool->host_copy, dseg_addr(seg, part.first),
                                                    dseg_addr(seg, part.end), is_still_asleep, r);
        }
    }
    return status;
}

static ductile_status map_all(waking *r) {
    stretches s = {.room = 0};
    ductile_status status = collect_stretches(r->allocator, r->pool, &s);
    for (uint64_t i = 0; i < s.n && status == DUCTILE_OK; i++) {
        status = map_and_restore(r, s.all[i]);
    }
    free(s.all);
    return status;
}

static ductile_status map_locked(waking *r) {
    DTI_ASSERT_HELD(&r->allocator->grow_lock);
    ductile_allocator *a = r->allocator;
    uint64_t cached_before = a->store.totals.cached_bytes;
    dpool_set_unbacked(a, r->pool, false);
    dpool_sizes_look(a);
    ductile_status status = map_all(r);
    if (status != DUCTILE_OK) {
        dpool_set_unbacked(a, r->pool, true);
        (void)dvmm_store_shrink_cache(&a->store, cached_before);
    }
    return status;
}

ductile_status dpool_map_pool(ductile_allocator *a, dpool_private_pool *pool) {
    waking r = {a, pool};
    ductile_status status = dvmm_host_copy_begin_restore(&pool->host_copy);
    if (status == DUCTILE_OK) {
        dvmm_capture_mode mode = dpool_grow_lock(a);
        status = map_locked(&r);
        dpool_grow_unlock(a, mode);
    }
    if (status != DUCTILE_OK) {
        dpool_unmap_pool(a, pool); /* waits for copies under way, also those of the sleep */
    }
    return status;
}

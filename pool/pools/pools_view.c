/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls that describe pools, and that allocate at a given address. */
#include "pool/base/guards.h"
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/blocks/transitions.h"
#include "pool/blocks/wait_spans.h"
#include "pool/pools/asleep.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/marks.h"
#include "pool/streams/progress.h"

#include "vmm/base/align.h"

#include <string.h>

/* ---- What it is ---------------------------------------------------------------------------- */

static ductile_pool_info describe_pool(const dpool_private_pool *pool) {
    ductile_pool_state state = dpool_state_of_pool(pool);
    ductile_pool_info info = {.struct_size = sizeof info,
                              .id = pool->id,
                              .references = pool->refs,
                              .open = pool->n_routes,
                              .kind = pool->kind,
                              .asleep = state != DUCTILE_POOL_AWAKE,
                              .state = state,
                              .policy = pool->policy,
                              .contents = pool->contents};
    /* `retains` is asked last: a sleep under way writes it, without the lock. */
    bool keeps = state == DUCTILE_POOL_ASLEEP || (state == DUCTILE_POOL_AWAKE && pool->retains);
    info.kept_bytes = keeps ? pool->host_copy.bytes : 0;
    memcpy(info.tag, pool->tag, sizeof info.tag);
    return info;
}

static int visit_private_locked(const ductile_allocator *a, ductile_pool_walk_fn visit,
                                void *user) {
    DTI_ASSERT_HELD(&a->index_lock);
    int ended = 0;
    for (const dpool_private_pool *pool = a->pools; pool != a->default_pool && ended == 0;
         pool = pool->next) {
        ductile_pool_info info = describe_pool(pool);
        ended = visit(user, &info);
    }
    return ended;
}

ductile_status ductile_walk_pools(ductile_allocator *a, ductile_pool_walk_fn visit, void *user) {
    ductile_status status = visit != NULL ? dpool_may_read(a) : DUCTILE_ERR_INVALID_ARGUMENT;
    if (status == DUCTILE_OK) {
        dti_lock_acquire(&a->index_lock);
        ductile_pool_info info = describe_pool(a->default_pool);
        if (visit(user, &info) == 0) {
            (void)visit_private_locked(a, visit, user);
        }
        dti_lock_release(&a->index_lock);
    }
    return status;
}

typedef struct listing {
    unsigned char *out;
    size_t stride; /* the caller's size of a description */
    size_t room, found;
} listing;

static int list_pool(void *user, const ductile_pool_info *info) {
    listing *l = user;
    if (l->found < l->room) {
        ductile_pool_info copy = *info;
        copy.struct_size = l->stride;
        memcpy(l->out + l->found * l->stride, &copy, l->stride);
    }
    l->found++;
    return 0;
}

static ductile_status list_one(ductile_allocator *a, ductile_pool_id id, listing *l) {
    dti_lock_acquire(&a->index_lock);
    const dpool_private_pool *pool = dpool_find_pool_locked(a, id);
    if (pool != NULL) {
        ductile_pool_info info = describe_pool(pool);
        (void)list_pool(l, &info);
    }
    dti_lock_release(&a->index_lock);
    return pool != NULL ? DUCTILE_OK : DUCTILE_ERR_INVALID_ARGUMENT;
}

ductile_status ductile_list_pools(ductile_allocator *a, const ductile_pool_id *id,
                                  ductile_pool_info *out, size_t room, size_t *found) {
    DTI_TRY(room > 0 ? dpool_may_fill(a, out, sizeof *out) : DUCTILE_ERR_INVALID_ARGUMENT);
    listing l = {.out = (unsigned char *)out, .stride = out->struct_size, .room = room};
    ductile_status status =
        id != NULL ? list_one(a, *id, &l) : ductile_walk_pools(a, list_pool, &l);
    if (status == DUCTILE_OK && found != NULL) {
        *found = l.found;
    }
    return status;
}

/* ---- Blocks put back ----------------------------------------------------------------------- */

/* Of an elastic range units alone are blocks (B8). */
static bool may_be_block(const dpool_region *region, ductile_addr address, uint64_t size) {
    const dseg_segment *seg = region->seg;
    uint64_t unit = seg->unit_granules * seg->store->granule_bytes;
    return unit == 0 || (size == unit && (address - seg->range.addr) % unit == 0);
}

/* The block that holds all of [address, address + size), if it is FREE for requests. */
static ductile_status find_free_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                                       ductile_addr address, uint64_t size, dpool_block **out) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = dpool_block_at_locked(a, address);
    if (b == NULL || b->region->arena->pool != pool) {
        return DUCTILE_ERR_FOREIGN_POINTER;
    }
    *out = b;
    bool fits = b->state == DPOOL_FREE && dpool_index_holds(&b->region->arena->index, b) &&
                dpool_end(b) - address >= size && may_be_block(b->region, address, size) &&
                !dpool_wait_is_due_locked(a, address, address + size);
    return fits ? DUCTILE_OK : DUCTILE_ERR_BUSY;
}

/* ERR_NOT_READY: the caller must reserve room first. */
static ductile_status put_locked(ductile_allocator *a, ductile_pool_id id, ductile_addr address,
                                 size_t size) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_private_pool *pool = dpool_find_pool_locked(a, id);
    dpool_block *b = NULL;
    if (pool == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    DTI_TRY(dpool_admit_locked(a, pool, size));
    uint64_t rounded = dpool_round(size);
    DTI_TRY(find_free_locked(a, pool, address, rounded, &b));
    if (a->nodes.n_spare < 2 || !dpool_map_has_room(&a->map)) {
        return DUCTILE_ERR_NOT_READY;
    }
    dpool_wait_forget_done_locked(a, address, address + rounded);
    b = dpool_carve_free_locked(a, b, address, address + rounded);
    dpool_make_live_locked(a, b, size);
    return DUCTILE_OK;
}

static ductile_status try_to_put(ductile_allocator *a, ductile_pool_id id, ductile_addr address,
                                 size_t size) {
    dti_lock_acquire(&a->index_lock);
    ductile_status status = put_locked(a, id, address, size);
    dti_lock_release(&a->index_lock);
    return status;
}

static ductile_status make_room(ductile_allocator *a) {
    dti_lock_acquire(&a->grow_lock);
    ductile_status status = dpool_reserve_room(a, 2);
    dti_lock_release(&a->grow_lock);
    return status;
}

/* Learns what the GPU is done with: pending blocks become FREE, and spans need no wait. A use that
 * has no marker is proven by the context alone. Unmaps nothing. */
static void poll_uses(ductile_allocator *a) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    if (atomic_load(&a->has_unmarked)) {
        (void)dpool_record_mark(a, NULL);
    }
    dpool_poll_all(a, 0);
    dpool_wait_poll(a, UINT32_MAX);
    dpool_grow_unlock(a, mode);
}

static ductile_status put(ductile_allocator *a, ductile_pool_id id, ductile_addr address,
                          size_t size) {
    DTI_TRY(dvmm_usable(a->driver));
    ductile_status status = try_to_put(a, id, address, size);
    while (status == DUCTILE_ERR_NOT_READY) { /* other threads may take the room first */
        status = make_room(a);
        status = status == DUCTILE_OK ? try_to_put(a, id, address, size) : status;
    }
    return status;
}

ductile_status ductile_pool_alloc_at(ductile_allocator *a, ductile_pool_id id, ductile_addr address,
                                     size_t size) {
    if (a == NULL || size == 0 || size > DPOOL_MAX_REQUEST ||
        !dti_is_aligned(address, DUCTILE_ALIGNMENT)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = put(a, id, address, size);
    if (status == DUCTILE_ERR_BUSY) { /* work may be done that no call has looked at since */
        poll_uses(a);
        status = put(a, id, address, size);
    }
    return status;
}

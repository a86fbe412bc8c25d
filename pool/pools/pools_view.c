/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls that read one pool, and that allocate at a given address. */
#include "pool/base/events.h"
#include "pool/base/guards.h"
#include "pool/base/log.h"
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/blocks/transitions.h"
#include "pool/blocks/wait_spans.h"
#include "pool/growth/give_back.h"
#include "pool/inspect/inspect.h"
#include "pool/pools/asleep.h"

#include "vmm/base/align.h"

#include <string.h>

/* ---- Finding the pool ---------------------------------------------------------------------- */

/* False when there is none of that name. */
static bool find_locked(const ductile_allocator *a, ductile_pool_id id, dpool_private_pool **out) {
    DTI_ASSERT_HELD(&a->index_lock);
    *out = dpool_find_pool_locked(a, id);
    return *out != NULL;
}

/* ---- What it is ---------------------------------------------------------------------------- */

static ductile_pool_info describe_pool(const dpool_private_pool *pool) {
    ductile_pool_info info = {.struct_size = sizeof info,
                              .id = pool->id,
                              .references = pool->refs,
                              .open = pool->n_routes,
                              .kind = pool->kind,
                              .paused = pool->phase != DPOOL_RUNNING,
                              .state = (ductile_pool_state)pool->phase,
                              .policy = pool->policy,
                              .contents = pool->contents};
    info.kept_bytes =
        pool->phase == DPOOL_PAUSED_PHASE || (pool->retains && pool->phase == DPOOL_RUNNING)
            ? pool->host_copy.bytes
            : 0;
    memcpy(info.tag, pool->tag, sizeof info.tag);
    return info;
}

ductile_status ductile_pool_query(ductile_allocator *a, ductile_pool_id id,
                                  ductile_pool_info *out) {
    ductile_status status = dpool_may_fill(a, out, sizeof *out);
    if (status != DUCTILE_OK) {
        return status;
    }
    size_t size = out->struct_size;
    dpool_private_pool *pool = NULL;
    dti_lock_acquire(&a->index_lock);
    bool is_known = find_locked(a, id, &pool);
    if (is_known) {
        ductile_pool_info info = describe_pool(pool);
        info.struct_size = size;
        memcpy(out, &info, size);
    }
    dti_lock_release(&a->index_lock);
    return is_known ? DUCTILE_OK : DUCTILE_ERR_INVALID_ARGUMENT;
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

ductile_status ductile_list_pools(ductile_allocator *a, ductile_pool_info *out, size_t room,
                                  size_t *found) {
    if (out == NULL || found == NULL || room == 0) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dpool_may_fill(a, out, sizeof *out);
    listing l = {.out = (unsigned char *)out, .stride = out->struct_size, .room = room};
    if (status == DUCTILE_OK) {
        status = ductile_walk_pools(a, list_pool, &l);
    }
    if (status == DUCTILE_OK) {
        *found = l.found;
    }
    return status;
}

/* ---- What it holds ------------------------------------------------------------------------- */

static void add_block_locked(const ductile_allocator *a, const dpool_block *b, ductile_stats *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    s->paused_blocks += b->state == DPOOL_PAUSED;
    s->paused_bytes += b->state == DPOOL_PAUSED ? b->size : 0;
    s->live_blocks += b->state == DPOOL_LIVE;
    bool is_free = b->state == DPOOL_FREE;
    bool is_gap = is_free && dpool_has_no_memory_locked(a, b);
    s->free_blocks += is_free && !is_gap;
    s->pending_blocks += b->state == DPOOL_PENDING;
    s->gap_blocks += b->state == DPOOL_GAP || is_gap;
    s->requested_bytes += b->state == DPOOL_LIVE ? b->requested : 0;
    s->retiring_bytes += b->state == DPOOL_RETIRING ? b->size : 0;
}

static void add_region_locked(const ductile_allocator *a, const dpool_region *region,
                              ductile_stats *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    s->segments++;
    s->address_bytes += dvmm_range_reserved(&region->seg->range);
    s->address_span_bytes += region->span_bytes;
    for (const dpool_block *b = region->first; b != NULL; b = b->next) {
        add_block_locked(a, b, s);
    }
}

static void add_arena_locked(const ductile_allocator *a, const dpool_arena *arena,
                             ductile_stats *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    s->arenas++;
    s->allocated_bytes += arena->live_bytes;
    s->pending_bytes += arena->pending_bytes;
    s->reserved_bytes += arena->mapped_bytes;
    for (const dpool_region *region = arena->regions; region != NULL; region = region->next) {
        add_region_locked(a, region, s);
    }
}

static void fill_stats_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                              ductile_stats *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        if (arena->pool == pool) {
            add_arena_locked(a, arena, s);
        }
    }
    s->free_bytes = s->reserved_bytes - s->allocated_bytes - s->pending_bytes;
    s->mapped_bytes = s->reserved_bytes + s->retiring_bytes;
}

ductile_status ductile_pool_get_stats(ductile_allocator *a, ductile_pool_id id,
                                      ductile_stats *out) {
    ductile_status status = dpool_may_fill(a, out, sizeof *out);
    if (status != DUCTILE_OK) {
        return status;
    }
    ductile_stats s = {.struct_size = out->struct_size};
    dpool_private_pool *pool = NULL;
    dti_lock_acquire(&a->index_lock);
    if (find_locked(a, id, &pool)) {
        fill_stats_locked(a, pool, &s);
    } else {
        status = DUCTILE_ERR_INVALID_ARGUMENT;
    }
    dti_lock_release(&a->index_lock);
    memcpy(out, &s, s.struct_size);
    return status;
}

static void visit_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                         ductile_walk_fn visit, void *user) {
    DTI_ASSERT_HELD(&a->index_lock);
    int ended = 0;
    for (uint32_t i = 0; i < a->segments.count && ended == 0; i++) {
        const dpool_region *region = a->segments.items[i]->owner;
        if (region->arena->pool == pool) {
            ended = dpool_visit_region_locked(a, region, visit, user);
        }
    }
}

ductile_status ductile_pool_walk(ductile_allocator *a, ductile_pool_id id, ductile_walk_fn visit,
                                 void *user) {
    if (visit == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dpool_may_read(a);
    if (status != DUCTILE_OK) {
        return status;
    }
    dpool_private_pool *pool = NULL;
    dti_lock_acquire(&a->index_lock);
    if (find_locked(a, id, &pool)) {
        visit_locked(a, pool, visit, user);
    } else {
        status = DUCTILE_ERR_INVALID_ARGUMENT;
    }
    dti_lock_release(&a->index_lock);
    return status;
}

/* ---- Giving back --------------------------------------------------------------------------- */

static ductile_status pin(ductile_allocator *a, ductile_pool_id id, dpool_private_pool **out) {
    dti_lock_acquire(&a->index_lock);
    bool found = find_locked(a, id, out);
    if (found) {
        (*out)->n_users++;
    }
    dti_lock_release(&a->index_lock);
    return found ? DUCTILE_OK : DUCTILE_ERR_INVALID_ARGUMENT;
}

static uint64_t held_by(ductile_allocator *a, ductile_pool_id id) {
    ductile_stats s = {.struct_size = sizeof s};
    return ductile_pool_get_stats(a, id, &s) == DUCTILE_OK ? s.reserved_bytes : 0;
}

ductile_status ductile_pool_trim(ductile_allocator *a, ductile_pool_id id, uint64_t *released) {
    if (released != NULL) {
        *released = 0;
    }
    if (a == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    dpool_private_pool *pool = NULL;
    ductile_status status = dvmm_usable(a->driver);
    status = status == DUCTILE_OK ? pin(a, id, &pool) : status;
    if (status != DUCTILE_OK) {
        return status;
    }
    uint64_t before = held_by(a, id);
    dpool_forget_failure();
    status = dpool_trim_pool(a, pool);
    dpool_log_losses(a);
    uint64_t after = held_by(a, id);
    if (released != NULL && after < before) {
        *released = before - after;
    }
    dpool_unpin(a, pool);
    return status;
}

/* ---- Blocks put back ----------------------------------------------------------------------- */

/* The block that holds all of [address, address + size), if it is FREE. */
static ductile_status find_free_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                                       ductile_addr address, uint64_t size, dpool_block **out) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dseg_segment *seg = dseg_set_find(&a->segments, address);
    const dpool_region *region = seg != NULL ? seg->owner : NULL;
    if (region == NULL || region->arena->pool != pool) {
        return DUCTILE_ERR_FOREIGN_POINTER;
    }
    dpool_block *b = region->first;
    while (dpool_end(b) <= address) {
        b = b->next;
    }
    *out = b;
    bool fits = b->state == DPOOL_FREE && !region->is_dedicated && dpool_end(b) - address >= size &&
                !dpool_wait_is_due_locked(a, address, address + size);
    return fits ? DUCTILE_OK : DUCTILE_ERR_BUSY;
}

/* ERR_NOT_READY: the caller must reserve room first. */
static ductile_status put_locked(ductile_allocator *a, ductile_pool_id id, ductile_addr address,
                                 size_t size) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_private_pool *pool = NULL;
    dpool_block *b = NULL;
    if (!find_locked(a, id, &pool)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (pool->phase != DPOOL_RUNNING) {
        dpool_note_refusal_locked(a, pool, size);
        return DUCTILE_ERR_ASLEEP;
    }
    uint64_t rounded = dpool_round(size);
    ductile_status status = find_free_locked(a, pool, address, rounded, &b);
    if (status != DUCTILE_OK) {
        return status;
    }
    if (a->nodes.n_spare < 2 || !dpool_map_has_room(&a->map)) {
        return DUCTILE_ERR_NOT_READY;
    }
    dpool_wait_forget_done_locked(a, address, address + rounded);
    b = dpool_carve_free_locked(a, b, address, address + rounded);
    dpool_make_live_locked(a, b, size);
    DPOOL_TELL(a, left_locked, b->addr, dpool_end(b)); /* the call names no stream for a check */
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

ductile_status ductile_pool_alloc_at(ductile_allocator *a, ductile_pool_id id, ductile_addr address,
                                     size_t size) {
    if (a == NULL || size == 0 || size > DPOOL_MAX_REQUEST ||
        !dti_is_aligned(address, DUCTILE_ALIGNMENT)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dvmm_usable(a->driver);
    if (status != DUCTILE_OK) {
        return status;
    }
    status = try_to_put(a, id, address, size);
    while (status == DUCTILE_ERR_NOT_READY) { /* other threads may take the room first */
        status = make_room(a);
        status = status == DUCTILE_OK ? try_to_put(a, id, address, size) : status;
    }
    return status;
}

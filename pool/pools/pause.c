/* SPDX-License-Identifier: Apache-2.0 */
/* Pauses and resumes a pool: claims it, waits for its work, and changes its blocks. */
#include "pool/pools/pause.h"

#include "pool/base/log.h"
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/fill_map.h"
#include "pool/blocks/region.h"
#include "pool/blocks/transitions.h"
#include "pool/blocks/wait_spans.h"
#include "pool/growth/give_back.h"
#include "pool/growth/sizes.h"
#include "pool/streams/marks.h"
#include "pool/streams/progress.h"
#include "pool/streams/quiesce.h"

#include <stdlib.h>

enum { MOST_ROUNDS = 16 }; /* of waiting, while other threads go on freeing */

typedef void (*block_fn)(ductile_allocator *a, dpool_block *b);

static void each_in_state_locked(ductile_allocator *a, const dpool_private_pool *pool,
                                 dpool_state state, block_fn change) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
         r = dpool_next_region(a, pool, r)) {
        for (dpool_block *b = r->first; b != NULL; b = b->next) {
            if (b->state == (uint64_t)state) {
                change(a, b);
            }
        }
    }
}

/* ---- Claiming the pool --------------------------------------------------------------------- */

static ductile_status claim_locked(ductile_allocator *a, ductile_pool_id id, dpool_phase from,
                                   dpool_phase to, dpool_private_pool **out) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_private_pool *pool = dpool_find_pool_locked(a, id);
    if (pool == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    /* The request that asks an out-of-memory callback may be one of the pool's users. */
    bool would_wait =
        to == DPOOL_PAUSING && pool->n_users > 0 && dpool_is_inside_callback(DPOOL_CALLBACK_OOM);
    if (pool->phase != from || would_wait) {
        return DUCTILE_ERR_BUSY;
    }
    pool->phase = to;
    pool->n_users++;
    *out = pool;
    return DUCTILE_OK;
}

static ductile_status claim(ductile_allocator *a, ductile_pool_id id, dpool_phase from,
                            dpool_phase to, dpool_private_pool **out) {
    if (a == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dvmm_usable(a->driver);
    if (status != DUCTILE_OK) {
        return status;
    }
    if (dpool_is_inside_callback(DPOOL_CALLBACK_MAP)) {
        return DUCTILE_ERR_BUSY; /* the thread would wait for itself */
    }
    dti_lock_acquire(&a->index_lock);
    status = claim_locked(a, id, from, to, out);
    dti_lock_release(&a->index_lock);
    return status;
}

/* Waits for calls that found the pool before it was claimed; new ones are refused. Locks the grow
 * lock, because its holder may have made blocks of the pool BUSY without being counted as
 * announcing yet. */
static void wait_for_users(ductile_allocator *a, const dpool_private_pool *pool) {
    bool is_alone = false;
    while (!is_alone) {
        dti_lock_acquire(&a->grow_lock);
        dti_lock_acquire(&a->index_lock);
        is_alone = pool->n_users == 1 && a->n_announcing == 0;
        dti_lock_release(&a->index_lock);
        dti_lock_release(&a->grow_lock);
        if (!is_alone) {
            dpool_pause_briefly();
        }
    }
}

/* ---- Waiting for the work on it ------------------------------------------------------------ */

/* Applies what the wait has proven: pending blocks become free, old addresses are unmapped. */
static void poll_all(ductile_allocator *a) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    dpool_poll_all(a, UINT32_MAX);
    dpool_grow_unlock(a, mode);
}

static bool is_quiet_locked(const ductile_allocator *a, const dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        if (arena->pool == pool && (arena->pending_bytes > 0 || dpool_has_old_addresses(arena))) {
            return false;
        }
    }
    for (const dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
         r = dpool_next_region(a, pool, r)) {
        if (dpool_wait_is_due_locked(a, r->seg->range.addr,
                                     r->seg->range.addr + r->seg->range.size)) {
            return false;
        }
    }
    return true;
}

/* Work that is done needs no wait any more. */
static void forget_waits_locked(ductile_allocator *a, const dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (const dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
         r = dpool_next_region(a, pool, r)) {
        dpool_wait_forget_done_locked(a, r->seg->range.addr,
                                      r->seg->range.addr + r->seg->range.size);
    }
}

/* What is free beside paused blocks has other memory after the pause. */
static void forget_fill_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_fill_forget(b->region, b->addr, dpool_end(b));
}

static bool pause_blocks_if_quiet(ductile_allocator *a, dpool_private_pool *pool) {
    dti_lock_acquire(&a->index_lock);
    bool is_quiet = is_quiet_locked(a, pool);
    if (is_quiet) {
        forget_waits_locked(a, pool);
        each_in_state_locked(a, pool, DPOOL_FREE, forget_fill_locked);
        each_in_state_locked(a, pool, DPOOL_LIVE, dpool_pause_block_locked);
    }
    dti_lock_release(&a->index_lock);
    return is_quiet;
}

static ductile_status wait_and_pause_blocks(ductile_allocator *a, dpool_private_pool *pool) {
    for (int i = 0; i < MOST_ROUNDS; i++) {
        ductile_status status = dpool_quiesce_pool(a, pool, &pool->idle);
        if (status != DUCTILE_OK) {
            return status;
        }
        poll_all(a);
        if (pause_blocks_if_quiet(a, pool)) {
            return DUCTILE_OK;
        }
    }
    return DUCTILE_ERR_BUSY;
}

/* ---- Contents ------------------------------------------------------------------------------ */

typedef struct piece_list {
    dvmm_piece *all;
    uint64_t n;
    uint64_t room;
} piece_list;

static void list_paused_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                               piece_list *list) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (const dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
         r = dpool_next_region(a, pool, r)) {
        for (const dpool_block *b = r->first; b != NULL; b = b->next) {
            if (b->state == DPOOL_PAUSED && list->n < list->room) {
                list->all[list->n++] = (dvmm_piece){b->addr, b->size, false};
            }
        }
    }
}

/* Blocks may be freed between counting and listing, but none of this pool is added. */
static ductile_status save(ductile_allocator *a, dpool_private_pool *pool) {
    piece_list list = {.n = 0};
    dti_lock_acquire(&a->index_lock);
    list.room = a->counts.paused_blocks;
    dti_lock_release(&a->index_lock);
    list.all = calloc(list.room + 1, sizeof *list.all);
    if (list.all == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_acquire(&a->index_lock);
    list_paused_locked(a, pool, &list);
    dti_lock_release(&a->index_lock);
    return dvmm_host_copy_save(&pool->host_copy, a->driver, list.all, list.n);
}

typedef struct resuming {
    ductile_allocator *allocator;
    const dpool_private_pool *pool;
} resuming;

/* A block that was freed meanwhile needs no contents. When its range has gone, a block of another
 * pool may be paused at that address. */
static bool is_still_paused(void *user, ductile_addr addr) {
    const resuming *r = user;
    ductile_allocator *a = r->allocator;
    dti_lock_acquire(&a->index_lock);
    const dpool_block *b = dpool_map_find(&a->map, addr);
    bool is_paused = b != NULL && b->state == DPOOL_PAUSED && b->region->arena->pool == r->pool;
    dti_lock_release(&a->index_lock);
    return is_paused;
}

/* ---- Pause --------------------------------------------------------------------------------- */

/* Also runs after a pause that failed halfway: LIVE blocks stay LIVE. */
static void run_again(ductile_allocator *a, dpool_private_pool *pool) {
    dti_lock_acquire(&a->index_lock);
    each_in_state_locked(a, pool, DPOOL_PAUSED, dpool_resume_block_locked);
    pool->phase = DPOOL_RUNNING;
    pool->released_age = a->age;
    dpool_want_mark_locked(a);
    dti_lock_release(&a->index_lock);
    dvmm_host_copy_drop(&pool->host_copy);
}

static ductile_status pause_claimed(ductile_allocator *a, dpool_private_pool *pool,
                                    unsigned flags) {
    wait_for_users(a, pool);
    ductile_status status = wait_and_pause_blocks(a, pool);
    if (status == DUCTILE_OK && (flags & DUCTILE_PAUSE_KEEP_CONTENTS) != 0) {
        status = save(a, pool);
    }
    if (status == DUCTILE_OK) {
        status = dpool_announce_pool(a, pool, DUCTILE_MAP_LEAVING);
    }
    if (status != DUCTILE_OK) {
        run_again(a, pool);
        return status;
    }
    dpool_unmap_pool(a, pool); /* nothing below can fail */
    dpool_finish_pause(a, pool);
    return DUCTILE_OK;
}

ductile_status ductile_pause(ductile_allocator *a, ductile_pool_id id, unsigned flags) {
    if ((flags & ~DUCTILE_PAUSE_KEEP_CONTENTS) != 0) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    dpool_private_pool *pool = NULL;
    ductile_status status = claim(a, id, DPOOL_RUNNING, DPOOL_PAUSING, &pool);
    if (status != DUCTILE_OK) {
        return status;
    }
    dpool_forget_failure();
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    dvmm_nvtx_push(dvmm_nvtx_of(a->driver), "pause", 0);
    status = pause_claimed(a, pool, flags);
    dvmm_nvtx_pop(dvmm_nvtx_of(a->driver));
    dvmm_capture_restore(a->driver, mode);
    dpool_log_losses(a);
    dpool_unpin(a, pool);
    return status;
}

/* ---- Resume -------------------------------------------------------------------------------- */

/* Unused memory of others makes room. */
static ductile_status make_room(ductile_allocator *a, const dpool_private_pool *pool) {
    uint64_t need = dpool_bytes_to_map(a, pool);
    dvmm_capture_mode mode = dpool_grow_lock(a);
    uint64_t most = dpool_room(a);
    dpool_grow_unlock(a, mode);
    return dpool_trim(a, most > need ? most - need : 0);
}

static ductile_status map_or_make_room(ductile_allocator *a, dpool_private_pool *pool) {
    ductile_status status = dpool_map_pool(a, pool);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && make_room(a, pool) == DUCTILE_OK) {
        status = dpool_map_pool(a, pool);
    }
    return status;
}

/* Dedicated blocks that were freed meanwhile leave theirs. */
static void release_empty_regions(ductile_allocator *a, const dpool_private_pool *pool) {
    dti_lock_acquire(&a->grow_lock);
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        if (arena->pool == pool) {
            dpool_regions_release_empty(a, arena);
        }
    }
    dti_lock_release(&a->grow_lock);
}

static ductile_status resume_claimed(ductile_allocator *a, dpool_private_pool *pool) {
    ductile_status status = map_or_make_room(a, pool);
    if (status == DUCTILE_OK) {
        resuming r = {a, pool};
        status = dvmm_host_copy_restore(&pool->host_copy, is_still_paused, &r);
        if (status == DUCTILE_OK) {
            status = dpool_announce_pool(a, pool, DUCTILE_MAP_MAPPED);
        }
        if (status != DUCTILE_OK) {
            dpool_keep_pool_mapped(a, pool); /* copies may be under way: nothing may be unmapped */
        }
    }
    if (status != DUCTILE_OK) {
        dpool_finish_pause(a, pool);
        return status;
    }
    run_again(a, pool);
    release_empty_regions(a, pool);
    return DUCTILE_OK;
}

ductile_status ductile_resume(ductile_allocator *a, ductile_pool_id id) {
    dpool_private_pool *pool = NULL;
    ductile_status status = claim(a, id, DPOOL_PAUSED_PHASE, DPOOL_RESUMING, &pool);
    if (status != DUCTILE_OK) {
        return status;
    }
    dpool_forget_failure();
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    dvmm_nvtx_push(dvmm_nvtx_of(a->driver), "resume", 0);
    status = resume_claimed(a, pool);
    dvmm_nvtx_pop(dvmm_nvtx_of(a->driver));
    dvmm_capture_restore(a->driver, mode);
    dpool_log_losses(a);
    dpool_unpin(a, pool);
    return status;
}

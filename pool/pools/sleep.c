/* SPDX-License-Identifier: Apache-2.0 */
/* Puts to sleep and wakes pools that the caller has claimed: waits for their work, and changes
 * their blocks. */
#include "pool/pools/sleep.h"

#include "pool/base/log.h"
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"
#include "pool/blocks/transitions.h"
#include "pool/blocks/wait_spans.h"
#include "pool/growth/asleep_memory.h"
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
    for (dpool_block *b = dpool_next_block(a, pool, NULL); b != NULL;
         b = dpool_next_block(a, pool, b)) {
        if (b->state == (uint64_t)state) {
            change(a, b);
        }
    }
}

/* ---- Waiting for calls under way --------------------------------------------------------- */

/* Waits for calls that found the pool before it was claimed; new ones are refused. Locks the grow
 * lock, because its holder may have made blocks of the pool BUSY without being counted as
 * announcing yet. */
static void wait_for_users(ductile_allocator *a, const dpool_private_pool *pool) {
    bool is_alone = false;
    while (!is_alone) {
        dpool_lock_both(a);
        is_alone = pool->n_users == 1 && a->n_announcing == 0;
        dpool_unlock_both(a);
        if (!is_alone) {
            dpool_wait_briefly();
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
        if (arena->pool == pool &&
            (arena->blocks.pending_bytes > 0 || dpool_has_old_addresses(arena))) {
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

static bool sleep_blocks_if_quiet(ductile_allocator *a, dpool_private_pool *pool) {
    dti_lock_acquire(&a->index_lock);
    bool is_quiet = is_quiet_locked(a, pool);
    if (is_quiet) {
        forget_waits_locked(a, pool);
        each_in_state_locked(a, pool, DPOOL_LIVE, dpool_sleep_block_locked);
    }
    dti_lock_release(&a->index_lock);
    return is_quiet;
}

/* A marker that could not be recorded or waited for leaves its blocks pending, too. */
static ductile_status why_not_quiet(void) {
    char call[DPOOL_FAILURE_BYTES];
    return dpool_describe_failure(call, sizeof call) ? DUCTILE_ERR_DRIVER : DUCTILE_ERR_BUSY;
}

static ductile_status wait_and_sleep_blocks(ductile_allocator *a, dpool_private_pool *pool) {
    dpool_forget_failure(); /* of an earlier call of the thread */
    wait_for_users(a, pool);
    for (int i = 0; i < MOST_ROUNDS; i++) {
        DTI_TRY(dpool_quiesce_pool(a, pool, &pool->idle));
        poll_all(a);
        if (sleep_blocks_if_quiet(a, pool)) {
            return DUCTILE_OK;
        }
    }
    return why_not_quiet();
}

/* ---- Contents ------------------------------------------------------------------------------ */

typedef struct piece_list {
    dvmm_piece *all;
    uint64_t n;
    uint64_t room;
} piece_list;

/* What a sleep copies of a block. Memory of the host stays and is the copy. */
static uint64_t bytes_to_keep(const dpool_private_pool *pool, const dpool_block *b) {
    bool is_copied = pool->contents == DUCTILE_CONTENTS_KEEP;
    return is_copied && b->region->is_spilled ? dpool_device_bytes(b) : b->size;
}

static void list_asleep_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                               piece_list *list) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (const dpool_block *b = dpool_next_block(a, pool, NULL); b != NULL;
         b = dpool_next_block(a, pool, b)) {
        bool has_room = b->state == DPOOL_ASLEEP && list->n < list->room;
        uint64_t bytes = has_room ? bytes_to_keep(pool, b) : 0;
        if (bytes > 0) {
            list->all[list->n++] = (dvmm_piece){.addr = b->addr, .size = bytes};
        }
    }
}

/* What the latest wake retained makes room for what is kept now. Blocks may be freed between
 * counting and listing, but none of this pool is added. */
static ductile_status save(ductile_allocator *a, dpool_private_pool *pool) {
    piece_list list = {.n = 0};
    pool->retains = false;
    if (pool->contents != DUCTILE_CONTENTS_KEEP) {
        dvmm_host_copy_drop(&pool->host_copy);
    }
    if (pool->contents == DUCTILE_CONTENTS_DROP) {
        return DUCTILE_OK;
    }
    dti_lock_acquire(&a->index_lock);
    list.room = a->counts.asleep_blocks;
    dti_lock_release(&a->index_lock);
    list.all = calloc(list.room + 1, sizeof *list.all);
    if (list.all == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_acquire(&a->index_lock);
    list_asleep_locked(a, pool, &list);
    dti_lock_release(&a->index_lock);
    if (pool->contents == DUCTILE_CONTENTS_KEEP) {
        return dvmm_host_copy_save(&pool->host_copy, &a->host_arena, list.all, list.n);
    }
    uint8_t value = pool->contents == DUCTILE_CONTENTS_ZERO ? 0 : 0xFF;
    dvmm_host_copy_fill(&pool->host_copy, a->driver, list.all, list.n, value);
    return DUCTILE_OK;
}

/* ---- Sleep --------------------------------------------------------------------------------- */

/* What is retained is for the blocks that wake now, and for none that comes later. */
static void wake_block_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    b->age = b->region->arena->pool->retains ? 1 : 0;
    dpool_wake_block_locked(a, b);
}

/* Also after a sleep that failed halfway: LIVE blocks stay LIVE. */
static void wake(ductile_allocator *a, dpool_private_pool *pool, block_fn wake_block) {
    if (!pool->retains) {
        dvmm_host_copy_drop(&pool->host_copy); /* copies out may be under way */
    }
    dti_lock_acquire(&a->index_lock);
    each_in_state_locked(a, pool, DPOOL_ASLEEP, wake_block);
    dpool_set_awake_locked(a, pool);
    dti_lock_release(&a->index_lock);
}

static uint64_t mapped_bytes(ductile_allocator *a, const dpool_private_pool *pool) {
    dti_lock_acquire(&a->index_lock);
    uint64_t bytes = dpool_mapped_of(a, pool);
    dti_lock_release(&a->index_lock);
    return bytes;
}

/* Does one thing to each pool, up to the first that it fails for. */
static ductile_status
for_set(ductile_allocator *a, dpool_private_pool *set, ductile_sleep_report *report,
        ductile_status (*bring)(ductile_allocator *a, dpool_private_pool *pool)) {
    for (dpool_private_pool *pool = set; pool != NULL; pool = pool->next_in_set) {
        ductile_status status = bring(a, pool);
        if (status != DUCTILE_OK) {
            dpool_report_pool(report, pool);
            return status;
        }
    }
    return DUCTILE_OK;
}

ductile_status dpool_still_set(ductile_allocator *a, dpool_private_pool *set,
                               ductile_sleep_report *report) {
    return for_set(a, set, report, wait_and_sleep_blocks);
}

void dpool_run_again(ductile_allocator *a, dpool_private_pool *pool) {
    wake(a, pool, dpool_wake_block_locked);
}

static void report_copies(const dpool_private_pool *set, ductile_sleep_report *report) {
    for (const dpool_private_pool *pool = set; pool != NULL; pool = pool->next_in_set) {
        report->copied_bytes += pool->host_copy.copied_bytes;
    }
}

static ductile_status prepare_set(ductile_allocator *a, dpool_private_pool *set,
                                  ductile_sleep_report *report) {
    DTI_TRY(dpool_still_set(a, set, report));
    DTI_TRY(for_set(a, set, report, save));
    report_copies(set, report);
    return dpool_announce_set(a, set, DUCTILE_MAP_LEAVING);
}

/* Page-locked memory that serves no block. */
static void drop_host_cache(ductile_allocator *a) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    (void)dvmm_store_shrink_host(&a->store, 0);
    dpool_grow_unlock(a, mode);
}

ductile_status dpool_sleep_set(ductile_allocator *a, dpool_private_pool *set,
                               ductile_sleep_report *report) {
    ductile_status status = prepare_set(a, set, report);
    for (dpool_private_pool *pool = set; pool != NULL; pool = pool->next_in_set) {
        if (status != DUCTILE_OK) {
            dpool_run_again(a, pool);
            continue;
        }
        uint64_t before = mapped_bytes(a, pool);
        dpool_unmap_pool(a, pool); /* nothing here can fail */
        dpool_finish_sleep(a, pool);
        uint64_t stayed = mapped_bytes(a, pool);
        report->bytes += before - stayed;
        report->stayed_bytes += stayed;
    }
    drop_host_cache(a);
    return status;
}

/* ---- Wake ---------------------------------------------------------------------------------- */

static uint64_t bytes_to_map(ductile_allocator *a, const dpool_private_pool *set) {
    uint64_t bytes = 0;
    for (const dpool_private_pool *pool = set; pool != NULL; pool = pool->next_in_set) {
        bytes += dpool_bytes_to_map(a, pool);
    }
    return bytes;
}

static uint64_t read_room(ductile_allocator *a) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    uint64_t most = dpool_room(a);
    dpool_grow_unlock(a, mode);
    return most;
}

/* Unused memory of others makes room. */
static ductile_status make_room(ductile_allocator *a, const dpool_private_pool *set) {
    uint64_t need = bytes_to_map(a, set);
    uint64_t most = read_room(a);
    return dpool_trim(a, most > need ? most - need : 0);
}

/* All pools of the set, or none. */
static ductile_status map_set(ductile_allocator *a, dpool_private_pool *set,
                              ductile_sleep_report *report) {
    dpool_private_pool *failed = set;
    while (failed != NULL) {
        ductile_status status = dpool_map_pool(a, failed);
        if (status != DUCTILE_OK) {
            dpool_report_pool(report, failed);
            for (dpool_private_pool *pool = set; pool != failed; pool = pool->next_in_set) {
                dpool_unmap_pool(a, pool);
            }
            return status;
        }
        failed = failed->next_in_set;
    }
    return DUCTILE_OK;
}

static ductile_status map_or_make_room(ductile_allocator *a, dpool_private_pool *set,
                                       ductile_sleep_report *report) {
    ductile_status status = map_set(a, set, report);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && make_room(a, set) == DUCTILE_OK) {
        status = map_set(a, set, report);
    }
    return status;
}

uint64_t dpool_missing_bytes(ductile_allocator *a, const dpool_private_pool *set) {
    uint64_t need = bytes_to_map(a, set) + dvmm_store_read(&a->store).held_bytes;
    uint64_t most = read_room(a);
    return need > most ? need - most : a->granule;
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

/* Copies in began with the mapping. */
static ductile_status end_restore(ductile_allocator *a, dpool_private_pool *pool) {
    (void)a;
    return dvmm_host_copy_end_restore(&pool->host_copy);
}

static ductile_status end_restores(ductile_allocator *a, dpool_private_pool *set,
                                   ductile_sleep_report *report) {
    DTI_TRY(for_set(a, set, report, end_restore));
    report_copies(set, report);
    return dpool_announce_set(a, set, DUCTILE_MAP_MAPPED);
}

ductile_status dpool_wake_set(ductile_allocator *a, dpool_private_pool *set,
                              ductile_sleep_report *report) {
    uint64_t need = bytes_to_map(a, set);
    ductile_status status = map_or_make_room(a, set, report);
    bool is_mapped = status == DUCTILE_OK;
    status = is_mapped ? end_restores(a, set, report) : status;
    report->bytes = need;
    for (dpool_private_pool *pool = set; pool != NULL; pool = pool->next_in_set) {
        if (status == DUCTILE_OK) {
            wake(a, pool, wake_block_locked);
            release_empty_regions(a, pool);
            continue;
        }
        if (is_mapped) {
            dpool_unmap_pool(a, pool);
        }
        dpool_finish_sleep(a, pool);
    }
    return status;
}

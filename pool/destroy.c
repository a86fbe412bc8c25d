/* SPDX-License-Identifier: Apache-2.0 */
/* Destroys an allocator: all memory goes back, whatever the state of its blocks. */
#include "pool/base/map_callbacks.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/growth/plan.h"
#include "pool/pools/pools.h"
#include "pool/sharing/import.h"
#include "pool/sharing/pin.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/marks.h"
#include "pool/streams/quiesce.h"

#include "vmm/captures.h"

#include <stdlib.h>

/* Keeps the first error. To the caller, the driver refused, whatever the cause. */
static ductile_status keep_first(ductile_status first, ductile_status status) {
    if (first != DUCTILE_OK || status == DUCTILE_OK) {
        return first;
    }
    bool is_plain = status == DUCTILE_ERR_DEVICE_LOST || status == DUCTILE_ERR_EXITING ||
                    status == DUCTILE_ERR_FORKED;
    return is_plain ? status : DUCTILE_ERR_DRIVER;
}

/* Relaxed mode, because the waits would break captures of other threads. No pool of this allocator
 * is open any more. */
static ductile_status wait_for_work(ductile_allocator *a, dseg_idle *idle) {
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    dpool_routes_fini(a);
    ductile_status status = dpool_quiesce_all(a, idle);
    dvmm_capture_restore(a->driver, mode);
    return status;
}

/* Waits for all work: live blocks may be in use, and their streams may be gone. */
static ductile_status wait_for_all(ductile_allocator *a, dseg_idle *idle) {
    bool mapped = false;
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        mapped |= arena->blocks.mapped_bytes > 0 || dpool_has_old_addresses(arena);
    }
    mapped |= a->imports.count > 0;
    return mapped ? wait_for_work(a, idle) : DUCTILE_OK;
}

static void free_uses(ductile_allocator *a, dpool_region *region) {
    for (dpool_block *b = region->first; b != NULL; b = b->next) {
        if (dpool_has_request(b)) {
            dpool_uses_drop(a, b->uses);
            b->uses = NULL;
        }
    }
}

/* Unmaps retiring addresses first, so that the last address of each handle is unmapped last. */
static ductile_status unmap_all(ductile_allocator *a, dseg_state state, dseg_idle idle) {
    ductile_status first = DUCTILE_OK;
    for (uint32_t i = 0; i < a->segments.count; i++) {
        first = keep_first(first, dseg_unmap_all(a->segments.items[i], state, idle));
    }
    return first;
}

static ductile_status destroy_regions(ductile_allocator *a, dpool_arena *arena) {
    ductile_status first = DUCTILE_OK;
    while (arena->blocks.regions != NULL) {
        dpool_region *region = arena->blocks.regions;
        arena->blocks.regions = region->next;
        free_uses(a, region);
        first = keep_first(first, dpool_region_destroy(region));
    }
    return first;
}

static ductile_status destroy_arenas(ductile_allocator *a) {
    ductile_status first = DUCTILE_OK;
    while (a->arenas != NULL) {
        dpool_arena *arena = a->arenas;
        first = keep_first(first, destroy_regions(a, arena));
        dti_lock_acquire(&a->index_lock);
        dpool_drop_own_mark_locked(a, arena);
        dti_lock_release(&a->index_lock);
        a->arenas = arena->next;
        free(arena->range);
        free(arena);
    }
    return first;
}

/* With a lost device, after a failed wait, or once exit began, nothing may be unmapped: the memory
 * is left to the end of the process, and the bookkeeping is freed. */
static void forget_mappings(ductile_allocator *a) {
    for (uint32_t i = 0; i < a->segments.count; i++) {
        dseg_forget(a->segments.items[i]);
    }
}

/* In a forked child, a lock that another thread held at the fork stays locked, and the data it
 * guarded stays half changed. When all locks are free, locking them cannot wait. */
static bool is_at_rest(ductile_allocator *a) {
    return dti_lock_is_free(&a->grow_lock) && dti_lock_is_free(&a->index_lock) &&
           dti_lock_is_free(&a->markers.lock) && dti_lock_is_free(&a->store.totals_lock) &&
           dvmm_host_arena_at_rest(&a->host_arena) && a->n_announcing == 0 &&
           dpool_callbacks_at_rest(&a->oom_callbacks) && dpool_callbacks_at_rest(&a->map_callbacks);
}

/* ---- All that was announced leaves --------------------------------------------------------- */

static void notify_region_ends(ductile_allocator *a, const dpool_region *region) {
    const dseg_segment *seg = region->seg;
    bool is_unbacked = dpool_is_unbacked(region->arena->pool);
    for (uint32_t g = dseg_next_mapped(seg, 0); g < seg->n_granules;
         g = dseg_next_mapped(seg, g + 1)) {
        if (!is_unbacked || dseg_is_marked(seg, g)) {
            const ductile_map_event event = dpool_map_event_at(a, DUCTILE_MAP_LEAVING, region, g);
            dpool_announce(a, &event);
        }
    }
}

static void notify_all_ends(ductile_allocator *a) {
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (const dpool_region *r = arena->blocks.regions; r != NULL; r = r->next) {
            notify_region_ends(a, r);
        }
    }
    for (uint32_t i = 0; i < a->imports.count; i++) {
        const dpool_import *import = a->imports.items[i];
        if (import->state == DPOOL_IMPORT_LIVE) {
            dpool_announce_import(a, DUCTILE_MAP_LEAVING, &import->in, import->stream);
        }
    }
    dvmm_capture_restore(a->driver, mode);
}

ductile_status ductile_destroy(ductile_allocator *a) {
    if (a == NULL) {
        return DUCTILE_OK;
    }
    ductile_status first = dvmm_usable(a->driver);
    if (first != DUCTILE_OK && !is_at_rest(a)) {
        return first; /* left to the process's end, bookkeeping and all */
    }
    dseg_idle idle = {0};
    first = keep_first(first, first == DUCTILE_OK ? wait_for_all(a, &idle) : first);
    if (dpool_announces(a) && (first == DUCTILE_OK || first == DUCTILE_ERR_DEVICE_LOST)) {
        notify_all_ends(a);
    }
    bool may_unmap = first == DUCTILE_OK;
    if (may_unmap) {
        first = keep_first(first, unmap_all(a, DSEG_RETIRING, idle));
        first = keep_first(first, unmap_all(a, DSEG_MAPPED, idle));
        first = keep_first(first, dvmm_store_release_cached(&a->store, 0));
        first = keep_first(first, dvmm_store_shrink_host(&a->store, 0));
    } else {
        forget_mappings(a);
    }
    dpool_waits_fini(a);
    dpool_marks_fini(a);
    first = keep_first(first, destroy_arenas(a));
    first = keep_first(first, dpool_imports_fini(a, may_unmap, idle));
    dpool_pins_fini(a);
    dvmm_store_fini(&a->store);
    dpool_spare_uses_free(a);
    first = keep_first(first, dvmm_markers_fini(&a->markers));
    dpool_pools_fini(a);
    first = keep_first(first, dvmm_host_arena_fini(&a->host_arena));
    dpool_plan_fini(a);
    dpool_callbacks_fini(&a->oom_callbacks);
    dpool_callbacks_fini(&a->map_callbacks);
    dpool_nodes_fini(&a->nodes);
    free(a->map.slots);
    dseg_set_fini(&a->segments);
    dvmm_close(a->driver);
    free(a);
    return first;
}

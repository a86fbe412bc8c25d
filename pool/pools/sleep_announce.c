/* SPDX-License-Identifier: Apache-2.0 */
/* Tells of the handles that pools lose when they fall asleep, or get when they wake. */
#include "pool/pools/sleep.h"

#include "pool/base/map_callbacks.h"
#include "pool/blocks/region.h"

#include <stdlib.h>

/* Events to announce once no lock is held. */
typedef struct events {
    ductile_map_event *all;
    uint64_t n;
    uint64_t room;
} events;

/* What is marked stays. */
static void record_region(const ductile_allocator *a, const dpool_region *region,
                          ductile_map_change change, events *list) {
    const dseg_segment *seg = region->seg;
    for (uint32_t g = dseg_next_mapped(seg, 0); g < seg->n_granules;
         g = dseg_next_mapped(seg, g + 1)) {
        if (!dseg_is_marked(seg, g)) {
            if (list->n < list->room) {
                list->all[list->n] = dpool_map_event_at(a, change, region, g);
            }
            list->n++;
        }
    }
}

static void record_set(const ductile_allocator *a, const dpool_private_pool *set,
                       ductile_map_change change, events *list) {
    list->n = 0;
    for (const dpool_private_pool *pool = set; pool != NULL; pool = pool->next_in_set) {
        for (const dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
             r = dpool_next_region(a, pool, r)) {
            record_region(a, r, change, list);
        }
    }
}

/* Memory of the host stays, and is its own copy. */
static dseg_span what_may_go(ductile_allocator *a, const dpool_region *r) {
    dseg_span all = {0, r->seg->n_granules};
    dti_lock_acquire(&a->index_lock);
    bool is_in_use = r->first->state == DPOOL_ASLEEP;
    dseg_span host = dpool_host_granules(r->first);
    dti_lock_release(&a->index_lock);
    return is_in_use && !dseg_is_empty(host) ? (dseg_span){0, host.first} : all;
}

/* At a sleep: from here on dseg_unmap_for_sleep skips marked handles, so that what was announced is
 * what happens. Once the pool runs again the marks mean nothing; the next sleep makes new ones. */
static void mark_what_stays(ductile_allocator *a, const dpool_private_pool *set,
                            ductile_map_change change) {
    for (const dpool_private_pool *pool = set; pool != NULL && change == DUCTILE_MAP_LEAVING;
         pool = pool->next_in_set) {
        for (const dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
             r = dpool_next_region(a, pool, r)) {
            dseg_mark_what_stays(r->seg, what_may_go(a, r));
        }
    }
}

static ductile_status gather_set(ductile_allocator *a, const dpool_private_pool *set,
                                 ductile_map_change change, events *list) {
    ductile_status status = DUCTILE_OK;
    dti_lock_acquire(&a->grow_lock);
    mark_what_stays(a, set, change);
    record_set(a, set, change, list);
    list->room = list->n;
    list->all = calloc(list->room + 1, sizeof *list->all);
    if (list->all == NULL) {
        status = DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    } else {
        record_set(a, set, change, list);
    }
    dti_lock_release(&a->grow_lock);
    return status;
}

/* Marks also when no callback listens: memory that was pinned stays until the pool runs
 * again, even if it is unpinned meanwhile, since peers may have written to it after its contents
 * were saved. */
static void only_mark(ductile_allocator *a, const dpool_private_pool *set,
                      ductile_map_change change) {
    dti_lock_acquire(&a->grow_lock);
    mark_what_stays(a, set, change);
    dti_lock_release(&a->grow_lock);
}

ductile_status dpool_announce_set(ductile_allocator *a, const dpool_private_pool *set,
                                  ductile_map_change change) {
    if (!dpool_announces(a)) {
        only_mark(a, set, change);
        return DUCTILE_OK;
    }
    events list = {.all = NULL};
    ductile_status status = gather_set(a, set, change, &list);
    for (uint64_t i = 0; i < list.n && status == DUCTILE_OK; i++) {
        dpool_announce(a, &list.all[i]);
    }
    free(list.all);
    return status;
}

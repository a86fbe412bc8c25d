/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/announce.h"

#include "pool/growth/attempt.h"
#include "pool/inspect/inspect.h"

#include "vmm/base/align.h"

#include <stdlib.h>

/* ---- One event ----------------------------------------------------------------------------- */

static ductile_map_event new_event(const ductile_allocator *a, ductile_map_change change) {
    return (ductile_map_event){
        .struct_size = sizeof(ductile_map_event),
        .change = change,
        .device = dvmm_get_caps(a->driver)->ordinal,
    };
}

/* Who was told first that memory came is told last that it goes. */
static void tell(ductile_allocator *a, const ductile_map_event *event) {
    bool is_leaving = event->change == DUCTILE_MAP_LEAVING;
    dpool_callback_place at = {.has_begun = false};
    dpool_callback_frame frame;
    while (dpool_callbacks_enter(&a->map_callbacks, &at,
                                 is_leaving ? DPOOL_STEP_BACK : DPOOL_STEP_NEXT, &frame)) {
        ((ductile_map_fn)frame.callback->fn)(frame.callback->user, a, event);
        dpool_callbacks_leave(&a->map_callbacks, &frame);
    }
}

/* The handle that begins there. The arena and the pool are there while memory of theirs is. */
static ductile_map_event event_at(const ductile_allocator *a, ductile_map_change change,
                                  const dpool_region *region, uint32_t first) {
    const dseg_segment *seg = region->seg;
    const dvmm_handle *h = seg->slots[first].handle;
    ductile_map_event event = new_event(a, change);
    event.address = dseg_addr(seg, first);
    event.size = dvmm_handle_bytes(&a->store, h);
    event.handle = h->phys;
    event.stream = region->arena->stream;
    event.pool = dpool_id_of(region->arena->pool);
    return event;
}

static void tell_handle(ductile_allocator *a, ductile_map_change change, const dpool_region *region,
                        uint32_t first) {
    const ductile_map_event event = event_at(a, change, region, first);
    tell(a, &event);
}

/* Nobody but this thread changes these granules, so they may be read without a lock. */
static void tell_granules(ductile_allocator *a, ductile_map_change change,
                          const dpool_region *region, uint32_t first, uint32_t n) {
    const dseg_slot *slots = region->seg->slots;
    for (uint32_t g = first; g < first + n; g += slots[g].handle->n_granules) {
        tell_handle(a, change, region, g);
    }
}

static void tell_block(ductile_allocator *a, ductile_map_change change, const dpool_block *b) {
    uint32_t first = dseg_granule(b->region->seg, b->addr);
    tell_granules(a, change, b->region, first, (uint32_t)(b->size / a->granule));
}

void dpool_announce_import(ductile_allocator *a, ductile_map_change change, const dseg_foreign *in,
                           ductile_stream stream) {
    if (!dpool_announces(a)) {
        return;
    }
    ductile_map_event event = new_event(a, change);
    event.address = in->range.addr;
    event.size = in->range.size;
    event.stream = stream;
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    tell(a, &event);
    dvmm_capture_restore(a->driver, mode);
}

/* ---- Without the grow lock ----------------------------------------------------------------- */

/* What the grow lock's holder takes along when it opens the lock in the middle. */
typedef struct luggage {
    dpool_plan *plan;
    uint64_t cap; /* what is held may not grow above it; UINT64_MAX: the limit */
} luggage;

static luggage open_slow(ductile_allocator *a) {
    dvmm_handle_store *store = &a->store;
    luggage l = {a->plan, store->limit_bytes < a->counts.limit ? store->limit_bytes : UINT64_MAX};
    a->plan = NULL;
    store->limit_bytes = a->counts.limit;
    dti_lock_open(&a->grow_lock);
    return l;
}

static void take_slow(ductile_allocator *a, luggage l) {
    dti_lock_take(&a->grow_lock);
    dpool_plan_fini(a); /* somebody else's, who is through with it */
    a->plan = l.plan;
    a->store.limit_bytes = dti_min(l.cap, a->counts.limit);
}

static void begin(ductile_allocator *a) {
    dti_lock_take(&a->index_lock);
    a->n_announcing++;
    dti_lock_open(&a->index_lock);
}

/* With the grow lock held until what is BUSY is published. */
static void end(ductile_allocator *a) {
    dti_lock_take(&a->index_lock);
    a->n_announcing--;
    dti_lock_open(&a->index_lock);
}

void dpool_announce_leaving(ductile_allocator *a, const dpool_block *b) {
    begin(a);
    luggage l = open_slow(a);
    tell_block(a, DUCTILE_MAP_LEAVING, b);
    take_slow(a, l);
    end(a);
}

/* ---- Plans --------------------------------------------------------------------------------- */

void dpool_announce_plan_begin(ductile_allocator *a) {
    begin(a);
    if (a->plan->n_donors == 0) {
        return;
    }
    luggage l = open_slow(a);
    for (uint32_t i = 0; i < l.plan->n_donors; i++) {
        tell_block(a, DUCTILE_MAP_LEAVING, l.plan->donors[i]);
    }
    take_slow(a, l);
}

static void tell_pieces(ductile_allocator *a, const dpool_plan *p) {
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        tell_granules(a, DUCTILE_MAP_MAPPED, p->region, p->pieces[i].first,
                      p->pieces[i].n_granules);
    }
}

/* What was unmapped has left, even when the plan then failed. */
static bool has_left(dpool_donation donation, bool is_done) {
    return donation == DPOOL_UNMAPPED || donation == DPOOL_STUCK ||
           (is_done && donation == DPOOL_MOVED);
}

/* Donors whose memory stayed where it is. */
static void tell_kept_donors(ductile_allocator *a, const dpool_plan *p, bool is_done) {
    for (uint32_t i = 0; i < p->n_donors; i++) {
        if (!has_left((dpool_donation)p->donations[i], is_done)) {
            tell_block(a, DUCTILE_MAP_MAPPED, p->donors[i]);
        }
    }
}

void dpool_announce_plan_end(ductile_allocator *a, bool is_done) {
    if (is_done || a->plan->n_donors > 0) {
        luggage l = open_slow(a);
        tell_kept_donors(a, l.plan, is_done);
        if (is_done) {
            tell_pieces(a, l.plan);
        }
        take_slow(a, l);
    }
    end(a);
}

/* ---- Pools that pause and resume ------------------------------------------------------------ */

/* What to tell once no lock is held. */
typedef struct events {
    ductile_map_event *all;
    uint64_t n;
    uint64_t room;
} events;

static bool begins_handle(const dseg_slot *slot) {
    return slot->state == DSEG_MAPPED && slot->offset == 0;
}

/* What dseg_vacate would leave where it is. */
static bool stays(const dvmm_handle *h) {
    return h->n_mappings != 1 || h->n_pins > 0;
}

static void note_region(const ductile_allocator *a, const dpool_region *region,
                        ductile_map_change change, events *list) {
    const dseg_segment *seg = region->seg;
    for (uint32_t g = seg->low; g < seg->high; g++) {
        const dseg_slot *slot = &seg->slots[g];
        if (begins_handle(slot) &&
            !(change == DUCTILE_MAP_LEAVING ? stays(slot->handle) : slot->stays != 0)) {
            if (list->n < list->room) {
                list->all[list->n] = event_at(a, change, region, g);
            }
            list->n++;
        }
    }
}

static void note_pool(const ductile_allocator *a, const dpool_private *pool,
                      ductile_map_change change, events *list) {
    list->n = 0;
    for (const dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
         r = dpool_next_region(a, pool, r)) {
        note_region(a, r, change, list);
    }
}

/* From here on dseg_vacate goes by the mark, so that what was told is what happens. */
static void mark_what_stays(const ductile_allocator *a, const dpool_private *pool,
                            ductile_map_change change) {
    for (const dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
         r = dpool_next_region(a, pool, r)) {
        for (uint32_t g = r->seg->low; g < r->seg->high; g++) {
            dseg_slot *slot = &r->seg->slots[g];
            slot->stays =
                change == DUCTILE_MAP_LEAVING && begins_handle(slot) && stays(slot->handle);
        }
    }
}

static ductile_status gather_pool(ductile_allocator *a, const dpool_private *pool,
                                  ductile_map_change change, events *list) {
    ductile_status status = DUCTILE_OK;
    dti_lock_take(&a->grow_lock);
    note_pool(a, pool, change, list);
    list->room = list->n;
    list->all = calloc(list->room + 1, sizeof *list->all);
    if (list->all == NULL) {
        status = DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    } else {
        note_pool(a, pool, change, list);
        mark_what_stays(a, pool, change);
    }
    dti_lock_open(&a->grow_lock);
    return status;
}

/* Also where nobody is told: what was pinned stays until the pool runs again, whoever unpins it
 * meanwhile, since peers may have written to it after its contents were saved. */
static void only_mark(ductile_allocator *a, const dpool_private *pool, ductile_map_change change) {
    dti_lock_take(&a->grow_lock);
    mark_what_stays(a, pool, change);
    dti_lock_open(&a->grow_lock);
}

ductile_status dpool_announce_pool(ductile_allocator *a, const dpool_private *pool,
                                   ductile_map_change change) {
    if (!dpool_announces(a)) {
        only_mark(a, pool, change);
        return DUCTILE_OK;
    }
    events list = {.all = NULL};
    ductile_status status = gather_pool(a, pool, change, &list);
    for (uint64_t i = 0; i < list.n && status == DUCTILE_OK; i++) {
        tell(a, &list.all[i]);
    }
    free(list.all);
    return status;
}

/* ---- The end ------------------------------------------------------------------------------- */

static void end_region(ductile_allocator *a, const dpool_region *region) {
    const dseg_segment *seg = region->seg;
    bool is_bare = dpool_is_bare(region->arena);
    for (uint32_t g = seg->low; g < seg->high; g++) {
        if (begins_handle(&seg->slots[g]) && (!is_bare || seg->slots[g].stays != 0)) {
            tell_handle(a, DUCTILE_MAP_LEAVING, region, g);
        }
    }
}

void dpool_announce_end_of_all(ductile_allocator *a) {
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (const dpool_region *r = arena->regions; r != NULL; r = r->next) {
            end_region(a, r);
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

/* ---- Registering --------------------------------------------------------------------------- */

ductile_status ductile_add_map_callback(ductile_allocator *a, ductile_map_fn callback, void *user,
                                        int priority, uint64_t *id) {
    if (id == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *id = 0;
    ductile_status status = callback != NULL ? dpool_may_look(a) : DUCTILE_ERR_INVALID_ARGUMENT;
    return status == DUCTILE_OK
               ? dpool_callbacks_add(&a->map_callbacks, (dpool_callback_fn)callback, user, priority,
                                     id)
               : status;
}

ductile_status ductile_remove_map_callback(ductile_allocator *a, uint64_t id) {
    ductile_status status = dpool_may_look(a);
    return status == DUCTILE_OK ? dpool_callbacks_remove(&a->map_callbacks, id) : status;
}

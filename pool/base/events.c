/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/base/events.h"

#include "pool/base/allocator.h"

bool dpool_wants_freed_locked(const ductile_allocator *a, const struct dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_wanted = false;
    for (dpool_service *s = a->services; s != NULL && !is_wanted; s = s->next) {
        is_wanted = s->events->freed != NULL && s->events->wants_freed_locked(s, a, b);
    }
    return is_wanted;
}

ductile_status dpool_tell_region_made(ductile_allocator *a, const struct dpool_region *region) {
    ductile_status status = DUCTILE_OK;
    for (dpool_service *s = a->services; s != NULL && status == DUCTILE_OK; s = s->next) {
        status = s->events->region_made != NULL ? s->events->region_made(s, a, region) : DUCTILE_OK;
    }
    return status;
}

static bool hears_granules(const dpool_service *s) {
    return s->events->granules != NULL && s->events->listens(s);
}

bool dpool_announces(const ductile_allocator *a) {
    const dpool_service *s = a->services;
    while (s != NULL && !hears_granules(s)) {
        s = s->next;
    }
    return s != NULL;
}

ductile_map_event dpool_new_map_event(const ductile_allocator *a, ductile_map_change change) {
    return (ductile_map_event){
        .struct_size = sizeof(ductile_map_event),
        .change = change,
        .device = dvmm_get_caps(a->driver)->ordinal,
        .tag = "",
    };
}

bool dpool_follows_addresses(const ductile_allocator *a) {
    const dpool_service *s = a->services;
    while (s != NULL && s->events->left_locked == NULL && !hears_granules(s)) {
        s = s->next;
    }
    return s != NULL;
}

bool dpool_services_at_rest(const ductile_allocator *a) {
    dpool_service *s = a->services;
    while (s != NULL && (s->events->is_at_rest == NULL || s->events->is_at_rest(s))) {
        s = s->next;
    }
    return s == NULL;
}

void dpool_service_add(ductile_allocator *a, dpool_service *s) {
    s->next = a->services;
    a->services = s;
    a->hears_blocks |= s->events->freed != NULL;
}

void dpool_services_end(ductile_allocator *a) {
    while (a->services != NULL) {
        dpool_service *s = a->services;
        a->services = s->next;
        s->events->end(s, a);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the core tells the services behind it (pool/services), none of which it knows by name. A
 * service hears of what it has a function for, and keeps its own state.
 *
 * What ends in _locked is called under the index lock, and locks nothing. Of regions a service
 * hears under the grow lock or while the allocator is destroyed, and may lock the index lock. All
 * else comes without a lock of the allocator, and may lock any.
 */
#ifndef DUCTILE_POOL_BASE_EVENTS_H
#define DUCTILE_POOL_BASE_EVENTS_H

#include "vmm/base/fault.h"

#include <ductile_share.h>

struct dpool_block;
struct dpool_region;

typedef struct dpool_service dpool_service;

typedef struct dpool_events {
    /* A block is freed, and no other stream uses it: has the service work for its memory? */
    bool (*wants_freed_locked)(dpool_service *s, const ductile_allocator *a,
                               const struct dpool_block *b);
    /* Then now. No stream uses the block, which is PENDING, and no other thread knows of it. */
    void (*freed)(dpool_service *s, ductile_allocator *a, struct dpool_block *b);
    /* The block is LIVE, and no caller has seen it. */
    void (*handed_out)(dpool_service *s, ductile_allocator *a, const struct dpool_block *b);

    /* The region has no memory yet. ERR_OUT_OF_HOST_MEMORY. */
    ductile_status (*region_made)(dpool_service *s, ductile_allocator *a,
                                  const struct dpool_region *region);
    /* It has none any more, or never was added. */
    void (*region_gone)(dpool_service *s, ductile_allocator *a, const struct dpool_region *region);
    /* Memory has left these addresses, or gets contents without a word. */
    void (*left_locked)(dpool_service *s, ductile_allocator *a, ductile_addr addr,
                        ductile_addr end);

    /* A handle was mapped, or is about to leave. What the event is about belongs to this thread
     * alone until all services have heard of it. */
    void (*granules)(dpool_service *s, ductile_allocator *a, const ductile_map_event *event);
    /* Does the service hear of granules now? It may change its mind at any time. */
    bool (*listens)(const dpool_service *s);

    /* Recounts what the service knows of the block. */
    void (*check_locked)(dpool_service *s, const ductile_allocator *a, dti_fault *fault,
                         const struct dpool_block *b);
    /* Says what the service counts. */
    void (*count_locked)(dpool_service *s, const ductile_allocator *a, ductile_stats *out);
    /* For a forked child: no thread of the parent held a lock of the service at the fork. */
    bool (*is_at_rest)(dpool_service *s);
    /* The allocator is destroyed; the driver is still open. Frees the service. */
    void (*end)(dpool_service *s, ductile_allocator *a);
} dpool_events;

/* The first member of a service's own struct. Constant once the allocator is created. */
struct dpool_service {
    const dpool_events *events;
    dpool_service *next;
};

/* Tells an event to all who hear it. */
#define DPOOL_TELL(a, event, ...)                                                                  \
    do {                                                                                           \
        for (dpool_service *s_ = (a)->services; s_ != NULL; s_ = s_->next) {                       \
            if (s_->events->event != NULL) {                                                       \
                s_->events->event(s_, a, __VA_ARGS__);                                             \
            }                                                                                      \
        }                                                                                          \
    } while (false)

/* The same where there is an answer: one of the services wants it; the first that fails. */
bool dpool_wants_freed_locked(const ductile_allocator *a, const struct dpool_block *b);
ductile_status dpool_tell_region_made(ductile_allocator *a, const struct dpool_region *region);

/* Does a service hear of granules now? Read only where memory is mapped or unmapped. */
bool dpool_announces(const ductile_allocator *a);

/* An event of this allocator's device, of no memory yet. */
ductile_map_event dpool_new_map_event(const ductile_allocator *a, ductile_map_change change);

/* Does a service know memory by its address now? */
bool dpool_follows_addresses(const ductile_allocator *a);

bool dpool_services_at_rest(const ductile_allocator *a);

/* While the allocator is created, and destroyed. */
void dpool_service_add(ductile_allocator *a, dpool_service *s);
void dpool_services_end(ductile_allocator *a);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The callbacks of the user that learn where memory is mapped, and where it is about to leave. */
#ifndef DUCTILE_POOL_BASE_MAP_CALLBACKS_H
#define DUCTILE_POOL_BASE_MAP_CALLBACKS_H

#include "pool/base/allocator.h"

#include <ductile_share.h>

/* Is anybody to be told? Asked where memory is mapped or unmapped only. */
static inline bool dpool_announces(const ductile_allocator *a) {
    return atomic_load_explicit(&a->map_callbacks.has_any, memory_order_relaxed);
}

/* An event of this allocator's device, of no memory yet. */
ductile_map_event dpool_new_map_event(const ductile_allocator *a, ductile_map_change change);

/* Calls all of them, in the order of their priorities: backwards when memory leaves. No lock held.
 */
void dpool_notify_map(ductile_allocator *a, const ductile_map_event *event);

#endif

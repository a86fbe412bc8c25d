/* SPDX-License-Identifier: Apache-2.0 */
/* The map callbacks of the user: called where memory is mapped, and before it is unmapped. */
#ifndef DUCTILE_POOL_BASE_MAP_CALLBACKS_H
#define DUCTILE_POOL_BASE_MAP_CALLBACKS_H

#include "pool/base/allocator.h"

#include <ductile_share.h>

/* Are any map callbacks registered? Read only where memory is mapped or unmapped. */
static inline bool dpool_announces(const ductile_allocator *a) {
    return atomic_load_explicit(&a->map_callbacks.has_any, memory_order_relaxed);
}

/* An event of this allocator's device, of no memory yet. */
ductile_map_event dpool_new_map_event(const ductile_allocator *a, ductile_map_change change);

/* Calls all map callbacks in the order of their priorities; in reverse when memory leaves. No lock
 * held. */
void dpool_notify_map(ductile_allocator *a, const ductile_map_event *event);

#endif

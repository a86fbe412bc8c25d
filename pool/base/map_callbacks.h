/* SPDX-License-Identifier: Apache-2.0 */
/* The map callbacks of the user: called where memory is mapped, and before it is unmapped. */
#ifndef DUCTILE_POOL_BASE_MAP_CALLBACKS_H
#define DUCTILE_POOL_BASE_MAP_CALLBACKS_H

#include <ductile_share.h>

#include <stdbool.h>

/* Are there any now? Read only where memory is mapped or unmapped. */
bool dpool_announces(const ductile_allocator *a);

/* An event of this allocator's device, of no memory yet. */
ductile_map_event dpool_new_map_event(const ductile_allocator *a, ductile_map_change change);

/* Calls them in the order of their priorities, in reverse when memory leaves. What the event is
 * about belongs to this thread alone until all have heard of it. No lock held. */
void dpool_announce(ductile_allocator *a, const ductile_map_event *event);

#endif

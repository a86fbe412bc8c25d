/* SPDX-License-Identifier: Apache-2.0 */
/* The map callbacks of the user: called where memory is mapped, and before it is unmapped. */
#ifndef DUCTILE_POOL_SERVICES_CALLBACKS_MAP_CALLBACKS_H
#define DUCTILE_POOL_SERVICES_CALLBACKS_MAP_CALLBACKS_H

#include <ductile_share.h>

/* ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_map_callbacks_begin(ductile_allocator *a);

#endif

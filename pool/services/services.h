/* SPDX-License-Identifier: Apache-2.0 */
/* The services of an allocator. */
#ifndef DUCTILE_POOL_SERVICES_SERVICES_H
#define DUCTILE_POOL_SERVICES_SERVICES_H

#include <ductile.h>

/* Begins those that the options of the allocator ask for. ERR_OUT_OF_HOST_MEMORY; the caller then
 * ends what has begun (dpool_services_end). */
ductile_status dpool_services_begin(ductile_allocator *a);

#endif

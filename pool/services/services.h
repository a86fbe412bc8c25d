/* SPDX-License-Identifier: Apache-2.0 */
/* The services of this build. */
#ifndef DUCTILE_POOL_SERVICES_SERVICES_H
#define DUCTILE_POOL_SERVICES_SERVICES_H

#include <ductile.h>

/* Begins those that the options of the allocator ask for. ERR_UNSUPPORTED when one is not in this
 * build, with one line in message; ERR_OUT_OF_HOST_MEMORY. After an error the caller ends what has
 * begun (dpool_services_end). */
ductile_status dpool_services_begin(ductile_allocator *a, char *message, size_t size);

#endif

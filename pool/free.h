/* SPDX-License-Identifier: Apache-2.0 */
/* The public free in two parts, for who frees several blocks in one call. */
#ifndef DUCTILE_POOL_FREE_H
#define DUCTILE_POOL_FREE_H

#include "pool/base/allocator.h"

/* The free itself. Its statuses are those of ductile_free; without locks. */
ductile_status dpool_free(ductile_allocator *a, ductile_addr address);

/* What a call does behind the blocks that it has freed: with caching:off it trims, which may wait
 * for the GPU. Without locks. */
void dpool_end_frees(ductile_allocator *a);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Giving physical memory back to the driver. */
#ifndef DUCTILE_POOL_TRIM_H
#define DUCTILE_POOL_TRIM_H

#include "pool/arena.h"

/* Gives back until at most keep_bytes are held, as far as free memory allows, after waiting for
 * the streams that used it. No lock held. */
ductile_status dpool_trim(ductile_allocator *a, uint64_t keep_bytes);

/* The same without waiting: only memory that is proven done already. */
ductile_status dpool_trim_proven(ductile_allocator *a, uint64_t keep_bytes);

/* dpool_trim for all free memory of one pool (NULL: of none). */
ductile_status dpool_trim_pool(ductile_allocator *a, const struct dpool_private *pool);

#endif

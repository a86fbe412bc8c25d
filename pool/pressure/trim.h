/* SPDX-License-Identifier: Apache-2.0 */
/* Releases physical memory to the driver. */
#ifndef DUCTILE_POOL_PRESSURE_TRIM_H
#define DUCTILE_POOL_PRESSURE_TRIM_H

#include "pool/blocks/arena.h"

/* Releases memory until at most keep_bytes are held, as far as free memory allows, after waiting
 * for the streams that used it. No lock held. */
ductile_status dpool_trim(ductile_allocator *a, uint64_t keep_bytes);

/* Releases up to `bytes` of free mapped memory, and spares the handle cache. Without may_wait, only
 * memory that is already proven done. False when nothing was released. No lock held. */
bool dpool_give_back(ductile_allocator *a, uint64_t bytes, bool may_wait);

/* dpool_trim for all free memory of one pool (NULL: of none). */
ductile_status dpool_trim_pool(ductile_allocator *a, const struct dpool_private_pool *pool);

#endif

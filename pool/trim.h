/* SPDX-License-Identifier: Apache-2.0 */
/* Giving physical memory back to the driver. */
#ifndef DUCTILE_POOL_TRIM_H
#define DUCTILE_POOL_TRIM_H

#include "pool/arena.h"

/* Gives back until at most keep_bytes are held, as far as free memory allows, after waiting for
 * the streams that used it. No lock held. */
ductile_status dpool_trim(ductile_allocator *a, uint64_t keep_bytes);

/* Keeps what is held under garbage_collection_threshold, a share of the limit or of the device when
 * that is smaller, without waiting, before `need` more is created. Slow lock held, hot lock not. */
void dpool_collect_garbage(ductile_allocator *a, uint64_t need);

#endif

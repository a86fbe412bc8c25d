/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks as callers see them. */
#ifndef DUCTILE_POOL_INSPECT_INSPECT_H
#define DUCTILE_POOL_INSPECT_INSPECT_H

#include "pool/blocks/arena.h"

/* Keeps info->struct_size. Index lock held. */
void dpool_describe_locked(const ductile_allocator *a, const dpool_block *b,
                           ductile_block_info *info);

/* Visits the region's blocks; what ended it, or 0. Index lock held. */
int dpool_visit_region_locked(const ductile_allocator *a, const dpool_region *region,
                              ductile_walk_fn visit, void *user);

#endif

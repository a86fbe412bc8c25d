/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks as callers see them. */
#ifndef DUCTILE_POOL_INSPECT_INSPECT_H
#define DUCTILE_POOL_INSPECT_INSPECT_H

#include "pool/blocks/arena.h"

/* Describes a block, except info->struct_size. Index lock held. */
void dpool_describe_locked(const ductile_allocator *a, const dpool_block *b,
                           ductile_block_info *info);

/* Calls `visit` with the blocks of the region; returns its first result that is not 0, or 0. Index
 * lock held. */
int dpool_visit_region_locked(const ductile_allocator *a, const dpool_region *region,
                              ductile_walk_fn visit, void *user);

#endif

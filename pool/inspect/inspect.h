/* SPDX-License-Identifier: Apache-2.0 */
/* What callers may see: whether they may look, and blocks as they see them. */
#ifndef DUCTILE_POOL_INSPECT_INSPECT_H
#define DUCTILE_POOL_INSPECT_INSPECT_H

#include "pool/blocks/arena.h"

/* Whether a call may look at the allocator: ERR_INVALID_ARGUMENT when it is NULL, ERR_FORKED in a
 * child, where a lock that another thread held stays taken for ever. */
ductile_status dpool_may_look(const ductile_allocator *a);

/* The same for a call that fills a struct of the caller's, which begins with its size: also
 * ERR_INVALID_ARGUMENT when it is NULL, smaller than that size or larger than we know it. */
ductile_status dpool_may_fill(const ductile_allocator *a, const void *out, size_t known_size);

/* Keeps info->struct_size. Index lock held. */
void dpool_describe_locked(const dpool_block *b, ductile_block_info *info);

/* Visits the region's blocks; what ended it, or 0. Index lock held. */
int dpool_visit_region_locked(const dpool_region *region, ductile_walk_fn visit, void *user);

#endif

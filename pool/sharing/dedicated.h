/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for a block that is one physical handle. */
#ifndef DUCTILE_POOL_SHARING_DEDICATED_H
#define DUCTILE_POOL_SHARING_DEDICATED_H

#include "pool/blocks/arena.h"

/* Serves one from a free handle of exactly that size (whole granules); NULL when there is none, or
 * when it would need a wait on the GPU. Two nodes and room in the address map, or NULL. */
dpool_block *dpool_serve_one_handle_locked(ductile_allocator *a, dpool_arena *arena, uint64_t size,
                                           uint64_t requested);

#endif

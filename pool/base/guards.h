/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a public call may go on. */
#ifndef DUCTILE_POOL_BASE_GUARDS_H
#define DUCTILE_POOL_BASE_GUARDS_H

#include "pool/base/allocator.h"

/* Whether a call may look at the allocator: ERR_INVALID_ARGUMENT when it is NULL, ERR_FORKED in a
 * child, where a lock that another thread held stays taken for ever. */
ductile_status dpool_may_read(const ductile_allocator *a);

/* The same for a call that fills a struct of the caller's, which begins with its size: also
 * ERR_INVALID_ARGUMENT when it is NULL, smaller than that size or larger than we know it. */
ductile_status dpool_may_fill(const ductile_allocator *a, const void *out, size_t known_size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a public call may go on. */
#ifndef DUCTILE_POOL_BASE_GUARDS_H
#define DUCTILE_POOL_BASE_GUARDS_H

#include "pool/base/allocator.h"

/* Whether a call may read the allocator: ERR_INVALID_ARGUMENT when it is NULL, ERR_FORKED in a
 * child, where a lock that another thread held stays locked for ever. */
ductile_status dpool_may_read(const ductile_allocator *a);

/* Whether a call may change it, and call the driver. ERR_INVALID_ARGUMENT when it is NULL;
 * ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED. */
ductile_status dpool_may_change(const ductile_allocator *a);

/* Whether a call may give back what the caller has: also after the GPU was lost. The errors of
 * dpool_may_read; ERR_EXITING. */
ductile_status dpool_may_let_go(const ductile_allocator *a);

/* Whether a call may read the allocator and fill the struct `out` of its caller, which begins with
 * its size. The errors of dpool_may_read; ERR_INVALID_ARGUMENT when `out` is NULL, smaller than its
 * size member, or larger than known_size. */
ductile_status dpool_may_fill(const ductile_allocator *a, const void *out, size_t known_size);

#endif

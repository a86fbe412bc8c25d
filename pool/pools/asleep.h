/* SPDX-License-Identifier: Apache-2.0 */
/* What a pool is called, and what callers can know and do while it sleeps: see ductile_sleep.h. */
#ifndef DUCTILE_POOL_POOLS_ASLEEP_H
#define DUCTILE_POOL_POOLS_ASLEEP_H

#include "pool/blocks/private_pool.h"

/* Is it one of the policies? */
static inline bool dpool_is_contents(ductile_contents contents) {
    return (unsigned)contents <= DUCTILE_CONTENTS_POISON;
}

/* May a request of so many bytes use the pool? ERR_ASLEEP, also while a call puts it to sleep or
 * wakes it; the refusal is kept for this thread. Index lock held. */
ductile_status dpool_admit_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                                  uint64_t bytes);

#endif

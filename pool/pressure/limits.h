/* SPDX-License-Identifier: Apache-2.0 */
/* How much may be held: the hard limit, and the soft one above which creating comes last. */
#ifndef DUCTILE_POOL_PRESSURE_LIMITS_H
#define DUCTILE_POOL_PRESSURE_LIMITS_H

#include "pool/blocks/arena.h"

/* Works both limits out from the options and publishes them. Both locks held, or nobody else knows
 * the allocator yet. */
void dpool_limits_apply_locked(ductile_allocator *a);

#endif

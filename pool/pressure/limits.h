/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of held bytes: the hard limit, and the soft limit, above which memory is created only
 * as a last resort. */
#ifndef DUCTILE_POOL_PRESSURE_LIMITS_H
#define DUCTILE_POOL_PRESSURE_LIMITS_H

#include "pool/blocks/arena.h"

/* Computes both limits from the options and publishes them. Both locks held, or no other thread
 * knows the allocator yet. */
void dpool_limits_apply_locked(ductile_allocator *a);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the host for requests that would be refused: which ones may have it, and making it
 * (growth/spill.h places it). No lock held by any of these. */
#ifndef DUCTILE_POOL_PRESSURE_HOST_MEMORY_H
#define DUCTILE_POOL_PRESSURE_HOST_MEMORY_H

#include "pool/growth/attempt.h"

/* May it spill before it is refused? Not if it is small, nor for memory that graphs, other GPUs or
 * other processes may reach, nor while ductile_spill_forbid holds. */
bool dpool_may_spill(ductile_allocator *a, const dpool_request *r);

/* Page-locks so many bytes for the cache, piece by piece. False when the host, or the option
 * `spill_bytes`, has not so much left; what was made is in the cache. */
bool dpool_make_host_memory(ductile_allocator *a, uint64_t bytes);

/* Remembers that a climb of the ladder for so many bytes found nothing. */
void dpool_note_futile(ductile_allocator *a, uint64_t bytes);

/* Has less been freed since than it looked for, and than is missing now? Then another climb would
 * find nothing either. */
bool dpool_is_futile(ductile_allocator *a, uint64_t missing);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Which stream a handle names: two handles may name one stream, and one handle a stream of each
 * thread. */
#ifndef DUCTILE_POOL_BASE_STREAM_ID_H
#define DUCTILE_POOL_BASE_STREAM_ID_H

#include <ductile.h>

#include <stdbool.h>
#include <stdint.h>

/* Maps both handles of the legacy default stream to one value. */
ductile_stream dpool_canonical_stream(ductile_stream stream);

/* The number of the thread whose stream the handle names: 0 unless it is the per-thread default
 * stream. */
uint64_t dpool_thread_of(ductile_stream stream);

/* May this thread name that stream in a driver call? */
bool dpool_may_name(ductile_stream stream, uint64_t thread);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beside captures: what a capture put off is made up for after it, and requests of a capture that
 * nobody announced are refused.
 */
#ifndef DUCTILE_POOL_STREAMS_CAPTURES_H
#define DUCTILE_POOL_STREAMS_CAPTURES_H

#include "pool/streams/stream_use.h"

/* A block was freed while a stream recorded on it could not be marked. No lock needed. */
void dpool_note_unmarked(ductile_allocator *a);

/* Marks such uses by streams that can be marked now: `stream`, or with `all` every one that this
 * thread may name. Grow lock held, index lock not. */
void dpool_mark_unmarked(ductile_allocator *a, ductile_stream stream, bool all);

#endif

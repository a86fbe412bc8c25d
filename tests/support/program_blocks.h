/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocators of the programs in tests/gpu, and their live blocks, which have patterns. Functions
 * return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_PROGRAM_BLOCKS_H
#define TESTS_SUPPORT_PROGRAM_BLOCKS_H

#include "tests/support/program_device.h"

/* ---- Allocators ---------------------------------------------------------------------------- */

/* With the default options but for the limit; 0: none. */
const char *program_allocator(const program_device *p, uint64_t limit_bytes,
                              ductile_allocator **out);
/* The same with options as in DUCTILE_CONF; those that are wrong end the program as misused. */
ductile_status program_create(const program_device *p, uint64_t limit_bytes, const char *conf,
                              ductile_allocator **out);
/* ductile_check finds nothing. */
const char *program_is_sound(ductile_allocator *a);

/* ---- Blocks -------------------------------------------------------------------------------- */

enum { MOST_LIVE_BLOCKS = 8192 };

typedef struct live_block {
    pattern_block block;
    uint32_t stream; /* whose it is */
} live_block;

/* In no order. */
typedef struct live_blocks {
    live_block all[MOST_LIVE_BLOCKS];
    size_t n;
    uint64_t live_bytes;
} live_blocks;

void live_blocks_add(live_blocks *l, live_block it);
live_block live_blocks_remove(live_blocks *l, size_t i);

/* A block; where there is no memory its address is 0. Taken: it is announced to the virtual GPU as
 * live, and the stream writes its pattern. */
const char *program_ask(ductile_allocator *a, pattern_block *b, ductile_stream stream);
const char *program_take(program_device *p, ductile_allocator *a, pattern_block *b,
                         ductile_stream stream);
const char *program_give(const program_device *p, ductile_allocator *a, pattern_block *b);
void program_announce(const program_device *p, const pattern_block *b, bool is_live);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What scenarios are made of. A step that cannot be made ends the program. */
#ifndef TESTS_BROKEN_STEPS_H
#define TESTS_BROKEN_STEPS_H

#include "tests/broken/scenarios.h"

/* Slots, by what their streams do in a scenario. */
enum { OWNER, USER, OTHER_USER, TAKER, CAPTURER, FIRST_THREAD, SECOND_THREAD };

#define POOL ((ductile_pool_id){1, 0})

void need(const play *p, bool is_so, const char *what);

/* A block that its stream writes. */
block take(play *p, unsigned slot, uint64_t size);
block take_dedicated(play *p, uint64_t size);

/* Takes a block that stays, and is of no further use. */
void leave(play *p, unsigned slot, uint64_t size);

void give_on(play *p, unsigned thread, const block *b);
void give(play *p, const block *b);
void give_all(play *p, const block *blocks, size_t n);

/* From here on work is done at once, except what use_long launches. */
void be_eager(play *p);

/* Work that does not come to an end until somebody waits for it. */
void use_long(play *p, unsigned slot, const block *b, int writes);

/* Another stream reads the block, for long, after its own one wrote it. */
void share_long(play *p, block *b, unsigned user);

/* Hits of the stream until one of them records a marker of the context; where none may be recorded,
 * of the stream. */
void come_to_mark(play *p, unsigned slot);

/* The same until the allocator has read the marker, too. Pre: be_eager. */
void come_to_proof(play *p, unsigned slot);

/* The stream is gone, and a new one has got its handle. */
void renew_stream(play *p, unsigned slot);

/* A block that another GPU's stream writes, for long, and that stream. */
ductile_stream use_elsewhere(play *p, const block *b);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The internals of the allocator of one_fixture.h, for tests of the pool's parts: its locks, and a
 * segment's blocks as a line of text, "L2 F1 L1 G": letters are states, numbers granules. The gap
 * at the end of a range has no number, and a size that is not whole granules is in bytes, with a
 * "b".
 */
#ifndef TESTS_SUPPORT_INTERNALS_H
#define TESTS_SUPPORT_INTERNALS_H

#include "pool/blocks/arena.h"
#include "tests/support/one_fixture.h"

#include <stdio.h>
#include <string.h>

static dvmm_capture_mode mode_before;

static inline void grow_lock(void) {
    mode_before = dpool_grow_lock(f.allocator);
}

static inline void grow_unlock(void) {
    dpool_grow_unlock(f.allocator, mode_before);
}

static inline void index_lock(void) {
    dti_lock_acquire(&f.allocator->index_lock);
}

static inline void index_unlock(void) {
    dti_lock_release(&f.allocator->index_lock);
}

/* The arena of a stream in no pool; NULL when there is none. */
static inline dpool_arena *arena_of(size_t stream) {
    index_lock();
    dpool_arena *arena =
        dpool_arena_find_locked(f.allocator, f.allocator->default_pool, f.streams[stream]);
    index_unlock();
    return arena;
}

/* The block that holds addr. */
static inline dpool_block *block_at(ductile_addr addr) {
    for (dpool_arena *arena = f.allocator->arenas; arena != NULL; arena = arena->next) {
        for (dpool_region *r = arena->blocks.regions; r != NULL; r = r->next) {
            for (dpool_block *b = r->first; b != NULL; b = b->next) {
                if (addr >= b->addr && addr < dpool_end(b)) {
                    return b;
                }
            }
        }
    }
    cr_assert_fail("no block holds %llx", addr);
    return NULL;
}

static inline const char *layout_at(ductile_addr addr) {
    static char text[512];
    static const char letters[] = {
        [DPOOL_LIVE] = 'L',        [DPOOL_FREE] = 'F',  [DPOOL_PENDING] = 'P',
        [DPOOL_BUSY] = 'B',        [DPOOL_GAP] = 'G',   [DPOOL_RETIRING] = 'R',
        [DPOOL_QUARANTINED] = 'Q', [DPOOL_ASLEEP] = 'S'};
    size_t n = 0;
    for (const dpool_block *b = block_at(addr)->region->first; b != NULL; b = b->next) {
        bool is_whole = b->size % FIXTURE_GRANULE == 0;
        unsigned long long size = is_whole ? b->size / FIXTURE_GRANULE : b->size;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%c", n > 0 ? " " : "",
                              letters[b->state]);
        if (b->next != NULL || b->state != DPOOL_GAP) {
            n += (size_t)snprintf(text + n, sizeof text - n, "%llu%s", size, is_whole ? "" : "b");
        }
    }
    return text;
}

static inline void assert_layout(ductile_addr addr, const char *expected) {
    const char *got = layout_at(addr);
    cr_assert_str_eq(got, expected, "the blocks are %s, not %s", got, expected);
}

#endif

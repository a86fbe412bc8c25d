/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/live_watermark.h"

static void expect_dip(dpool_arena *arena) {
    arena->peak_live = arena->live_bytes;
    arena->rises_above = arena->peak_live;
    arena->dips_below = arena->peak_live / 3 * 2;
}

/* Would a compaction find a gap to fill, or memory to move? */
static bool is_of_use(const ductile_allocator *a, const dpool_arena *arena) {
    bool has_inner_gaps = arena->gaps.count > arena->n_regions;
    return has_inner_gaps || arena->kept.count > 0 || dpool_is_tight(a);
}

__attribute__((noinline)) void dpool_live_rose_locked(const ductile_allocator *a,
                                                      dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool dip_is_over = arena->live_bytes <= arena->peak_live;
    bool was_large = arena->peak_live - arena->dips_below > arena->mapped_bytes / 8;
    if (dip_is_over && __builtin_expect(was_large, 0) && is_of_use(a, arena)) {
        dpool_arena_want_compaction(arena);
    }
    expect_dip(arena);
}

__attribute__((noinline)) void dpool_live_dipped_locked(const ductile_allocator *a,
                                                        dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t low = arena->live_bytes;
    uint64_t peak = arena->peak_live;
    bool is_deep = low < peak / 10 * 3;
    arena->dips_below = low;
    arena->rises_above = is_deep ? low : low + (peak - low) / 8;
}

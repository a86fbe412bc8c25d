/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of blocks, one by one; after each test the whole heap is recounted. */
#include "pool/blocks/transitions.h"

#include "tests/support/inside.h"

#define G FIXTURE_GRANULE

static dpool_nodes *nodes;
static ductile_addr first;

static void open_one(void) {
    open_fixture(NULL);
    nodes = &f.allocator->nodes;
}

TestSuite(transitions, .init = open_one);

/* n granules, all FREE. */
static dpool_block *free_granules(uint64_t n) {
    first = take_granules(n, 0);
    give(first);
    return block_at(first);
}

/* ---- Bounds -------------------------------------------------------------------------------- */

Test(transitions, splitting_keeps_state_age_and_neighbours) {
    dpool_block *b = free_granules(3);
    dpool_block *after = b->next;
    index_lock();
    dpool_make_busy_locked(f.allocator, b);
    uint64_t age = b->age;
    dpool_block *rest = dpool_split(nodes, b, G);
    cr_assert(b->size == G && rest->addr == b->addr + G && rest->size == 2 * G);
    cr_assert(b->next == rest && rest->prev == b && rest->next == after && after->prev == rest);
    cr_assert(rest->state == DPOOL_BUSY && rest->age == age && rest->region == b->region);
    (void)dpool_make_free_locked(f.allocator, b);
    (void)dpool_make_free_locked(f.allocator, rest);
    index_unlock();
    assert_layout(first, "F3 G");
    close_audited();
}

static uint64_t ages_of(const dpool_block *b, uint32_t granule) {
    return b->region->ages[dseg_granule(b->region->seg, b->addr) + granule];
}

Test(transitions, absorbing_keeps_the_younger_age_and_gives_the_node_back) {
    dpool_block *b = free_granules(3);
    dpool_block *after = b->next;
    index_lock();
    dpool_make_busy_locked(f.allocator, b);
    uint64_t n_spare = nodes->n_spare;
    dpool_block *rest = dpool_split(nodes, b, G);
    cr_assert_eq(nodes->n_spare, n_spare - 1);
    uint64_t older = b->age;
    rest->age = (older + 5) & DPOOL_AGE_MASK;
    dpool_absorb_next(nodes, b);
    cr_assert(b->size == 3 * G && b->next == after && after->prev == b);
    assert_u64(b->age, older + 5);
    cr_assert(b->is_mixed);
    assert_u64(ages_of(b, 0), older); /* each granule keeps its own */
    assert_u64(ages_of(b, 1), older + 5);
    assert_u64(nodes->n_spare, n_spare);
    b->age = older & DPOOL_AGE_MASK;
    b->is_mixed = false;
    (void)dpool_make_free_locked(f.allocator, b);
    index_unlock();
    close_audited();
}

Test(transitions, a_cut_at_an_end_cuts_nothing) {
    dpool_block *b = free_granules(2);
    index_lock();
    dpool_make_busy_locked(f.allocator, b);
    cr_assert_eq(dpool_cut(nodes, b, b->addr), b);
    cr_assert_eq(dpool_cut(nodes, b, dpool_end(b)), b);
    assert_layout(first, "B2 G");
    dpool_block *rest = dpool_cut(nodes, b, b->addr + 512);
    cr_assert_eq(rest->addr, first + 512);
    (void)dpool_make_free_locked(f.allocator, rest);
    (void)dpool_make_free_locked(f.allocator, b);
    index_unlock();
    assert_layout(first, "F2 G");
    close_audited();
}

/* ---- States -------------------------------------------------------------------------------- */

Test(transitions, what_becomes_free_merges_with_both_neighbours) {
    ductile_addr blocks[4];
    for (int i = 0; i < 4; i++) {
        blocks[i] = take_granules(1, 0);
    }
    give(blocks[0]);
    give(blocks[2]);
    assert_layout(blocks[0], "F1 L1 F1 L1 G");
    give(blocks[1]);
    assert_layout(blocks[0], "F3 L1 G");
    index_lock();
    cr_assert_eq(dpool_index_best(&block_at(blocks[0])->region->arena->index, 3 * G),
                 block_at(blocks[0]));
    index_unlock();
    give(blocks[3]);
    close_audited();
}

Test(transitions, gaps_merge_with_both_neighbours_and_are_listed_once) {
    (void)free_granules(1);
    dpool_block *low = block_at(first)->next;
    index_lock();
    dpool_list *gaps = &low->region->arena->gaps;
    dpool_make_busy_locked(f.allocator, low);
    cr_assert_null(gaps->first);
    dpool_block *middle = dpool_split(nodes, low, 2 * G);
    dpool_block *high = dpool_split(nodes, middle, 3 * G);
    (void)dpool_make_gap_locked(f.allocator, high);
    (void)dpool_make_gap_locked(f.allocator, low);
    assert_layout(first, "F1 G2 B3 G");
    cr_assert_eq(dpool_make_gap_locked(f.allocator, middle), low);
    cr_assert(gaps->first == low && low->list_next == NULL);
    index_unlock();
    assert_layout(first, "F1 G");
    close_audited();
}

Test(transitions, carving_leaves_what_lies_below_and_above_free) {
    dpool_block *b = free_granules(5);
    index_lock();
    dpool_block *carved = dpool_carve_free_locked(f.allocator, b, first + G, first + 3 * G);
    assert_layout(first, "F1 B2 F2 G");
    cr_assert_eq(dpool_index_best(&b->region->arena->index, 2 * G), carved->next);
    (void)dpool_make_free_locked(f.allocator, carved);
    assert_layout(first, "F5 G");
    b = block_at(first);
    cr_assert_eq(dpool_carve_free_locked(f.allocator, b, first, first + 5 * G), b);
    assert_layout(first, "B5 G");
    (void)dpool_make_free_locked(f.allocator, b);
    index_unlock();
    close_audited();
}

/* ---- Served and taken back ----------------------------------------------------------------- */

/* F3 L1 F2 L1; the last of the LIVE ones is returned. */
static ductile_addr make_two_sizes(void) {
    first = take_granules(3, 0);
    (void)take_granules(1, 0);
    ductile_addr two = take_granules(2, 0);
    ductile_addr last = take_granules(1, 0);
    give(first);
    give(two);
    assert_layout(first, "F3 L1 F2 L1 G");
    return last;
}

static dpool_block *serve(uint64_t size) {
    return dpool_alloc_from_free_locked(f.allocator, block_at(first)->region->arena, size, size);
}

Test(transitions, the_best_fit_is_served_and_what_is_left_stays_free) {
    (void)make_two_sizes();
    index_lock();
    dpool_block *b = serve(2 * G);
    cr_assert_not_null(b);
    assert_layout(first, "F3 L1 L2 L1 G");
    dpool_block *small = serve(512);
    cr_assert_not_null(small);
    cr_assert_eq(small->addr, first);
    cr_assert(small->next->state == DPOOL_FREE && small->next->size == 3 * G - 512);
    cr_assert_null(serve(3 * G));
    dpool_unserve_locked(f.allocator, small);
    dpool_unserve_locked(f.allocator, b);
    index_unlock();
    assert_layout(first, "F3 L1 F2 L1 G");
    close_audited();
}

Test(transitions, what_is_unserved_was_never_counted) {
    (void)make_two_sizes();
    ductile_stats before = fixture_stats(f.allocator);
    index_lock();
    dpool_block *b = serve(2 * G);
    assert_u64(f.allocator->counts.allocs, before.allocs + 1);
    dpool_unserve_locked(f.allocator, b);
    index_unlock();
    ductile_stats after = fixture_stats(f.allocator);
    assert_u64(after.allocs, before.allocs);
    assert_u64(after.frees, before.frees);
    assert_u64(after.allocated_bytes, before.allocated_bytes);
    assert_u64(after.requested_total_bytes, before.requested_total_bytes);
    close_audited();
}

Test(transitions, without_a_spare_node_nothing_is_served) {
    (void)make_two_sizes();
    index_lock();
    uint64_t n_spare = nodes->n_spare;
    nodes->n_spare = 0;
    cr_assert_null(serve(G));
    nodes->n_spare = n_spare;
    assert_layout(first, "F3 L1 F2 L1 G");
    dpool_block *b = serve(G);
    cr_assert_not_null(b);
    dpool_unserve_locked(f.allocator, b);
    index_unlock();
    close_audited();
}

Test(transitions, a_paused_block_is_live_to_nobody_and_comes_back) {
    ductile_addr last = make_two_sizes();
    ductile_stats before = fixture_stats(f.allocator);
    index_lock();
    dpool_arena *arena = block_at(last)->region->arena;
    uint64_t live = arena->live_bytes;
    dpool_pause_block_locked(f.allocator, block_at(last));
    assert_u64(arena->live_bytes, live - G);
    index_unlock();
    ductile_stats paused = fixture_stats(f.allocator);
    assert_u64(paused.allocated_bytes, before.allocated_bytes - G);
    assert_u64(paused.paused_bytes, G);
    assert_u64(paused.live_blocks, before.live_blocks - 1);
    index_lock();
    dpool_resume_block_locked(f.allocator, block_at(last));
    index_unlock();
    ductile_stats resumed = fixture_stats(f.allocator);
    assert_u64(resumed.allocated_bytes, before.allocated_bytes);
    assert_u64(resumed.paused_bytes, 0);
    close_audited();
}

/* ---- Dips ----------------------------------------------------------------------------------- */

Test(transitions, what_is_live_dips_below_two_thirds_of_its_peak_and_not_at_them) {
    ductile_addr blocks[3];
    for (int i = 0; i < 3; i++) {
        blocks[i] = take_granules(1, 0);
    }
    const dpool_arena *arena = arena_of(0);
    give(blocks[0]);
    assert_u64(arena->live_bytes, 2 * G);
    assert_u64(arena->rises_above, 3 * G); /* the peak, still */
    give(blocks[1]);
    assert_u64(arena->dips_below, G);
    assert_u64(arena->rises_above, G + 2 * G / 8);
    give(blocks[2]);
    close_audited();
}

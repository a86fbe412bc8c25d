/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of blocks, one by one; after each test the whole heap is recounted. */
#include "pool/blocks/transitions.h"

#include "tests/support/internals.h"

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

Test(transitions, gaps_merge_with_both_neighbours_and_are_listed_once) {
    (void)free_granules(1);
    dpool_block *low = block_at(first)->next;
    index_lock();
    dpool_list *gaps = &low->region->arena->blocks.gaps;
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

/* ---- Dips ----------------------------------------------------------------------------------- */

Test(transitions, what_is_live_dips_below_two_thirds_of_its_peak_and_not_at_them) {
    ductile_addr blocks[3];
    for (int i = 0; i < 3; i++) {
        blocks[i] = take_granules(1, 0);
    }
    const dpool_arena *arena = arena_of(0);
    give(blocks[0]);
    assert_u64(arena->live.bytes, 2 * G);
    assert_u64(arena->live.rises_above, 3 * G); /* the peak, still */
    give(blocks[1]);
    assert_u64(arena->live.dips_below, G);
    assert_u64(arena->live.rises_above, G + 2 * G / 8);
    give(blocks[2]);
    close_audited();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas: which stream has which, when they come and go, and what a pool says of their memory. */
#include "pool/blocks/arena.h"

#include "tests/support/inside.h"

static const ductile_pool_id GRAPH = {3, 4};

static void open_two(void) {
    open_fixture(&(fixture_setup){.n_streams = 2});
}

TestSuite(arena, .init = open_two);

static dpool_arena *get(size_t stream) {
    dpool_arena *arena = NULL;
    grow_lock();
    assert_ok(dpool_arena_get(f.allocator, f.allocator->default_pool, f.streams[stream], &arena));
    grow_unlock();
    return arena;
}

static void drop_if_empty(dpool_arena *arena) {
    grow_lock();
    dpool_arena_drop_if_empty(f.allocator, arena);
    grow_unlock();
}

Test(arena, a_stream_has_one_from_its_first_request_on) {
    cr_assert_null(arena_of(0));
    (void)take_granules(1, 0);
    dpool_arena *arena = arena_of(0);
    cr_assert_not_null(arena);
    (void)take_granules(3, 0);
    cr_assert_eq(arena_of(0), arena);
    cr_assert_eq(get(0), arena);
    cr_assert_null(arena_of(1));
    (void)take_granules(1, 1);
    cr_assert_neq(arena_of(1), arena);
    assert_u64(fixture_stats(f.allocator).arenas, 2);
    close_audited();
}

Test(arena, what_holds_memory_is_not_dropped_and_what_holds_nothing_is) {
    (void)take_granules(1, 0);
    drop_if_empty(arena_of(0));
    cr_assert_not_null(arena_of(0));
    drop_if_empty(get(1));
    cr_assert_null(arena_of(1));
    assert_u64(fixture_stats(f.allocator).arenas, 1);
    close_audited();
}

Test(arena, one_that_is_parted_from_its_stream_keeps_its_blocks) {
    ductile_addr block = take_granules(2, 0);
    dpool_arena *old = arena_of(0);
    cr_assert(dpool_arena_is_of(old, f.streams[0]));
    cr_assert_not(dpool_arena_is_of(old, f.streams[1]));
    index_lock();
    dpool_arena_part_locked(f.allocator, old);
    dpool_arena_part_locked(f.allocator, old); /* once more changes nothing */
    cr_assert_null(dpool_arena_any_locked(f.allocator, f.streams[0]));
    index_unlock();
    cr_assert_null(arena_of(0));
    cr_assert_not(dpool_arena_is_of(old, f.streams[0]));
    cr_assert_not(dpool_arena_may_be_named(old));
    cr_assert_not(dpool_stream_ref_begin(f.allocator, old));
    cr_assert_eq(block_at(block)->region->arena, old);
    (void)take_granules(1, 0);
    cr_assert_neq(arena_of(0), old);
    close_audited();
}

Test(arena, a_wish_for_compaction_is_for_the_next_allocation) {
    (void)take_granules(1, 0);
    dpool_arena *arena = arena_of(0);
    index_lock();
    arena->maintenance_at = UINT64_MAX;
    dpool_arena_want_compaction(arena);
    cr_assert(arena->compaction_due);
    assert_u64(arena->maintenance_at, 0);
    index_unlock();
    close_audited();
}

/* The arena of stream 0 in a pool that is held. */
static dpool_arena *make_pool_arena(ductile_pool_kind kind) {
    ductile_allocator *a = f.allocator;
    assert_ok(ductile_pool_retain(a, GRAPH));
    assert_ok(ductile_pool_set_kind(a, GRAPH, kind));
    assert_ok(ductile_pool_begin(a, GRAPH, NULL, NULL));
    ductile_addr block = take_granules(2, 0);
    assert_ok(ductile_pool_end(a, GRAPH));
    assert_ok(ductile_pool_release(a, GRAPH)); /* begin took one, too */
    return block_at(block)->region->arena;
}

static uint64_t proven_age_of(const dpool_arena *arena) {
    index_lock();
    uint64_t age = dpool_proof_to_leave(f.allocator, arena).age;
    index_unlock();
    return age;
}

static bool may_serve(const dpool_arena *arena, const dpool_arena *other, bool under_pressure) {
    index_lock();
    bool may = dpool_may_serve(arena, other, under_pressure);
    index_unlock();
    return may;
}

Test(arena, memory_of_a_graph_is_frozen_and_nobody_elses_while_it_is_held) {
    (void)take_granules(1, 0);
    dpool_arena *plain = arena_of(0);
    dpool_arena *graph = make_pool_arena(DUCTILE_POOL_CAPTURE);
    cr_assert(dpool_is_frozen(graph));
    cr_assert_not(dpool_is_frozen(plain));
    cr_assert_not(may_serve(graph, plain, true));
    cr_assert(may_serve(plain, graph, false));
    assert_ok(ductile_pool_release(f.allocator, GRAPH));
    cr_assert_not(dpool_is_frozen(graph));
    cr_assert(may_serve(graph, plain, false));
    assert_u64(proven_age_of(graph), 0); /* until a mark from after the release is done */
    index_lock();
    f.allocator->proven.age = graph->pool->released_age + 1;
    index_unlock();
    assert_u64(proven_age_of(graph), graph->pool->released_age + 1);
    f.allocator->proven.age = 0;
    close_audited();
}

Test(arena, memory_of_a_plain_pool_serves_others_under_pressure_alone) {
    (void)take_granules(1, 0);
    dpool_arena *none = arena_of(0);
    dpool_arena *plain = make_pool_arena(DUCTILE_POOL_PLAIN);
    cr_assert_not(dpool_is_frozen(plain));
    cr_assert_not(may_serve(plain, none, false));
    cr_assert(may_serve(plain, none, true));
    assert_ok(ductile_pool_release(f.allocator, GRAPH));
    cr_assert(may_serve(plain, none, false));
    close_audited();
}

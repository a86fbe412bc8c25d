/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's four steps: what it marks, that it can be taken back,
 * and what comes of carrying it out. */
#include "pool/growth/plan.h"

#include "pool/blocks/room.h"
#include "tests/support/internals.h"

#define G FIXTURE_GRANULE

static ductile_allocator *a;
static ductile_addr first;
static dpool_plan *p;

typedef enum donors { NOBODY, OWN } donors;

/* L1 F4 L1 G */
static void open_donor(void) {
    open_fixture(NULL);
    a = f.allocator;
    first = take_granules(1, 0);
    ductile_addr four = take_granules(4, 0);
    (void)take_granules(1, 0);
    give(four);
    assert_layout(first, "L1 F4 L1 G");
}

TestSuite(plan, .init = open_donor);

/* Leaves the grow lock held, and the index lock. */
static ductile_status plan_granules(uint64_t n, uint64_t may_create, donors from) {
    dpool_arena *arena = block_at(first)->region->arena;
    grow_lock();
    p = dpool_plan_take(a, n * G);
    cr_assert_not_null(p);
    assert_ok(dpool_reserve_room(a, dpool_plan_nodes(a, n * G)));
    index_lock();
    dpool_place place = dpool_place_choose_locked(a, arena, n * G);
    dpool_plan_begin_locked(a, p, arena, &place, n * G,
                            a->store.totals.held_bytes + may_create * G);
    if (from == OWN) {
        dpool_plan_take_own_locked(a, p);
    }
    p->created = dpool_plan_missing(p);
    return dpool_plan_end_locked(a, p);
}

/* Of no request of its own. */
static void begin_plan(void) {
    grow_lock();
    p = dpool_plan_take(a, 0);
    cr_assert_not_null(p);
    assert_ok(dpool_reserve_room(a, dpool_plan_nodes(a, 0)));
    index_lock();
}

static void end_plan(void) {
    dpool_plan_give(a, p);
    grow_unlock();
}

static void abort_plan(void) {
    dpool_plan_abort_locked(a, p);
    index_unlock();
    end_plan();
}

/* So much is lacking, and nothing was touched. */
static void assert_refused_plan(uint64_t n, uint64_t may_create, donors from, uint64_t lacks) {
    assert_status(plan_granules(n, may_create, from), DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(p->lacks, lacks);
    assert_layout(first, "L1 F4 L1 G");
    index_unlock();
    end_plan();
}

Test(plan, marks_all_that_it_touches_busy) {
    assert_ok(plan_granules(6, 2, OWN));
    assert_layout(first, "L1 B4 L1 B6 G");
    assert_u64(p->n_granules, 6);
    assert_u64(p->donated, 4);
    assert_u64(p->n_own_donors, 1);
    cr_assert_eq(p->body, block_at(first + 6 * G));
    abort_plan();
    close_audited();
}

Test(plan, aborted_leaves_everything_as_it_was) {
    uint64_t n_spare;
    assert_ok(plan_granules(6, 2, OWN));
    dpool_plan_abort_locked(a, p);
    n_spare = a->nodes.n_spare;
    assert_layout(first, "L1 F4 L1 G");
    index_unlock();
    end_plan();
    assert_ok(plan_granules(6, 2, OWN));
    dpool_plan_abort_locked(a, p);
    assert_u64(a->nodes.n_spare, n_spare);
    index_unlock();
    end_plan();
    close_audited();
}

Test(plan, refused_for_lack_of_memory_says_how_much_and_touches_nothing) {
    assert_refused_plan(6, 1, OWN, G);
    close_audited();
}

Test(plan, takes_from_nobody_who_was_not_asked) {
    assert_refused_plan(6, 5, NOBODY, G);
    assert_ok(plan_granules(6, 6, NOBODY));
    assert_u64(p->n_donors, 0);
    assert_layout(first, "L1 F4 L1 B6 G");
    abort_plan();
    close_audited();
}

/* A pinned handle stays where it is. */
Test(plan, takes_no_handle_that_is_pinned) {
    ductile_addr four = take_granules(4, 0); /* the free ones again */
    assert_ok(ductile_pin(a, four));
    give(four);
    assert_refused_plan(6, 5, OWN, G);
    assert_ok(ductile_unpin(a, four));
    close_audited();
}

/* Each handle is a donor of its own then. */
Test(plan, takes_no_more_than_it_lacks_beside_a_pinned_handle) {
    ductile_addr below = take_granules(1, 0); /* of the free ones */
    ductile_addr one = take_granules(1, 0);
    assert_ok(ductile_pin(a, one));
    give(one);
    give(below);
    assert_ok(plan_granules(2, 0, OWN));
    assert_u64(p->donated, 2);
    abort_plan();
    assert_ok(ductile_unpin(a, one));
    close_audited();
}

/* As of a thread that plans while another one tells map callbacks of its own. */
Test(plan, made_beside_another_one_touches_none_of_it) {
    assert_ok(plan_granules(6, 2, OWN));
    index_unlock();
    grow_unlock();
    dpool_plan *under_way = p;
    assert_ok(plan_granules(2, 2, OWN));
    cr_assert_neq(p, under_way);
    assert_layout(first, "L1 B4 L1 B6 B2 G");
    abort_plan();
    assert_layout(first, "L1 B4 L1 B6 G");
    p = under_way;
    grow_lock();
    index_lock();
    abort_plan();
    assert_layout(first, "L1 F4 L1 G");
    close_audited();
}

Test(plan, carried_out_and_committed_is_a_live_block_of_moved_memory) {
    uint64_t creates = count("phys_create");
    assert_ok(plan_granules(6, 2, OWN));
    index_unlock();
    assert_ok(dpool_plan_execute(a, p));
    index_lock();
    dpool_block *b = dpool_plan_commit_locked(a, p, 6 * G - 100);
    index_unlock();
    end_plan();
    cr_assert(b->state == DPOOL_LIVE && b->size == 6 * G && b->requested == 6 * G - 100);
    assert_layout(first, "L1 R4 L1 L6 G");
    assert_u64(count("phys_create"), creates + 2);
    assert_u64(reserved(), 8 * G);
    fill(b->addr, 7, 6 * G, 0);
    give(b->addr);
    close_audited();
}

Test(plan, that_cannot_be_carried_out_is_undone) {
    assert_ok(plan_granules(6, 2, OWN));
    index_unlock();
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "map", .nth = 3, .code = DVMM_UNKNOWN};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    assert_status(dpool_plan_execute(a, p), DUCTILE_ERR_DRIVER);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    index_lock();
    abort_plan();
    assert_layout(first, "L1 F4 L1 G");
    assert_u64(fixture_stats(a).quarantined_bytes, 0);
    close_audited();
}

/* Behind L1 L4 L1: F2 G2 F2 G2 ... F2 L1, from n runs of two granules; what was F4 is in use. */
static void make_gaps(ductile_addr *runs, int n) {
    (void)take_granules(4, 0);
    for (int i = 0; i < n; i++) {
        runs[i] = take_granules(2, 0);
    }
    (void)take_granules(1, 0);
    for (int i = 1; i < n; i += 2) {
        give(runs[i]);
    }
    assert_ok(ductile_trim(a, NULL, 0, NULL));
    for (int i = 0; i < n; i += 2) {
        give(runs[i]);
    }
}

Test(plan, to_heal_moves_memory_above_a_gap_into_it) {
    ductile_addr more[3];
    make_gaps(more, 3);
    assert_layout(first, "L1 L4 L1 F2 G2 F2 L1 G");
    dpool_arena *arena = block_at(first)->region->arena;
    begin_plan();
    cr_assert(dpool_plan_compaction_locked(a, p, arena, block_at(more[1]), 1));
    assert_layout(first, "L1 L4 L1 F2 B1 G1 B1 F1 L1 G");
    dpool_plan_abort_locked(a, p);
    assert_layout(first, "L1 L4 L1 F2 G2 F2 L1 G");
    cr_assert(!dpool_plan_compaction_locked(a, p, arena, block_at(more[2] + 3 * G),
                                            1)); /* at the end of the range */
    index_unlock();
    end_plan();
    close_audited();
}

/* What is left then is at the low end: a trim, and the gap behind all blocks, get the rest. */
Test(plan, to_heal_takes_the_topmost_memory_of_its_run_beyond_other_gaps) {
    ductile_addr more[5];
    make_gaps(more, 5);
    assert_layout(first, "L1 L4 L1 F2 G2 F2 G2 F2 L1 G");
    dpool_arena *arena = block_at(first)->region->arena;
    begin_plan();
    cr_assert(dpool_plan_compaction_locked(a, p, arena, block_at(more[1]), 1));
    assert_layout(first, "L1 L4 L1 F2 B1 G1 F2 G2 B1 F1 L1 G");
    abort_plan();
    close_audited();
}

enum { MOST_SINGLES = 200 };

/* Behind L1: F8 Gn Fn; then L1. The middle of the last one is pinned, so that each of its handles
 * is a donor by itself. No request is large: it would make room in the plan. */
static ductile_addr make_wide_gap(uint32_t n) {
    ductile_addr gap[MOST_SINGLES], above[MOST_SINGLES];
    cr_assert_leq(n, MOST_SINGLES);
    ductile_addr below = take_granules(8, 0);
    for (uint32_t i = 0; i < n; i++) {
        gap[i] = take_granules(1, 0);
    }
    for (uint32_t i = 0; i < n; i++) {
        above[i] = take_granules(1, 0);
    }
    (void)take_granules(1, 0);
    for (uint32_t i = 0; i < n; i++) {
        give(gap[i]);
    }
    assert_ok(ductile_trim(a, NULL, 0, NULL));
    assert_ok(ductile_pin(a, above[n / 2]));
    for (uint32_t i = 0; i < n; i++) {
        give(above[i]);
    }
    give(below);
    return gap[0];
}

TestSuite(plan_room);

Test(plan_room, has_donors_as_many_as_it_has_room_for) {
    open_fixture(&(fixture_setup){
        .capacity_bytes = 4096 * MIB, .n_streams = 1, .conf = "sizes:2M,compact:off"});
    a = f.allocator;
    first = take_granules(1, 0);
    begin_plan();
    uint32_t room = p->room;
    index_unlock();
    end_plan();
    ductile_addr gap = make_wide_gap(room + 4);
    begin_plan();
    index_unlock();
    assert_ok(dpool_reserve_room(a, 4 * (uint64_t)room));
    index_lock();
    dpool_arena *arena = block_at(first)->region->arena;
    assert_u64(p->room, room);
    cr_assert(dpool_plan_compaction_locked(a, p, arena, block_at(gap), UINT32_MAX));
    assert_u64(p->n_donors, room);
    abort_plan();
    close_audited();
}

/* ---- Memory that moves behind waits --------------------------------------------------------- */

TestSuite(plan_waits);

/* The stream waits for the other one before it moves what that one still uses; the memory is then
 * as young as that wait, so that nothing recorded before proves it. */
Test(plan_waits, memory_that_heals_a_gap_is_as_young_as_the_wait_for_it) {
    open_fixture(&(fixture_setup){
        .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2, .conf = "record_stream:wait"});
    a = f.allocator;
    first = take_granules(1, 0);
    ductile_addr more[3];
    for (int i = 0; i < 3; i++) {
        more[i] = take_granules(2, 0);
    }
    (void)take_granules(1, 0);
    give(more[1]);
    assert_ok(ductile_trim(a, NULL, 0, NULL));
    launch(more[2], 2 * G, 1);
    assert_ok(ductile_free_ex(a, more[2], &f.streams[1], 1, NULL));
    give(more[0]);
    assert_layout(first, "L1 F2 G2 F2 L1 G");
    uint64_t before = block_at(more[2])->age;
    uint64_t waits = fixture_stats(a).event_waits;
    begin_plan();
    a->age++;
    cr_assert(
        dpool_plan_compaction_locked(a, p, block_at(first)->region->arena, block_at(more[1]), 2));
    assert_u64(p->n_own_donors, 1);
    index_unlock();
    assert_ok(dpool_plan_execute(a, p));
    index_lock();
    cr_assert_null(dpool_plan_commit_locked(a, p, 0));
    assert_layout(first, "L1 F4 R2 L1 G");
    cr_assert_gt(block_at(more[1])->age, before);
    index_unlock();
    end_plan();
    assert_u64(fixture_stats(a).event_waits, waits + 1);
    launch(take_granules(4, 0), 4 * G, 0);
    close_audited();
}

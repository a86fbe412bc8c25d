/* SPDX-License-Identifier: Apache-2.0 */
/* What may come between the moment when compaction is due and the plan. The linker puts it in. */
#include "pool/blocks/arena.h"
#include "tests/support/one_fixture.h"
#include "vmm/base/check.h"
#include "vmm/capture_mode.h"

#define G FIXTURE_GRANULE
#define POOL ((ductile_pool_id){0, 1})

static void (*meanwhile)(void); /* what another thread does, once */

/* The linker sends calls of X to __wrap_X and those of __real_X to X. */
dvmm_capture_mode __real_dvmm_capture_relax(dvmm_driver *d);
dvmm_capture_mode __wrap_dvmm_capture_relax(dvmm_driver *d);

dvmm_capture_mode __wrap_dvmm_capture_relax(dvmm_driver *d) {
    if (meanwhile != NULL) {
        void (*act)(void) = meanwhile;
        meanwhile = NULL;
        act();
    }
    return __real_dvmm_capture_relax(d);
}

static int all_of_them(void *user, ductile_stream stream) {
    (void)user;
    (void)stream;
    return 1;
}

/* Requests of both streams go to one plain pool. */
static void open_pool(void) {
    fixture_setup setup = {.n_streams = 2};
    assert_fine(fixture_open(&f, &setup));
    make_plain_pool(POOL);
    assert_ok(ductile_pool_begin(f.allocator, POOL, all_of_them, NULL));
}

/* [free][gap][free][gap][free][live], and a dip that has ended: the next request compacts. */
static void make_compaction_due(void) {
    ductile_addr blocks[5];
    for (int i = 0; i < 5; i++) {
        blocks[i] = take(2 * G, 0);
    }
    (void)take(G, 0);
    assert_ok(ductile_pin(f.allocator, blocks[0])); /* the trim leaves these two */
    assert_ok(ductile_pin(f.allocator, blocks[2]));
    for (int i = 0; i < 4; i++) {
        give(blocks[i]);
    }
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_ok(ductile_unpin(f.allocator, blocks[0]));
    assert_ok(ductile_unpin(f.allocator, blocks[2]));
    give(blocks[4]);
    (void)take(512, 0);
}

static uint64_t compacted(void) {
    return fixture_stats(f.allocator).compacted_handles;
}

/* The other stream is captured and asks the pool for memory. */
static void capture_and_ask(void) {
    assert_ok(ductile_virtual_capture_begin(f.gpu, f.streams[1], DUCTILE_CAPTURE_RELAXED));
    (void)take(512, 1);
}

Test(heal, moves_memory_of_a_plain_pool) {
    open_pool();
    make_compaction_due();
    (void)take(512, 0);
    cr_assert_gt(compacted(), 0);
    assert_ok(ductile_pool_end(f.allocator, POOL));
    assert_fine(audit_fixture(&f, NULL));
    assert_fine(fixture_close(&f));
}

/* [gap][live][free][live], and a dip that has ended: the gap has no free memory on both sides. */
static void make_compaction_due_in_vain(void) {
    ductile_addr low = take(8 * G, 0);
    (void)take(G, 0);
    ductile_addr high = take(8 * G, 0);
    (void)take(G, 0);
    give(low);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    give(high);
    (void)take(512, 0);
}

/* Each mark would move the clock of frees on, and so make memory unlike that merges later. */
Test(heal, records_no_mark_where_no_gap_can_be_filled) {
    fixture_setup setup = {.n_streams = 1, .conf = "sizes:16M"};
    assert_fine(fixture_open(&f, &setup));
    make_compaction_due_in_vain();
    uint64_t age = f.allocator->age;
    cr_assert(f.allocator->arenas->compaction_due);
    (void)take(512, 0);
    cr_assert_not(f.allocator->arenas->compaction_due);
    cr_assert_eq(f.allocator->age, age);
    assert_fine(audit_fixture(&f, NULL));
    assert_fine(fixture_close(&f));
}

/* From then on it is a capture pool, whose memory stays where it is (G1). */
Test(heal, leaves_a_pool_alone_that_a_capture_came_into) {
    if (DUCTILE_CHECK >= 3) {
        cr_skip_test(
            "every call checks the whole heap, which waits for the lock that compaction holds");
    }
    open_pool();
    (void)take(512, 1);
    make_compaction_due();
    give(take(512, 1));
    meanwhile = capture_and_ask;
    (void)take(512, 0);
    cr_assert_null(meanwhile, "compaction has not begun");
    cr_assert_eq(compacted(), 0);
    assert_ok(ductile_virtual_capture_end(f.gpu, f.streams[1], NULL));
    assert_ok(ductile_pool_end(f.allocator, POOL));
    assert_fine(audit_fixture(&f, NULL));
    assert_fine(fixture_close(&f));
}

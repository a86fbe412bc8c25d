/* SPDX-License-Identifier: Apache-2.0 */
/* The host arena: spans do not overlap and are reused, memory is made as needed and goes from the
 * top, and what fails changes nothing. */
#include "vmm/host_arena.h"

#include "tests/support/rig.h"
#include "vmm/host_pages.h"

#include <string.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)
#define HUGE DVMM_HUGE_PAGE

static rig r;
static dvmm_host_arena arena;

static void open_arena(void) {
    rig_open(&r, NULL);
    dvmm_host_arena_init(&arena, r.d);
}

/* Where no call failed: each counts. */
static void close_arena(void) {
    assert_ok(dvmm_host_arena_fini(&arena));
    assert_u64(ductile_virtual_count(r.gpu, "host_register"),
               ductile_virtual_count(r.gpu, "host_unregister"));
    rig_close(&r);
}

TestSuite(host_arena, .init = open_arena);

static dvmm_host_span take(uint64_t size) {
    dvmm_host_span span;
    assert_ok(dvmm_host_arena_take(&arena, size, size, &span));
    memset(arena.base + span.at, (int)size, size); /* it is there */
    return span;
}

static uint64_t give_back(uint64_t keep) {
    uint64_t released = 0;
    assert_ok(dvmm_host_arena_release(&arena, keep, &released));
    return released;
}

Test(host_arena, spans_lie_side_by_side_and_a_freed_one_serves_again) {
    dvmm_host_span first = take(3 * MIB);
    dvmm_host_span second = take(MIB);
    dvmm_host_span third = take(5 * MIB);
    assert_u64(first.at, 0);
    assert_u64(second.at, 3 * MIB);
    assert_u64(third.at, 4 * MIB);
    dvmm_host_arena_give(&arena, first);
    uint64_t held = dvmm_host_arena_bytes(&arena);
    assert_u64(take(2 * MIB).at, 0);
    assert_u64(take(MIB).at, 2 * MIB);
    assert_u64(dvmm_host_arena_bytes(&arena), held);
    close_arena();
}

Test(host_arena, odd_sizes_begin_at_whole_lines) {
    (void)take(1);
    assert_u64(take(700).at, 512);
    assert_u64(take(1).at, 1536);
    close_arena();
}

Test(host_arena, reserving_makes_the_difference_and_less_makes_nothing) {
    assert_ok(dvmm_host_arena_reserve(&arena, 5 * HUGE));
    assert_u64(dvmm_host_arena_bytes(&arena), 5 * HUGE);
    assert_ok(dvmm_host_arena_reserve(&arena, 3 * HUGE));
    assert_ok(dvmm_host_arena_reserve(&arena, 5 * HUGE + 1));
    assert_u64(dvmm_host_arena_bytes(&arena), 6 * HUGE);
    assert_u64(ductile_virtual_count(r.gpu, "host_register"), 2);
    close_arena();
}

Test(host_arena, a_span_lies_in_one_extent) {
    assert_ok(dvmm_host_arena_reserve(&arena, 2 * HUGE));
    dvmm_host_span low = take(HUGE);
    dvmm_host_span high = take(2 * HUGE);
    assert_u64(high.at, 2 * HUGE);
    assert_u64(dvmm_host_arena_rest(&arena, 0), 2 * HUGE);
    assert_u64(dvmm_host_arena_rest(&arena, high.at), 2 * HUGE);
    assert_u64(take(HUGE).at, low.at + HUGE); /* what was passed over serves */
    close_arena();
}

Test(host_arena, where_all_fits_nowhere_a_part_is_taken_and_the_rest_of_it_is_free_again) {
    dvmm_host_span part;
    assert_ok(dvmm_host_arena_reserve(&arena, 3 * HUGE));
    dvmm_host_span low = take(HUGE);
    assert_ok(dvmm_host_arena_take(&arena, 4 * HUGE, HUGE, &part));
    assert_u64(part.at, low.size);
    assert_u64(part.size, 2 * HUGE);
    dvmm_host_arena_cut(&arena, &part, HUGE + 1);
    assert_u64(part.size, HUGE + DVMM_HOST_LINE);
    assert_u64(take(HUGE / 2).at, part.at + part.size);
    assert_u64(dvmm_host_arena_bytes(&arena), 3 * HUGE);
    close_arena();
}

Test(host_arena, a_span_that_grows_by_and_by_needs_no_more_than_its_last_size) {
    for (uint64_t n = 1; n <= 8; n++) {
        dvmm_host_arena_give(&arena, take(n * HUGE));
        assert_u64(dvmm_host_arena_bytes(&arena), n * HUGE);
    }
    assert_u64(ductile_virtual_count(r.gpu, "host_register"), 8);
    assert_u64(ductile_virtual_count(r.gpu, "host_unregister"), 7);
    close_arena();
}

Test(host_arena, free_memory_that_cannot_be_locked_again_is_given_back) {
    dvmm_host_span span;
    assert_ok(dvmm_host_arena_reserve(&arena, HUGE));
    rig_fail_on(&r, "host_register", 1, DVMM_OUT_OF_MEMORY);
    assert_status(dvmm_host_arena_take(&arena, 2 * HUGE, 2 * HUGE, &span),
                  DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    assert_u64(dvmm_host_arena_bytes(&arena), 0);
    rig_mend(&r);
    assert_u64(take(2 * HUGE).at, 0);
    assert_ok(dvmm_host_arena_fini(&arena));
    rig_close(&r);
}

Test(host_arena, memory_goes_from_the_top_down_to_what_is_taken_or_kept) {
    assert_ok(dvmm_host_arena_reserve(&arena, HUGE));
    assert_ok(dvmm_host_arena_reserve(&arena, 3 * HUGE));
    assert_ok(dvmm_host_arena_reserve(&arena, 6 * HUGE));
    dvmm_host_span low = take(HUGE / 2);
    assert_u64(give_back(2 * HUGE), 3 * HUGE); /* whole extents */
    assert_u64(give_back(0), 2 * HUGE);
    assert_u64(give_back(0), 0);
    dvmm_host_arena_give(&arena, low);
    assert_u64(give_back(0), HUGE);
    assert_u64(dvmm_host_arena_bytes(&arena), 0);
    (void)take(HUGE); /* and comes again */
    close_arena();
}

Test(host_arena, a_registration_that_fails_leaves_what_was_there) {
    dvmm_host_span span;
    assert_ok(dvmm_host_arena_reserve(&arena, HUGE));
    rig_fail(&r, "host_register", 1, DVMM_OUT_OF_MEMORY);
    assert_status(dvmm_host_arena_reserve(&arena, 2 * HUGE), DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    assert_u64(dvmm_host_arena_bytes(&arena), HUGE);
    rig_fail(&r, "host_register", 1, DVMM_OUT_OF_MEMORY);
    assert_status(dvmm_host_arena_take(&arena, 2 * HUGE, 2 * HUGE, &span),
                  DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    assert_u64(span.size, 0);
    rig_mend(&r);
    assert_u64(take(2 * HUGE).at, 0);
    assert_ok(dvmm_host_arena_fini(&arena));
    rig_close(&r);
}

Test(host_arena, a_registration_that_fails_may_have_been_made) {
    const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                         .call = "host_register",
                                         .nth = 1,
                                         .code = DVMM_UNKNOWN,
                                         .effect = 1};
    assert_ok(ductile_virtual_inject(r.gpu, &fault));
    assert_status(dvmm_host_arena_reserve(&arena, HUGE), DUCTILE_ERR_DRIVER);
    rig_mend(&r);
    assert_u64(take(HUGE).at, 0);
    close_arena();
}

Test(host_arena, memory_that_the_driver_does_not_let_go_of_stays) {
    uint64_t released = 0;
    assert_ok(dvmm_host_arena_reserve(&arena, HUGE));
    rig_fail(&r, "host_unregister", 1, DVMM_UNKNOWN);
    assert_status(dvmm_host_arena_release(&arena, 0, &released), DUCTILE_ERR_DRIVER);
    assert_u64(released, 0);
    assert_u64(take(HUGE).at, 0);
    assert_u64(ductile_virtual_count(r.gpu, "host_register"), 1);
    rig_mend(&r);
    assert_ok(dvmm_host_arena_fini(&arena));
    rig_close(&r);
}

Test(host_arena, more_than_the_machine_has_is_refused_at_once) {
    assert_status(dvmm_host_arena_reserve(&arena, UINT64_MAX), DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    assert_status(dvmm_host_arena_reserve(&arena, dvmm_host_pages_total() - HUGE),
                  DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    assert_u64(dvmm_host_arena_bytes(&arena), 0);
    close_arena();
}

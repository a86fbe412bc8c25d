/* SPDX-License-Identifier: Apache-2.0 */
/* Page-locked memory for what sleeps: where spans lie, when memory is made and given back, and what
 * a refusal leaves. */
#include "vmm/host_arena.h"

#include "tests/support/device_fixture.h"
#include "vmm/host_pages.h"

#include <string.h>

#define MIB (UINT64_C(1) << 20)

static device_fixture r;
static dvmm_host_arena arena;

static void open_arena(void) {
    device_open(&r, NULL);
    dvmm_host_arena_init(&arena, r.d);
}

/* The device checks that all is unlocked, where no call of it has failed. */
static void close_arena(void) {
    bool counts = ductile_virtual_faults_fired(r.gpu) == 0;
    device_recover(&r);
    assert_ok(dvmm_host_arena_fini(&arena));
    if (counts) {
        assert_called(&r, "host_unregister", ductile_virtual_count(r.gpu, "host_register"));
    }
    device_close(&r);
}

TestSuite(host_arena, .init = open_arena);

/* All of it is written: it is there. */
static dvmm_host_span take(uint64_t size, uint64_t at) {
    dvmm_host_span span = {0};
    assert_ok(dvmm_host_arena_take(&arena, size, size, &span));
    assert_u64(span.at, at);
    memset(arena.base + span.at, (int)size, size);
    return span;
}

static void assert_refused(uint64_t size) {
    dvmm_host_span none = {0};
    assert_status(dvmm_host_arena_take(&arena, size, size, &none), DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    assert_u64(none.size, 0);
}

static void give(dvmm_host_span span) {
    dvmm_host_arena_give(&arena, span);
}

static void grow(uint64_t bytes) {
    assert_ok(dvmm_host_arena_reserve(&arena, bytes));
}

static void assert_cannot_grow(uint64_t bytes) {
    assert_status(dvmm_host_arena_reserve(&arena, bytes), DUCTILE_ERR_OUT_OF_HOST_MEMORY);
}

/* Down to `keep`; so much goes. */
static void shrink(uint64_t keep, uint64_t goes) {
    uint64_t released = 0;
    assert_ok(dvmm_host_arena_release(&arena, keep, &released));
    assert_u64(released, goes);
}

static void assert_bytes(uint64_t bytes) {
    assert_u64(dvmm_host_arena_bytes(&arena), bytes);
}

/* ---- Where spans lie ----------------------------------------------------------------------- */

Test(host_arena, spans_lie_side_by_side_and_a_freed_one_serves_again) {
    dvmm_host_span first = take(3 * MIB, 0);
    (void)take(MIB, 3 * MIB);
    (void)take(5 * MIB, 4 * MIB);
    give(first);
    assert_bytes(10 * MIB);
    (void)take(2 * MIB, 0);
    (void)take(MIB, 2 * MIB);
    assert_bytes(10 * MIB);
    close_arena();
}

Test(host_arena, odd_sizes_begin_at_whole_lines) {
    (void)take(1, 0);
    (void)take(700, 512);
    (void)take(1, 1536);
    close_arena();
}

Test(host_arena, a_span_lies_in_one_extent_and_what_was_passed_over_serves) {
    grow(4 * MIB);
    (void)take(2 * MIB, 0);
    (void)take(4 * MIB, 4 * MIB);
    assert_u64(dvmm_host_arena_rest(&arena, 0), 4 * MIB);
    assert_u64(dvmm_host_arena_rest(&arena, 4 * MIB), 4 * MIB);
    (void)take(2 * MIB, 2 * MIB);
    close_arena();
}

Test(host_arena, where_all_fits_nowhere_a_part_is_taken_and_the_rest_of_it_is_free_again) {
    grow(6 * MIB);
    (void)take(2 * MIB, 0);
    dvmm_host_span part = {0};
    assert_ok(dvmm_host_arena_take(&arena, 8 * MIB, 2 * MIB, &part));
    assert_u64(part.at, 2 * MIB);
    assert_u64(part.size, 4 * MIB);
    dvmm_host_arena_cut(&arena, &part, 2 * MIB + 1);
    assert_u64(part.size, 2 * MIB + 512);
    (void)take(MIB, 4 * MIB + 512);
    assert_bytes(6 * MIB);
    close_arena();
}

/* ---- Memory that comes and goes ------------------------------------------------------------ */

Test(host_arena, growing_makes_the_difference_and_less_makes_nothing) {
    grow(10 * MIB);
    assert_bytes(10 * MIB);
    grow(6 * MIB);
    grow(10 * MIB + 1);
    assert_bytes(12 * MIB);
    assert_called(&r, "host_register", 2);
    close_arena();
}

Test(host_arena, a_span_that_grows_by_and_by_needs_no_more_than_its_last_size) {
    for (uint64_t size = 2 * MIB; size <= 8 * MIB; size += 2 * MIB) {
        give(take(size, 0));
        assert_bytes(size);
    }
    assert_called(&r, "host_register", 4);
    assert_called(&r, "host_unregister", 3);
    close_arena();
}

Test(host_arena, memory_goes_from_the_top_down_to_what_is_taken_or_kept_and_comes_again) {
    grow(2 * MIB);
    grow(6 * MIB);
    grow(12 * MIB);
    dvmm_host_span span = take(MIB, 0);
    shrink(4 * MIB, 6 * MIB);
    shrink(0, 4 * MIB);
    shrink(0, 0);
    give(span);
    shrink(0, 2 * MIB);
    assert_bytes(0);
    (void)take(2 * MIB, 0);
    close_arena();
}

/* ---- Refusals ------------------------------------------------------------------------------ */

Test(host_arena, free_memory_that_cannot_be_locked_again_is_given_back) {
    grow(2 * MIB);
    device_fail_from(&r, "host_register", 1, DVMM_OUT_OF_MEMORY);
    assert_refused(4 * MIB);
    assert_bytes(0);
    device_recover(&r);
    (void)take(4 * MIB, 0);
    close_arena();
}

Test(host_arena, a_registration_that_fails_leaves_what_was_there) {
    grow(2 * MIB);
    device_fail(&r, "host_register", 1, DVMM_OUT_OF_MEMORY);
    assert_cannot_grow(4 * MIB);
    assert_bytes(2 * MIB);
    device_fail(&r, "host_register", 1, DVMM_OUT_OF_MEMORY);
    assert_refused(4 * MIB);
    device_recover(&r);
    (void)take(4 * MIB, 0);
    close_arena();
}

Test(host_arena, a_registration_that_fails_may_have_been_made) {
    const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                         .call = "host_register",
                                         .nth = 1,
                                         .code = DVMM_UNKNOWN,
                                         .effect = 1};
    assert_ok(ductile_virtual_inject(r.gpu, &fault));
    assert_status(dvmm_host_arena_reserve(&arena, 2 * MIB), DUCTILE_ERR_DRIVER);
    device_recover(&r);
    (void)take(2 * MIB, 0);
    close_arena();
}

Test(host_arena, memory_that_the_driver_does_not_let_go_of_stays) {
    uint64_t released = 0;
    grow(2 * MIB);
    device_fail(&r, "host_unregister", 1, DVMM_UNKNOWN);
    assert_status(dvmm_host_arena_release(&arena, 0, &released), DUCTILE_ERR_DRIVER);
    assert_u64(released, 0);
    (void)take(2 * MIB, 0);
    assert_called(&r, "host_register", 1);
    close_arena();
}

/* The second leaves a huge page for all others. */
Test(host_arena, more_than_the_machine_has_is_refused_at_once) {
    assert_cannot_grow(UINT64_MAX);
    assert_cannot_grow(dvmm_host_pages_total() - DVMM_HUGE_PAGE);
    assert_bytes(0);
    close_arena();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a refused request leaves behind, and what it costs: nothing, and little. And what is no
 * reason to refuse.
 */

#include "tests/support/limits.h"
#include "tests/support/one_fixture.h"

#include <criterion/parameterized.h>

/* ---- What stays ---------------------------------------------------------------------------- */

/* As much as another process needs is free again, without a trim. */
Test(refusal, does_not_keep_the_device_full) {
    fixture_setup setup = {.capacity_bytes = GIB};
    open_fixture(&setup);
    (void)take(100 * MIB, 0);
    uint64_t held = fixture_stats(f.allocator).reserved_bytes;
    assert_refused(960 * MIB, 0);
    assert_u64(fixture_stats(f.allocator).reserved_bytes, held);
    assert_ok(ductile_virtual_set_external_bytes(f.gpu, GIB - held));
    close_audited();
}

/* What was cached before stays cached: only what the request created in vain goes back. */
Test(refusal, leaves_the_cache_as_it_was) {
    fixture_setup setup = {.capacity_bytes = GIB};
    open_fixture(&setup);
    (void)take(100 * MIB, 0);
    assert_ok(ductile_free(f.allocator, take(200 * MIB, 0)));
    uint64_t held = fixture_stats(f.allocator).reserved_bytes;
    assert_refused(960 * MIB, 0);
    assert_u64(fixture_stats(f.allocator).reserved_bytes, held);
    close_audited();
}

/* Driver calls but for those that the report asks with. */
static uint64_t changing_calls(void) {
    return fixture_state(&f).calls - ductile_virtual_count(f.gpu, "mem_info") -
           ductile_virtual_count(f.gpu, "capture_exchange_mode");
}

/* Sizes that the device, or the limit, cannot hold whatever is given up for them. */
static void refused_untouched(size_t size) {
    ductile_stats before = fixture_stats(f.allocator);
    uint64_t calls = changing_calls();
    assert_refused(size, 0);
    ductile_stats after = fixture_stats(f.allocator);
    assert_u64(changing_calls(), calls);
    assert_u64(after.host_bytes, before.host_bytes);
    assert_u64(after.address_bytes, before.address_bytes);
    assert_u64(after.reserved_bytes, before.reserved_bytes);
    assert_u64(after.free_bytes, before.free_bytes);
    assert_u64(after.out_of_memory, before.out_of_memory + 1);
}

Test(refusal, of_more_than_the_device_touches_nothing) {
    fixture_setup setup = {.capacity_bytes = GIB};
    open_fixture(&setup);
    (void)take(8 * MIB, 0);
    assert_ok(ductile_free(f.allocator, take(100 * MIB, 0)));
    refused_untouched(GIB + 1);
    refused_untouched(2 * GIB);
    refused_untouched(16 * 1024 * GIB);
    close_audited();
}

Test(refusal, of_more_than_the_limit_touches_nothing) {
    fixture_setup setup = {.capacity_bytes = GIB, .conf = "limit_bytes:268435456"};
    open_fixture(&setup);
    (void)take(8 * MIB, 0);
    assert_ok(ductile_free(f.allocator, take(100 * MIB, 0)));
    refused_untouched(256 * MIB + 1);
    assert_ok(set_limit(f.allocator, 128 * MIB));
    refused_untouched(200 * MIB);
    assert_ok(set_limit(f.allocator, 0));
    (void)take(512 * MIB, 0);
    close_audited();
}

/* ---- What it costs ------------------------------------------------------------------------- */

enum { N_PENDING = 40 };

/* Each wait for a pending block is followed by another attempt: what one attempt created, the next
 * one uses. */
Test(refusal, creates_no_handle_twice_however_much_is_pending) {
    fixture_setup setup = {
        .capacity_bytes = 4 * GIB, .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    open_fixture(&setup);
    ductile_addr blocks[N_PENDING];
    for (size_t i = 0; i < N_PENDING; i++) {
        blocks[i] = take(20 * MIB, 0);
        (void)take(MIB, 0); /* keeps it from becoming one with the next */
    }
    (void)take(GIB, 0);
    for (size_t i = 0; i < N_PENDING; i++) {
        ductile_virtual_use use = {.address = blocks[i], .size = MIB, .writes = 1};
        assert_ok(ductile_virtual_launch(f.gpu, f.streams[1], &use, 1));
        assert_ok(ductile_free_on(f.allocator, blocks[i], f.streams[1]));
    }
    uint64_t creates = ductile_virtual_count(f.gpu, "phys_create");
    assert_refused(3584 * MIB, 0);
    creates = ductile_virtual_count(f.gpu, "phys_create") - creates;
    cr_assert_leq(creates, 4 * GIB / FIXTURE_GRANULE, "%llu handles created",
                  (unsigned long long)creates);
    close_audited();
}

/* ---- What is no reason --------------------------------------------------------------------- */

static int codes[] = {1, 2, 400, 401, 600, 900, 999};

/* Own memory moves without a marker. */
static void serves_without(const char *call, int code, const char *conf) {
    fixture_setup setup = {.conf = conf};
    open_fixture(&setup);
    (void)take(20 * MIB, 0);
    ductile_addr middle = take(20 * MIB, 0);
    (void)take(20 * MIB, 0);
    assert_ok(ductile_free(f.allocator, middle));
    assert_fine(fixture_fail_for_good(&f, call, code));
    (void)take(40 * MIB, 0);
    cr_assert_gt(ductile_virtual_faults_fired(f.gpu), 0, "no marker was recorded");
    assert_u64(fixture_stats(f.allocator).recycled_handles, 10);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    close_audited();
}

ParameterizedTestParameters(refusal, a_context_marker_that_fails_refuses_nothing) {
    return cr_make_param_array(int, codes, sizeof codes / sizeof *codes, NULL);
}

ParameterizedTest(int *code, refusal, a_context_marker_that_fails_refuses_nothing) {
    serves_without("context_record", *code, NULL);
}

ParameterizedTestParameters(refusal, a_marker_of_the_stream_that_fails_refuses_nothing) {
    return cr_make_param_array(int, codes, sizeof codes / sizeof *codes, NULL);
}

ParameterizedTest(int *code, refusal, a_marker_of_the_stream_that_fails_refuses_nothing) {
    serves_without("event_record", *code, "captures:unannounced");
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The virtual GPU's own interface: what it is made with, what it refuses, what it reports and
 * counts. What it does as a device is in claims.txt and in rows of tests/conformance.
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/device_fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 4096

static device_fixture r;

static void close_device(void) {
    if (r.gpu != NULL) {
        device_abandon(&r);
    }
}

TestSuite(virtual_device, .fini = close_device);

static ductile_virtual_options options(void) {
    ductile_virtual_options o;
    ductile_virtual_options_init(&o);
    return o;
}

/* ---- What is refused ----------------------------------------------------------------------- */

Test(virtual_device, that_cannot_be_is_refused) {
    ductile_virtual_options wrong[] = {options(), options(), options()};
    wrong[0].capacity_bytes = 1;
    wrong[1].schedule = (ductile_schedule)9;
    wrong[2].detect = 3;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ductile_virtual_gpu *gpu = (ductile_virtual_gpu *)wrong;
        assert_status(ductile_virtual_create(&gpu, &wrong[i]), DUCTILE_ERR_INVALID_ARGUMENT);
        cr_assert_null(gpu);
    }
}

Test(virtual_device, private_to_a_driver_goes_with_it) {
    dvmm_driver *d = NULL;
    assert_ok(dvmm_open_virtual(NULL, &d, NULL, 0));
    assert_u64(dvmm_get_caps(d)->total_bytes, (uint64_t)139 << 30);
    cr_assert(dvmm_get_caps(d)->is_virtual);
    dvmm_close(d);
}

Test(virtual_device, makes_no_stream_without_a_place_for_it_or_on_a_device_that_is_not_there) {
    ductile_stream none = (ductile_stream)1;
    device_open_devices(&r, 2);
    assert_status(ductile_virtual_stream_create_foreign(NULL, &none), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_virtual_stream_create_foreign(r.gpu, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_virtual_stream_create_on(NULL, 1, &none), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_virtual_stream_create_on(r.gpu, 1, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_virtual_stream_create_on(r.gpu, 2, &none), DUCTILE_ERR_NO_DEVICE);
    cr_assert_null(none);
    assert_status(ductile_virtual_stream_create_on(r.gpu, -1, &none), DUCTILE_ERR_NO_DEVICE);
    assert_ok(ductile_virtual_stream_create_on(r.gpu, 0, &none)); /* one like any of ours */
    cr_assert(dvmm_stream_is_ours(r.d, none));
}

Test(virtual_device, waits_only_for_words_of_its_host_memory) {
    uint64_t elsewhere = 0;
    void *memory = NULL;
    device_open(&r, NULL);
    ductile_stream stream = device_stream(&r);
    assert_ok(bench_host_alloc(r.d, 4096, &memory));
    uint64_t *const wrong[] = {&elsewhere, (uint64_t *)memory + 512,
                               (uint64_t *)(void *)((char *)memory + 4)};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_code(BENCH_RAW(&r, stream_wait_value, stream, wrong[i], 1), DVMM_INVALID_VALUE);
    }
    assert_ok(bench_host_free(r.d, memory));
    assert_code(BENCH_RAW(&r, host_free, &elsewhere), DVMM_INVALID_VALUE);
}

/* ---- Captures of other threads ------------------------------------------------------------- */

static void *wait_as_thread_local(void *stream) {
    dvmm_capture_mode mode = DVMM_CAPTURE_THREAD_LOCAL;
    (void)RAW(&r, capture_exchange_mode, &mode);
    return RAW(&r, stream_sync, stream) == DVMM_SUCCESS ? NULL : stream;
}

Test(virtual_device, lets_a_thread_local_thread_ignore_other_captures) {
    pthread_t thread;
    void *failed = &r;
    device_open(&r, NULL);
    ductile_stream captured = device_stream(&r);
    assert_ok(bench_capture_begin(r.d, captured, DVMM_CAPTURE_GLOBAL));
    cr_assert_eq(pthread_create(&thread, NULL, wait_as_thread_local, device_stream(&r)), 0);
    cr_assert_eq(pthread_join(thread, &failed), 0);
    cr_assert_null(failed);
    assert_ok(bench_capture_end(r.d, captured));
}

Test(virtual_device, takes_a_mode_of_captures_that_does_not_exist_for_a_misuse) {
    dvmm_capture_mode mode = (dvmm_capture_mode)7;
    device_open(&r, NULL);
    assert_code(RAW(&r, capture_exchange_mode, &mode), DVMM_SUCCESS);
    assert_u64(device_state(&r).violations, 1);
}

/* ---- Detection ----------------------------------------------------------------------------- */

static void use(ductile_stream stream, ductile_addr at, uint64_t size, int writes) {
    const ductile_virtual_use one = {at, size, writes};
    assert_ok(ductile_virtual_launch(r.gpu, stream, &one, 1));
}

Test(virtual_device, reports_both_sides_of_a_violation) {
    device_open_scheduled(&r, DUCTILE_SCHEDULE_LAZY, 0, 0);
    ductile_addr at = device_row(&r, 1);
    ductile_stream s1 = device_stream(&r);
    ductile_stream s2 = device_stream(&r);
    ductile_virtual_block_begin(r.gpu, at, BLOCK);
    use(s1, at, BLOCK, 1);
    ductile_virtual_block_end(r.gpu, at);
    ductile_virtual_block_begin(r.gpu, at, BLOCK);
    use(s2, at, 512, 0);
    use(s2, at, 512, 0);
    ductile_virtual_violation v = {.struct_size = sizeof v};
    assert_ok(ductile_virtual_get_violation(r.gpu, 0, &v));
    cr_assert_eq(v.kind, DUCTILE_VIOLATION_REUSE);
    cr_assert(v.first.stream == s1 && v.first.writes && v.first.operation == 1);
    cr_assert(v.first.address == at && v.first.size == BLOCK && v.first.block == 1);
    cr_assert(v.second.stream == s2 && !v.second.writes && v.second.operation == 1);
    cr_assert(v.second.size == 512 && v.second.block == 2 && !v.second.is_host);
    cr_assert_eq(v.first.handle, v.second.handle);
    assert_status(ductile_virtual_get_violation(r.gpu, 2, &v), DUCTILE_ERR_INVALID_ARGUMENT);
}

/* Races of one owner from level 2 on, an unmap under work from level 1. */
Test(virtual_device, detects_what_it_is_asked_for) {
    for (int level = 0; level <= 2; level++) {
        ductile_virtual_options o = options();
        o.detect = level;
        device_open_detecting(&r, &o);
        assert_u64((unsigned)device_state(&r).detects, (unsigned)level);
        ductile_addr at = device_row(&r, 1);
        ductile_virtual_block_begin(r.gpu, at, BLOCK);
        use(device_stream(&r), at, BLOCK, 1);
        use(device_stream(&r), at, BLOCK, 1);
        assert_u64(device_state(&r).violations, level >= 2);
        ductile_virtual_block_end(r.gpu, at);
        assert_ok(dvmm_unmap(r.d, at, r.granule));
        cr_assert_eq(device_state(&r).violations > 0, level >= 1, "level %d", level);
        device_abandon(&r);
    }
    r.gpu = NULL;
}

Test(virtual_device, has_a_name_for_every_kind_of_violation) {
    for (int kind = 0; kind <= DUCTILE_VIOLATION_OVERLAP; kind++) {
        cr_assert_str_neq(ductile_virtual_violation_name((ductile_violation)kind), "unknown");
    }
    cr_assert_str_eq(ductile_virtual_violation_name((ductile_violation)99), "unknown");
}

/* ---- Faults and the log -------------------------------------------------------------------- */

Test(virtual_device, can_fail_and_count_every_call_of_both_tables) {
    device_open(&r, NULL);
    static const char *const calls[] = {
#define CALL_NAME(name, parameters) #name,
        DVMM_CALLS(CALL_NAME) DVMM_BENCH_CALLS(CALL_NAME)
#undef CALL_NAME
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        device_fail(&r, calls[i], 1, DVMM_UNKNOWN);
        assert_u64(ductile_virtual_faults_fired(r.gpu), 0);
        assert_u64(ductile_virtual_count(r.gpu, calls[i]), 0);
    }
    device_recover(&r);
}

Test(virtual_device, refuses_plans_of_faults_that_mean_nothing) {
    const ductile_virtual_fault good = {
        .struct_size = sizeof(good), .call = "map", .nth = 1, .code = DVMM_UNKNOWN};
    ductile_virtual_fault bad[] = {good, good, good, good};
    bad[0].call = "mop";
    bad[1].nth = 0;
    bad[2].code = 0;
    bad[3].effect = 3;
    device_open(&r, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_status(ductile_virtual_inject(r.gpu, &bad[i]), DUCTILE_ERR_INVALID_ARGUMENT);
    }
    assert_ok(ductile_virtual_inject(r.gpu, &good));
    assert_u64(ductile_virtual_count(r.gpu, "no_such_call"), UINT64_MAX);
    device_recover(&r);
}

typedef struct sink {
    char text[1000];
    size_t length;
    size_t n_writes;
    size_t end_after;
} sink;

static int take(void *user, const char *text, size_t length) {
    sink *s = user;
    memcpy(s->text + s->length, text, length);
    s->length += length;
    s->text[s->length] = '\0';
    return ++s->n_writes == s->end_after;
}

static void open_logging(void) {
    ductile_virtual_options o = options();
    o.log_calls = 4;
    device_open(&r, &o);
}

Test(virtual_device, keeps_the_latest_calls_in_order_in_its_log) {
    char line[100];
    sink s = {.end_after = 0};
    open_logging();
    ductile_addr addr = device_row(&r, 1);
    assert_code(RAW(&r, unmap, addr, 1), DVMM_INVALID_VALUE);
    device_unrow(&r, addr, 1);
    assert_ok(ductile_virtual_write_log(r.gpu, take, &s));
    (void)snprintf(line, sizeof(line), "6 unmap 0x%llx 1 1\n7 unmap 0x%llx %llu 0\n", addr, addr,
                   (unsigned long long)r.granule);
    cr_assert_not_null(strstr(s.text, line), "%s is not in\n%s", line, s.text);
    assert_u64(s.n_writes, 4);
    cr_assert_eq(strncmp(s.text, "5 phys_release ", 15), 0, "%s", s.text);
}

Test(virtual_device, ends_its_log_where_the_writer_has_had_enough) {
    sink s = {.end_after = 2};
    open_logging();
    device_unrow(&r, device_row(&r, 1), 1);
    assert_ok(ductile_virtual_write_log(r.gpu, take, &s));
    assert_u64(s.n_writes, 2);
}

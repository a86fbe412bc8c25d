/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks: in what order they are kept, what those that are done prove, and what a record does that
 * fails; when one is recorded is in tests/scenarios/marks.txt. The device is lazy: no marker is
 * done before the host waits.
 */
#include "pool/streams/host_waits.h"
#include "pool/streams/marks.h"

#include "tests/support/internals.h"

#include <stdatomic.h>

static ductile_allocator *a;

static const ductile_pool_id GRAPH = {1, 0};

static void open_with(const char *conf) {
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3, .conf = conf});
    a = f.allocator;
}

static void open_lazy(void) {
    open_with(NULL);
}

TestSuite(marks, .init = open_lazy);

static void free_some(void) {
    give(take(4096, 0));
}

static uint64_t records(void) {
    return count("context_record");
}

static ductile_status record(void) {
    return dpool_record_mark(a, NULL);
}

static void poll(void) {
    grow_lock();
    dpool_poll_marks(a);
    grow_unlock();
}

static uint64_t proven(void) {
    index_lock();
    uint64_t age = a->proven.age;
    index_unlock();
    return age;
}

/* Waits for that marker, and for no later one. */
static void finish_mark(uint32_t i) {
    assert_ok(dvmm_marker_wait(&a->markers, a->marks.all[i].marker));
}

static void mark_some_work(void) {
    ductile_addr block = take(4096, 0);
    launch(block, 4096, 0);
    give(block);
    assert_ok(record());
}

Test(marks, the_newest_can_be_waited_for_when_it_is_the_only_one) {
    mark_some_work();
    assert_u64(a->marks.n, 1);
    uint64_t age = a->marks.all[0].age;
    cr_assert(dpool_wait_for_newest_mark(a));
    assert_u64(proven(), age);
    cr_assert(!dpool_wait_for_newest_mark(a), "there is none");
    close_audited();
}

/* ---- While a capture may be under way ------------------------------------------------------ */

static void assert_none_is_recorded(void) {
    uint64_t before = records();
    free_some();
    assert_status(record(), DUCTILE_ERR_CAPTURING);
    assert_status(dpool_wait_for_context_mark(a), DUCTILE_ERR_CAPTURING);
    (void)take_granules(4, 0);
    assert_u64(records(), before);
}

/* What was freed meanwhile is still due. */
static void assert_recorded_again(void) {
    uint64_t before = records();
    assert_ok(record());
    assert_u64(records(), before + 1);
    assert_u64(proven(), 0);
    close_audited();
}

Test(marks, captures_of_another_allocator_count) {
    ductile_allocator *other = NULL;
    assert_fine(fixture_add_allocator(&f, NULL, &other));
    assert_ok(ductile_pool_begin(other, GRAPH, NULL, NULL));
    assert_none_is_recorded();
    assert_ok(ductile_destroy(other)); /* with its pool open */
    assert_recorded_again();
}

/* ---- The list ------------------------------------------------------------------------------ */

Test(marks, a_full_list_keeps_every_other_one) {
    uint64_t ages[DPOOL_MOST_MARKS + 1];
    for (size_t i = 0; i <= DPOOL_MOST_MARKS; i++) {
        assert_u64(a->marks.n, i);
        free_some();
        assert_ok(record());
        ages[i] = a->age;
    }
    assert_u64(a->marks.n, DPOOL_MOST_MARKS / 2 + 2);
    for (size_t i = 0; i < DPOOL_MOST_MARKS / 2; i++) { /* the oldest, too */
        assert_u64(a->marks.all[i].age, ages[2 * i]);
    }
    assert_u64(a->marks.all[DPOOL_MOST_MARKS / 2].age, ages[DPOOL_MOST_MARKS - 1]);
    assert_u64(a->marks.all[DPOOL_MOST_MARKS / 2 + 1].age, ages[DPOOL_MOST_MARKS]);
    assert_sound();
    close_audited();
}

Test(marks, those_that_leave_are_recorded_again) {
    for (size_t i = 0; i < 4 * DPOOL_MOST_MARKS; i++) {
        free_some();
        assert_ok(record());
    }
    assert_u64(count("event_create"), DPOOL_MOST_MARKS + 1);
    close_audited();
}

/* What the mark that left would have proven, the next one proves. */
Test(marks, memory_of_a_mark_that_left_is_proven_by_the_next) {
    for (size_t i = 0; i <= DPOOL_MOST_MARKS; i++) {
        mark_some_work();
    }
    uint64_t second = a->marks.all[1].age; /* of those that were recorded, the third */
    finish_mark(1);
    poll();
    assert_u64(proven(), second);
    assert_u64(a->marks.n, DPOOL_MOST_MARKS / 2);
    close_audited();
}

Test(marks, one_that_is_done_takes_all_before_it_along) {
    for (int i = 0; i < 5; i++) {
        mark_some_work();
    }
    uint64_t third = a->marks.all[2].age;
    uint64_t fourth = a->marks.all[3].age;
    poll();
    assert_u64(proven(), 0);
    assert_u64(a->marks.n, 5);
    finish_mark(2);
    poll();
    assert_u64(proven(), third);
    assert_u64(a->marks.n, 2);
    assert_u64(a->marks.all[0].age, fourth);
    close_audited();
}

/* ---- Two threads --------------------------------------------------------------------------- */

/* Runs in the middle of a record, as another thread would. */
static void (*meanwhile)(void);
static bool is_before;

ductile_status __real_dvmm_marker_record_context(dvmm_marker_pool *pool, dvmm_marker **out);
ductile_status __wrap_dvmm_marker_record_context(dvmm_marker_pool *pool, dvmm_marker **out);

static void do_meanwhile(bool before) {
    void (*what)(void) = is_before == before ? meanwhile : NULL;
    if (what != NULL) {
        meanwhile = NULL;
        what();
    }
}

ductile_status __wrap_dvmm_marker_record_context(dvmm_marker_pool *pool, dvmm_marker **out) {
    do_meanwhile(true);
    ductile_status status = __real_dvmm_marker_record_context(pool, out);
    do_meanwhile(false);
    return status;
}

/* Before or after the driver call of a record, another record is made, of a later age. */
static void record_two(bool before) {
    free_some();
    meanwhile = mark_some_work;
    is_before = before;
    assert_ok(record());
    assert_u64(a->marks.n, 2);
    cr_assert_lt(a->marks.all[0].age, a->marks.all[1].age);
    assert_sound();
}

Test(marks, are_in_the_order_of_their_ages_whoever_is_first) {
    record_two(false);
    finish_mark(0); /* the work came behind it */
    poll();
    assert_u64(a->marks.n, 1);
    assert_u64(proven(), a->marks.all[0].age - 1);
    close_audited();
}

Test(marks, a_later_one_that_was_recorded_first_proves_both) {
    record_two(true);
    uint64_t later = a->marks.all[1].age;
    finish_mark(1);
    poll();
    assert_u64(proven(), later);
    assert_u64(a->marks.n, 0);
    close_audited();
}

/* ---- Records that fail --------------------------------------------------------------------- */

static void fail_records(int code, int persistent) {
    const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                         .call = "context_record",
                                         .nth = 1,
                                         .code = code,
                                         .persistent = persistent};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
}

Test(marks, a_record_that_fails_proves_nothing_and_is_made_again) {
    free_some();
    fail_records(1, 0);
    cr_assert_neq(record(), DUCTILE_OK);
    assert_u64(a->marks.n, 0);
    assert_fine(fixture_finish_work(&f));
    poll();
    assert_u64(proven(), 0);
    assert_ok(record()); /* although nothing was freed since */
    assert_u64(a->marks.n, 1);
    finish_mark(0);
    poll();
    cr_assert_gt(proven(), 0);
    close_audited();
}

/* Another allocator's, a library's: it was not announced. */
static unsigned n_warnings;

static void count_warnings(void *user, ductile_log_level level, const char *text) {
    (void)user;
    n_warnings += level == DUCTILE_LOG_WARNING && strstr(text, "capture") != NULL;
}

static void open_logging(void) {
    n_warnings = 0;
    open_fixture(
        &(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3, .log = count_warnings});
    a = f.allocator;
}

TestSuite(marks_met, .init = open_logging);

static void meet_a_capture(void) {
    assert_ok(ductile_virtual_capture_begin(f.gpu, f.streams[2], DUCTILE_CAPTURE_RELAXED));
    free_some();
    assert_status(record(), DUCTILE_ERR_CAPTURING);
    assert_status(ductile_virtual_capture_end(f.gpu, f.streams[2], NULL), DUCTILE_ERR_CAPTURING);
}

Test(marks_met, an_unannounced_capture_ends_recording_and_is_logged_once) {
    meet_a_capture();
    uint64_t before = records();
    assert_u64(a->marks.n, 0);
    for (int i = 0; i < 3; i++) {
        free_some();
        assert_status(record(), DUCTILE_ERR_CAPTURING);
        (void)take_granules(2, 0);
    }
    assert_u64(records(), before);
    assert_u64(n_warnings, 1);
    ductile_options now;
    ductile_options_init(&now);
    ductile_get_options(a, &now);
    cr_assert_eq(now.captures, DUCTILE_CAPTURES_UNANNOUNCED);
    close_audited();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Who keeps whom out: captures that may be under way the records of contexts, and a record that has
 * begun the next capture. */
#include "vmm/captures.h"

#include "tests/support/expect.h"
#include "tests/support/in_child.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* ---- What keeps records out ---------------------------------------------------------------- */

static bool may_record(bool all_are_announced) {
    bool may = dvmm_captures_hold(all_are_announced);
    if (may) {
        dvmm_captures_release(all_are_announced);
    }
    return may;
}

static void assert_may(bool by_pools, bool by_announcements) {
    cr_assert_eq(may_record(false), by_pools);
    cr_assert_eq(may_record(true), by_announcements);
}

Test(capture_gate, lets_records_pass_while_nothing_is_captured) {
    assert_may(true, true);
}

Test(capture_gate, an_announced_capture_keeps_all_records_out) {
    dvmm_captures_begin(DVMM_CAPTURE_ANNOUNCED);
    assert_may(false, false);
    dvmm_captures_end(DVMM_CAPTURE_ANNOUNCED);
    assert_may(true, true);
}

Test(capture_gate, a_possible_one_counts_for_those_who_hear_by_pools_alone) {
    dvmm_captures_begin(DVMM_CAPTURE_POSSIBLE);
    assert_may(false, true);
    dvmm_captures_end(DVMM_CAPTURE_POSSIBLE);
    assert_may(true, true);
}

Test(capture_gate, opens_after_the_last_of_several) {
    dvmm_captures_begin(DVMM_CAPTURE_ANNOUNCED);
    dvmm_captures_begin(DVMM_CAPTURE_ANNOUNCED);
    dvmm_captures_begin(DVMM_CAPTURE_POSSIBLE);
    dvmm_captures_end(DVMM_CAPTURE_ANNOUNCED);
    assert_may(false, false);
    dvmm_captures_end(DVMM_CAPTURE_ANNOUNCED);
    assert_may(false, true);
    dvmm_captures_end(DVMM_CAPTURE_POSSIBLE);
    assert_may(true, true);
}

/* ---- What keeps captures waiting ----------------------------------------------------------- */

static atomic_bool has_begun;
static atomic_int n_held;

static void *begin_one(void *notice) {
    dvmm_captures_begin(*(const dvmm_capture_notice *)notice);
    atomic_store(&has_begun, true);
    return NULL;
}

static void wait_a_moment(void) {
    const struct timespec moment = {.tv_nsec = 20000000};
    (void)nanosleep(&moment, NULL);
}

/* A thread that has said that a capture comes is not overtaken by records that begin later. */
static void waits_for_holders(dvmm_capture_notice notice) {
    pthread_t thread;
    cr_assert(dvmm_captures_hold(false));
    cr_assert(dvmm_captures_hold(false)); /* records do not keep each other out */
    cr_assert_eq(pthread_create(&thread, NULL, begin_one, &notice), 0);
    wait_a_moment();
    cr_assert(!atomic_load(&has_begun), "two records are under way");
    cr_assert_not(may_record(false));
    dvmm_captures_release(false);
    wait_a_moment();
    cr_assert(!atomic_load(&has_begun), "a record is under way");
    dvmm_captures_release(false);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert(atomic_load(&has_begun));
    dvmm_captures_end(notice);
    assert_may(true, true);
}

Test(capture_gate, an_announced_capture_waits_for_records_under_way) {
    waits_for_holders(DVMM_CAPTURE_ANNOUNCED);
}

Test(capture_gate, a_possible_one_waits_for_records_under_way) {
    waits_for_holders(DVMM_CAPTURE_POSSIBLE);
}

/* ---- In a child ---------------------------------------------------------------------------- */

static int begin_and_end(void) {
    bool was_open = dvmm_captures_hold(false);
    if (was_open) {
        dvmm_captures_release(false);
    }
    dvmm_captures_begin(DVMM_CAPTURE_ANNOUNCED); /* hangs as long as a record is under way */
    bool is_closed = !may_record(true);
    dvmm_captures_end(DVMM_CAPTURE_ANNOUNCED);
    return was_open && is_closed && may_record(true) ? 0 : 1;
}

/* Those of the parent are under way in the parent. */
Test(capture_gate, a_child_begins_without_captures_and_records) {
    cr_assert(dvmm_captures_hold(true));
    dvmm_captures_begin(DVMM_CAPTURE_POSSIBLE);
    cr_assert_eq(in_child(begin_and_end), 0);
    dvmm_captures_release(true);
    dvmm_captures_end(DVMM_CAPTURE_POSSIBLE);
    assert_may(true, true);
}

/* ---- Many threads -------------------------------------------------------------------------- */

enum { ROUNDS = 20000 };

static void *record_often(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        if (dvmm_captures_hold(true)) {
            atomic_fetch_add(&n_held, 1);
            atomic_fetch_sub(&n_held, 1);
            dvmm_captures_release(true);
        }
    }
    return NULL;
}

static void *capture_often(void *n_seen) {
    for (int i = 0; i < ROUNDS / 20; i++) {
        dvmm_captures_begin(DVMM_CAPTURE_ANNOUNCED);
        atomic_fetch_add((atomic_int *)n_seen, atomic_load(&n_held));
        dvmm_captures_end(DVMM_CAPTURE_ANNOUNCED);
    }
    return NULL;
}

Test(capture_gate, no_capture_ever_sees_a_record) {
    atomic_int n_seen = 0;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        void *(*body)(void *) = i % 2 == 0 ? record_often : capture_often;
        cr_assert_eq(pthread_create(&threads[i], NULL, body, &n_seen), 0);
    }
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    assert_u64((unsigned)atomic_load(&n_seen), 0);
    assert_may(true, true);
}

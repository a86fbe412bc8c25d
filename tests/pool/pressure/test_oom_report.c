/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report about a refused request: each thread has its own. Its numbers are in
 * tests/scenarios/asked.txt, its advice is in advice.txt.
 */
#include "tests/support/json_check.h"
#include "tests/support/one_fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ductile_oom_report latest(void) {
    ductile_oom_report r = {.struct_size = sizeof r};
    assert_ok(ductile_get_oom_report(f.allocator, &r));
    return r;
}

static ductile_oom_report refused(size_t size, size_t stream) {
    ductile_addr none = 1;
    assert_status(ductile_alloc(f.allocator, size, f.streams[stream], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    return latest();
}

/* The text; valid until the next. */
static const char *text_of(const ductile_oom_report *r) {
    static char text[16384];
    size_t length = ductile_oom_report_format(r, DUCTILE_REPORT_TEXT, text, sizeof text);
    cr_assert_lt(length, sizeof text);
    assert_u64(strlen(text), length);
    return text;
}

static void advises(const ductile_oom_report *r, const char *words) {
    cr_assert_not_null(strstr(text_of(r), words), "no \"%s\" in:\n%s", words, text_of(r));
}

/* ---- Numbers ------------------------------------------------------------------------------- */

Test(oom_report, names_those_who_hold_most_largest_first) {
    fixture_setup setup = {.n_streams = 12};
    open_fixture(&setup);
    for (size_t i = 0; i < 12; i++) {
        (void)take(2 * MIB * (1 + i * 5 % 12), i);
    }
    ductile_oom_report r = refused(250 * MIB, 0);
    assert_u64(r.n_holders, 12);
    for (int i = 0; i < DUCTILE_OOM_SIZES; i++) { /* what lies behind the holders is its own */
        assert_u64(r.free_blocks_by_size[i], 0);
        assert_u64(r.free_bytes_by_size[i], 0);
    }
    for (size_t i = 0; i < DUCTILE_OOM_HOLDERS; i++) {
        assert_u64(r.holders[i].held_bytes, 2 * MIB * (12 - i));
        assert_u64(r.holders[i].live_bytes, r.holders[i].held_bytes);
    }
    advises(&r, "4 more streams hold less");
    close_audited();
}

/* ---- Whose --------------------------------------------------------------------------------- */

static void *refuse_on_a_thread(void *user) {
    ductile_oom_report *r = user;
    ductile_addr none = 1;
    bool is_refused =
        ductile_alloc(f.allocator, 300 * MIB, f.streams[0], &none) == DUCTILE_ERR_OUT_OF_MEMORY;
    return is_refused && ductile_get_oom_report(f.allocator, r) == DUCTILE_OK ? r : NULL;
}

Test(oom_report, belongs_to_the_thread_that_was_refused) {
    open_fixture(NULL);
    (void)refused(400 * MIB, 0);
    ductile_oom_report theirs = {.struct_size = sizeof theirs};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, refuse_on_a_thread, &theirs), 0);
    void *done = NULL;
    cr_assert_eq(pthread_join(thread, &done), 0);
    cr_assert_not_null(done);
    assert_u64(theirs.number, 2);
    assert_u64(theirs.requested_bytes, 300 * MIB);
    cr_assert_eq(theirs.stream, f.streams[0]);
    ductile_oom_report r = latest();
    assert_u64(r.number, 1);
    assert_u64(r.requested_bytes, 400 * MIB);
    close_audited();
}

/* The next allocator may get the address of one that is gone. */
Test(oom_report, belongs_to_its_allocator_alone) {
    open_fixture(NULL);
    (void)refused(400 * MIB, 0);
    assert_ok(ductile_destroy(f.allocator));
    assert_fine(fixture_add_allocator(&f, NULL, &f.allocator));
    assert_u64(latest().number, 0);
    close_audited();
}

/* ---- Forms --------------------------------------------------------------------------------- */

Test(oom_report, is_a_text_and_valid_json_with_every_number_and_the_advice_after_a_refusal) {
    fixture_setup setup = {.n_streams = 12};
    open_fixture(&setup);
    for (size_t i = 0; i < 12; i++) {
        (void)take(4 * MIB, i);
        assert_ok(ductile_free(f.allocator, take(3 * MIB, i)));
    }
    ductile_oom_report r = refused(250 * MIB, 0);
    char text[16384];
    size_t length = ductile_oom_report_format(&r, DUCTILE_REPORT_JSON, text, sizeof text);
    cr_assert_lt(length, sizeof text);
    assert_fine(json_check(text));
    char number[64];
    (void)snprintf(number, sizeof number, "\"missing_bytes\":%llu,",
                   (unsigned long long)r.missing_bytes);
    cr_assert_not_null(strstr(text, number));
    cr_assert_not_null(strstr(text, "\"free_by_size\":[{\"from_bytes\":"), "%s", text);
    cr_assert_null(strstr(text, "\"advice\":[]"), "%s", text);
    (void)ductile_oom_report_format(&r, DUCTILE_REPORT_TEXT, text, sizeof text);
    cr_assert_eq(strncmp(text, "Out of memory: ", 15), 0, "%s", text);
    cr_assert_not_null(strstr(text, "  free blocks from "), "%s", text);
    r.number = 0;
    (void)ductile_oom_report_format(&r, DUCTILE_REPORT_JSON, text, sizeof text);
    assert_fine(json_check(text));
    cr_assert_not_null(strstr(text, "\"advice\":[]"), "%s", text);
    close_audited();
}

Test(oom_report, tells_the_length_it_needs_and_never_writes_more) {
    open_fixture(NULL);
    ductile_oom_report r = refused(GIB, 0);
    size_t length = ductile_oom_report_format(&r, DUCTILE_REPORT_TEXT, NULL, 0);
    cr_assert_gt(length, 100);
    char *exact = malloc(length + 1);
    cr_assert_not_null(exact);
    for (size_t size = 1; size <= length + 1; size++) {
        assert_u64(ductile_oom_report_format(&r, DUCTILE_REPORT_TEXT, exact, size), length);
        assert_u64(strlen(exact), size - 1);
    }
    cr_assert_eq(strcmp(exact, text_of(&r)), 0);
    free(exact);
    close_audited();
}

/* ---- What nothing else says ---------------------------------------------------------------- */

Test(oom_report, leaves_nothing_of_the_callers_in_the_struct) {
    open_fixture(NULL);
    ductile_oom_report r;
    memset(&r, 0xFF, sizeof r);
    r.struct_size = sizeof r;
    assert_ok(ductile_get_oom_report(f.allocator, &r));
    const unsigned char *bytes = (const unsigned char *)&r;
    for (size_t i = sizeof r.struct_size; i < sizeof r; i++) {
        cr_assert_eq(bytes[i], 0, "byte %zu", i);
    }
    close_audited();
}

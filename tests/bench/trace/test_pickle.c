/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No input makes the machine take what is not there, change what was taken, or search without end.
 * What each instruction gives, and which are refused, is in tests/bench/recordings.txt.
 */
#include "bench/trace/pickle.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

enum { ENOUGH = 1 << 20 };

static pickle_error error;

static pickle_document *open_memory(const void *bytes, size_t size, const pickle_taker *taker) {
    input in = input_of_memory(bytes, size);
    return pickle_open(&in, taker, ENOUGH, &error);
}

/* What a refused pickle's reason must contain. */
static void assert_refused(const void *bytes, size_t size, const char *reason) {
    cr_assert_null(open_memory(bytes, size, NULL), "taken, not refused with '%s'", reason);
    cr_assert_not_null(strstr(error.reason, reason), "'%s', not '%s'", error.reason, reason);
}

/* The same instruction again and again. */
static void assert_refused_many(int op, size_t size, const char *reason) {
    unsigned char *bytes = malloc(size);
    cr_assert_not_null(bytes);
    memset(bytes, op, size);
    bytes[0] = 0x80;
    bytes[1] = 4;
    assert_refused(bytes, size, reason);
    free(bytes);
}

Test(pickle, nesting_is_bounded) {
    assert_refused_many('(', 4096, "nested");
}

Test(pickle, memory_is_bounded_whatever_the_input) {
    assert_refused_many('}', ENOUGH, "more memory than is allowed");
}

/* One huge dict and many pointers to it must not make the reader quadratic. */
Test(pickle, a_dict_too_large_to_search_has_no_keys) {
    static const char entry[] = "\x8c\x03keyK\x01";
    char bytes[5 + (PICKLE_MAX_SEARCH + 1) * (sizeof entry - 1) + 3] = "\x80\x04}(";
    size_t size = 4;
    for (int i = 0; i <= PICKLE_MAX_SEARCH; i++, size += sizeof entry - 1) {
        memcpy(bytes + size, entry, sizeof entry - 1);
    }
    memcpy(bytes + size, "u.", 2);
    pickle_document *document = open_memory(bytes, size + 2, NULL);
    cr_assert_not_null(document, "%s", error.reason);
    cr_assert_null(pickle_find(pickle_root(document), "key"));
    pickle_close(document);
}

/* ---- Taking dicts -------------------------------------------------------------------------- */

static size_t n_taken;

/* Those with a key "n". */
static pickle_taking take_numbers(void *unused, const pickle_value *dict) {
    (void)unused;
    bool is_wanted = pickle_find(dict, "n") != NULL;
    n_taken += is_wanted;
    return is_wanted ? PICKLE_TAKEN : PICKLE_NOT_WANTED;
}

static const pickle_taker taker = {.take = take_numbers};

/* d = {n: 5}; [d, 1, d, {x: 2}]: the memo knows d before it has a key. */
Test(pickle, a_dict_that_is_named_again_is_the_same_record) {
    static const char bytes[] = "\x80\x04](}\x94\x8c\x01nK\x05s"
                                "K\x01h\x00}\x8c\x01xK\x02s"
                                "e.";
    pickle_document *d = open_memory(bytes, sizeof bytes - 1, &taker);
    uint64_t records[4] = {9, 9, 9, 9};
    cr_assert_not_null(d, "%s", error.reason);
    for (size_t i = 0; i < 4; i++) {
        cr_expect_eq(pickle_record(pickle_root(d), i, &records[i]), i % 2 == 0, "item %zu", i);
    }
    cr_expect(n_taken == 1 && records[0] == 0 && records[2] == 0);
    pickle_close(d);
}

Test(pickle, what_was_taken_cannot_be_changed) {
    static const char bytes[] = "\x80\x04]}\x94\x8c\x01nK\x05sah\x00\x8c\x01mK\x01s0.";
    cr_expect_null(open_memory(bytes, sizeof bytes - 1, &taker));
    cr_expect_not_null(strstr(error.reason, "not a dict"), "%s", error.reason);
}

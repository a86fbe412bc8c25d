/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every instruction of plain data gives its value; every instruction that could do more is refused
 * by name; no input makes the machine read or take what is not there.
 */
#include "bench/trace/pickle.h"

#include "tests/bench/pickle_maker.h"

#include <stdlib.h>

enum { ENOUGH = 1 << 20 };

static pickle_error error;

static pickle_document *open_memory(const void *bytes, size_t size) {
    input in = input_of_memory(bytes, size);
    return pickle_open(&in, NULL, ENOUGH, &error);
}

/* From memory of exactly that size, so that a sanitizer sees any byte read behind it. */
static unsigned char *exact_copy(const void *bytes, size_t size) {
    unsigned char *copy = malloc(size > 0 ? size : 1);
    cr_assert_not_null(copy);
    memcpy(copy, bytes, size);
    return copy;
}

/* What a refused pickle's reason must contain. */
static void assert_refused(const void *bytes, size_t size, const char *reason) {
    unsigned char *copy = exact_copy(bytes, size);
    pickle_document *document = open_memory(copy, size);
    free(copy);
    cr_assert_null(document, "taken, not refused with '%s'", reason);
    cr_assert_not_null(strstr(error.reason, reason), "'%s', not '%s'", error.reason, reason);
}

#define ASSERT_REFUSED(literal, reason) assert_refused(literal, sizeof(literal) - 1, reason)

static pickle_document *open_bytes(const void *bytes, size_t size) {
    pickle_document *document = open_memory(bytes, size);
    cr_assert_not_null(document, "at %llu: %s", (unsigned long long)error.offset, error.reason);
    return document;
}

#define OPEN(literal) open_bytes(literal, sizeof(literal) - 1)

/* ---- Plain data ---------------------------------------------------------------------------- */

typedef struct int_case {
    char bytes[24];
    size_t size;
    int64_t value;
} int_case;

#define INT_CASE(literal, value)                                                                   \
    { literal, sizeof(literal) - 1, value }

static const int_case int_cases[] = {
    INT_CASE("\x80\x02K\x07.", 7),
    INT_CASE("\x80\x02K\xff.", 255),
    INT_CASE("\x80\x02M\x34\x12.", 0x1234),
    INT_CASE("\x80\x02J\xff\xff\xff\xff.", -1),
    INT_CASE("\x80\x02J\x00\x00\x00\x80.", INT32_MIN),
    INT_CASE("\x80\x02\x8a\x00.", 0),
    INT_CASE("\x80\x02\x8a\x01\xff.", -1),
    INT_CASE("\x80\x02\x8a\x02\xff\x00.", 255),
    INT_CASE("\x80\x02\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80.", INT64_MIN),
    INT_CASE("\x80\x02\x8b\x01\x00\x00\x00\x05.", 5),
};

Test(pickle, may_be_an_empty_tuple_made_of_nothing) {
    pickle_document *document = OPEN("\x80\x02(t.");
    cr_assert_eq(pickle_root(document)->kind, PICKLE_TUPLE);
    cr_assert_eq(pickle_count(pickle_root(document)), 0);
    pickle_close(document);
}

Test(pickle, ints_of_every_width_keep_their_value) {
    for (size_t i = 0; i < sizeof int_cases / sizeof int_cases[0]; i++) {
        pickle_document *document = open_bytes(int_cases[i].bytes, int_cases[i].size);
        const pickle_value *root = pickle_root(document);
        cr_expect_eq(root->kind, PICKLE_INT, "case %zu", i);
        cr_expect_eq(root->as.integer, int_cases[i].value, "case %zu", i);
        pickle_close(document);
    }
}

Test(pickle, an_int_beyond_64_bits_is_known_but_no_number) {
    pickle_document *document = OPEN("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00.");
    uint64_t value = 7;
    cr_assert_eq(pickle_root(document)->kind, PICKLE_WIDE_INT);
    cr_assert_not(pickle_get_unsigned(pickle_root(document), &value));
    cr_assert_eq(value, 7);
    pickle_close(document);
}

Test(pickle, a_negative_int_is_not_unsigned) {
    pickle_document *document = OPEN("\x80\x02J\xff\xff\xff\xff.");
    uint64_t value;
    cr_assert_not(pickle_get_unsigned(pickle_root(document), &value));
    pickle_close(document);
}

Test(pickle, floats_are_big_endian) {
    pickle_document *document = OPEN("\x80\x02G\x3f\xf8\x00\x00\x00\x00\x00\x00.");
    cr_assert_eq(pickle_root(document)->kind, PICKLE_FLOAT);
    cr_assert_float_eq(pickle_root(document)->as.real, 1.5, 0);
    pickle_close(document);
}

Test(pickle, none_and_truth) {
    pickle_document *document = OPEN("\x80\x02N\x88\x89\x87.");
    const pickle_value *root = pickle_root(document);
    cr_assert_eq(pickle_count(root), 3);
    cr_assert_eq(pickle_item(root, 0)->kind, PICKLE_NONE);
    cr_assert_eq(pickle_item(root, 1)->as.integer, 1);
    cr_assert_eq(pickle_item(root, 2)->as.integer, 0);
    cr_assert_null(pickle_item(root, 3));
    pickle_close(document);
}

Test(pickle, strings_and_bytes_of_every_width) {
    pickle_document *document = OPEN("\x80\x05("
                                     "\x8c\x02hi"
                                     "X\x02\x00\x00\x00hi"
                                     "\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi"
                                     "C\x02hi"
                                     "B\x02\x00\x00\x00hi"
                                     "\x8e\x02\x00\x00\x00\x00\x00\x00\x00hi"
                                     "\x96\x02\x00\x00\x00\x00\x00\x00\x00hi"
                                     "l.");
    const pickle_value *root = pickle_root(document);
    cr_assert_eq(pickle_count(root), 7);
    for (size_t i = 0; i < 7; i++) {
        cr_expect_eq(pickle_is_string(pickle_item(root, i), "hi"), i < 3, "item %zu", i);
        cr_expect_eq(pickle_item(root, i)->length, 2, "item %zu", i);
    }
    pickle_close(document);
}

Test(pickle, the_later_of_two_equal_keys_counts) {
    pickle_document *document = OPEN("\x80\x04}(\x8c\x01xK\x01\x8c\x01yK\x02\x8c\x01xK\x03u.");
    uint64_t value = 0;
    cr_assert(pickle_get_unsigned(pickle_find(pickle_root(document), "x"), &value));
    cr_assert_eq(value, 3);
    cr_assert_null(pickle_find(pickle_root(document), "z"));
    cr_assert_null(pickle_find(NULL, "x"));
    pickle_close(document);
}

Test(pickle, the_memo_shares_what_it_names) {
    pickle_document *document = OPEN("\x80\x04](]\x94K\x05"
                                     "a"
                                     "h\x00"
                                     "e.");
    const pickle_value *root = pickle_root(document);
    cr_assert_eq(pickle_count(root), 2);
    cr_assert_eq(pickle_item(root, 0)->as.node, pickle_item(root, 1)->as.node);
    cr_assert_eq(pickle_count(pickle_item(root, 1)), 1);
    pickle_close(document);
}

Test(pickle, a_list_may_contain_itself) {
    pickle_document *document = OPEN("\x80\x04]\x94h\x00"
                                     "a.");
    const pickle_value *root = pickle_root(document);
    cr_assert_eq(pickle_item(root, 0)->as.node, root->as.node);
    pickle_close(document);
}

Test(pickle, pop_duplicate_and_collect) {
    pickle_document *document = OPEN("\x80\x04(K\x01"
                                     "2"
                                     "0"
                                     "(K\x02"
                                     "1"
                                     "K\x03t.");
    const pickle_value *root = pickle_root(document);
    cr_assert_eq(root->kind, PICKLE_TUPLE);
    cr_assert_eq(pickle_count(root), 2);
    cr_assert_eq(pickle_item(root, 1)->as.integer, 3);
    pickle_close(document);
}

/* ---- What could do more than hold data ----------------------------------------------------- */

Test(pickle, a_call_of_the_shell_is_refused_before_it_is_looked_up) {
    ASSERT_REFUSED("\x80\x02"
                   "cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
                   "GLOBAL");
    cr_assert_eq(error.offset, 2);
}

Test(pickle, every_instruction_that_makes_objects_is_refused_by_name) {
    static const struct {
        unsigned char op;
        char name[16];
    } cases[] = {
        {'c', "GLOBAL"},     {0x93, "STACK_GLOBAL"}, {'R', "REDUCE"},
        {'b', "BUILD"},      {'i', "INST"},          {'o', "OBJ"},
        {0x81, "NEWOBJ"},    {0x92, "NEWOBJ_EX"},    {'P', "PERSID"},
        {'Q', "BINPERSID"},  {0x82, "EXT1"},         {0x83, "EXT2"},
        {0x84, "EXT4"},      {0x97, "NEXT_BUFFER"},  {0x98, "READONLY_BUFFER"},
        {0x8f, "EMPTY_SET"}, {0x90, "ADDITEMS"},     {0x91, "FROZENSET"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsigned char bytes[] = {0x80, 4, '(', 'N', 'N', cases[i].op, '.'};
        assert_refused(bytes, sizeof bytes, cases[i].name);
    }
}

Test(pickle, unknown_instructions_and_protocols_are_refused) {
    ASSERT_REFUSED("\x80\x04\xff.", "0xff is no instruction");
    ASSERT_REFUSED("\x80\x04I1\n.", "0x49 is no instruction");
    ASSERT_REFUSED("\x80\x06N.", "protocol 6");
    ASSERT_REFUSED("\x80\x01N.", "protocol 1");
    ASSERT_REFUSED("\x80\x04\x80\x04N.", "second protocol");
}

/* ---- What is not there --------------------------------------------------------------------- */

Test(pickle, every_cut_of_a_pickle_is_refused) {
    static const char whole[] = "\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01k\x94"
                                "]\x94(K\x01M\x01\x02J\x01\x02\x03\x04\x8a\x01\x05"
                                "G\x3f\xf0\x00\x00\x00\x00\x00\x00"
                                "eu.";
    pickle_close(OPEN(whole));
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        unsigned char *copy = exact_copy(whole, n);
        cr_expect_null(open_memory(copy, n), "%zu bytes were taken", n);
        free(copy);
    }
}

Test(pickle, missing_values_and_marks_are_refused) {
    ASSERT_REFUSED("\x80\x04.", "one value");
    ASSERT_REFUSED("\x80\x04NN.", "one value");
    ASSERT_REFUSED("\x80\x04N(.", "one value");
    ASSERT_REFUSED("\x80\x04"
                   "0N.",
                   "not there");
    ASSERT_REFUSED("\x80\x04N(0.", "not there");
    ASSERT_REFUSED("\x80\x04N\x86.", "not there");
    ASSERT_REFUSED("\x80\x04"
                   "e.",
                   "mark");
    ASSERT_REFUSED("\x80\x04(Ne.", "not there");
    ASSERT_REFUSED("\x80\x04\x94N.", "not there");
    ASSERT_REFUSED("\x80\x04h\x00.", "never written");
    ASSERT_REFUSED("\x80\x04Nr\xff\xff\xff\xff.", "before entry 0");
    ASSERT_REFUSED("\x80\x04}(\x8c\x01xu.", "key without a value");
    ASSERT_REFUSED("\x80\x04(Nd.", "key without a value");
    ASSERT_REFUSED("\x80\x04}Na.", "not a list");
    ASSERT_REFUSED("\x80\x04]NNs.", "not a dict");
    ASSERT_REFUSED("\x80\x04NNa.", "not a list");
}

Test(pickle, bytes_behind_the_end_are_refused) {
    ASSERT_REFUSED("\x80\x04N.N", "more bytes");
}

Test(pickle, lengths_beyond_the_file_are_refused) {
    ASSERT_REFUSED("\x80\x04X\xff\xff\xff\xffhi.", "middle");
    ASSERT_REFUSED("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffhi.", "4 GiB");
    ASSERT_REFUSED("\x80\x04\x8b\xff\xff\xff\xff.", "negative length");
    ASSERT_REFUSED("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.", "frame");
}

Test(pickle, nesting_is_bounded) {
    unsigned char marks[4096];
    memset(marks, '(', sizeof marks);
    marks[0] = 0x80;
    marks[1] = 4;
    assert_refused(marks, sizeof marks, "nested");
}

Test(pickle, memory_is_bounded_whatever_the_input) {
    size_t size = 1 << 20;
    unsigned char *dicts = malloc(size);
    cr_assert_not_null(dicts);
    memset(dicts, '}', size);
    dicts[0] = 0x80;
    dicts[1] = 4;
    assert_refused(dicts, size, "more memory than is allowed");
    free(dicts);
}

/* One huge dict and many pointers to it must not make the reader quadratic. */
Test(pickle, a_dict_too_large_to_search_has_no_keys) {
    pickle_maker p;
    make_start(&p);
    make_bytes(&p, "}(", 2);
    for (int i = 0; i <= PICKLE_MAX_SEARCH; i++) {
        make_int_member(&p, "key", 1);
    }
    make_bytes(&p, "u.", 2);
    pickle_document *document = open_bytes(p.bytes, p.size);
    cr_assert_null(pickle_find(pickle_root(document), "key"));
    pickle_close(document);
}

Test(pickle, recognised_by_its_first_bytes) {
    cr_assert(pickle_recognise("\x80\x02", 2));
    cr_assert(pickle_recognise("\x80\x09", 2));
    cr_assert_not(pickle_recognise("\x80", 1));
    cr_assert_not(pickle_recognise("a 0 1 0\n", 8));
    cr_assert_not(pickle_recognise("\x1f\x8b", 2));
}

/* ---- Taking dicts ---------------------------------------------------------------------------- */

static uint64_t taken[8];
static size_t n_taken;

/* Those with a key "n". */
static pickle_taking take_numbers(void *user, const pickle_value *dict) {
    (void)user;
    if (!pickle_get_unsigned(pickle_find(dict, "n"), &taken[n_taken])) {
        return PICKLE_NOT_WANTED;
    }
    n_taken++;
    return PICKLE_TAKEN;
}

static pickle_document *open_taking(const void *bytes, size_t size) {
    static const pickle_taker taker = {.take = take_numbers};
    input in = input_of_memory(bytes, size);
    pickle_document *document = pickle_open(&in, &taker, ENOUGH, &error);
    cr_assert_not_null(document, "%s", error.reason);
    return document;
}

#define OPEN_TAKING(literal) open_taking(literal, sizeof(literal) - 1)

static void assert_record(const pickle_value *list, size_t index, uint64_t wanted) {
    uint64_t record = UINT64_MAX;
    cr_assert(pickle_record(list, index, &record), "item %zu", index);
    cr_expect_eq(record, wanted, "item %zu", index);
}

/* [{n: 5}, {n: 6}] */
Test(pickle, dicts_of_a_list_are_taken_in_order) {
    pickle_document *d = OPEN_TAKING("\x80\x04]("
                                     "}\x8c\x01nK\x05s}\x8c\x01nK\x06s"
                                     "e.");
    const pickle_value *list = pickle_root(d);
    cr_assert_eq(pickle_count(list), 2);
    assert_record(list, 0, 0);
    assert_record(list, 1, 1);
    cr_expect_null(pickle_item(list, 0));
    cr_expect_eq(taken[0], 5);
    cr_expect_eq(taken[1], 6);
    uint64_t unused;
    cr_expect_not(pickle_record(list, 2, &unused));
    pickle_close(d);
}

/* d = {n: 5}; [d, 1, d, {x: 2}]: the memo knows d before it has a key. */
Test(pickle, a_dict_that_is_named_again_is_the_same_record) {
    pickle_document *d = OPEN_TAKING("\x80\x04](}\x94\x8c\x01nK\x05s"
                                     "K\x01h\x00}\x8c\x01xK\x02s"
                                     "e.");
    const pickle_value *list = pickle_root(d);
    cr_assert_eq(pickle_count(list), 4);
    cr_expect_eq(n_taken, 1);
    assert_record(list, 0, 0);
    assert_record(list, 2, 0);
    cr_expect_eq(pickle_item(list, 1)->as.integer, 1);
    cr_expect_eq(pickle_item(list, 3)->kind, PICKLE_DICT);
    pickle_close(d);
}

Test(pickle, what_was_taken_cannot_be_changed) {
    static const pickle_taker taker = {.take = take_numbers};
    static const char bytes[] = "\x80\x04]}\x94\x8c\x01nK\x05sah\x00\x8c\x01mK\x01s0.";
    input in = input_of_memory(bytes, sizeof bytes - 1);
    cr_expect_null(pickle_open(&in, &taker, ENOUGH, &error));
    cr_expect_not_null(strstr(error.reason, "not a dict"), "%s", error.reason);
}

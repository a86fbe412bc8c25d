/* SPDX-License-Identifier: Apache-2.0 */
/* What the one writer of JSON prints. */
#include "vmm/base/json.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>

static void expect(const char *wanted, void (*write)(dti_json *)) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    cr_assert_not_null(out);
    dti_json j = dti_json_to_file(out);
    write(&j);
    cr_assert_eq(fclose(out), 0);
    cr_expect_str_eq(text, wanted);
    free(text);
}

static void write_nested(dti_json *j) {
    dti_json_open(j, NULL, '{');
    dti_json_open(j, "empty", '[');
    dti_json_close(j, ']');
    dti_json_open(j, "in", '{');
    dti_json_number(j, "most", UINT64_MAX);
    dti_json_close(j, '}');
    dti_json_open(j, "list", '[');
    dti_json_signed(j, NULL, -1);
    dti_json_bool(j, NULL, true);
    dti_json_null(j, NULL);
    dti_json_close(j, ']');
    dti_json_real(j, "last", 1.5, 2);
    dti_json_close(j, '}');
}

Test(json, commas_stand_between_values_and_nowhere_else) {
    expect("{\"empty\":[],\"in\":{\"most\":18446744073709551615},\"list\":[-1,true,null],"
           "\"last\":1.50}",
           write_nested);
}

static void write_reals(dti_json *j) {
    dti_json_open(j, NULL, '[');
    dti_json_real(j, NULL, 2.0 / 3, 4);
    dti_json_real(j, NULL, 1e15, 0);
    dti_json_real(j, NULL, NAN, 2);
    dti_json_real(j, NULL, -INFINITY, 2);
    dti_json_close(j, ']');
}

Test(json, a_real_has_the_digits_that_were_asked_for_and_no_number_is_null) {
    expect("[0.6667,1000000000000000,null,null]", write_reals);
}

static void write_texts(dti_json *j) {
    static const char *const texts[] = {"a \"b\" \\c", "\n\x7f", "\xc3\xa9", "\xff\xc3"};
    dti_json_texts(j, NULL, texts, sizeof texts / sizeof texts[0]);
}

Test(json, any_bytes_become_a_string_of_utf_8) {
    expect("[\"a \\\"b\\\" \\\\c\",\"\\u000a\\u007f\",\"\xc3\xa9\",\"\\ufffd\\ufffd\"]",
           write_texts);
}

/* The first and the last character of each length, around what UTF-16 takes for itself; then the
 * bytes that would stand just outside. */
static void write_ends_of_utf_8(dti_json *j) {
    static const char *const texts[] = {
        "\xc2\x80",     "\xdf\xbf",         "\xe0\xa0\x80",     "\xed\x9f\xbf",    "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "\xc1\xbf",        "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"};
    dti_json_texts(j, NULL, texts, sizeof texts / sizeof texts[0]);
}

#define BAD "\\ufffd"

Test(json, every_character_of_utf_8_stays_and_nothing_beside_it_does) {
    expect("[\"\xc2\x80\",\"\xdf\xbf\",\"\xe0\xa0\x80\",\"\xed\x9f\xbf\",\"\xee\x80\x80\","
           "\"\xef\xbf\xbf\",\"\xf0\x90\x80\x80\",\"\xf4\x8f\xbf\xbf\","
           "\"" BAD BAD "\",\"" BAD BAD BAD "\",\"" BAD BAD BAD "\",\"" BAD BAD BAD BAD "\","
           "\"" BAD BAD BAD BAD "\",\"" BAD BAD BAD BAD "\"]",
           write_ends_of_utf_8);
}

static void write_lines(dti_json *j) {
    for (int i = 0; i < 2; i++) {
        dti_json row = dti_json_begin_line(j->user);
        dti_json_number(&row, "i", (uint64_t)i);
        dti_json_end_line(&row);
    }
}

Test(json, a_line_is_an_object) {
    expect("{\"i\":0}\n{\"i\":1}\n", write_lines);
}

static int take_one(void *user, const char *text, size_t length) {
    (void)text;
    *(size_t *)user += length;
    return 1;
}

Test(json, a_reader_that_has_had_enough_gets_no_more) {
    size_t n = 0;
    dti_json j = {.write = take_one, .user = &n};
    dti_json_text(&j, NULL, "far too long");
    cr_expect_eq(n, 1);
}

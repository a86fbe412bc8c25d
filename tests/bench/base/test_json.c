/* SPDX-License-Identifier: Apache-2.0 */
/* What the one writer of JSON prints. */
#include "bench/base/json.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>

static void expect(const char *wanted, void (*write)(json *)) {
    char *text = NULL;
    size_t size = 0;
    json j = {.out = open_memstream(&text, &size)};
    cr_assert_not_null(j.out);
    write(&j);
    cr_assert_eq(fclose(j.out), 0);
    cr_expect_str_eq(text, wanted);
    free(text);
}

static void write_nested(json *j) {
    json_open(j, NULL, '{');
    json_open(j, "empty", '[');
    json_close(j, ']');
    json_open(j, "in", '{');
    json_number(j, "most", UINT64_MAX);
    json_close(j, '}');
    json_open(j, "list", '[');
    json_signed(j, NULL, -1);
    json_bool(j, NULL, true);
    json_null(j, NULL);
    json_close(j, ']');
    json_raw(j, "last", "1.50");
    json_close(j, '}');
}

Test(json, commas_stand_between_values_and_nowhere_else) {
    expect("{\"empty\":[],\"in\":{\"most\":18446744073709551615},\"list\":[-1,true,null],"
           "\"last\":1.50}",
           write_nested);
}

static void write_reals(json *j) {
    json_open(j, NULL, '[');
    json_real(j, NULL, 2.0 / 3, 4);
    json_real(j, NULL, 1e15, 0);
    json_real(j, NULL, NAN, 2);
    json_close(j, ']');
}

Test(json, a_real_has_the_digits_that_were_asked_for_and_no_number_is_null) {
    expect("[0.6667,1000000000000000,null]", write_reals);
}

static void write_texts(json *j) {
    static const char *const texts[] = {"a \"b\" \\c", "\n\x7f", "\xc3\xa9", "\xff\xc3"};
    json_texts(j, NULL, texts, sizeof texts / sizeof texts[0]);
}

Test(json, any_bytes_become_a_string_of_utf_8) {
    expect("[\"a \\\"b\\\" \\\\c\",\"\\u000a\\u007f\",\"\xc3\xa9\",\"\\ufffd\\ufffd\"]",
           write_texts);
}

static void write_lines(json *j) {
    for (int i = 0; i < 2; i++) {
        json row = json_begin_line(j->out);
        json_number(&row, "i", (uint64_t)i);
        json_end_line(&row);
    }
}

Test(json, a_line_is_an_object) {
    expect("{\"i\":0}\n{\"i\":1}\n", write_lines);
}

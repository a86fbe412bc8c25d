/* SPDX-License-Identifier: Apache-2.0 */
/* Says whether a text is one JSON value, by the grammar and nothing else. */
#ifndef TESTS_SUPPORT_JSON_CHECK_H
#define TESTS_SUPPORT_JSON_CHECK_H

#include <stddef.h>

/* NULL, or what is wrong and where. The text ends with a zero byte. */
const char *json_check(const char *text);

/* Text as it comes from a ductile_write_fn. */
typedef struct text_sink {
    char *text; /* ends with a zero byte once anything was written; free() it */
    size_t length, capacity;
} text_sink;

/* A ductile_write_fn whose user is a text_sink. Non-zero without host memory. */
int text_sink_write(void *user, const char *text, size_t length);

#endif

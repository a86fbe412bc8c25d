/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON as it goes, without blanks. `name` is that of a member of the object that is open; in
 * a list, and for what stands alone, it is NULL.
 */
#ifndef DUCTILE_BENCH_BASE_JSON_H
#define DUCTILE_BENCH_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Begins as {.out = file}. */
typedef struct json {
    FILE *out;
    bool has_before; /* a value stands before the next one: a comma comes first */
} json;

void json_open(json *j, const char *name, char bracket); /* '{' or '[' */
void json_close(json *j, char bracket);                  /* '}' or ']' */
void json_null(json *j, const char *name);
void json_bool(json *j, const char *name, bool value);
void json_number(json *j, const char *name, uint64_t value);
void json_signed(json *j, const char *name, int64_t value);
void json_real(json *j, const char *name, double value, int digits); /* NAN: null */
void json_text(json *j, const char *name, const char *text);
void json_texts(json *j, const char *name, const char *const *texts, size_t n);
void json_raw(json *j, const char *name, const char *value); /* which is JSON */

/* An object that is a line. */
json json_begin_line(FILE *out);
void json_end_line(json *j);

/* A string alone, in quotes. Bytes that are not UTF-8 are printed as U+FFFD. */
void print_json_string(FILE *out, const char *text);

#endif

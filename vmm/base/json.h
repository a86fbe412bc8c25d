/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON as it goes, without blanks. `name` is that of a member of the object that is open; in
 * a list, and for what stands alone, it is NULL.
 */
#ifndef DUCTILE_VMM_BASE_JSON_H
#define DUCTILE_VMM_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Receives one piece, not terminated. Anything but 0 ends the writing. */
typedef int (*dti_write_fn)(void *user, const char *text, size_t length);

/* Begins as {.write = function, .user = its argument}. */
typedef struct dti_json {
    dti_write_fn write;
    void *user;
    bool has_before; /* a value stands before the next one: a comma comes first */
    bool has_ended;  /* the function wants no more */
} dti_json;

dti_json dti_json_to_file(FILE *out);

void dti_json_open(dti_json *j, const char *name, char bracket); /* '{' or '[' */
void dti_json_close(dti_json *j, char bracket);                  /* '}' or ']' */
void dti_json_null(dti_json *j, const char *name);
void dti_json_bool(dti_json *j, const char *name, bool value);
void dti_json_number(dti_json *j, const char *name, uint64_t value);
void dti_json_signed(dti_json *j, const char *name, int64_t value);
void dti_json_real(dti_json *j, const char *name, double value, int digits); /* or null */
/* In quotes. Bytes that are not UTF-8 become U+FFFD. */
void dti_json_text(dti_json *j, const char *name, const char *text);
void dti_json_numbers(dti_json *j, const char *name, const uint64_t *all, size_t n);
void dti_json_texts(dti_json *j, const char *name, const char *const *texts, size_t n);

/* An object that is a line. */
dti_json dti_json_begin_line(FILE *out);
void dti_json_end_line(dti_json *j);

#endif

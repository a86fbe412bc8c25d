/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that are written as text, in scenarios and in conformance rows: their words, and the
 * names that stand for values. Functions return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_WORDS_H
#define TESTS_SUPPORT_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_WORDS = 24, WORD_BYTES = 32, MOST_NAMES = 6000 };

/* One operation: "target = at[0] at[1] ... -> status". */
typedef struct words {
    const char *at[MOST_WORDS];
    size_t n;
    const char *target; /* NULL: none */
    const char *status; /* NULL: none */
    char text[256];
} words;

const char *words_read(words *w, const char *operation);

/* Does the word stand there, behind the first? */
bool has_word(const words *w, const char *word);
/* The i-th word; "" where there are fewer. */
const char *word_at(const words *w, size_t i);
const char *number_at(const words *w, size_t i, uint64_t *out);

/* ---- Names --------------------------------------------------------------------------------- */

typedef struct named {
    char name[WORD_BYTES];
    uint64_t value;
} named;

typedef struct names {
    named all[MOST_NAMES];
    size_t n;
} names;

/* The latest of that name, or NULL. */
const named *names_find(const names *all, const char *name);
/* A name that is known gets another value. */
const char *names_set(names *all, const char *name, uint64_t value);
/* "a", "4M", "a+2M", "64*g-512": sums and differences of products of names and numbers. */
const char *names_value(const names *all, const char *text, uint64_t *out);

/* A member of a struct that is a uint64_t. */
typedef struct words_field {
    const char *name;
    size_t offset;
} words_field;

#define WORDS_FIELD(type, name)                                                                    \
    { #name, offsetof(type, name) }

/* False: none has that name. */
bool words_field_of(const void *at, const words_field *fields, size_t n, const char *name,
                    uint64_t *out);

/* "=", "!=", "<", "<=", ">", ">="; other words: false. */
bool words_compare(uint64_t a, const char *how, uint64_t b);

#endif

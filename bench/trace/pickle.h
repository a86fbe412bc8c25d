/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader of pickles that hold plain data: dict, list, tuple, str, bytes, int, float, bool, None,
 * in protocols 2 to 5. A pickle is a program; the instructions that import, call or build objects
 * are not in this machine at all, so nothing a file contains can run.
 *
 * Cost: linear in the input. No recursion: lists may contain themselves. Memory is bounded by
 * limit_bytes, whatever the input says about its own sizes. A list of many million small dicts can
 * do with little: a taker keeps of each what it wants.
 */
#ifndef DUCTILE_BENCH_TRACE_PICKLE_H
#define DUCTILE_BENCH_TRACE_PICKLE_H

#include "bench/trace/input.h"

typedef enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_WIDE_INT, /* an int beyond 64 bits: known to be one, its value is not kept */
    PICKLE_FLOAT,
    PICKLE_STRING,
    PICKLE_BYTES,
    PICKLE_LIST,
    PICKLE_TUPLE,
    PICKLE_DICT,
    PICKLE_RECORD /* a dict that was taken while reading; see pickle_taker */
} pickle_kind;

typedef struct pickle_node pickle_node;

/* 16 bytes. Text and containers belong to the document. */
typedef struct pickle_value {
    uint32_t kind;   /* a pickle_kind         */
    uint32_t length; /* STRING and BYTES only */
    union {
        int64_t integer;   /* BOOL and INT    */
        double real;       /* FLOAT           */
        const char *text;  /* STRING, BYTES: not terminated */
        pickle_node *node; /* LIST, TUPLE, DICT             */
    } as;
} pickle_value;

/* Everything one pickle holds. Valid until pickle_close. */
typedef struct pickle_document pickle_document;

typedef struct pickle_error {
    uint64_t offset; /* where in the input, in bytes */
    char reason[192];
} pickle_error;

/* Whether the bytes begin as a pickle of a known or later protocol does. */
bool pickle_recognise(const void *data, size_t size);

/*
 * Takes dicts out of lists while they are read. A dict that is appended to a list and wanted is
 * taken, once: where it stood, and wherever else it is named later, stands its record, a number
 * from 0 up. What its values point to lasts as long as the document; the dict itself does not.
 */
typedef enum pickle_taking {
    PICKLE_NOT_WANTED,
    PICKLE_TAKEN,
    PICKLE_NO_MEMORY /* of the host */
} pickle_taking;

typedef struct pickle_taker {
    pickle_taking (*take)(void *user, const pickle_value *dict);
    void *user;
} pickle_taker;

/* Reads to the end of the input. taker: NULL, or lives until this returns. NULL on failure, with
 * *error filled. */
pickle_document *pickle_open(input *in, const pickle_taker *taker, uint64_t limit_bytes,
                             pickle_error *error);
void pickle_close(pickle_document *document);

const pickle_value *pickle_root(const pickle_document *document);

/* Items of a list or tuple; 0 for anything else. */
size_t pickle_count(const pickle_value *sequence);
/* NULL: there is none, or what there is was taken. */
const pickle_value *pickle_item(const pickle_value *sequence, size_t index);
/* False: it was not taken. */
bool pickle_record(const pickle_value *sequence, size_t index, uint64_t *record);

/*
 * The value of a string key: NULL if dict is NULL, no dict, or has no such key. A dict with more
 * than PICKLE_MAX_SEARCH entries has none: the search is linear, and a file that points many times
 * at one huge dict must not make it quadratic.
 */
enum { PICKLE_MAX_SEARCH = 128 };
const pickle_value *pickle_find(const pickle_value *dict, const char *key);

/* The keys and values of a dict in turn, 2 * *n of them; NULL, and 0, for anything else. Where a
 * key stands twice, the later one counts. */
const pickle_value *pickle_pairs(const pickle_value *dict, size_t *n);

/* False, with *out untouched, for anything but an int that is 0 or more. */
bool pickle_get_unsigned(const pickle_value *value, uint64_t *out);
bool pickle_is_string(const pickle_value *value, const char *text);

#endif

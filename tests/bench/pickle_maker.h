/* SPDX-License-Identifier: Apache-2.0 */
/* Writes pickles by hand: just the instructions that a test wants. Fixed room, no checks but that.
 */
#ifndef TESTS_BENCH_PICKLE_MAKER_H
#define TESTS_BENCH_PICKLE_MAKER_H

#include <criterion/criterion.h>

#include <stdint.h>
#include <string.h>

typedef struct pickle_maker {
    unsigned char bytes[8192];
    size_t size;
} pickle_maker;

static inline void make_bytes(pickle_maker *p, const void *bytes, size_t n) {
    cr_assert_leq(n, sizeof p->bytes - p->size);
    memcpy(p->bytes + p->size, bytes, n);
    p->size += n;
}

static inline void make_op(pickle_maker *p, unsigned char op) {
    make_bytes(p, &op, 1);
}

static inline void make_number(pickle_maker *p, uint64_t value, size_t width) {
    for (size_t i = 0; i < width; i++) {
        make_op(p, (unsigned char)(value >> (8 * i)));
    }
}

static inline void make_start(pickle_maker *p) {
    *p = (pickle_maker){0};
    make_bytes(p, "\x80\x04", 2);
}

static inline void make_string(pickle_maker *p, const char *text) {
    make_op(p, 0x8c);
    make_number(p, strlen(text), 1);
    make_bytes(p, text, strlen(text));
}

/* Positive, below 2^63. */
static inline void make_int(pickle_maker *p, uint64_t value) {
    make_op(p, 0x8a);
    make_number(p, 8, 1);
    make_number(p, value, 8);
}

/* Inside a dict, between MARK and SETITEMS. */
static inline void make_int_member(pickle_maker *p, const char *key, uint64_t value) {
    make_string(p, key);
    make_int(p, value);
}

static inline void make_string_member(pickle_maker *p, const char *key, const char *value) {
    make_string(p, key);
    make_string(p, value);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of a file, piece by piece, unpacked if it says that it is gzip. Only a window of it
 * is in memory.
 */
#ifndef DUCTILE_BENCH_TRACE_INPUT_H
#define DUCTILE_BENCH_TRACE_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A small gzip file may unpack to anything; more than this is refused. */
#define INPUT_MAX_BYTES ((uint64_t)16 << 30)

/* Owned by its reader, who moves `at` on. */
typedef struct input {
    const unsigned char *at; /* what is there: from here to end */
    const unsigned char *end;
    const char *reason;          /* why no more comes; NULL: it ends, or more was not asked for */
    uint64_t n_bytes;            /* that came until now */
    struct input_source *source; /* NULL: all is there */
} input;

/* Bytes that outlive the input. */
input input_of_memory(const void *bytes, size_t size);
/* On failure reason holds one sentence. Release with input_close in every case. */
bool input_open(input *in, const char *path, char *reason, size_t reason_size);
void input_close(input *in);

/* Makes n bytes be there; what lies between at and end may move. False: fewer are left, or
 * in->reason says what went wrong. Costs memory for twice the bytes that there are. */
bool input_fill(input *in, size_t n);

static inline size_t input_left(const input *in) {
    return (size_t)(in->end - in->at);
}

static inline bool input_has(input *in, size_t n) {
    return input_left(in) >= n || input_fill(in, n);
}

#endif

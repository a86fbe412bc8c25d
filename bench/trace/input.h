/* SPDX-License-Identifier: Apache-2.0 */
/* A whole file in memory, unpacked if its content says it is gzip. */
#ifndef DUCTILE_BENCH_TRACE_INPUT_H
#define DUCTILE_BENCH_TRACE_INPUT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct input {
    unsigned char *data;
    size_t size;
} input;

/* A small gzip file may unpack to anything; more than this is refused. */
#define INPUT_MAX_BYTES ((size_t)4 << 30)

/* On failure *out is empty and reason holds one sentence. Release with input_drop. */
bool input_read(const char *path, input *out, char *reason, size_t reason_size);
void input_drop(input *in);

#endif

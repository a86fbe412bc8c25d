/* SPDX-License-Identifier: Apache-2.0 */
/* A whole file from memory: gzipped if its name ends in ".gz"; "-" is standard output. */
#ifndef DUCTILE_BENCH_TRACE_OUTPUT_H
#define DUCTILE_BENCH_TRACE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

/* A file that was there is replaced, or left as it was on failure:
 * then reason holds one sentence. */
bool output_write(const char *path, const char *text, size_t size, char *reason,
                  size_t reason_size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes gathered events as text of version 2, 3 where streams end, or 4 where requests were
 * refused: the same blocks, numbered in order of appearance, and every use by another stream named.
 */
#ifndef DUCTILE_BENCH_TRACE_TRACE_WRITE_H
#define DUCTILE_BENCH_TRACE_TRACE_WRITE_H

#include "bench/trace/trace_build.h"

#include <stdio.h>

/* False: not all could be written. */
bool trace_write(const trace_builder *b, FILE *out);

/* The same to a file, gzipped if its name ends in ".gz"; "-" is standard output. A file that was
 * there is replaced, or left as it was on failure. heading: comment lines for its top. False:
 * reason holds one sentence. */
bool trace_save(const trace_builder *b, const char *heading, const char *path, char *reason,
                size_t reason_size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a file: a text trace or a PyTorch snapshot, gzipped or not. */
#ifndef DUCTILE_BENCH_TRACE_TRACE_READ_H
#define DUCTILE_BENCH_TRACE_TRACE_READ_H

#include "bench/trace/trace_build.h"

/* gpu: which GPU of a snapshot, or TRACE_FULLEST_GPU; text traces ignore it. NULL on failure. */
trace *trace_load(const char *path, int gpu, trace_error *error);

/* The events alone, as they can be written again. gpu as in trace_load. *b is empty but for what it
 * is told before its first event, and on failure quite. */
bool trace_gather(const char *path, int gpu, trace_builder *b, trace_error *error);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a file: a text trace or a PyTorch snapshot, gzipped or not. */
#ifndef DUCTILE_BENCH_TRACE_TRACE_READ_H
#define DUCTILE_BENCH_TRACE_TRACE_READ_H

#include "bench/trace/trace_build.h"

/* gpu: which GPU of a snapshot, or TRACE_BUSIEST_GPU; text traces ignore it. NULL on failure. */
trace *trace_load(const char *path, int gpu, trace_error *error);

/* The events alone, as they can be written again. gpu as in trace_load. spills: as in a builder. On
 * failure *b is empty. */
bool trace_gather(const char *path, int gpu, bool spills, trace_builder *b, trace_error *error);

/* As trace_gather that spills; of a snapshot without history what was held when it was written. */
bool trace_gather_held(const char *path, int gpu, trace_builder *b, trace_error *error);

#endif

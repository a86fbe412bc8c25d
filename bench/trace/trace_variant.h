/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other runs of the same program: the steps of a recorded one in another order, with other sizes,
 * as if other batches had come.
 *
 * The first step stays first; the others are shuffled. In each step, sizes that vary are multiplied
 * by a factor from 0.7 to 1.1, drawn for the step. A size varies when it is at least 64 KiB and
 * fewer than four fifths of the steps ask for it. Where that holds for less than a quarter of the
 * bytes (each step was like the others, or there is only one), sizes of 64 KiB and more vary unless
 * a block that lasts has that size, half of it or twice it.
 *
 * A block that is freed, or used, some steps after its allocation still is, so many steps later and
 * as far into the step; one that the new order leaves no such step lives to the end. So do blocks
 * that last for half of the recorded run.
 */
#ifndef DUCTILE_BENCH_TRACE_TRACE_VARIANT_H
#define DUCTILE_BENCH_TRACE_TRACE_VARIANT_H

#include "bench/trace/trace_steps.h"

/* A gathered run of which variants are made. It reads the builder, which must not change. */
typedef struct trace_varier {
    const trace_builder *from;
    trace_steps steps;
    bool *varies; /* of each block: its size does */
} trace_varier;

/* Returns NULL, or a reason. Release with trace_varier_drop in every case. */
const char *trace_varier_init(trace_varier *v, const trace_builder *from);
void trace_varier_drop(trace_varier *v);

/* One variant: the same for the same seed. *out is empty on failure. Returns NULL, or a reason. */
const char *trace_vary(const trace_varier *v, uint64_t seed, trace_builder *out);

/* Loads a file as trace_load does, and makes a variant for each pass: they are chained by
 * next_pass. NULL on failure. */
trace *trace_load_varied(const char *path, int gpu, uint64_t seed, uint64_t n_passes,
                         trace_error *error);

#endif

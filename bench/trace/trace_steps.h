/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a recorded run.
 *
 * Where the run marks its steps, those are they. Where it does not, a step is told by its memory:
 * it fills, it empties. What counts is the number of blocks, because sizes vary from step to step;
 * blocks that live for half of the run or longer (weights, states of an optimizer) do not count. A
 * border lies where fewest blocks are alive between two stretches with more than half of the most
 * at any time, if at most a sixteenth of the most is. A run without a border is one step.
 *
 *     most  -      __               __               __
 *     half  - ----/--\-----__------/--\-----__------/--\---
 *                /    \   /  \    /    \   /  \    /    \
 *     1/16  - --/------\-/----\--/------\-/----\--/------\-
 *              /        v      \/        v      \/
 *              step             |  step          |  step
 *                            border           border
 */
#ifndef DUCTILE_BENCH_TRACE_TRACE_STEPS_H
#define DUCTILE_BENCH_TRACE_TRACE_STEPS_H

#include "bench/trace/trace_build.h"

typedef struct trace_steps {
    size_t *ends; /* of each step: the index behind its last event; the last is the run's end */
    size_t n;     /* 1 where no border was found */
    uint32_t capacity;
    /* Of each block of the builder: */
    uint32_t *born;   /* the step that allocates it */
    bool *is_lasting; /* never freed, or half of the steps later, two at least */
    spill born_file;
    spill lasting_file;
} trace_steps;

/* Returns NULL, or a reason. Release with trace_steps_drop in every case. Pre: the builder has an
 * event. */
const char *trace_steps_find(const trace_builder *b, trace_steps *out);
void trace_steps_drop(trace_steps *steps);

/* Marks the borders in the builder, as a recording that knows its steps does. Returns NULL, or a
 * reason. Pre: the builder marks none. */
const char *trace_steps_mark(trace_builder *b, const trace_steps *steps);

/* The first event of a step. */
static inline size_t trace_step_begin(const trace_steps *steps, size_t step) {
    return step == 0 ? 0 : steps->ends[step - 1];
}

#endif

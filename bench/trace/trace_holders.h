/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The holders of memory at the moment that a report is about, at the ends of steps, and at the
 * fullest moments. A holder is all blocks that one stack allocated on one stream, of one class of
 * size and one length of life. The moment is the refusal that needed most, where one was replayed,
 * else the live peak: the bytes of all holders are what was live then and was asked for, to the
 * byte.
 */
#ifndef DUCTILE_BENCH_TRACE_TRACE_HOLDERS_H
#define DUCTILE_BENCH_TRACE_TRACE_HOLDERS_H

#include "bench/trace/trace_steps.h"

/* Step ends that are looked at, evenly chosen, the last among them; equal parts, of which each has
 * a fullest moment, and the end of the recording. */
enum {
    TRACE_HOLDERS_LEVELS = 64,
    TRACE_HOLDERS_STRETCHES = 96,
    TRACE_HOLDERS_MOMENTS = TRACE_HOLDERS_STRETCHES + 1
};

typedef struct trace_holder {
    uint32_t stack;                        /* number in the builder's stacks; 0: not known        */
    uint16_t stream;                       /* in the builder's order                              */
    uint8_t size_class;                    /* sizes from 2 to this, below twice that              */
    bool is_from_before;                   /* allocated before the recording began                */
    bool is_lasting;                       /* as trace_steps                                      */
    bool is_refused;                       /* asked for, and refused                              */
    uint64_t blocks;                       /* at the moment                                       */
    uint64_t bytes;                        /* at the moment                                       */
    uint64_t freed;                        /* of these: freed, but another stream still uses them */
    uint64_t levels[TRACE_HOLDERS_LEVELS]; /* bytes at the step ends */
    uint64_t moments[TRACE_HOLDERS_MOMENTS]; /* bytes at the fullest moments */
} trace_holder;

typedef struct trace_holders {
    trace_holder *all;
    size_t n;
    uint64_t level_steps[TRACE_HOLDERS_LEVELS]; /* which steps, from 0 */
    size_t n_levels;
    /* The fullest moment of each equal part of the recording, or the moment of the report where
     * that lies in it; and the end: behind which event, and which event that is where marks of
     * steps do not count. */
    size_t moment_ends[TRACE_HOLDERS_MOMENTS];
    uint64_t moment_events[TRACE_HOLDERS_MOMENTS];
    size_t n_moments;
    bool is_refusal;       /* the moment is; else it is the live peak */
    uint64_t moment_bytes; /* of all holders at the moment */
    uint64_t *step_peaks;  /* the live peak of each step */
    size_t n_steps;
} trace_holders;

/* Returns NULL, or a reason. Release with trace_holders_drop in every case. */
const char *trace_holders_find(const trace_builder *b, const trace_steps *steps,
                               trace_holders *out);
void trace_holders_drop(trace_holders *holders);

#endif

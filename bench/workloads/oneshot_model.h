/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that makes a stream for one piece of work and destroys it: at every step a new stream
 * allocates some blocks, the main stream uses them and keeps a result until the next step, then
 * they are freed and their stream ends.
 */
#ifndef DUCTILE_BENCH_WORKLOADS_ONESHOT_MODEL_H
#define DUCTILE_BENCH_WORKLOADS_ONESHOT_MODEL_H

#include "bench/trace/trace_build.h"
#include "bench/workloads/vary_options.h"

/* oneshot_check has the bounds. */
typedef struct oneshot_options {
    uint64_t steps;
    vary_interval mib;    /* of one stream, all its blocks together */
    vary_interval blocks; /* of one stream */
    uint64_t numbers; /* of streams, given out in turn: a contender that keeps its streams sees so
                         many */
    bool is_told;     /* the allocator learns of each end */
    uint64_t seed;
} oneshot_options;

/* NULL if the options are valid; otherwise the reason why not. */
const char *oneshot_check(const oneshot_options *options);

/* Fills the builder. Returns NULL, or a reason. Pre: oneshot_check has nothing to say. */
const char *oneshot_generate(const oneshot_options *options, trace_builder *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Where training steps end in a PyTorch snapshot:
 * its annotations say when an optimizer's step did. */
#ifndef DUCTILE_BENCH_TRACE_SNAPSHOT_STEPS_H
#define DUCTILE_BENCH_TRACE_SNAPSHOT_STEPS_H

#include "bench/trace/pickle.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A walk through the annotations, by time. */
typedef struct snapshot_steps {
    const pickle_value *annotations; /* NULL: there are none */
    uint64_t gpu;
    size_t next;
} snapshot_steps;

/* Moves on to the time of a history entry. Whether a step has ended since the call before. */
bool snapshot_steps_pass(snapshot_steps *s, uint64_t time_us);

/* Behind the last entry: whether a step ends there. */
bool snapshot_steps_end(snapshot_steps *s);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a snapshot's GPU as events of a Chrome trace. */
#ifndef DUCTILE_BENCH_CLI_EXPORT_EVENTS_H
#define DUCTILE_BENCH_CLI_EXPORT_EVENTS_H

#include "bench/trace/history_levels.h"

#include <stdio.h>

typedef struct export_gpu {
    const history *history;
    const pickle_value *trace;
    const pickle_value *annotations; /* NULL: none */
    history_levels levels;
    uint64_t number;
    int64_t base_ns; /* what times count from */
    uint64_t most;   /* events, about */
} export_gpu;

/* One event a line, each but the first behind a comma. *n_printed counts them, over all GPUs.
 * False: no host memory. */
bool export_events(const export_gpu *gpu, FILE *out, uint64_t *n_printed);

#endif

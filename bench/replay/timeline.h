/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory over time as CSV, for bench/plot.py:
 * trace,contender,event,live_bytes,reserved_bytes,live_peak_bytes,reserved_peak_bytes
 * The live peak is the whole trace's, the reserved peak the contender's so far. Comment lines at
 * the top, starting with '#', say where the figures come from.
 */
#ifndef DUCTILE_BENCH_REPLAY_TIMELINE_H
#define DUCTILE_BENCH_REPLAY_TIMELINE_H

#include "bench/replay/replay_engine.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct timeline {
    FILE *file;
    replay_watch watch; /* gets the samples of a replay */
} timeline;

/* A folder gets timeline.csv; a file is replaced. False: reason holds one sentence. */
bool timeline_open(timeline *t, const char *path, const bench_device *device, char *reason,
                   size_t reason_size);

/* Adds one sample of a run that is not a replay. */
void timeline_add(timeline *t, const char *panel, const char *contender, uint64_t event,
                  uint64_t live_bytes, uint64_t live_peak_bytes, const contender_stats *stats);

/* False: not all could be written. */
bool timeline_close(timeline *t);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one GPU held at each entry of a snapshot's history. The snapshot says what was held when it
 * was written; what its history changed is taken back from that, so that blocks from before the
 * recording are in it. A recording that saw the program's first allocation and could not look at
 * its end has no segments: it begins with nothing.
 */
#ifndef DUCTILE_BENCH_TRACE_HISTORY_LEVELS_H
#define DUCTILE_BENCH_TRACE_HISTORY_LEVELS_H

#include "bench/trace/history.h"

/* Bytes. Live and pending blocks as they were requested. */
typedef struct history_level {
    int64_t held, live, pending;
} history_level;

typedef struct history_levels {
    history_level start;
    uint64_t first_us; /* when the history begins, and ends */
    uint64_t last_us;
    bool has_both_frees; /* else it left out the first half of each */
} history_levels;

/* most_blocks: that segments may have. Returns NULL, or what is wrong with an entry. */
const char *history_levels_find(const history *h, const pickle_value *entries,
                                const pickle_value *segments, uint64_t gpu, uint64_t most_blocks,
                                history_levels *out);

/* The level behind an entry, from the one before. */
history_level history_level_next(const history_levels *l, history_level before,
                                 const history_entry *e);

#endif

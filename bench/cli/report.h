/* SPDX-License-Identifier: Apache-2.0 */
/* A report on replays, one row a contender and trace: as a table to read or as JSON, one object a
 * line. */
#ifndef DUCTILE_BENCH_CLI_REPORT_H
#define DUCTILE_BENCH_CLI_REPORT_H

#include "bench/replay/replay_engine.h"
#include "bench/replay/timeline.h"

#include <stdbool.h>
#include <stdint.h>

/* One contender on one trace. */
typedef struct report_row {
    const replay_spec *spec;
    const replay_result *result;
    const replay_result *calls;  /* of a replay in which each call was timed; NULL: none was */
    bool has_min_capacity;       /* it was searched for  */
    bool min_is_modelled;        /* on the virtual GPU, though the replay was not */
    uint64_t min_capacity_bytes; /* 0: none was found    */
    bool is_tight;               /* capped at so much above that */
    uint64_t above_min_percent;
} report_row;

/* The table's heading for one trace, and then one line per contender. */
void report_table_begin(const trace *t, bool has_min_capacity);
void report_table_row(const report_row *row);

/* The table of --tight: two lines per contender, without a cap and near the smallest capacity. */
void report_tight_begin(const trace *t, bool min_is_modelled);
void report_tight_row(const report_row *row);

void report_json(const report_row *row);

/* Of --timeline, whose file may be NULL: then nothing is done.
 * False: the user has been told why. */
bool report_open_timeline(timeline *t, const char *path, const bench_device *device);
bool report_close_timeline(timeline *t, const char *path);

#endif

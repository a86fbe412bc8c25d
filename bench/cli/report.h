/* SPDX-License-Identifier: Apache-2.0 */
/* How results of replays are printed: a table to read, or JSON, one object a line. */
#ifndef DUCTILE_BENCH_CLI_REPORT_H
#define DUCTILE_BENCH_CLI_REPORT_H

#include "bench/replay/replay_engine.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* One contender on one trace. */
typedef struct report_row {
    const replay_spec *spec;
    const replay_result *result;
    bool has_min_capacity;       /* it was searched for  */
    bool min_is_modelled;        /* on the virtual GPU, though the replay was not */
    uint64_t min_capacity_bytes; /* 0: none was found    */
    bool is_tight;               /* capped at so much above that */
    uint64_t above_min_percent;
} report_row;

/* Live peak by reserved peak. Only of a completed replay. */
double report_efficiency(const replay_spec *spec, const replay_result *result);

void report_json(FILE *out, const report_row *row);

/* The table's heading for one trace, and then one line per contender. */
void report_table_begin(FILE *out, const trace *t, bool has_min_capacity);
void report_table_row(FILE *out, const report_row *row);

/* The table of --tight: two lines per contender, without a cap and near the smallest capacity. */
void report_tight_begin(FILE *out, const trace *t, bool min_is_modelled);
void report_tight_row(FILE *out, const report_row *row);

#endif

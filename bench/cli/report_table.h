/* SPDX-License-Identifier: Apache-2.0 */
/* Results of replays as a table to read. */
#ifndef DUCTILE_BENCH_CLI_REPORT_TABLE_H
#define DUCTILE_BENCH_CLI_REPORT_TABLE_H

#include "bench/cli/report.h"

#include <stdio.h>

/* The table's heading for one trace, and then one line per contender. */
void report_table_begin(FILE *out, const trace *t, bool has_min_capacity);
void report_table_row(FILE *out, const report_row *row);

/* The table of --tight: two lines per contender, without a cap and near the smallest capacity. */
void report_tight_begin(FILE *out, const trace *t, bool min_is_modelled);
void report_tight_row(FILE *out, const report_row *row);

#endif

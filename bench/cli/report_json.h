/* SPDX-License-Identifier: Apache-2.0 */
/* Results of replays as JSON, one object a line. */
#ifndef DUCTILE_BENCH_CLI_REPORT_JSON_H
#define DUCTILE_BENCH_CLI_REPORT_JSON_H

#include "bench/cli/report.h"

#include <stdio.h>

void report_json(FILE *out, const report_row *row);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* One row of a report on replays: report_table.h prints it to read, report_json.h as JSON. */
#ifndef DUCTILE_BENCH_CLI_REPORT_H
#define DUCTILE_BENCH_CLI_REPORT_H

#include "bench/replay/replay_engine.h"

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

/* Live peak by reserved peak. Only of a completed replay. */
static inline double report_efficiency(const replay_spec *spec, const replay_result *result) {
    return (double)spec->trace->live_peak_bytes / (double)result->total.reserved_peak_bytes;
}

#endif

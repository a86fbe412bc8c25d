/* SPDX-License-Identifier: Apache-2.0 */
/* What a sweep has measured, as tables to read and as JSON. */
#ifndef DUCTILE_BENCH_CLI_SWEEP_REPORT_H
#define DUCTILE_BENCH_CLI_SWEEP_REPORT_H

#include "bench/workloads/vary_sweep.h"

#include <stdio.h>

/* All samples of a sweep. */
typedef struct sweep_results {
    const sweep_plan *plan;
    const contender_ops *const *contenders;
    size_t n_contenders;
    sweep_sample *samples; /* by setting, spread, seed and contender */
} sweep_results;

static inline sweep_sample *sweep_sample_at(const sweep_results *r, unsigned setting,
                                            unsigned spread, uint64_t seed, size_t contender) {
    uint64_t run = (setting * SWEEP_SPREADS + spread) * r->plan->n_seeds + seed;
    return &r->samples[run * r->n_contenders + contender];
}

/* One line for each contender, with a list of what each seed gave. */
void sweep_report_json(FILE *out, const sweep_results *r, unsigned setting, unsigned spread);

/* One table for each question, a row for each setting and contender, a column for each spread. */
void sweep_report_tables(FILE *out, const sweep_results *r);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* ductile-bench generate vary --sweep. */
#ifndef DUCTILE_BENCH_CLI_SWEEP_H
#define DUCTILE_BENCH_CLI_SWEEP_H

#include "bench/cli/replay_options.h"
#include "bench/workloads/vary_options.h"

/* Runs the model at every spread and setting under each contender, and prints what it came to. Its
 * own `recompute` does not count. Returns the exit status. */
int sweep_run_all(const replay_options *o, const vary_options *model, uint64_t n_seeds);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The replay of traces under each contender, as the options say, and what is printed of it. */
#ifndef DUCTILE_BENCH_CLI_REPLAY_JOB_H
#define DUCTILE_BENCH_CLI_REPLAY_JOB_H

#include "bench/cli/replay_options.h"
#include "bench/trace/trace.h"

/* Returns the exit status. */
int replay_job_run(const replay_options *options, trace *const *traces, size_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of ductile-bench, each in the file of its name. */
#ifndef DUCTILE_BENCH_CLI_COMMANDS_H
#define DUCTILE_BENCH_CLI_COMMANDS_H

#include "bench/cli/command_line.h"

extern const bench_command command_replay;
extern const bench_command command_view;
extern const bench_command command_convert;

/* What `generate` can make. */
extern const bench_command generate_vary, generate_offload, generate_oneshot, generate_fsdp,
    generate_churn;

#endif

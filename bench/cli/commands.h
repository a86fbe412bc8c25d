/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommands of ductile-bench. argv[0] is the subcommand's own name, its arguments follow.
 * Each returns the exit status of the program (see cli.h).
 */
#ifndef DUCTILE_BENCH_CLI_COMMANDS_H
#define DUCTILE_BENCH_CLI_COMMANDS_H

int run_replay(int argc, char **argv);
int run_varybatch(int argc, char **argv);
int run_convert(int argc, char **argv);
int run_fsdp(int argc, char **argv);
int run_churn(int argc, char **argv);

#endif

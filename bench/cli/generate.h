/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench generate: the synthetic programs. Each is a command of its own, "generate NAME".
 *
 *   generate_models.c  offload, oneshot and vary: a trace, which is then replayed
 *   generate_fsdp.c    fsdp: what the host does next depends on when the streams' work ends
 *   generate_churn.c   churn: times operations, a hundred million at will; no trace holds them
 */
#ifndef DUCTILE_BENCH_CLI_GENERATE_H
#define DUCTILE_BENCH_CLI_GENERATE_H

#include "bench/cli/command_line.h"
#include "bench/trace/trace_build.h"

#define GENERATE_TRACE_OPTION(options)                                                             \
    {                                                                                              \
        "--write-trace", "FILE", bench_parse_text,                                                 \
            .help = "write the events as a trace, gzipped for .gz, and run nothing",               \
            .offset = offsetof(options, trace_file)                                                \
    }

/* Writes what a model has made to a file that begins with the command that makes it again, and
 * drops the builder. Returns the exit status. */
int generate_write(const bench_command *model, const void *options, trace_builder *made,
                   const char *path);

/* What a model has made, as a trace that is called like the model. The builder is empty afterwards.
 * NULL: the user has been told why. */
trace *generate_trace(const bench_command *model, trace_builder *made);

#endif

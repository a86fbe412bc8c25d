/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share that make a trace themselves and replay it: options and the replay. */
#ifndef DUCTILE_BENCH_CLI_GENERATED_H
#define DUCTILE_BENCH_CLI_GENERATED_H

#include "bench/cli/command_line.h"
#include "bench/trace/trace_build.h"

/* First member of the options of each of these commands. */
typedef struct generated_options {
    bench_options shared;
    uint64_t n_passes;
    uint64_t lag; /* virtual GPU: events from the issue of work to its end */
    bool min_capacity;
    const char *trace_file; /* NULL: none */
} generated_options;

#define GENERATED_AT(type, member) (offsetof(type, generated) + offsetof(generated_options, member))

/* Rows of the option table of a command whose options are of that type, the member's name being
 * `generated`. */
#define GENERATED_OPTIONS(type)                                                                    \
    {"--repeat",                                                                                   \
     "N",                                                                                          \
     bench_parse_number,                                                                           \
     .help = "N passes through one allocator (1)",                                                 \
     .offset = GENERATED_AT(type, n_passes),                                                       \
     .min = 1,                                                                                     \
     .max = 1000000},                                                                              \
        {"--lag",                                                                                  \
         "N",                                                                                      \
         bench_parse_number,                                                                       \
         .help = "virtual GPU: work completes N events after it was issued (0)",                   \
         .offset = GENERATED_AT(type, lag),                                                        \
         .max = UINT32_MAX},                                                                       \
        {"--min-capacity", NULL, bench_parse_flag,                                                 \
         .help = "also find the smallest capacity from which it completes",                        \
         .offset = GENERATED_AT(type, min_capacity)},                                              \
    {                                                                                              \
        "--write-trace", "FILE", bench_parse_text,                                                 \
            .help = "also write the events as a trace for replay",                                 \
            .offset = GENERATED_AT(type, trace_file)                                               \
    }

/* For bench_command.complete. refusal: why the command's own options are wrong; NULL: they are not.
 */
bool generated_complete(bench_parser *p, const char *refusal);

/* What a generator has made. */
typedef struct generated_trace {
    const char *name;       /* of the command */
    const char *heading;    /* comment lines for the top of the file */
    trace_builder *builder; /* taken */
    const char *failure;    /* NULL: it is whole */
} generated_trace;

/* Writes it if wanted, and replays it under each contender. Returns the exit status. */
int generated_run(const generated_options *o, const generated_trace *made);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of `ductile-bench replay`. */
#ifndef DUCTILE_BENCH_CLI_REPLAY_OPTIONS_H
#define DUCTILE_BENCH_CLI_REPLAY_OPTIONS_H

#include "bench/cli/command_line.h"
#include "bench/replay/stage.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REPLAY_MAX_PASSES = 1000000 };

typedef struct replay_options {
    bench_options shared; /* operands: the traces */
    bool check;
    bool min_capacity;
    bool calls;
    bool tight;
    uint64_t above_min_percent; /* with tight */
    uint64_t n_passes;
    bool vary;
    uint64_t vary_seed;   /* with vary */
    bench_pace pace;      /* virtual GPU only, unless it is "at once" */
    int gpu;              /* TRACE_BUSIEST_GPU unless chosen */
    const char *timeline; /* NULL: none */
} replay_options;

extern const replay_options replay_defaults;
extern const bench_option replay_option_table[];

/* For bench_command. */
bool replay_options_complete(bench_parser *p);

#endif

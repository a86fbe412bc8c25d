/* SPDX-License-Identifier: Apache-2.0 */
/* What a replay can be told, whether its trace was recorded or is generated. */
#ifndef DUCTILE_BENCH_CLI_REPLAY_OPTIONS_H
#define DUCTILE_BENCH_CLI_REPLAY_OPTIONS_H

#include "bench/cli/command_line.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REPLAY_MAX_PASSES = 1000000 };

typedef struct replay_options {
    bench_options shared;
    bool check;
    bool min_capacity;
    bool calls;
    bool tight;
    uint64_t above_min_percent; /* with tight */
    uint64_t n_passes;
    bench_pace pace;      /* virtual GPU only, unless it is "at once" */
    const char *timeline; /* NULL: none */
} replay_options;

extern const bench_option replay_option_table[];

/* For bench_command.complete. Pre: replay_options are the first member of the command's. */
bool replay_options_complete(bench_parser *p);

#endif

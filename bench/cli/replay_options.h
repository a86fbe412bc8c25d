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

/* Strings point into the command line. */
typedef struct replay_options {
    bench_device_kind device;
    int ordinal;
    const contender_ops *contenders[BENCH_MAX_CONTENDERS]; /* all of them unless chosen */
    size_t n_contenders;
    uint64_t capacity_bytes; /* 0: what the device has */
    bool check;
    bool min_capacity;
    bool tight;
    uint64_t above_min_percent; /* with tight */
    uint64_t n_passes;
    bench_pace pace; /* virtual GPU only, unless it is "at once" */
    const char *settings[BENCH_MAX_SETTINGS];
    size_t n_settings;
    bool json;
    int gpu; /* TRACE_BUSIEST_GPU unless chosen */
    const char *timeline;
    const char **traces; /* owned: replay_options_drop */
    size_t n_traces;
    bool help;
} replay_options;

/* argv[0] is the subcommand's name. False: message holds one line; nothing needs dropping. */
bool replay_options_parse(int argc, char **argv, replay_options *out, char *message,
                          size_t message_size);
void replay_options_drop(replay_options *options);

void replay_options_print_help(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench convert: a PyTorch snapshot, or a trace of any version, as a trace of the newest.
 * Nothing is written unless all of the input was read.
 */
#include "bench/cli/cli.h"
#include "bench/cli/command_line.h"
#include "bench/cli/commands.h"
#include "bench/trace/trace_read.h"
#include "bench/trace/trace_write.h"

#include <limits.h>
#include <stdio.h>

typedef struct convert_options {
    const char *paths[2]; /* from, to */
    size_t n_paths;
    int gpu;
} convert_options;

static bool parse_gpu(bench_parser *p, const char *value) {
    convert_options *o = p->own;
    uint64_t number = 0;
    if (!bench_parse_count(value, 0, INT_MAX, &number)) {
        return bench_refuse(p, "--gpu is the number of a GPU in a snapshot, not '%s'", value);
    }
    o->gpu = (int)number;
    return true;
}

static bool take_path(bench_parser *p, const char *word) {
    convert_options *o = p->own;
    if (o->n_paths == 2) {
        return bench_refuse(p, "convert takes two files, IN and OUT; '%s' is a third", word);
    }
    o->paths[o->n_paths++] = word;
    return true;
}

static bool check(bench_parser *p) {
    const convert_options *o = p->own;
    return o->n_paths == 2 || bench_refuse(p, "convert needs two files: IN and OUT");
}

static const bench_option own_options[] = {
    {"--gpu", "N", parse_gpu, "of a PyTorch snapshot: which GPU (the one with most events)"},
    {0},
};

static const bench_command command = {
    .name = "convert",
    .summary =
        "Writes IN, a PyTorch snapshot or a trace, as a trace of version 2 to OUT: gzipped if its\n"
        "name ends in .gz; - is standard output. bench/traces/README.md has the format. Where IN\n"
        "does not say which other stream used a block, that is the next by number.",
    .own = own_options,
    .operand = "IN OUT",
    .take_operand = take_path,
    .check = check,
    .runs_nothing = true,
};

static bool read_in(const convert_options *o, trace_builder *b) {
    trace_error error;
    if (trace_gather(o->paths[0], o->gpu, b, &error)) {
        return true;
    }
    if (error.line > 0) {
        bench_complain("%s:%llu: %s", o->paths[0], (unsigned long long)error.line, error.reason);
    } else {
        bench_complain("%s: %s", o->paths[0], error.reason);
    }
    return false;
}

static bool write_out(const convert_options *o, const trace_builder *b) {
    char reason[256];
    bool ok = trace_save(b, "", o->paths[1], reason, sizeof reason);
    if (!ok) {
        bench_complain("%s: %s", o->paths[1], reason);
    }
    return ok;
}

static int convert(const convert_options *o) {
    trace_builder b;
    if (!read_in(o, &b)) {
        return BENCH_FAILED;
    }
    bool ok = true;
    if (o->gpu != TRACE_BUSIEST_GPU && !b.is_snapshot) {
        bench_complain("--gpu chooses within a PyTorch snapshot, and %s is none", o->paths[0]);
        ok = false;
    }
    ok = ok && write_out(o, &b);
    trace_build_drop(&b);
    return ok ? BENCH_DONE : BENCH_FAILED;
}

int run_convert(int argc, char **argv) {
    convert_options options = {.gpu = TRACE_BUSIEST_GPU};
    bench_options shared;
    char message[256] = "";
    if (!bench_options_parse(&command, argc, argv, &shared, &options, message, sizeof message)) {
        bench_complain("convert: %s", message);
        return BENCH_MISUSED;
    }
    if (shared.help) {
        bench_options_print_help(&command);
        return BENCH_DONE;
    }
    return convert(&options);
}

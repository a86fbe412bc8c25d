/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench convert: writes a PyTorch snapshot, or a trace of any version, as a trace of the
 * newest. It writes nothing unless it could read all of the input.
 */
#include "bench/cli/cli.h"
#include "bench/cli/command_line.h"
#include "bench/cli/commands.h"
#include "bench/trace/trace_read.h"
#include "bench/trace/trace_write.h"

#include <stdio.h>

typedef struct convert_options {
    bench_options shared; /* operands: from, to */
    int gpu;
} convert_options;

static bool complete(bench_parser *p) {
    if (p->shared->n_operands > 2) {
        return bench_refuse(p, "IN and OUT are two files; '%s' is a third", p->shared->operands[2]);
    }
    return p->shared->n_operands == 2 || bench_refuse(p, "two files are needed: IN and OUT");
}

static const bench_option own_options[] = {
    BENCH_GPU_OPTION(convert_options),
    {0},
};

static bool read_in(const convert_options *o, trace_builder *b) {
    trace_error error;
    bool ok = trace_gather(o->shared.operands[0], o->gpu, b, &error);
    if (!ok) {
        bench_complain_of(o->shared.operands[0], error.line, error.reason);
    }
    return ok;
}

static bool write_out(const convert_options *o, const trace_builder *b) {
    char reason[256];
    bool ok = trace_save(b, "", o->shared.operands[1], reason, sizeof reason);
    if (!ok) {
        bench_complain_of(o->shared.operands[1], 0, reason);
    }
    return ok;
}

static int run(const bench_options *options) {
    const convert_options *o = (const convert_options *)options;
    trace_builder b = {.spills = true};
    if (!read_in(o, &b)) {
        return BENCH_FAILED;
    }
    bool ok = true;
    if (o->gpu != TRACE_FULLEST_GPU && !b.is_snapshot) {
        bench_complain("--gpu needs a PyTorch snapshot, and %s is not one", o->shared.operands[0]);
        ok = false;
    }
    ok = ok && write_out(o, &b);
    trace_build_drop(&b);
    return ok ? BENCH_DONE : BENCH_FAILED;
}

static const convert_options defaults = {.gpu = TRACE_FULLEST_GPU};

const bench_command command_convert = {
    .name = "convert",
    .brief = "write a PyTorch snapshot or an older trace as a trace of the newest version",
    .summary =
        "Writes IN, a PyTorch snapshot or a trace, as a trace to OUT: of version 2, 3 where "
        "streams\n"
        "end, 4 where requests were refused, or 5 with private pools; gzipped if its name ends\n"
        "in .gz; - is standard output.\n"
        "bench/traces/README.md has the format. Where IN does not say which other stream used\n"
        "a block, the next stream by number is written.",
    .own = own_options,
    .operand = "IN OUT",
    .defaults = &defaults.shared,
    .size = sizeof defaults,
    .complete = complete,
    .runs_on = BENCH_ON_NO_DEVICE,
    .run = run,
};

/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/generated.h"

#include "bench/base/provenance.h"
#include "bench/cli/cli.h"
#include "bench/cli/report_json.h"
#include "bench/cli/report_table.h"
#include "bench/replay/mincap.h"
#include "bench/replay/replay_engine.h"
#include "bench/trace/trace_finish.h"
#include "bench/trace/trace_write.h"

/* One run of a command. */
typedef struct generated_job {
    const generated_options *own;
    const char *name;
    bench_device device;
    trace *trace;
    bool has_failed;
} generated_job;

bool generated_complete(bench_parser *p, const char *refusal) {
    const generated_options *o = p->own;
    if (o->min_capacity && p->shared->capacity_bytes != 0) {
        return bench_refuse(p,
                            "--min-capacity searches what --capacity sets: give only one of them");
    }
    if (o->lag > 0 && p->shared->device == BENCH_DEVICE_CUDA) {
        return bench_refuse(p, "--lag works on the virtual GPU only");
    }
    if (o->lag > 0) {
        p->shared->device = BENCH_DEVICE_VIRTUAL;
    }
    return refusal == NULL || bench_refuse(p, "%s", refusal);
}

static bool write_trace(const generated_job *c, const generated_trace *made) {
    char reason[256];
    const char *path = c->own->trace_file;
    bool ok = path == NULL || trace_save(made->builder, made->heading, path, reason, sizeof reason);
    if (!ok) {
        bench_complain("%s: %s: %s", c->name, path, reason);
    }
    return ok;
}

static bool take_trace(generated_job *c, const generated_trace *made) {
    const char *reason = made->failure;
    if (reason == NULL && !write_trace(c, made)) {
        trace_build_drop(made->builder);
        return false;
    }
    c->trace = reason == NULL ? trace_make(made->builder, c->name, &reason) : NULL;
    if (reason != NULL) {
        bench_complain("%s: %s", c->name, reason);
    }
    return reason == NULL;
}

static void note_failure(generated_job *c, const report_row *row) {
    const replay_result *r = row->result;
    if (r->outcome == RUN_FAILED || r->violations > 0) {
        bench_complain("%s: %s: %s", c->name, row->spec->contender->name,
                       r->outcome == RUN_FAILED ? r->message : r->last_violation);
        c->has_failed = true;
    }
}

static void run_contender(generated_job *c, const contender_ops *contender) {
    const generated_options *own = c->own;
    const replay_spec spec = {
        .trace = c->trace,
        .device = &c->device,
        .contender = contender,
        .settings = own->shared.settings,
        .n_settings = own->shared.n_settings,
        .capacity_bytes = own->shared.capacity_bytes,
        .n_passes = own->n_passes,
        .pace = {.schedule = own->lag > 0 ? DUCTILE_SCHEDULE_LAGGING : DUCTILE_SCHEDULE_EAGER,
                 .lag = own->lag},
    };
    replay_result result;
    replay_run(&spec, &result);
    report_row row = {.spec = &spec, .result = &result, .has_min_capacity = own->min_capacity};
    if (row.has_min_capacity && result.outcome == RUN_COMPLETED) {
        row.min_capacity_bytes = mincap_find(&spec, &result);
    }
    if (own->shared.json) {
        report_json(stdout, &row);
    } else {
        report_table_row(stdout, &row);
    }
    (void)fflush(stdout);
    note_failure(c, &row);
}

static int run_all(generated_job *c) {
    const bench_options *shared = &c->own->shared;
    if (!shared->json) {
        provenance_print_heading(stdout, &c->device);
        report_table_begin(stdout, c->trace, c->own->min_capacity);
    }
    for (size_t i = 0; i < shared->n_contenders; i++) {
        run_contender(c, shared->contenders[i]);
    }
    return c->has_failed ? BENCH_FAILED : BENCH_DONE;
}

int generated_run(const generated_options *o, const generated_trace *made) {
    generated_job c = {.own = o, .name = made->name};
    if (!bench_find_device(&o->shared, &c.device)) {
        if (made->failure == NULL) {
            trace_build_drop(made->builder);
        }
        return BENCH_FAILED;
    }
    int status = take_trace(&c, made) ? run_all(&c) : BENCH_FAILED;
    trace_free(c.trace);
    return status;
}

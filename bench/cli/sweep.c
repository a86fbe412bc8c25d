/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/sweep.h"

#include "bench/base/provenance.h"
#include "bench/cli/cli.h"
#include "bench/cli/sweep_report.h"

#include <stdlib.h>

typedef struct sweep_job {
    sweep_plan plan;
    sweep_results results;
    bench_device device;
    bench_device judge;
    bool json;
    bool has_failed;
} sweep_job;

static bool find_devices(sweep_job *j, const bench_options *shared) {
    char reason[256] = "";
    if (!bench_find_device(shared, &j->device)) {
        return false;
    }
    if (!bench_device_model(&j->device, &j->judge, reason, sizeof reason)) {
        bench_complain("generate vary: %s", reason);
        return false;
    }
    return true;
}

/* A contender that the device does not have is no failure. */
static void note_failures(sweep_job *j, const sweep_sample *samples) {
    for (size_t i = 0; i < j->results.n_contenders; i++) {
        if (samples[i].message[0] != '\0' && samples[i].uncapped.outcome != RUN_ABSENT) {
            bench_complain("generate vary: %s: %s", j->results.contenders[i]->name,
                           samples[i].message);
            j->has_failed = true;
        }
    }
}

/* All seeds of one setting at one spread. False: the traces cannot be made. */
static bool run_cell(sweep_job *j, unsigned setting, unsigned spread) {
    const sweep_results *r = &j->results;
    for (uint64_t seed = 0; seed < j->plan.n_seeds; seed++) {
        sweep_sample *samples = sweep_sample_at(r, setting, spread, seed, 0);
        const char *reason =
            sweep_measure(&j->plan, setting, spread, seed, r->contenders, r->n_contenders, samples);
        if (reason != NULL) {
            bench_complain("generate vary: %s", reason);
            return false;
        }
        note_failures(j, samples);
    }
    if (j->json) {
        sweep_report_json(stdout, r, setting, spread);
    }
    return true;
}

static int run_cells(sweep_job *j) {
    for (unsigned setting = 0; setting < SWEEP_SETTINGS; setting++) {
        for (unsigned spread = 0; spread < SWEEP_SPREADS; spread++) {
            if (!run_cell(j, setting, spread)) {
                return BENCH_FAILED;
            }
        }
    }
    if (!j->json) {
        provenance_print_heading(stdout, &j->device);
        sweep_report_tables(stdout, &j->results);
    }
    return j->has_failed ? BENCH_FAILED : BENCH_DONE;
}

static bool make_room(sweep_job *j) {
    size_t n = (size_t)(SWEEP_SETTINGS * SWEEP_SPREADS * j->plan.n_seeds);
    j->results.samples = calloc(n * j->results.n_contenders, sizeof *j->results.samples);
    if (j->results.samples == NULL) {
        bench_complain("the host has no memory left");
    }
    return j->results.samples != NULL;
}

static replay_spec make_spec(const replay_options *o, const bench_device *device) {
    return (replay_spec){
        .device = device,
        .settings = o->shared.settings,
        .n_settings = o->shared.n_settings,
        .n_passes = o->n_passes,
        .pace = o->pace,
    };
}

int sweep_run_all(const replay_options *o, const vary_options *model, uint64_t n_seeds) {
    sweep_job j = {.json = o->shared.json};
    j.plan = (sweep_plan){
        .model = *model, .n_seeds = n_seeds, .replay = make_spec(o, &j.device), .judge = &j.device};
    j.results = (sweep_results){.plan = &j.plan,
                                .contenders = o->shared.contenders,
                                .n_contenders = o->shared.n_contenders};
    if (!find_devices(&j, &o->shared) || !make_room(&j)) {
        return BENCH_FAILED;
    }
    j.plan.judge = j.judge.is_virtual == j.device.is_virtual ? &j.device : &j.judge;
    int status = run_cells(&j);
    free(j.results.samples);
    return status;
}

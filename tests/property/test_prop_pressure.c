/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another process takes the device's memory and gives it back at random, and the soft limit moves,
 * while a program does what it likes: memory is refused only when there is none, under every
 * schedule and every option that decides how memory comes to a request. Held against the model
 * after every operation, as in prop_allocator.
 */
#include "tests/support/churn.h"
#include "tests/support/expect.h"

#include <criterion/parameterized.h>

#include <string.h>

#define DEFAULT_OPS 1500

typedef struct geometry {
    ductile_schedule schedule;
    uint64_t lag;
    size_t n_streams;
    const char *conf;
} geometry;

static const geometry geometries[] = {
    {DUCTILE_SCHEDULE_EAGER, 0, 3, NULL},
    {DUCTILE_SCHEDULE_LAGGING, 9, 1, NULL},
    {DUCTILE_SCHEDULE_LAGGING, 40, 4, "soft_limit_bytes:32M"},
    {DUCTILE_SCHEDULE_LAZY, 0, 1, "retain_bytes:4M"},
    {DUCTILE_SCHEDULE_LAZY, 0, 5, NULL},
    {DUCTILE_SCHEDULE_LAZY, 0, 3, "garbage_collection_threshold:0.5"},
    {DUCTILE_SCHEDULE_RANDOM, 0, 2, NULL},
    {DUCTILE_SCHEDULE_RANDOM, 0, 3, "recycle:pressure,soft_limit_bytes:16M"},
    {DUCTILE_SCHEDULE_RANDOM, 0, 3, "recycle:never"},
    {DUCTILE_SCHEDULE_LAZY, 0, 3, "cross_stream_reuse:off"},
    {DUCTILE_SCHEDULE_RANDOM, 0, 3, "max_handle_bytes:8M,soft_limit_bytes:32M"},
};
#define N_GEOMETRIES (sizeof geometries / sizeof geometries[0])
#define N_SEEDS 3
#define CAPACITY (96 * MIB)

typedef struct which {
    size_t geometry;
    uint64_t seed;
} which;

ParameterizedTestParameters(prop_pressure, memory_is_refused_only_when_there_is_none) {
    static which parameters[N_GEOMETRIES * N_SEEDS];
    for (size_t i = 0; i < N_GEOMETRIES * N_SEEDS; i++) {
        parameters[i] = (which){i / N_SEEDS, 7000 + i};
    }
    return cr_make_param_array(which, parameters, N_GEOMETRIES * N_SEEDS);
}

ParameterizedTest(which *it, prop_pressure, memory_is_refused_only_when_there_is_none) {
    const geometry *g = &geometries[it->geometry];
    churn_setup setup = {.fixture = {.capacity_bytes = CAPACITY,
                                     .schedule = g->schedule,
                                     .lag = g->lag,
                                     .seed = it->seed,
                                     .n_streams = g->n_streams,
                                     .conf = g->conf},
                         .seed = churn_setting("DUCTILE_TEST_SEED", it->seed),
                         .n_ops = churn_setting("DUCTILE_TEST_OPS", DEFAULT_OPS),
                         .has_contents = true,
                         .breathes = true,
                         .may_refuse = g->conf != NULL && strstr(g->conf, "max_handle") != NULL};
    churn_tally tally;
    const char *why = churn_run(&setup, &tally);
    cr_assert(why == NULL, "geometry %zu, %s", it->geometry, why);
    cr_assert(tally.breaths > setup.n_ops / 20 && tally.refusals > 0 && tally.allocs > 0,
              "the run did too little to mean anything");
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever a program does, in whatever order the device completes its work: no two live blocks
 * share memory, every statistic can be recounted, memory is refused only when there is none, and
 * in the end nothing is left. Random operations against a model that knows nothing of how the
 * allocator works; each seed is a test of its own.
 *
 * DUCTILE_TEST_SEED=n runs every geometry with that seed, DUCTILE_TEST_OPS=n so many operations,
 * DUCTILE_TEST_ALL=1 many seeds.
 */
#include "tests/support/churn.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"

#include <criterion/parameterized.h>

#include <string.h>

#define DEFAULT_OPS 3000

/* A geometry: how the device completes work, and which options are on. */
typedef struct geometry {
    ductile_schedule schedule;
    uint64_t lag;
    uint64_t placement_seed;
    size_t n_streams;
    uint64_t capacity_bytes;
    bool has_contents;
    const char *conf;
} geometry;

static const geometry geometries[] = {
    {DUCTILE_SCHEDULE_EAGER, 0, 0, 1, 256 * MIB, false, NULL},
    {DUCTILE_SCHEDULE_EAGER, 0, 0, 3, 64 * MIB, true, NULL},
    {DUCTILE_SCHEDULE_LAGGING, 7, 0, 1, 128 * MIB, true, NULL},
    {DUCTILE_SCHEDULE_LAGGING, 50, 3, 4, 128 * MIB, true, NULL},
    {DUCTILE_SCHEDULE_LAGGING, 3, 0, 2, 64 * MIB, false, "check:3"},
    {DUCTILE_SCHEDULE_LAZY, 0, 0, 1, 64 * MIB, true, NULL},
    {DUCTILE_SCHEDULE_LAZY, 0, 5, 4, 128 * MIB, true, NULL},
    {DUCTILE_SCHEDULE_LAZY, 0, 0, 8, 256 * MIB, false, NULL},
    {DUCTILE_SCHEDULE_RANDOM, 0, 11, 2, 64 * MIB, true, NULL},
    {DUCTILE_SCHEDULE_RANDOM, 0, 12, 5, 256 * MIB, true, NULL},
    {DUCTILE_SCHEDULE_RANDOM, 0, 13, 16, 256 * MIB, true, NULL},
    {DUCTILE_SCHEDULE_RANDOM, 0, 14, 3, 128 * MIB, true, "recycle:ready,max_handle_bytes:8M"},
    {DUCTILE_SCHEDULE_RANDOM, 0, 15, 3, 128 * MIB, true, "recycle:pressure"},
    {DUCTILE_SCHEDULE_RANDOM, 0, 16, 2, 128 * MIB, true, "recycle:never,compact:off"},
    {DUCTILE_SCHEDULE_RANDOM, 0, 17, 3, 128 * MIB, true, "cross_stream_reuse:off"},
    {DUCTILE_SCHEDULE_RANDOM, 0, 18, 2, 64 * MIB, true, "compact:off"},
    {DUCTILE_SCHEDULE_LAZY, 0, 19, 3, 128 * MIB, true, "retain_bytes:8M"},
    {DUCTILE_SCHEDULE_LAGGING, 9, 20, 3, 128 * MIB, true, "garbage_collection_threshold:0.6"},
    {DUCTILE_SCHEDULE_EAGER, 0, 0, 3, 64 * MIB, true, "record_stream:wait"},
    {DUCTILE_SCHEDULE_LAGGING, 20, 21, 4, 128 * MIB, true, "record_stream:wait"},
    {DUCTILE_SCHEDULE_LAZY, 0, 22, 3, 128 * MIB, true, "record_stream:wait,check:3"},
    {DUCTILE_SCHEDULE_RANDOM, 0, 23, 8, 256 * MIB, true, "record_stream:wait"},
    {DUCTILE_SCHEDULE_LAGGING, 30, 24, 4, 128 * MIB, true, "cross_stream_reuse:wait"},
    {DUCTILE_SCHEDULE_RANDOM, 0, 25, 3, 64 * MIB, true, "cross_stream_reuse:wait"},
    {DUCTILE_SCHEDULE_LAZY, 0, 26, 4, 128 * MIB, true,
     "cross_stream_reuse:wait,record_stream:wait"},
    {DUCTILE_SCHEDULE_RANDOM, 0, 27, 4, 128 * MIB, true,
     "record_stream:wait,cross_stream_reuse:wait,max_handle_bytes:8M"},
};
#define N_GEOMETRIES (sizeof geometries / sizeof geometries[0])

enum { N_SEEDS = IS_SANITIZED ? 1 : 3, N_SEEDS_OF_ALL = 24 }; /* of each geometry */

/* A parameter is an index: tests run in processes of their own, where pointers mean nothing. */
typedef struct which {
    size_t geometry;
    uint64_t seed;
} which;

static churn_setup setup_of(const which *it) {
    const geometry *g = &geometries[it->geometry];
    return (churn_setup){.fixture = {.capacity_bytes = g->capacity_bytes,
                                     .schedule = g->schedule,
                                     .lag = g->lag,
                                     .seed = g->placement_seed,
                                     .n_streams = g->n_streams,
                                     .conf = g->conf},
                         .seed = churn_setting("DUCTILE_TEST_SEED", it->seed),
                         .n_ops = churn_setting("DUCTILE_TEST_OPS", DEFAULT_OPS),
                         .has_contents = g->has_contents,
                         .may_refuse = g->conf != NULL && strstr(g->conf, "max_handle") != NULL};
}

ParameterizedTestParameters(prop_allocator, random_operations_match_the_model) {
    static which parameters[N_GEOMETRIES * N_SEEDS_OF_ALL];
    size_t n = N_GEOMETRIES * (churn_setting("DUCTILE_TEST_ALL", 0) ? N_SEEDS_OF_ALL : N_SEEDS);
    for (size_t i = 0; i < n; i++) {
        parameters[i] = (which){i % N_GEOMETRIES, 1000 + i};
    }
    return cr_make_param_array(which, parameters, n);
}

ParameterizedTest(which *it, prop_allocator, random_operations_match_the_model) {
    churn_setup setup = setup_of(it);
    churn_tally tally;
    const char *why = churn_run(&setup, &tally);
    cr_assert(why == NULL, "geometry %zu, %s", it->geometry, why);
    cr_assert(tally.allocs > setup.n_ops / 10 && tally.frees > setup.n_ops / 10 &&
                  tally.refusals > 0 && (tally.verified > 0 || setup.n_ops < 200),
              "the run did too little to mean anything");
}

/* Handles of several granules cannot be divided: where they fit no place, they have to go back to
 * the driver before a request for the whole device is refused. Runs that found that out. */
Test(prop_allocator, large_handles_give_way_to_the_whole_device) {
    static const uint64_t seeds[] = {10023, 55022, 100023, 125023};
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        which it = {11, seeds[i]};
        churn_setup setup = setup_of(&it);
        setup.seed = seeds[i];
        setup.n_ops = 2500;
        assert_fine(churn_run(&setup, NULL));
    }
}

/* A run is a function of its seed: what a failure prints can be had again. */
Test(prop_allocator, equal_seeds_give_equal_runs) {
    which it = {9, 77};
    churn_setup setup = setup_of(&it);
    setup.n_ops = 400;
    churn_tally first;
    churn_tally second;
    assert_fine(churn_run(&setup, &first));
    assert_fine(churn_run(&setup, &second));
    assert_u64(second.allocs, first.allocs);
    assert_u64(second.refusals, first.refusals);
    assert_u64(second.frees, first.frees);
    assert_u64(second.recycled_handles, first.recycled_handles);
    assert_u64(second.pending_peak_bytes, first.pending_peak_bytes);
}

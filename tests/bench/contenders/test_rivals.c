/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rivals follow PyTorch's published rules to the block: what a rule says is read off the
 * addresses they return; what they hold, by sizes, splits, growth and the cap, is in
 * tests/bench/recordings.txt. On the recorded runs they must need what PyTorch itself needed.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/rival_set.h"
#include "bench/replay/replay_engine.h"
#include "bench/trace/trace_read.h"
#include "vmm/driver/open_virtual.h"

#include <criterion/criterion.h>

#include <ductile_virtual.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* ---- A rival on a virtual GPU of its own --------------------------------------------------- */

typedef struct arena {
    ductile_virtual_gpu *gpu;
    dvmm_driver *driver;
    ductile_stream streams[2];
    const contender_ops *ops;
    void *self;
} arena;

static void open_arena(arena *a, const contender_ops *ops, uint64_t device_bytes,
                       uint64_t capacity_bytes, ductile_schedule schedule) {
    char message[128] = "";
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.capacity_bytes = device_bytes;
    options.schedule = schedule;
    *a = (arena){.ops = ops};
    cr_assert_eq(ductile_virtual_create(&a->gpu, &options), DUCTILE_OK);
    cr_assert_eq(dvmm_open_virtual(a->gpu, &a->driver, NULL, 0), DUCTILE_OK);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(dvmm_stream_create(a->driver, &a->streams[i]), DUCTILE_OK);
    }
    contender_env env = {.driver = a->driver, .gpu = a->gpu, .capacity_bytes = capacity_bytes};
    cr_assert_eq(ops->init(&env, &a->self, message, sizeof message), DUCTILE_OK, "%s", message);
}

/* Ends with the leak gate: a rival that is gone has left nothing behind and made no mistake. */
static void close_arena(arena *a) {
    a->ops->fini(a->self);
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(dvmm_stream_destroy(a->driver, a->streams[i]), DUCTILE_OK);
    }
    ductile_virtual_state state = {.struct_size = sizeof state};
    cr_assert_eq(ductile_virtual_get_state(a->gpu, &state), DUCTILE_OK);
    cr_expect_eq(state.used_bytes, 0);
    cr_expect_eq(state.handles, 0);
    cr_expect_eq(state.mappings, 0);
    cr_expect_eq(state.reservations, 0);
    cr_expect_eq(state.allocations, 0);
    cr_expect_eq(state.events, 0);
    cr_expect_eq(state.violations, 0);
    dvmm_close(a->driver);
    ductile_virtual_destroy(a->gpu);
}

static ductile_addr take_on(arena *a, uint64_t size, int stream) {
    ductile_addr address = 0;
    ductile_status status = a->ops->alloc(a->self, size, a->streams[stream], &address);
    cr_assert_eq(status, DUCTILE_OK, "%s", ductile_status_name(status));
    cr_assert_eq(address % DUCTILE_ALIGNMENT, 0);
    return address;
}

static ductile_addr take(arena *a, uint64_t size) {
    return take_on(a, size, 0);
}

static void give(arena *a, ductile_addr address) {
    cr_assert_eq(a->ops->free(a->self, address), DUCTILE_OK);
}

static contender_stats stats_of(arena *a) {
    contender_stats stats = {0};
    a->ops->stats(a->self, &stats);
    return stats;
}

static uint64_t held(arena *a) {
    return stats_of(a).reserved_bytes;
}

/* ---- Containers ---------------------------------------------------------------------------- */

Test(rival_set, finds_the_first_key_at_or_above) {
    enum { N = 2000 };
    rival_set set = {0};
    rival_node *nodes = calloc(N, sizeof *nodes);
    for (uint64_t i = 0; i < N; i++) {
        uint64_t key = i * 7919 % N; /* a permutation: 7919 is prime */
        rival_set_insert(&set, &nodes[key], 2 * key, key);
    }
    for (uint64_t key = 0; key < N; key += 3) {
        rival_set_remove(&set, &nodes[key]);
    }
    for (uint64_t wanted = 0; wanted < 2 * N; wanted++) {
        uint64_t key = (wanted + 1) / 2;
        key += key % 3 == 0;
        rival_node *found = rival_set_find_at_least(&set, wanted, 0);
        cr_assert(found == (key < N ? &nodes[key] : NULL), "key %llu", (unsigned long long)wanted);
    }
    uint64_t n = 0;
    uint64_t last = 0;
    for (rival_node *at = rival_set_find_first(&set); at != NULL; at = rival_set_find_next(at)) {
        cr_assert(n == 0 || at->major > last);
        last = at->major;
        n++;
    }
    cr_assert_eq(n, N - (N + 2) / 3);
    free(nodes);
}

/* ---- Rules of both ------------------------------------------------------------------------- */

static const contender_ops *const caching[] = {&contender_classic, &contender_expandable};

enum { N_CACHING = sizeof caching / sizeof caching[0] };

/* What holds for each of the caching ones, or for one: on a device of so many bytes and that
 * schedule, under a cap. Body: of a function that gets the arena. */
#define IN_ARENAS(suite, name, first, n, device_bytes, cap, schedule)                              \
    static void suite##_##name(arena *a);                                                          \
    Test(suite, name) {                                                                            \
        for (const contender_ops *const *ops = (first); ops < (first) + (n); ops++) {              \
            arena a;                                                                               \
            open_arena(&a, *ops, device_bytes, cap, DUCTILE_SCHEDULE_##schedule);                  \
            suite##_##name(&a);                                                                    \
            close_arena(&a);                                                                       \
        }                                                                                          \
    }                                                                                              \
    static void suite##_##name(arena *a)

static const contender_ops *const only_expandable[] = {&contender_expandable};
static const contender_ops *const only_cumemalloc[] = {&contender_cumemalloc};
#define OF_BOTH(name, schedule) IN_ARENAS(rivals, name, caching, N_CACHING, GIB, 0, schedule)
#define OF_BOTH_UNDER(name, cap) IN_ARENAS(rivals, name, caching, N_CACHING, GIB, cap, EAGER)
#define OF(contender, name, cap) IN_ARENAS(contender, name, only_##contender, 1, GIB, cap, EAGER)

OF_BOTH(round_requests_to_512_bytes, EAGER) {
    ductile_addr first = take(a, 1);
    ductile_addr second = take(a, 513);
    ductile_addr third = take(a, 512);
    cr_expect_eq(second, first + 512);
    cr_expect_eq(third, second + 1024);
}

OF_BOTH(zero_bytes_are_no_block, EAGER) {
    cr_expect_eq(take(a, 0), 0);
    give(a, 0);
    cr_expect_eq(held(a), 0);
}

OF_BOTH(a_second_free_is_refused, EAGER) {
    ductile_addr block = take(a, MIB);
    give(a, block);
    cr_expect_eq(a->ops->free(a->self, block), DUCTILE_ERR_NOT_LIVE);
}

OF_BOTH(best_fit_takes_the_smallest_hole_and_the_lowest_among_equals, EAGER) {
    ductile_addr holes[4];
    const uint64_t sizes[4] = {8 * KIB, 4 * KIB, 4 * KIB, 6 * KIB};
    for (int h = 0; h < 4; h++) {
        holes[h] = take(a, sizes[h]);
        (void)take(a, KIB); /* keeps the holes apart */
    }
    for (int h = 0; h < 4; h++) {
        give(a, holes[h]);
    }
    cr_expect_eq(take(a, 4 * KIB), holes[1]);
    cr_expect_eq(take(a, 4 * KIB), holes[2]);
    cr_expect_eq(take(a, 5 * KIB), holes[3]);
}

OF_BOTH(free_neighbours_merge, EAGER) {
    ductile_addr blocks[4];
    for (int b = 0; b < 4; b++) {
        blocks[b] = take(a, 256 * KIB);
    }
    give(a, blocks[0]);
    give(a, blocks[2]);
    give(a, blocks[1]);
    cr_expect_eq(take(a, 768 * KIB), blocks[0]);
    cr_expect_eq(held(a), 2 * MIB);
}

/* ---- Other streams ------------------------------------------------------------------------- */

OF_BOTH(a_block_used_elsewhere_waits_for_that_work, LAZY) {
    ductile_addr block = take(a, 12 * MIB);
    cr_assert_eq(ductile_virtual_launch(a->gpu, a->streams[1], NULL, 0), DUCTILE_OK);
    cr_assert_eq(a->ops->record_stream(a->self, block, a->streams[1]), DUCTILE_OK);
    give(a, block);
    cr_expect_neq(take(a, 12 * MIB), block);
    cr_assert_eq(ductile_virtual_stream_sync(a->gpu, a->streams[1]), DUCTILE_OK);
    cr_expect_eq(take(a, 12 * MIB), block);
}

OF_BOTH(recording_the_own_stream_changes_nothing, LAZY) {
    ductile_addr block = take(a, 12 * MIB);
    cr_assert_eq(ductile_virtual_launch(a->gpu, a->streams[0], NULL, 0), DUCTILE_OK);
    cr_assert_eq(a->ops->record_stream(a->self, block, a->streams[0]), DUCTILE_OK);
    give(a, block);
    cr_expect_eq(take(a, 12 * MIB), block);
}

/* ---- Expandable: handles, growth, the cap -------------------------------------------------- */

/* The tail's own size is the better fit, but it could grow: inner holes come first. */
OF(expandable, prefers_a_hole_to_the_tail, 0) {
    ductile_addr hole = take(a, 8 * MIB);
    (void)take(a, 8 * MIB);
    give(a, hole); /* the hole has 8 MiB, the tail 4 */
    cr_expect_eq(take(a, 3 * MIB), hole);
}

OF(expandable, at_the_cap_free_handles_go_back_with_a_wait_and_their_addresses_are_refilled,
   100 * MIB) {
    ductile_addr low = take(a, 40 * MIB);
    ductile_addr high = take(a, 20 * MIB);
    give(a, low);
    cr_expect_eq(stats_of(a).stream_syncs, 0);
    ductile_addr big = take(a, 60 * MIB); /* 60 held, 40 of them free: only a flush makes room */
    cr_expect(big > high);
    cr_expect_eq(held(a), 80 * MIB);
    cr_expect_eq(stats_of(a).releases, 2);
    cr_expect_geq(stats_of(a).stream_syncs, 1);
    cr_expect_eq(stats_of(a).pressure_waits, 1);
    cr_expect_eq(stats_of(a).pressure_returns, 1);
    cr_expect_eq(stats_of(a).pressure_returned_bytes, 40 * MIB);
    cr_expect_eq(take(a, 20 * MIB), low);
}

OF(expandable, handles_that_are_partly_in_use_stay, 60 * MIB) {
    ductile_addr low = take(a, 30 * MIB);
    (void)take(a, 2 * MIB); /* in the second handle */
    give(a, low);
    cr_assert_eq(a->ops->trim(a->self), DUCTILE_OK);
    cr_expect_eq(held(a), 20 * MIB);
}

OF(expandable, trim_gives_an_empty_segment_and_its_addresses_back, 0) {
    give(a, take(a, 100 * MIB));
    cr_assert_eq(a->ops->trim(a->self), DUCTILE_OK);
    ductile_virtual_state state = {.struct_size = sizeof state};
    cr_assert_eq(ductile_virtual_get_state(a->gpu, &state), DUCTILE_OK);
    cr_expect_eq(state.handles, 0);
    cr_expect_eq(state.reservations, 0);
}

/* ---- Caps ---------------------------------------------------------------------------------- */

OF_BOTH_UNDER(never_hold_more_than_the_cap, 90 * MIB) {
    ductile_addr block = 0;
    while (a->ops->alloc(a->self, 11 * MIB, a->streams[0], &block) == DUCTILE_OK) {
        cr_assert_leq(stats_of(a).reserved_peak_bytes, 90 * MIB);
    }
    cr_expect_gt(held(a), 60 * MIB);
}

IN_ARENAS(rivals, a_full_device_is_out_of_memory_and_stays_usable, caching, N_CACHING, 128 * MIB, 0,
          EAGER) {
    ductile_addr block = 0;
    ductile_addr first = take(a, 100 * MIB);
    cr_expect_eq(a->ops->alloc(a->self, 64 * MIB, a->streams[0], &block),
                 DUCTILE_ERR_OUT_OF_MEMORY);
    give(a, first);
    (void)take_on(a, 64 * MIB, 1); /* another stream: the first one's memory must go back */
}

OF(expandable, a_failing_map_changes_nothing, 0) {
    ductile_addr block = 0;
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "map", .nth = 2, .code = DVMM_UNKNOWN};
    cr_assert_eq(ductile_virtual_inject(a->gpu, &fault), DUCTILE_OK);
    cr_expect_neq(a->ops->alloc(a->self, 50 * MIB, a->streams[0], &block), DUCTILE_OK);
    cr_expect_eq(held(a), 0);
    (void)take(a, 50 * MIB);
    cr_expect_eq(held(a), 60 * MIB);
}

/* ---- Recorded runs ------------------------------------------------------------------------- */

/* What PyTorch 2.11 reserved on an H200 for the recorded runs, in MiB (bench/traces/README.md). */
typedef struct recorded {
    const char *trace;
    uint64_t native;
    uint64_t expandable;
    double tolerance;
} recorded;

static const recorded runs[] = {
    {"gpt2_medium_var_batch_seq", 45788, 33680, 0.015},
    {"llama_1b_lora_recompute", 40228, 18418, 0.015},
    {"resnet50_var_batch_res", 26754, 14234, 0.015},
    {"vit_multistream_record", 22468, 10186, 0.03},
    {"fsdp2_llama", 20488, 13408, 0.015},
};

static trace *load_recorded(const char *name) {
    char path[4096];
    trace_error error;
    (void)snprintf(path, sizeof path, "%s/%s.trace.gz", RECORDED_TRACES, name);
    trace *t = trace_load(path, TRACE_BUSIEST_GPU, &error);
    cr_assert_not_null(t, "%s: %s", path, error.reason);
    return t;
}

static void expect_near(const trace *t, const contender_ops *ops, uint64_t mib, double tolerance) {
    bench_device device;
    char reason[128] = "";
    replay_result result;
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &device, reason, sizeof reason));
    const replay_spec spec = {.trace = t, .device = &device, .contender = ops, .n_passes = 1};
    replay_run(&spec, &result);
    cr_assert_eq(result.outcome, RUN_COMPLETED, "%s", result.message);
    cr_expect_eq(result.violations, 0);
    double ratio = (double)result.total.reserved_peak_bytes / (double)(mib * MIB);
    cr_expect(ratio > 1 - tolerance && ratio < 1 + tolerance, "%s, %s: %.4f of PyTorch's", t->name,
              ops->name, ratio);
}

Test(rivals, reserve_what_pytorch_reserved_for_recorded_runs) {
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        trace *t = load_recorded(runs[i].trace);
        expect_near(t, &contender_classic, runs[i].native, runs[i].tolerance);
        expect_near(t, &contender_expandable, runs[i].expandable, runs[i].tolerance);
        trace_free(t);
    }
}

/* ---- The driver's own ---------------------------------------------------------------------- */

OF(cumemalloc, live_blocks_do_not_outlive_it, 0) {
    for (int i = 0; i < 100; i++) {
        (void)take(a, 3 * KIB);
    }
}

Test(cumemallocasync, is_absent_where_the_device_has_no_such_pool) {
    dvmm_driver *driver = NULL;
    void *self = NULL;
    char message[128] = "";
    cr_assert_eq(dvmm_open_virtual(NULL, &driver, NULL, 0), DUCTILE_OK);
    contender_env env = {.driver = driver};
    cr_assert_not(dvmm_get_caps(driver)->has_async_pool);
    cr_expect_eq(contender_cumemallocasync.init(&env, &self, message, sizeof message),
                 DUCTILE_ERR_UNSUPPORTED);
    cr_expect_null(self);
    cr_expect_neq(message[0], '\0');
    dvmm_close(driver);
}

Test(contenders, have_names_of_their_own_which_are_those_of_the_list) {
#define NAME_OF(name, title) #name,
    static const char *const names[] = {DUCTILE_CONTENDERS_MAP(NAME_OF)};
    for (size_t n = 0; n < N_CONTENDERS; n++) {
        cr_expect_str_eq(all_contenders[n]->name, names[n]);
        for (size_t i = 0; i < n; i++) {
            cr_expect_str_neq(names[i], names[n]);
        }
    }
    cr_expect_null(all_contenders[N_CONTENDERS]);
}

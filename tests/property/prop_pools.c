/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever a program does with private pools, in whatever order the device
 * completes its work: no two blocks share memory, paused or not, contents come
 * back, every statistic can be recounted, and in the end nothing is left.
 * Random operations on a few pools of both kinds and on no pool, against the
 * model; each seed is a test of its own.
 *
 * DUCTILE_TEST_SEED=n runs every geometry with that seed, DUCTILE_TEST_OPS=n so
 * many operations.
 */
#include "tests/support/churn.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/numbered.h"
#include "tests/support/rng.h"
#include "tests/support/world.h"

#define N_POOLS 4 /* even ones are plain */
#define N_STREAMS 3
#define DEFAULT_OPS 1500
#define N_SEEDS 4

typedef struct play {
    world w;
    rng r;
    bool is_held[N_POOLS]; /* by a reference of ours */
    bool is_paused[N_POOLS];
    uint64_t n_pauses, n_resumes, n_refused;
} play;

static ductile_pool_id id_of(size_t i) {
    return (ductile_pool_id){i % 2 == 0 ? 0 : i + 1, i % 2 == 0 ? i + 1 : 0};
}

static const char *hold(play *p, size_t i) {
    NEED_OK(ductile_pool_retain(p->w.f.allocator, id_of(i)));
    p->is_held[i] = true;
    if (i % 2 == 0) {
        ductile_status status =
            ductile_pool_set_kind(p->w.f.allocator, id_of(i), DUCTILE_POOL_PLAIN);
        NEED(status == DUCTILE_OK || status == DUCTILE_ERR_BUSY, "set_kind: %s",
             ductile_status_name(status));
    }
    return NULL;
}

/* The pool that the block at index k of the model came from; N_POOLS for none.
 */
static const char *pool_of(play *p, size_t k, size_t *out) {
    ductile_block_info info = {.struct_size = sizeof info};
    NEED_OK(ductile_query_block(p->w.f.allocator, p->w.m.blocks[k].address, &info));
    for (*out = 0; *out < N_POOLS; (*out)++) {
        if (id_of(*out).first == info.pool.first && id_of(*out).second == info.pool.second) {
            bool is_paused = info.state == DUCTILE_BLOCK_PAUSED;
            NEED(is_paused == p->is_paused[*out], "block %llx is in state %d", info.address,
                 (int)info.state);
            return NULL;
        }
    }
    return NULL;
}

/* To the device, blocks are live unless paused. */
static const char *announce(play *p, size_t pool, bool live) {
    for (size_t k = 0; k < p->w.m.n; k++) {
        const model_block *b = &p->w.m.blocks[k];
        size_t its = N_POOLS;
        TRY(pool_of(p, k, &its));
        if (its == pool && live) {
            ductile_virtual_block_begin(p->w.f.gpu, b->address, b->size);
        } else if (its == pool) {
            ductile_virtual_block_end(p->w.f.gpu, b->address);
        }
    }
    return NULL;
}

/* A paused pool that nobody holds goes with its last block; this one of its
 * name is a new one. */
static const char *note_if_gone(play *p, size_t i) {
    ductile_pool_info info = {.struct_size = sizeof info};
    NEED_OK(ductile_pool_query(p->w.f.allocator, id_of(i), &info));
    NEED(p->is_paused[i] || !info.paused, "a pool is paused by itself");
    p->is_paused[i] = info.paused != 0;
    return NULL;
}

/* ---- Operations
 * ----------------------------------------------------------------------------
 */

static const char *alloc_any(play *p) {
    ductile_allocator *a = p->w.f.allocator;
    size_t i = (size_t)rng_below(&p->r, N_POOLS + 1);
    uint64_t size = rng_percent(&p->r, 60) ? rng_between(&p->r, 1, 60000)
                                           : rng_between(&p->r, 1, 4 * FIXTURE_GRANULE);
    size_t stream = (size_t)rng_below(&p->r, N_STREAMS);
    if (i == N_POOLS) {
        return world_alloc(&p->w, size, stream);
    }
    NEED_OK(ductile_pool_begin(a, id_of(i), NULL, NULL));
    TRY(note_if_gone(p, i));
    if (p->is_paused[i]) {
        ductile_addr address = 1;
        ductile_status status = ductile_alloc(a, size, p->w.f.streams[stream], &address);
        NEED(status == DUCTILE_ERR_BUSY && address == 0, "alloc in a paused pool: %s",
             ductile_status_name(status));
    } else {
        TRY(world_alloc(&p->w, size, stream));
    }
    NEED_OK(ductile_pool_end(a, id_of(i)));
    NEED_OK(ductile_pool_release(a, id_of(i)));
    return NULL;
}

static const char *free_any(play *p) {
    if (p->w.m.n == 0) {
        return NULL;
    }
    size_t k = (size_t)rng_below(&p->r, p->w.m.n);
    size_t pool = N_POOLS;
    TRY(pool_of(p, k, &pool));
    bool is_paused = pool < N_POOLS && p->is_paused[pool];
    if (!is_paused && rng_percent(&p->r, 20)) {
        TRY(world_verify(&p->w, k));
    }
    if (!is_paused && rng_percent(&p->r, 25)) {
        TRY(world_use_on(&p->w, k, (size_t)rng_below(&p->r, N_STREAMS)));
    }
    return world_free(&p->w, k);
}

static const char *hold_or_release(play *p) {
    size_t i = (size_t)rng_below(&p->r, N_POOLS);
    if (!p->is_held[i]) {
        TRY(hold(p, i));
        return note_if_gone(p, i);
    }
    NEED_OK(ductile_pool_release(p->w.f.allocator, id_of(i)));
    p->is_held[i] = false;
    return NULL;
}

static const char *trim_any(play *p) {
    size_t i = (size_t)rng_below(&p->r, N_POOLS + 1);
    if (i == N_POOLS) {
        return world_trim(&p->w, rng_below(&p->r, p->w.f.capacity_bytes));
    }
    ductile_status status = ductile_pool_trim(p->w.f.allocator, id_of(i), NULL);
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_INVALID_ARGUMENT, "pool_trim: %s",
         ductile_status_name(status));
    return NULL;
}

static const char *resume(play *p, size_t i) {
    ductile_status status = ductile_resume(p->w.f.allocator, id_of(i));
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        p->n_refused++;
        return NULL;
    }
    if (status == DUCTILE_ERR_INVALID_ARGUMENT) {
        p->is_paused[i] = false; /* gone, as above */
        return NULL;
    }
    NEED_OK(status);
    p->is_paused[i] = false;
    p->n_resumes++;
    return announce(p, i, true);
}

static const char *pause_or_resume(play *p) {
    size_t i = (size_t)rng_below(&p->r, N_POOLS);
    if (p->is_paused[i]) {
        return resume(p, i);
    }
    TRY(announce(p, i, false));
    ductile_status status = ductile_pause(p->w.f.allocator, id_of(i), DUCTILE_PAUSE_KEEP_CONTENTS);
    if (status == DUCTILE_ERR_INVALID_ARGUMENT) {
        return NULL; /* there is no such pool now */
    }
    NEED_OK(status);
    p->is_paused[i] = true;
    p->n_pauses++;
    return NULL;
}

static bool is_any_paused(const play *p) {
    bool is_any = false;
    for (size_t i = 0; i < N_POOLS; i++) {
        is_any |= p->is_paused[i];
    }
    return is_any;
}

static const char *audit(play *p) {
    char report[512] = "";
    NEED(ductile_check(p->w.f.allocator, report, sizeof report) == DUCTILE_OK, "check: %s", report);
    return is_any_paused(p) ? NULL : world_audit(&p->w);
}

static const char *one_operation(play *p) {
    uint64_t dice = rng_below(&p->r, 100);
    if (dice < 45) {
        return alloc_any(p);
    }
    if (dice < 82) {
        return free_any(p);
    }
    if (dice < 86) {
        return hold_or_release(p);
    }
    if (dice < 89) {
        return trim_any(p);
    }
    if (dice < 93) {
        return pause_or_resume(p);
    }
    if (dice < 96) {
        return audit(p);
    }
    ductile_virtual_advance(p->w.f.gpu, rng_between(&p->r, 1, 20));
    return NULL;
}

/* ---- The play
 * ------------------------------------------------------------------------------
 */

static const char *release_all(play *p) {
    for (size_t i = 0; i < N_POOLS; i++) {
        if (p->is_held[i]) {
            NEED_OK(ductile_pool_release(p->w.f.allocator, id_of(i)));
            p->is_held[i] = false;
        }
    }
    return NULL;
}

/* Blocks make room for those that are paused, and so do pools of graphs that are gone. */
static const char *resume_all(play *p) {
    TRY(release_all(p));
    for (size_t i = 0; i < N_POOLS; i++) {
        while (p->is_paused[i]) {
            TRY(resume(p, i));
            if (p->is_paused[i]) {
                NEED(p->w.m.n > 0, "nothing is live, and there is no memory for a pool");
                TRY(free_any(p));
            }
        }
    }
    return NULL;
}

static const char *end(play *p) {
    TRY(resume_all(p));
    TRY(world_verify_all(&p->w));
    TRY(audit(p));
    TRY(world_free_all(&p->w));
    TRY(fixture_sync_all(&p->w.f));
    NEED_OK(ductile_empty_cache(p->w.f.allocator));
    NEED(fixture_stats(p->w.f.allocator).reserved_bytes == 0, "memory is held with nothing alive");
    NEED(fixture_stats(p->w.f.allocator).arenas == 0, "streams are known with nothing alive");
    return world_close(&p->w);
}

static const char *run(play *p, uint64_t n_ops) {
    for (size_t i = 0; i < N_POOLS; i++) {
        TRY(hold(p, i));
    }
    for (uint64_t n = 0; n < n_ops; n++) {
        const char *why = one_operation(p);
        NEED(why == NULL, "operation %llu: %s", (unsigned long long)n, why);
    }
    NEED(p->n_pauses > 3 && p->n_resumes > 3, "hardly anything was paused");
    return end(p);
}

static const fixture_setup setups[] = {
    {.capacity_bytes = 64 * MIB, .schedule = DUCTILE_SCHEDULE_LAZY},
    {.capacity_bytes = 128 * MIB, .schedule = DUCTILE_SCHEDULE_RANDOM, .seed = 31},
    {.capacity_bytes = 64 * MIB, .schedule = DUCTILE_SCHEDULE_LAGGING, .lag = 9},
    {.capacity_bytes = 96 * MIB,
     .schedule = DUCTILE_SCHEDULE_RANDOM,
     .seed = 32,
     .conf = "max_handle_bytes:8M"},
    {.capacity_bytes = 96 * MIB, .schedule = DUCTILE_SCHEDULE_LAZY, .conf = "record_stream:wait"},
};
#define N_SETUPS (sizeof setups / sizeof setups[0])

ParameterizedTestParameters(prop_pools, random_operations_match_the_model) {
    return numbered(0, N_SETUPS * N_SEEDS);
}

ParameterizedTest(uint64_t *it, prop_pools, random_operations_match_the_model) {
    static play p;
    fixture_setup setup = setups[*it / N_SEEDS];
    setup.n_streams = N_STREAMS;
    uint64_t seed = churn_setting("DUCTILE_TEST_SEED", 5000 + *it);
    p.r = rng_seeded(seed);
    assert_fine(world_open(&p.w, &setup, true));
    p.w.may_refuse = true; /* memory of capture pools is nobody else's */
    const char *why = run(&p, churn_setting("DUCTILE_TEST_OPS", DEFAULT_OPS));
    cr_assert(why == NULL, "setup %zu, seed %llu, %s", (size_t)*it / N_SEEDS,
              (unsigned long long)seed, why);
}

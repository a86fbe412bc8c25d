/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small programs that are known to fragment other allocators, from public reports, as claims about
 * what Ductile holds against what they use. Where a rival is known to fail, that is a claim too:
 * a reproducer that nothing stumbles over reproduces nothing.
 */
#include "bench/replay/stage.h"
#include "tests/support/rng.h"
#include "vmm/base/align.h"

#include <criterion/criterion.h>

#include <stdlib.h>

#define GIB (1024 * DTI_MIB)
#define GRANULE (2 * DTI_MIB)

enum { MOST_BLOCKS = 8192 };

typedef struct block {
    ductile_addr address;
    uint64_t size;
} block;

/* One program under one contender. */
typedef struct program {
    bench_device device;
    stage stage;
    block blocks[MOST_BLOCKS]; /* live, in no order */
    size_t n_blocks;
    uint64_t live, live_peak;
    uint64_t n_refused;
} program;

static program now;

/* The sizes of handles: DUCTILE_CONF of Ductile, NULL for the default. */
static void start_with(const contender_ops *contender, uint64_t capacity, const char *setting) {
    char reason[256] = "";
    const char *const settings[] = {setting};
    now = (program){0};
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &now.device, reason, sizeof reason));
    const stage_plan plan = {.device = &now.device,
                             .contender = contender,
                             .capacity_bytes = capacity,
                             .n_streams = 2,
                             .settings = settings,
                             .n_settings = setting != NULL};
    cr_assert_eq(stage_open(&now.stage, &plan, reason, sizeof reason), DUCTILE_OK, "%s", reason);
}

static void start(const contender_ops *contender, uint64_t capacity) {
    start_with(contender, capacity, NULL);
}

static contender_stats stats(void) {
    contender_stats s = {0};
    now.stage.ops->stats(now.stage.contender, &s);
    return s;
}

static double efficiency(void) {
    return (double)now.live_peak / (double)stats().reserved_peak_bytes;
}

/* False: out of memory. */
static bool take_on(size_t stream, uint64_t size) {
    block *b = &now.blocks[now.n_blocks];
    cr_assert_lt(now.n_blocks, MOST_BLOCKS);
    ductile_status status =
        now.stage.ops->alloc(now.stage.contender, size, now.stage.streams[stream], &b->address);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        now.n_refused++;
        return false;
    }
    cr_assert_eq(status, DUCTILE_OK, "%s", ductile_status_string(status));
    b->size = size;
    now.n_blocks++;
    now.live += size;
    now.live_peak = now.live > now.live_peak ? now.live : now.live_peak;
    return true;
}

static bool take(uint64_t size) {
    return take_on(0, size);
}

/* The last one takes its place. */
static void give(size_t index) {
    block *b = &now.blocks[index];
    cr_assert_lt(index, now.n_blocks);
    cr_assert_eq(now.stage.ops->free(now.stage.contender, b->address), DUCTILE_OK);
    now.live -= b->size;
    *b = now.blocks[--now.n_blocks];
}

static void give_all(void) {
    while (now.n_blocks > 0) {
        give(now.n_blocks - 1);
    }
}

/* Ends the program; what it leaves is freed, and the device has nothing to complain about. */
static void end(void) {
    ductile_virtual_state state = {.struct_size = sizeof state};
    give_all();
    stage_end_contender(&now.stage);
    cr_assert_eq(ductile_virtual_get_state(now.stage.gpu, &state), DUCTILE_OK);
    cr_expect_eq(state.violations, 0);
    cr_expect_eq(state.used_bytes, 0, "%llu bytes are left", (unsigned long long)state.used_bytes);
    stage_close(&now.stage);
}

/* ---- A block that stays between two that go (pytorch#193400) --------------------------------- */

static void run_cycles(const contender_ops *contender) {
    start(contender, 16 * GIB);
    for (int i = 0; i < 100; i++) {
        size_t first = now.n_blocks;
        cr_assert(take(91 * DTI_MIB));
        cr_assert(take(91 * DTI_MIB / 2));
        cr_assert(take(2 * DTI_MIB));
        give(first); /* the 2 MiB block takes its index */
        give(first + 1);
    }
    cr_assert_eq(now.live, 200 * DTI_MIB);
}

Test(reproducers, blocks_that_stay_do_not_keep_others_from_being_used_again) {
    run_cycles(&contender_ductile);
    cr_expect_gt(efficiency(), 0.99, "%f", efficiency());
    end();
    run_cycles(&contender_expandable); /* one of the two options alone stays below 500 MiB */
    cr_expect_lt(stats().reserved_peak_bytes, 500 * DTI_MIB);
    end();
}

/* ---- Batches that grow a little, three under way (torchrec#4584) ------------------------------
 */

static void run_pipeline(const contender_ops *contender) {
    enum { STEPS = 60, PARTS = 8, UNDER_WAY = 3 };
    start(contender, 0);
    cr_assert(take(48 * GIB)); /* tables */
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint64_t part = 0; part < PARTS; part++) {
            cr_assert(take((900 + 5 * step + 37 * part) * DTI_MIB));
        }
        for (uint64_t part = 0; step >= UNDER_WAY && part < PARTS; part++) {
            size_t oldest = 1; /* a step's blocks are smaller than those of the steps after it */
            for (size_t i = 2; i < now.n_blocks; i++) {
                oldest = now.blocks[i].size < now.blocks[oldest].size ? i : oldest;
            }
            give(oldest);
        }
    }
}

Test(reproducers, batches_that_never_fit_where_the_last_one_was_strand_nothing) {
    run_pipeline(&contender_ductile);
    cr_expect_gt(efficiency(), 0.99, "%f", efficiency());
    end();
    run_pipeline(&contender_classic);
    cr_expect_lt(efficiency(), 0.9, "classic does not stumble: %f", efficiency());
    end();
}

/* ---- VPMM's example: +10 GB, +1, -10, +4, +11 -------------------------------------------------
 */

static bool walk(const contender_ops *contender, uint64_t capacity) {
    start(contender, capacity);
    bool ok = take(10 * GIB) && take(1 * GIB);
    if (ok) {
        give(0);
    }
    return ok && take(4 * GIB) && take(11 * GIB);
}

Test(reproducers, free_memory_serves_a_larger_request_behind_a_block_that_stays) {
    cr_expect(walk(&contender_ductile, 16 * GIB), "out of memory with exactly what is in use");
    cr_expect_eq(stats().reserved_peak_bytes, 16 * GIB);
    end();
    cr_expect(walk(&contender_expandable, 0));
    cr_expect_geq(stats().reserved_peak_bytes, 22 * GIB - 64 * DTI_MIB, "growth only");
    end();
    cr_expect_not(walk(&contender_classic, 16 * GIB), "classic does not stumble");
    end();
}

/* ---- Large blocks, more than three times the device in all (rmm#1245) -------------------------
 */

/* Requests that fit with 3 % to spare. */
static void run_attachments(const contender_ops *contender, uint64_t seed) {
    const uint64_t capacity = 80 * GIB;
    rng dice = rng_seeded(seed);
    uint64_t churned = 0;
    start(contender, capacity);
    while (churned < 300 * GIB) {
        uint64_t size = 110 * DTI_MIB + rng_below(&dice, 40) * rng_below(&dice, 160) * DTI_MIB +
                        rng_below(&dice, DTI_MIB);
        while (now.live + size > capacity / 100 * 97) {
            give((size_t)rng_below(&dice, now.n_blocks));
        }
        churned += take(size) ? size : 0;
        if (now.n_refused > 20) {
            break;
        }
    }
}

Test(reproducers, large_blocks_never_run_out_while_they_fit) {
    for (uint64_t seed = 1; seed <= 3; seed++) {
        run_attachments(&contender_ductile, seed);
        cr_expect_eq(now.n_refused, 0, "seed %llu", (unsigned long long)seed);
        end();
    }
    run_attachments(&contender_classic, 1);
    cr_expect_gt(now.n_refused, 0, "classic does not stumble");
    end();
}

/* ---- Two streams take turns with all of the device (rmm#2039) ---------------------------------
 */

Test(reproducers, what_one_stream_has_freed_serves_another) {
    const uint64_t capacity = 8 * GIB;
    start(&contender_ductile, capacity);
    for (int turn = 0; turn < 6; turn++) {
        for (int i = 0; i < 31; i++) {
            cr_assert(take_on((size_t)turn % 2, 256 * DTI_MIB), "turn %d, block %d", turn, i);
        }
        give_all();
    }
    cr_expect_leq(stats().reserved_peak_bytes, capacity);
    cr_expect_lt(stats().releases, 64, "memory went through the driver instead");
    end();
}

/* ---- 60 GiB, then 70 GiB, of 80 (pytorch#159674) -----------------------------------------------
 */

Test(reproducers, a_larger_request_takes_the_memory_of_the_last) {
    start(&contender_ductile, 80 * GIB);
    cr_assert(take(60 * GIB));
    give_all();
    cr_assert(take(70 * GIB));
    cr_expect_eq(stats().reserved_peak_bytes, 70 * GIB, "handles are not used again");
    end();
}

/* ---- One small block of many stays in each granule (kvcached) ----------------------------------
 */

static void keep_one_of(uint64_t k) {
    enum { BLOCKS = 4096 };
    const uint64_t size = 16 << 10;
    uint64_t granules = 0;
    uint64_t last = UINT64_MAX;
    start_with(&contender_ductile, 0, "sizes=tight");
    for (uint64_t i = 0; i < BLOCKS; i++) {
        cr_assert(take(size));
    }
    ductile_addr kept[BLOCKS];
    size_t n_kept = 0;
    for (uint64_t i = 0; i < BLOCKS; i += k) {
        kept[n_kept++] = now.blocks[i].address;
    }
    for (size_t i = BLOCKS; i > 0; i--) {
        if ((i - 1) % k != 0) {
            give(i - 1);
        }
    }
    for (size_t i = 0; i < n_kept; i++) { /* ascending: they were allocated in one go */
        granules += kept[i] / GRANULE != last;
        last = kept[i] / GRANULE;
    }
    cr_assert_eq(now.stage.ops->trim(now.stage.contender), DUCTILE_OK);
    cr_expect_eq(stats().reserved_bytes, granules * GRANULE, "keeping 1 of %llu",
                 (unsigned long long)k);
    end();
}

Test(reproducers, only_granules_with_a_live_block_are_kept) {
    keep_one_of(1);
    keep_one_of(64);
    keep_one_of(128);
    keep_one_of(1024);
}

/* ---- RMM's random_allocations ------------------------------------------------------------------
 */

/* Up to so many per cent of the device are in use. */
static void run_random(uint64_t max_size, uint64_t seed, uint64_t percent, const char *setting) {
    const uint64_t capacity = 16 * GIB;
    rng dice = rng_seeded(seed);
    start_with(&contender_ductile, capacity, setting);
    for (int i = 0; i < 6000; i++) {
        uint64_t size = 1 + rng_below(&dice, max_size);
        bool is_full =
            now.live + size > capacity / 100 * percent || now.n_blocks == MOST_BLOCKS - 1;
        if (now.n_blocks > 0 && (is_full || rng_below(&dice, 5) < 2)) {
            give((size_t)rng_below(&dice, now.n_blocks));
        } else if (!is_full) {
            (void)take(size);
        }
    }
}

Test(reproducers, random_sizes_never_run_out_while_they_fit) {
    static const uint64_t max_sizes[] = {DTI_MIB, 4 * DTI_MIB, 64 * DTI_MIB, 256 * DTI_MIB, GIB};
    for (size_t i = 0; i < sizeof max_sizes / sizeof max_sizes[0]; i++) {
        run_random(max_sizes[i], i + 1, 97, "sizes=tight");
        cr_expect_eq(now.n_refused, 0, "sizes up to %llu", (unsigned long long)max_sizes[i]);
        cr_expect_gt(efficiency(), 0.95, "%f", efficiency());
        end();
        run_random(max_sizes[i], i + 1, 94, NULL);
        cr_expect_eq(now.n_refused, 0, "sizes up to %llu", (unsigned long long)max_sizes[i]);
        end();
    }
}

/* ---- A shape, then a larger one (pytorch#1529) --------------------------------------------------
 */

/* In every layer of the first shape a little state is put where a temporary was, so that it ends
 * up beside the activation. Only the state stays. */
static bool change_shape(const contender_ops *contender, uint64_t capacity) {
    enum { LAYERS = 40 };
    start(contender, capacity);
    for (int i = 0; i < LAYERS; i++) {
        if (!take(195 * DTI_MIB)) {
            return false;
        }
        give(now.n_blocks - 1);
        if (!take(3 * DTI_MIB) || !take(192 * DTI_MIB)) {
            return false;
        }
    }
    for (size_t i = now.n_blocks; i > 0; i--) {
        if (now.blocks[i - 1].size > 3 * DTI_MIB) {
            give(i - 1);
        }
    }
    for (int i = 0; i < LAYERS; i++) {
        if (!take(211 * DTI_MIB)) {
            return false;
        }
    }
    return true;
}

Test(reproducers, a_larger_shape_fits_where_a_smaller_one_was) {
    const uint64_t used = 40 * (211 + 3) * DTI_MIB;
    cr_expect(change_shape(&contender_ductile, used / 98 * 100));
    end();
    cr_expect_not(change_shape(&contender_classic, used / 98 * 100), "classic does not stumble");
    end();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small programs that are known to fragment other allocators, from public reports, as claims about
 * what Ductile holds against what they use. Where another allocator is known to fail, that is a
 * claim too: a reproducer that nothing stumbles over reproduces nothing. Those of a few lines are
 * in tests/bench/recordings.txt.
 */
#include "tests/bench/program.h"
#include "tests/support/rng.h"

#define GRANULE (2 * MIB)

static bool fits(uint64_t size) {
    return try_take(size, 0) != 0;
}

static double efficiency(void) {
    return (double)now.live_peak / (double)stats().reserved_peak_bytes;
}

/* ---- A block that stays between two that go (pytorch#193400) --------------------------------- */

static void run_cycles(const contender_ops *contender) {
    start(contender, 16 * GIB);
    for (int i = 0; i < 100; i++) {
        size_t first = now.n_blocks;
        (void)take(91 * MIB);
        (void)take(91 * MIB / 2);
        (void)take(2 * MIB);
        give_at(first); /* the 2 MiB block takes its index */
        give_at(first + 1);
    }
    cr_assert_eq(now.live, 200 * MIB);
}

Test(reproducers, blocks_that_stay_do_not_keep_others_from_being_used_again) {
    run_cycles(&contender_ductile);
    cr_expect_gt(efficiency(), 0.99, "%f", efficiency());
    end();
    run_cycles(&contender_expandable); /* one of the two options alone stays below 500 MiB */
    cr_expect_lt(stats().reserved_peak_bytes, 500 * MIB);
    end();
}

/* ---- Batches that grow a little, three under way (torchrec#4584) ---------------------------- */

static void run_pipeline(const contender_ops *contender) {
    enum { STEPS = 60, PARTS = 8, UNDER_WAY = 3 };
    start(contender, 0);
    (void)take(48 * GIB); /* tables */
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint64_t part = 0; part < PARTS; part++) {
            (void)take((900 + 5 * step + 37 * part) * MIB);
        }
        for (uint64_t part = 0; step >= UNDER_WAY && part < PARTS; part++) {
            size_t oldest = 1; /* a step's blocks are smaller than those of the steps after it */
            for (size_t i = 2; i < now.n_blocks; i++) {
                oldest = now.blocks[i].size < now.blocks[oldest].size ? i : oldest;
            }
            give_at(oldest);
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

/* ---- Large blocks, more than three times the device in all (rmm#1245) ----------------------- */

/* Requests that fit with 3 % to spare. */
static void run_attachments(const contender_ops *contender, uint64_t seed) {
    const uint64_t capacity = 80 * GIB;
    rng dice = rng_seeded(seed);
    uint64_t churned = 0;
    start(contender, capacity);
    while (churned < 300 * GIB) {
        uint64_t size =
            110 * MIB + rng_below(&dice, 40) * rng_below(&dice, 160) * MIB + rng_below(&dice, MIB);
        while (now.live + size > capacity / 100 * 97) {
            give_at((size_t)rng_below(&dice, now.n_blocks));
        }
        churned += fits(size) ? size : 0;
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

/* ---- Two streams take turns with all of the device (rmm#2039) ------------------------------- */

Test(reproducers, what_one_stream_has_freed_serves_another) {
    const uint64_t capacity = 8 * GIB;
    start(&contender_ductile, capacity);
    for (int turn = 0; turn < 6; turn++) {
        for (int i = 0; i < 31; i++) {
            cr_assert(try_take(256 * MIB, (size_t)turn % 2) != 0, "turn %d, block %d", turn, i);
        }
        give_all();
    }
    cr_expect_leq(stats().reserved_peak_bytes, capacity);
    cr_expect_lt(stats().releases, 64, "memory went through the driver instead");
    end();
}

/* ---- One small block of many stays in each granule (kvcached) ------------------------------- */

static void keep_one_of(uint64_t k) {
    enum { BLOCKS = 4096 };
    const uint64_t size = 16 << 10;
    uint64_t granules = 0;
    uint64_t last = UINT64_MAX;
    start_with(&contender_ductile, 0, "sizes=2M", DUCTILE_SCHEDULE_EAGER);
    for (uint64_t i = 0; i < BLOCKS; i++) {
        (void)take(size);
    }
    ductile_addr kept[BLOCKS];
    size_t n_kept = 0;
    for (uint64_t i = 0; i < BLOCKS; i += k) {
        kept[n_kept++] = now.blocks[i].address;
    }
    for (size_t i = BLOCKS; i > 0; i--) {
        if ((i - 1) % k != 0) {
            give_at(i - 1);
        }
    }
    for (size_t i = 0; i < n_kept; i++) { /* ascending: they were allocated in one go */
        granules += kept[i] / GRANULE != last;
        last = kept[i] / GRANULE;
    }
    cr_assert_eq(now.ops->trim(now.self), DUCTILE_OK);
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

/* ---- RMM's random_allocations --------------------------------------------------------------- */

/* Up to so many per cent of the device are in use. */
static void run_random(uint64_t max_size, uint64_t seed, uint64_t percent, const char *setting) {
    const uint64_t capacity = 16 * GIB;
    rng dice = rng_seeded(seed);
    start_with(&contender_ductile, capacity, setting, DUCTILE_SCHEDULE_EAGER);
    for (int i = 0; i < 6000; i++) {
        uint64_t size = 1 + rng_below(&dice, max_size);
        bool is_full =
            now.live + size > capacity / 100 * percent || now.n_blocks == MOST_BLOCKS - 1;
        if (now.n_blocks > 0 && (is_full || rng_below(&dice, 5) < 2)) {
            give_at((size_t)rng_below(&dice, now.n_blocks));
        } else if (!is_full) {
            (void)fits(size);
        }
    }
}

Test(reproducers, random_sizes_never_run_out_while_they_fit) {
    static const uint64_t max_sizes[] = {MIB, 4 * MIB, 64 * MIB, 256 * MIB, GIB};
    for (size_t i = 0; i < sizeof max_sizes / sizeof max_sizes[0]; i++) {
        run_random(max_sizes[i], i + 1, 97, "sizes=2M");
        cr_expect_eq(now.n_refused, 0, "sizes up to %llu", (unsigned long long)max_sizes[i]);
        cr_expect_gt(efficiency(), 0.95, "%f", efficiency());
        end();
        run_random(max_sizes[i], i + 1, 94, NULL);
        cr_expect_eq(now.n_refused, 0, "sizes up to %llu", (unsigned long long)max_sizes[i]);
        end();
    }
}

/* ---- A shape, then a larger one (pytorch#1529) ---------------------------------------------- */

/* In every layer of the first shape a little state is put where a temporary was, so that it ends
 * up beside the activation. Only the state stays. */
static bool change_shape(const contender_ops *contender, uint64_t capacity) {
    enum { LAYERS = 40 };
    start(contender, capacity);
    for (int i = 0; i < LAYERS; i++) {
        if (!fits(195 * MIB)) {
            return false;
        }
        give_at(now.n_blocks - 1);
        if (!fits(3 * MIB) || !fits(192 * MIB)) {
            return false;
        }
    }
    for (size_t i = now.n_blocks; i > 0; i--) {
        if (now.blocks[i - 1].size > 3 * MIB) {
            give_at(i - 1);
        }
    }
    for (int i = 0; i < LAYERS; i++) {
        if (!fits(211 * MIB)) {
            return false;
        }
    }
    return true;
}

Test(reproducers, a_larger_shape_fits_where_a_smaller_one_was) {
    const uint64_t used = 40 * (211 + 3) * MIB;
    cr_expect(change_shape(&contender_ductile, used / 98 * 100));
    end();
    cr_expect_not(change_shape(&contender_classic, used / 98 * 100), "classic does not stumble");
    end();
}

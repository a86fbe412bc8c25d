/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeded random numbers for tests: the same seed gives the same run on every machine, so that a
 * failure that prints its seed can be repeated. One counter, mixed; no state beyond 64 bits, so
 * a run can be forked by copying the struct. Not for anything but tests.
 */
#ifndef TESTS_SUPPORT_RNG_H
#define TESTS_SUPPORT_RNG_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rng {
    uint64_t counter;
} rng;

/* Two multiplications spread what differs in any bit over all of them. */
static inline uint64_t rng_mixed(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    x = (x ^ (x >> 29)) * 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
}

/* The seed is mixed, as neighbouring seeds would otherwise give the same numbers, one apart. */
static inline rng rng_seeded(uint64_t seed) {
    rng r = {rng_mixed(seed + 0x632BE59BD9B4E019u)};
    return r;
}

/* Any 64-bit number. The odd step visits every counter once. */
static inline uint64_t rng_next(rng *r) {
    r->counter += 0x9E3779B97F4A7C15u;
    return rng_mixed(r->counter);
}

/* 0 .. n - 1; n must not be 0. The bias below 2^-40 for the n of tests does not matter here. */
static inline uint64_t rng_below(rng *r, uint64_t n) {
    return rng_next(r) % n;
}

static inline uint64_t rng_between(rng *r, uint64_t low, uint64_t high) {
    return low + rng_below(r, high - low + 1);
}

static inline bool rng_percent(rng *r, unsigned percent) {
    return rng_below(r, 100) < percent;
}

#endif

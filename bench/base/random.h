/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that follow a seed and nothing else. */
#ifndef DUCTILE_BENCH_BASE_RANDOM_H
#define DUCTILE_BENCH_BASE_RANDOM_H

#include <stdint.h>

/* splitmix64: every seed, 0 too, gives a sequence of its own. */
static inline uint64_t random_next(uint64_t *state) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Pre: min <= max, and not all 64 bits between them. */
static inline uint64_t random_between(uint64_t *state, uint64_t min, uint64_t max) {
    return min + random_next(state) % (max - min + 1);
}

#endif

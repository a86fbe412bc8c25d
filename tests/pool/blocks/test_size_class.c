/* SPDX-License-Identifier: Apache-2.0 */
/* Rounding of sizes to steps between powers of two, for every number of steps. */
#include "pool/blocks/size_class.h"

#include "tests/support/expect.h"
#include "tests/support/rng.h"

#include <stdbool.h>

static uint64_t floor_of(uint64_t size) {
    uint64_t floor = 1;
    while (floor <= size / 2) {
        floor *= 2;
    }
    return floor;
}

/* Written from the option's description: the least multiple of a step that is large enough. */
static uint64_t expected(uint64_t size, uint32_t divisions) {
    uint64_t floor = floor_of(size);
    if (divisions <= 1 || size <= DPOOL_UNIT * divisions) {
        return size;
    }
    uint64_t step = floor / divisions;
    return (size + step - 1) / step * step;
}

static void assert_rounded(uint64_t size, uint32_t divisions) {
    uint64_t got = dpool_round_power2(size, divisions);
    cr_assert_eq(got, expected(size, divisions), "%llu in %u steps: %llu, not %llu",
                 (unsigned long long)size, divisions, (unsigned long long)got,
                 (unsigned long long)expected(size, divisions));
}

Test(size_class, a_size_is_rounded_to_the_next_step_and_no_further) {
    for (int steps = -1; steps < 32; steps++) { /* none, and powers of two */
        uint32_t divisions = steps < 0 ? 0 : UINT32_C(1) << steps;
        rng r = rng_seeded(divisions);
        assert_rounded((uint64_t)DPOOL_UNIT * (divisions + 1), divisions);
        for (int bit = 9; bit < 47; bit++) {
            uint64_t power = (uint64_t)1 << bit;
            assert_rounded(power, divisions);
            assert_rounded(power + DPOOL_UNIT, divisions);
            assert_rounded(2 * power - DPOOL_UNIT, divisions);
            for (int i = 0; i < 20; i++) {
                assert_rounded(power + rng_below(&r, power / DPOOL_UNIT + 1) * DPOOL_UNIT,
                               divisions);
            }
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of pools, and which one memory belonged to at an address. */
#include "bench/base/random.h"
#include "bench/trace/pools.h"
#include "bench/trace/segment_pools.h"

#include <criterion/criterion.h>

static uint16_t add(trace_pools *p, uint64_t first, uint64_t second) {
    uint16_t number = 0;
    const char *reason = trace_pools_add(p, (ductile_pool_id){first, second}, &number);
    cr_assert_null(reason, "%s", reason);
    return number;
}

static uint16_t find(const trace_pools *p, uint64_t first, uint64_t second) {
    return trace_pools_find(p, (ductile_pool_id){first, second});
}

Test(pools, each_pool_has_a_number_of_its_own_in_the_order_of_their_first_naming) {
    trace_pools p = {0};
    const uint64_t of_key_1_0 = UINT64_C(0x9e3779b97f4a7c15); /* both are looked for at one key */
    cr_expect_eq(find(&p, 1, 0), 0);
    cr_expect_eq(add(&p, 1, 0), 1);
    cr_expect_eq(add(&p, 0, of_key_1_0), 2);
    cr_expect_eq(add(&p, 0, 0), 0, "what is in no pool");
    cr_expect_eq(add(&p, 1, 0), 1);
    cr_expect_eq(find(&p, 0, of_key_1_0), 2);
    cr_expect_eq(find(&p, 0, 1), 0);
    trace_pools_drop(&p);
}

Test(pools, there_are_at_most_65534) {
    trace_pools p = {0};
    uint16_t number = 1;
    for (uint64_t i = 1; i <= TRACE_MAX_POOLS; i++) {
        cr_assert_eq(add(&p, i, 0), i);
    }
    cr_expect_not_null(trace_pools_add(&p, (ductile_pool_id){0, 1}, &number));
    cr_expect_eq(number, 0);
    cr_expect_eq(add(&p, 7, 0), 7, "one that is known");
    trace_pools_drop(&p);
}

enum { SPACE = 200, PUTS = 300 };

Test(pools, of_what_was_put_over_an_address_the_latest_counts) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t random = seed;
        uint16_t expected[SPACE];
        uint64_t from[PUTS];
        uint64_t sizes[PUTS];
        segment_pools s = {0};
        for (size_t i = 0; i < SPACE; i++) {
            expected[i] = SEGMENT_POOL_UNKNOWN;
        }
        for (size_t i = 0; i < PUTS; i++) {
            from[i] = random_between(&random, 1, SPACE - 20);
            sizes[i] = random_between(&random, 0, 18);
            cr_assert(segment_pools_expect(&s, from[i], sizes[i]));
        }
        cr_assert(segment_pools_begin(&s));
        for (size_t i = 0; i < PUTS; i++) {
            segment_pools_put(&s, from[i], sizes[i], (uint16_t)i);
            for (uint64_t at = from[i]; at < from[i] + sizes[i]; at++) {
                expected[at] = (uint16_t)i;
            }
            for (uint64_t at = 0; at < SPACE; at++) {
                cr_assert_eq(segment_pools_at(&s, at), expected[at], "seed %llu, %llu",
                             (unsigned long long)seed, (unsigned long long)at);
            }
        }
        segment_pools_drop(&s);
    }
}

Test(pools, memory_that_reaches_over_the_last_address_is_none) {
    segment_pools s = {0};
    cr_assert(segment_pools_expect(&s, UINT64_MAX - 1, 8));
    cr_assert(segment_pools_begin(&s));
    segment_pools_put(&s, UINT64_MAX - 1, 8, 3);
    cr_expect_eq(segment_pools_at(&s, UINT64_MAX), SEGMENT_POOL_UNKNOWN);
    segment_pools_drop(&s);
}

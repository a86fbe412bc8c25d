/* SPDX-License-Identifier: Apache-2.0 */
/* The hash map keeps what is put into it, under any keys, while others go. */
#include "bench/base/hash_map.h"

#include <criterion/criterion.h>

enum { N = 5000 };

static void fill_and_thin(uint64_t stride) {
    hash_map map = {0};
    for (uint64_t i = 0; i < N; i++) {
        cr_assert(hash_map_put(&map, i * stride, i + 1));
    }
    for (uint64_t i = 0; i < N; i += 2) {
        hash_map_remove(&map, i * stride);
    }
    cr_expect_eq(map.n_used, N / 2);
    for (uint64_t i = 0; i < N; i++) {
        cr_expect_eq(hash_map_find(&map, i * stride), i % 2 == 0 ? 0 : i + 1, "key %llu",
                     (unsigned long long)(i * stride));
    }
    hash_map_drop(&map);
}

Test(hash_map, keeps_consecutive_numbers) {
    fill_and_thin(1);
}

Test(hash_map, keeps_addresses) {
    fill_and_thin(512);
}

Test(hash_map, keeps_keys_that_differ_in_high_bits_alone) {
    fill_and_thin((uint64_t)1 << 40);
}

Test(hash_map, a_key_has_its_latest_value) {
    hash_map map = {0};
    cr_expect_eq(hash_map_find(&map, 0), 0, "an empty map has no key");
    cr_assert(hash_map_put(&map, 0, 7) && hash_map_put(&map, 0, 8));
    cr_expect_eq(hash_map_find(&map, 0), 8);
    cr_expect_eq(map.n_used, 1);
    hash_map_drop(&map);
}

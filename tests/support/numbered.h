/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters of Criterion tests that are numbers one after the other: seeds, or indices of a table.
 * Numbers, because tests run in processes of their own, where pointers mean nothing.
 */
#ifndef TESTS_SUPPORT_NUMBERED_H
#define TESTS_SUPPORT_NUMBERED_H

#include "tests/support/expect.h"

#include <criterion/alloc.h>
#include <criterion/parameterized.h>

#include <stdlib.h>

static inline void numbered_free(struct criterion_test_params *parameters) {
    cr_free(parameters->params);
}

/* first, first + 1, ...: n uint64_t. */
static inline struct criterion_test_params numbered(uint64_t first, size_t n) {
    uint64_t *numbers = cr_malloc(n * sizeof *numbers);
    for (size_t i = 0; i < n; i++) {
        numbers[i] = first + i;
    }
    return cr_make_param_array(uint64_t, numbers, n, numbered_free);
}

/* `fallback`, unless the environment variable `name` holds a number. */
static inline uint64_t test_setting(const char *name, uint64_t fallback) {
    const char *text = getenv(name);
    return text == NULL || *text == '\0' ? fallback : strtoull(text, NULL, 0);
}

/* A run that complains with its seed; DUCTILE_TEST_SEED takes another one. */
static inline void assert_run(const char *(*run)(uint64_t seed), uint64_t usual_seed) {
    uint64_t seed = test_setting("DUCTILE_TEST_SEED", usual_seed);
    const char *why = run(seed);
    cr_assert(why == NULL, "seed %llu: %s", (unsigned long long)seed, why);
}

#endif

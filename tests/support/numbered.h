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

#endif

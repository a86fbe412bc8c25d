/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an entry of a table of the CUDA driver owes, whichever table it is of. A test has the rows,
 * ENTRIES(X) of X(the function it ends with, whether it needs our context, the call), and hands
 * MAKE_ENTRY or FAIL_ENTRY to it.
 */
#ifndef TESTS_FAKE_CUDA_ENTRIES_H
#define TESTS_FAKE_CUDA_ENTRIES_H

#include "tests/fake_cuda/open_fake.h"

static inline void expect_call(const char *expected, bool in_context, cu_context callers) {
    cr_expect_str_eq(fake->last_call, expected);
    cr_expect_eq(fake->current, callers, "%s changed the caller's context", expected);
    cr_expect_eq(fake->context_of_last_call, in_context ? fake->primary : callers,
                 "%s ran in the wrong context", expected);
}

/* Counts in `n` what is called in the context `callers`. */
#define MAKE_ENTRY(function, in_context, call)                                                     \
    cr_expect_eq(call, DVMM_SUCCESS, "%s", #call);                                                 \
    expect_call(function, in_context, callers);                                                    \
    n++;

/* Fails once: through `instead`, or through the function it ends with. The code comes through, and
 * no context is left. */
#define FAIL_ENTRY(function, in_context, call)                                                     \
    if (instead == NULL || (in_context)) {                                                         \
        fake->failing = instead != NULL ? instead : (function);                                    \
        cr_expect_eq(call, DVMM_ILLEGAL_STATE, "%s", #call);                                       \
    }                                                                                              \
    cr_expect_null(fake->current, "%s left a context", #call);

#endif

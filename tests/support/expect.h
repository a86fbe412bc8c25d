/* SPDX-License-Identifier: Apache-2.0 */
/* The two assertions that tests of Ductile use most, in words that print well. */
#ifndef TESTS_SUPPORT_EXPECT_H
#define TESTS_SUPPORT_EXPECT_H

#include <criterion/criterion.h>
#include <ductile.h>

/* A helper has nothing to complain about. */
#define assert_fine(call)                                                                          \
    do {                                                                                           \
        const char *fine_why = (call);                                                             \
        cr_assert(fine_why == NULL, "%s", fine_why);                                               \
    } while (0)

/* A call returns exactly this status. */
#define assert_status(call, expected)                                                              \
    do {                                                                                           \
        ductile_status status_got = (call);                                                        \
        cr_assert(status_got == (expected), "%s returned %s, not %s", #call,                       \
                  ductile_status_name(status_got), ductile_status_name(expected));                 \
    } while (0)

#define assert_ok(call) assert_status(call, DUCTILE_OK)

/* Two 64-bit numbers are equal; prints both. */
#define assert_u64(got, expected)                                                                  \
    do {                                                                                           \
        unsigned long long u64_got = (got);                                                        \
        unsigned long long u64_expected = (expected);                                              \
        cr_assert(u64_got == u64_expected, "%s is %llu, not %llu", #got, u64_got, u64_expected);   \
    } while (0)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Does a long run notice what grows in it? */
#include "tests/support/flat.h"

#include <criterion/criterion.h>
#include <stddef.h>
#include <string.h>

static flat_sample all[FLAT_PARTS];

static void begin(void) {
    for (size_t i = 0; i < FLAT_PARTS; i++) {
        all[i] = (flat_sample){.ns = 1000 + 100.0 * (double)(i % 3),
                               .resident = 64 << 20,
                               .host = 1 << 20,
                               .handles = 1000 + i % 7,
                               .mappings = 1000 + i % 5,
                               .addresses = 1 << 20};
    }
}

TestSuite(flat, .init = begin);

Test(flat, a_run_that_sways_a_little_is_flat) {
    const char *why = flat_judge(all);
    cr_assert_null(why, "%s", why);
}

Test(flat, what_grows_is_named) {
    static const struct {
        size_t offset;
        const char *what;
    } cases[] = {{offsetof(flat_sample, resident), "resident bytes"},
                 {offsetof(flat_sample, host), "bytes of bookkeeping"},
                 {offsetof(flat_sample, handles), "handles"},
                 {offsetof(flat_sample, mappings), "mappings"},
                 {offsetof(flat_sample, addresses), "addresses"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        begin();
        for (size_t i = 0; i < FLAT_PARTS; i++) { /* half as much more with each part */
            uint64_t *value = (uint64_t *)(void *)((char *)&all[i] + cases[k].offset);
            *value += i * *value / 2;
        }
        const char *why = flat_judge(all);
        cr_assert(why != NULL && strstr(why, cases[k].what) != NULL, "%s", cases[k].what);
    }
}

Test(flat, operations_that_take_ever_longer_are_found) {
    for (size_t i = 0; i < FLAT_PARTS; i++) {
        all[i].ns *= 1 + (double)i;
    }
    cr_assert_not_null(flat_judge(all));
}

Test(flat, what_grows_in_the_first_quarter_is_tables_that_find_their_size) {
    for (size_t i = 0; i < FLAT_PARTS / 4; i++) {
        all[i].resident /= FLAT_PARTS - i;
    }
    cr_assert_null(flat_judge(all));
}

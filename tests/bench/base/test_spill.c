/* SPDX-License-Identifier: Apache-2.0 */
/* An array keeps what is put into it, wherever it lies and however often it rests. */
#include "bench/base/spill.h"

#include <criterion/criterion.h>

#include <stdint.h>
#include <stdlib.h>

enum { N = 1 << 20 };

static void fill_and_check(spill *s, bool ends_in_file) {
    uint64_t *numbers = NULL;
    size_t capacity = 0;
    for (uint64_t i = 0; i < N; i++) {
        cr_assert(spill_has_room(s, &numbers, sizeof *numbers, &capacity, i));
        numbers[i] = i * i;
        if (spill_is_time(i)) {
            spill_rest(s);
        }
    }
    cr_expect_eq(s->bytes > 0, ends_in_file);
    for (uint64_t i = N; i-- > 0;) {
        cr_assert_eq(numbers[i], i * i, "%llu", (unsigned long long)i);
    }
    cr_expect(spill_reserve(s, &numbers, sizeof *numbers, &capacity, 1), "there is room already");
    spill_free(s, numbers);
    cr_expect_eq(s->bytes, 0);
}

Test(spill, a_long_array_lies_in_a_file) {
    spill s = {.is_wanted = true};
    fill_and_check(&s, true);
}

Test(spill, an_array_that_must_not_lies_in_memory) {
    spill s = {0};
    fill_and_check(&s, false);
}

Test(spill, without_a_folder_for_files_the_array_lies_in_memory) {
    spill s = {.is_wanted = true};
    (void)setenv("TMPDIR", "/nowhere/at/all", 1);
    fill_and_check(&s, false);
}

Test(spill, zeros_are_zeros_and_more_than_there_is_room_for_is_refused) {
    spill s = {.is_wanted = true};
    uint64_t *zeros = spill_zeros(&s, N, sizeof *zeros);
    cr_assert_not_null(zeros);
    cr_expect_gt(s.bytes, 0);
    for (size_t i = 0; i < N; i += 97) {
        cr_assert_eq(zeros[i], 0);
    }
    spill_free(&s, zeros);
    cr_expect_null(spill_zeros(&s, SIZE_MAX / 2, 4));
}

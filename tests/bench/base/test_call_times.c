/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/base/call_times.h"

#include <criterion/criterion.h>

static call_times of_calls(size_t n) {
    call_times t = {0};
    cr_assert(call_times_reserve(&t, n));
    for (size_t i = n; i > 0; i--) {
        call_times_add(&t, i * 10);
    }
    return t;
}

Test(call_times, nothing_noted_is_all_zero) {
    call_times t = {0};
    call_summary s = call_times_summarize(&t);
    cr_expect(s.calls == 0 && s.median_ns == 0 && s.p99_ns == 0 && s.worst_ns == 0);
}

Test(call_times, one_call_is_every_percentile) {
    call_times t = of_calls(1);
    call_summary s = call_times_summarize(&t);
    cr_expect(s.calls == 1 && s.median_ns == 10 && s.p99_ns == 10 && s.worst_ns == 10);
    call_times_drop(&t);
}

Test(call_times, percentiles_are_calls_that_so_many_did_not_exceed) {
    call_times t = of_calls(1000);
    call_summary s = call_times_summarize(&t);
    cr_expect(s.median_ns == 5000, "%llu", (unsigned long long)s.median_ns);
    cr_expect(s.p99_ns == 9900, "%llu", (unsigned long long)s.p99_ns);
    cr_expect(s.worst_ns == 10000);
    call_times_drop(&t);
    t = of_calls(250);
    s = call_times_summarize(&t);
    cr_expect(s.median_ns == 1250);
    cr_expect(s.p99_ns == 2480, "%llu", (unsigned long long)s.p99_ns); /* the 247.5th, rounded up */
    call_times_drop(&t);
}

Test(call_times, a_call_beyond_the_room_is_not_noted) {
    call_times t = of_calls(2);
    call_times_add(&t, 1000000);
    cr_expect(call_times_summarize(&t).worst_ns == 20);
    call_times_drop(&t);
}

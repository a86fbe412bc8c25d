/* SPDX-License-Identifier: Apache-2.0 */
/* The search for the smallest capacity, on policies whose answer is known. */
#include "bench/replay/mincap.h"

#include <criterion/criterion.h>

/* Suffices from `enough` up, but for a hole [hole, hole_end); and how often it was asked. */
typedef struct policy {
    uint64_t enough;
    uint64_t hole, hole_end;
    bool breaks;
    uint64_t n_probes;
} policy;

static bool probe(void *user, uint64_t granules, bool *failed) {
    policy *p = user;
    p->n_probes++;
    *failed = p->breaks && granules < 150;
    return granules >= p->enough && (granules < p->hole || granules >= p->hole_end);
}

Test(mincap, finds_the_edge_of_a_monotonic_policy_to_one_granule) {
    for (uint64_t enough = 101; enough <= 1000; enough += 31) {
        policy p = {.enough = enough};
        cr_assert_eq(mincap_search(probe, &p, 100, 1000), enough);
        cr_assert_lt(p.n_probes, 25);
    }
}

Test(mincap, an_answer_has_no_hole_right_above_it) {
    for (uint64_t distance = 1; distance < 600; distance *= 2) {
        policy p = {.enough = 200, .hole = 200 + distance, .hole_end = 201 + distance};
        uint64_t found = mincap_search(probe, &p, 100, 1000);
        cr_assert(found == 201 + distance, "hole at %llu: %llu",
                  (unsigned long long)(200 + distance), (unsigned long long)found);
    }
}

Test(mincap, a_guess_that_does_not_suffice_is_raised) {
    policy p = {.enough = 1100};
    cr_assert_eq(mincap_search(probe, &p, 100, 1000), 1100);
}

Test(mincap, when_nothing_suffices_there_is_no_answer) {
    policy p = {.enough = UINT64_MAX};
    cr_assert_eq(mincap_search(probe, &p, 100, 1000), 0);
}

Test(mincap, a_probe_that_breaks_ends_the_search) {
    policy p = {.enough = 101, .breaks = true};
    cr_assert_eq(mincap_search(probe, &p, 100, 1000), 0);
    cr_assert_lt(p.n_probes, 10);
}

Test(mincap, the_live_peak_itself_may_suffice) {
    policy p = {.enough = 1};
    cr_assert_eq(mincap_search(probe, &p, 100, 101), 101);
    cr_assert_eq(mincap_search(probe, &p, 100, 100), 101);
}

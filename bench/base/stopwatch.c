/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/base/stopwatch.h"

#include <stdbool.h>

enum { N_TRIALS = 1000 };

static uint64_t measure_cost(void) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < N_TRIALS; i++) {
        uint64_t before = host_now_ns();
        uint64_t elapsed = host_now_ns() - before;
        least = elapsed < least ? elapsed : least;
    }
    return least;
}

uint64_t stopwatch_cost_ns(void) {
    static bool is_known;
    static uint64_t cost;
    if (!is_known) {
        cost = measure_cost();
        is_known = true;
    }
    return cost;
}

uint64_t stopwatch_total_ns(const stopwatch *w) {
    return ns_less(w->total_ns, w->n_periods * stopwatch_cost_ns());
}

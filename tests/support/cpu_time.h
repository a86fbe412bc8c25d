/* SPDX-License-Identifier: Apache-2.0 */
/* For claims about cost: what this thread has used, which a busy machine does not change; and what
 * a clock on the wall shows. */
#ifndef TESTS_SUPPORT_CPU_TIME_H
#define TESTS_SUPPORT_CPU_TIME_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline double cpu_seconds(void) {
    return (double)clock_ns(CLOCK_THREAD_CPUTIME_ID) / 1e9;
}

static inline uint64_t wall_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

static inline double wall_seconds(void) {
    return (double)wall_ns() / 1e9;
}

/* What four times as much may cost: more than four times, far less than sixteen. */
static inline double linear_cost(double seconds_for_a_quarter) {
    return 8 * seconds_for_a_quarter + 0.05;
}

#endif

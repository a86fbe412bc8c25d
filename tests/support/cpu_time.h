/* SPDX-License-Identifier: Apache-2.0 */
/* For claims about cost: what this thread has used, which a busy machine does not change. */
#ifndef TESTS_SUPPORT_CPU_TIME_H
#define TESTS_SUPPORT_CPU_TIME_H

#include <time.h>

static inline double cpu_seconds(void) {
    struct timespec used;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

/* What four times as much may cost: more than four times, far less than sixteen. */
static inline double linear_cost(double seconds_for_a_quarter) {
    return 8 * seconds_for_a_quarter + 0.05;
}

#endif

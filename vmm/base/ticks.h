/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cheapest clock for short intervals: the processor's time stamp counter where it runs at one
 * rate whatever the processor does, the system's clock elsewhere. A driver call may take 100 ns,
 * and reading the system's clock at both of its ends costs half of that.
 */
#ifndef DUCTILE_VMM_BASE_TICKS_H
#define DUCTILE_VMM_BASE_TICKS_H

#include <stdbool.h>
#include <stdint.h>

/* Once per process, before the first tick is read: measures the counter's rate, for a millisecond.
 */
void dti_ticks_prepare(void);

/* A number of ticks in nanoseconds. */
uint64_t dti_ticks_to_ns(uint64_t ticks);

/* Now, in nanoseconds of the system's monotonic clock. */
uint64_t dti_clock_ns(void);

/* Is the time stamp counter what is read? Constant once dti_ticks_prepare has returned. */
extern bool dti_ticks_are_cycles;

/* Now, in ticks. */
static inline uint64_t dti_ticks(void) {
#if defined(__x86_64__)
    if (__builtin_expect(dti_ticks_are_cycles, 1)) {
        return __builtin_ia32_rdtsc();
    }
#endif
    return dti_clock_ns();
}

#endif

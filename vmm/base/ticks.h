/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cheapest clock for short intervals: the processor's time stamp counter where it runs at one
 * rate whatever the processor does, the system's clock elsewhere. A driver call may take 100 ns,
 * and reading the system's clock at both of its ends costs half of that.
 *
 * Ticks have no unit of their own: what is counted in them is converted when it is read, by how
 * many nanoseconds and how many ticks have passed since a common start.
 */
#ifndef DUCTILE_VMM_BASE_TICKS_H
#define DUCTILE_VMM_BASE_TICKS_H

#include <stdint.h>

/* Now, in ticks. Never goes back on one thread. */
uint64_t dti_ticks(void);

/* Now, in nanoseconds of the system's monotonic clock. */
uint64_t dti_clock_ns(void);

typedef struct dti_tick_base {
    uint64_t ticks;
    uint64_t ns;
} dti_tick_base;

/* The common start. */
dti_tick_base dti_tick_base_now(void);

/* A number of ticks, counted since the base was taken, in nanoseconds. */
uint64_t dti_ticks_to_ns(const dti_tick_base *base, uint64_t ticks);

#endif

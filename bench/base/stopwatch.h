/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A clock that can be stopped and started often: reading the clock takes about as long as what is
 * measured, so the readings' own time is counted and taken off.
 */
#ifndef DUCTILE_BENCH_BASE_STOPWATCH_H
#define DUCTILE_BENCH_BASE_STOPWATCH_H

#include <stdint.h>
#include <time.h>

static inline uint64_t host_now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Of two readings that are not of one clock; 0 at least. */
static inline uint64_t ns_less(uint64_t from, uint64_t taken) {
    return from > taken ? from - taken : 0;
}

/* All zero is stopped at 0. */
typedef struct stopwatch {
    uint64_t started_ns;
    uint64_t total_ns; /* of the periods that have ended */
    uint64_t n_periods;
} stopwatch;

static inline void stopwatch_start(stopwatch *w) {
    w->started_ns = host_now_ns();
}

static inline void stopwatch_stop(stopwatch *w) {
    w->total_ns += host_now_ns() - w->started_ns;
    w->n_periods++;
}

/* What an empty period seems to last on this machine: the least of many, measured once. */
uint64_t stopwatch_cost_ns(void);

/* The total without the readings' own time. Pre: stopped. */
uint64_t stopwatch_total_ns(const stopwatch *w);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/ticks.h"

#include <pthread.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { MEASURE_NS = 1000000 };

/* Both set once by dti_ticks_prepare. */
bool dti_ticks_are_cycles;
static double ns_per_tick = 1.0;

uint64_t dti_clock_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#if defined(__x86_64__)
static uint64_t read_counter(void) {
    return __builtin_ia32_rdtsc();
}

/* Leaf 0x80000007, EDX bit 8: the counter's rate depends on no state of the processor. */
static bool has_steady_counter(void) {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
}
#else
static uint64_t read_counter(void) {
    return dti_clock_ns();
}

static bool has_steady_counter(void) {
    return false;
}
#endif

static void measure_rate(void) {
    if (!has_steady_counter()) {
        return;
    }
    uint64_t start_ns = dti_clock_ns();
    uint64_t start = read_counter();
    uint64_t ns = 0;
    while (ns < MEASURE_NS) {
        ns = dti_clock_ns() - start_ns;
    }
    uint64_t ticks = read_counter() - start;
    dti_ticks_are_cycles = ticks > 0;
    ns_per_tick = ticks > 0 ? (double)ns / (double)ticks : 1.0;
}

void dti_ticks_prepare(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, measure_rate);
}

uint64_t dti_ticks_to_ns(uint64_t ticks) {
    return (uint64_t)((double)ticks * ns_per_tick);
}

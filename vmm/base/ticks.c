/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/ticks.h"

#include <stdbool.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <pthread.h>
#endif

uint64_t dti_clock_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#if defined(__x86_64__)

static bool counter_is_steady;

/* Leaf 0x80000007, EDX bit 8: the counter's rate depends on no state of the processor. */
static void look_at_counter(void) {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    counter_is_steady = __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
}

uint64_t dti_ticks(void) {
    return counter_is_steady ? __builtin_ia32_rdtsc() : dti_clock_ns();
}

static void prepare(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, look_at_counter);
}

#else

uint64_t dti_ticks(void) {
    return dti_clock_ns();
}

static void prepare(void) {
}

#endif

dti_tick_base dti_tick_base_now(void) {
    prepare();
    return (dti_tick_base){.ticks = dti_ticks(), .ns = dti_clock_ns()};
}

uint64_t dti_ticks_to_ns(const dti_tick_base *base, uint64_t ticks) {
    uint64_t ns = dti_clock_ns() - base->ns;
    uint64_t passed = dti_ticks() - base->ticks;
    return passed == 0 ? 0 : (uint64_t)((double)ticks * ((double)ns / (double)passed));
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCTILE_VMM_BASE_THREAD_H
#define DUCTILE_VMM_BASE_THREAD_H

#include <stdint.h>

/* The number of the calling thread, from 1. No other thread of the process ever gets it. */
uint64_t dti_thread_number(void);

/* Between two looks at what another thread writes: leaves the processor to it for a moment. */
static inline void dti_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif

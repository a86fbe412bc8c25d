/* SPDX-License-Identifier: Apache-2.0 */
/* Byte units, powers of two, and arithmetic that tells when it would overflow. */
#ifndef DUCTILE_VMM_BASE_ALIGN_H
#define DUCTILE_VMM_BASE_ALIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DTI_KIB ((uint64_t)1 << 10)
#define DTI_MIB ((uint64_t)1 << 20)
#define DTI_GIB ((uint64_t)1 << 30)
#define DTI_TIB ((uint64_t)1 << 40)

static inline bool dti_is_power_of_two(uint64_t n) {
    return n != 0 && (n & (n - 1)) == 0;
}

static inline bool dti_is_aligned(uint64_t n, uint64_t unit) {
    return n % unit == 0;
}

static inline uint64_t dti_round_down(uint64_t n, uint64_t unit) {
    return n - n % unit;
}

/* n must be at most UINT64_MAX - unit: callers bound sizes first. */
static inline uint64_t dti_round_up(uint64_t n, uint64_t unit) {
    return dti_round_down(n + unit - 1, unit);
}

static inline uint64_t dti_min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t dti_max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

#endif

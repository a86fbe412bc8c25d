/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The result of a recount: the first invariant that does not hold, with both values. Each layer and
 * room recounts its own data. All checks of one recount share a fault, which begins zeroed.
 */
#ifndef DUCTILE_VMM_BASE_FAULT_H
#define DUCTILE_VMM_BASE_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dti_fault {
    const char *invariant; /* its number in docs/dev/invariants.md; NULL: none found yet */
    const char *what;
    uint64_t is;
    uint64_t should;
    uint64_t where;
} dti_fault;

static inline bool dti_is_sound(const dti_fault *fault) {
    return fault->invariant == NULL;
}

/* Records what does not hold, unless something was found before. */
static inline void dti_expect(dti_fault *fault, const char *invariant, bool holds, const char *what,
                              uint64_t is, uint64_t should, uint64_t where) {
    if (!holds && dti_is_sound(fault)) {
        *fault = (dti_fault){invariant, what, is, should, where};
    }
}

static inline void dti_expect_equal(dti_fault *fault, const char *invariant, const char *what,
                                    uint64_t is, uint64_t should, uint64_t where) {
    dti_expect(fault, invariant, is == should, what, is, should, where);
}

#endif

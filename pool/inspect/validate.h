/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the whole allocator after public calls, as the option `check` asks. */
#ifndef DUCTILE_POOL_INSPECT_VALIDATE_H
#define DUCTILE_POOL_INSPECT_VALIDATE_H

#include "pool/base/allocator.h"

/* The kinds of calls after which to check. */
typedef enum dpool_audit_level {
    DPOOL_AUDIT_TRIM = 1,
    DPOOL_AUDIT_GROW = 2,
    DPOOL_AUDIT_CALL = 3
} dpool_audit_level;

/* No lock held. */
void dpool_audit_now(ductile_allocator *a);

static inline void dpool_audit(ductile_allocator *a, dpool_audit_level level) {
    if (DUCTILE_CHECK >= 3 || a->options.check >= (int)level) {
        dpool_audit_now(a);
    }
}

#endif

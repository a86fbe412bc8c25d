/* SPDX-License-Identifier: Apache-2.0 */
/* One limit at a time. */
#ifndef DUCTILE_TESTS_SUPPORT_LIMITS_H
#define DUCTILE_TESTS_SUPPORT_LIMITS_H

#include <ductile.h>

static inline ductile_status set_limit(ductile_allocator *a, uint64_t limit_bytes) {
    ductile_limits l = {.struct_size = sizeof l,
                        .limit_bytes = limit_bytes,
                        .soft_limit_bytes = DUCTILE_LIMIT_KEEP};
    return ductile_set_limits(a, &l);
}

static inline ductile_status set_soft_limit(ductile_allocator *a, uint64_t soft_limit_bytes) {
    ductile_limits l = {.struct_size = sizeof l,
                        .limit_bytes = DUCTILE_LIMIT_KEEP,
                        .soft_limit_bytes = soft_limit_bytes};
    return ductile_set_limits(a, &l);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/base/guards.h"

ductile_status dpool_may_read(const ductile_allocator *a) {
    ductile_status status = dpool_may_let_go(a);
    return status == DUCTILE_ERR_EXITING ? DUCTILE_OK : status;
}

ductile_status dpool_may_change(const ductile_allocator *a) {
    return a != NULL ? dvmm_usable(a->driver) : DUCTILE_ERR_INVALID_ARGUMENT;
}

ductile_status dpool_may_let_go(const ductile_allocator *a) {
    ductile_status status = dpool_may_change(a);
    bool is_lost = a != NULL && status != DUCTILE_ERR_EXITING && status != DUCTILE_ERR_FORKED;
    return is_lost ? DUCTILE_OK : status;
}

ductile_status dpool_may_fill(const ductile_allocator *a, const void *out, size_t known_size) {
    const size_t *size = out; /* the first member of every such struct */
    if (a == NULL || size == NULL || *size < sizeof *size || *size > known_size) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    return dpool_may_read(a);
}

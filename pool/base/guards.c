/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/base/guards.h"

ductile_status dpool_may_read(const ductile_allocator *a) {
    if (a == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    return dvmm_usable(a->driver) == DUCTILE_ERR_FORKED ? DUCTILE_ERR_FORKED : DUCTILE_OK;
}

ductile_status dpool_may_let_go(const ductile_allocator *a) {
    if (a == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dvmm_usable(a->driver);
    bool is_end = status == DUCTILE_ERR_EXITING || status == DUCTILE_ERR_FORKED;
    return is_end ? status : DUCTILE_OK;
}

ductile_status dpool_may_fill(const ductile_allocator *a, const void *out, size_t known_size) {
    const size_t *size = out; /* the first member of every such struct */
    if (a == NULL || size == NULL || *size < sizeof *size || *size > known_size) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    return dpool_may_read(a);
}

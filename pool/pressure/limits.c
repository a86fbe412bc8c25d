/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/pressure/limits.h"

#include "pool/base/guards.h"

#include "vmm/base/align.h"

#include <string.h>

/* ---- What the options amount to ------------------------------------------------------------ */

static uint64_t share_of(double fraction, uint64_t bytes) {
    return (uint64_t)(fraction * (double)bytes);
}

static uint64_t hard_limit(const ductile_options *o, uint64_t device_bytes) {
    uint64_t limit = o->limit_bytes != 0 ? o->limit_bytes : UINT64_MAX;
    if (o->per_process_memory_fraction > 0) {
        limit = dti_min(limit, share_of(o->per_process_memory_fraction, device_bytes));
    }
    return limit;
}

static uint64_t soft_limit(const ductile_options *o, uint64_t hard, uint64_t device_bytes) {
    uint64_t limit = o->soft_limit_bytes != 0 ? dti_min(o->soft_limit_bytes, hard) : hard;
    if (o->garbage_collection_threshold > 0) {
        uint64_t most = dti_min(hard, device_bytes);
        limit = dti_min(limit, share_of(o->garbage_collection_threshold, most));
    }
    return limit;
}

void dpool_limits_apply_locked(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t hard = hard_limit(&a->options, a->device_bytes);
    a->store.limit_bytes = hard;
    a->soft_limit = soft_limit(&a->options, hard, a->device_bytes);
    a->sizes.calls_until_look = 0; /* at the room */
    a->counts.limit = a->store.limit_bytes;
    a->counts.soft_limit = a->soft_limit;
}

/* ---- Changing them ------------------------------------------------------------------------- */

/* Checks the allocator and locks both locks around a change of one option. */
static ductile_status begin_change(ductile_allocator *a) {
    if (a == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dvmm_usable(a->driver);
    if (status == DUCTILE_OK) {
        dti_lock_acquire(&a->grow_lock);
        dti_lock_acquire(&a->index_lock);
    }
    return status;
}

static ductile_status end_change(ductile_allocator *a) {
    dpool_limits_apply_locked(a);
    dti_lock_release(&a->index_lock);
    dti_lock_release(&a->grow_lock);
    return DUCTILE_OK;
}

ductile_status ductile_set_limit(ductile_allocator *a, uint64_t limit_bytes) {
    ductile_status status = begin_change(a);
    if (status != DUCTILE_OK) {
        return status;
    }
    a->options.limit_bytes = limit_bytes;
    return end_change(a);
}

ductile_status ductile_set_soft_limit(ductile_allocator *a, uint64_t soft_limit_bytes) {
    ductile_status status = begin_change(a);
    if (status != DUCTILE_OK) {
        return status;
    }
    a->options.soft_limit_bytes = soft_limit_bytes;
    return end_change(a);
}

ductile_status ductile_set_memory_fraction(ductile_allocator *a, double fraction) {
    if (!(fraction >= 0 && fraction <= 1)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = begin_change(a);
    if (status != DUCTILE_OK) {
        return status;
    }
    a->options.per_process_memory_fraction = fraction;
    return end_change(a);
}

/* ---- Reading them -------------------------------------------------------------------------- */

ductile_status ductile_get_limits(ductile_allocator *a, ductile_limits *out) {
    ductile_status may = dpool_may_fill(a, out, sizeof *out);
    if (may != DUCTILE_OK) {
        return may;
    }
    size_t size = out->struct_size;
    dti_lock_acquire(&a->index_lock);
    uint64_t limit = dti_min(a->counts.limit, a->device_bytes);
    ductile_limits limits = {.struct_size = size,
                             .limit_bytes = limit,
                             .soft_limit_bytes = dti_min(a->counts.soft_limit, limit),
                             .device_bytes = a->device_bytes,
                             .fraction = a->options.per_process_memory_fraction};
    dti_lock_release(&a->index_lock);
    memcpy(out, &limits, size);
    return DUCTILE_OK;
}

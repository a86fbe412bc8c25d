/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/pressure/limits.h"

#include "pool/base/guards.h"
#include "pool/base/options.h"

#include "vmm/base/align.h"

#include <string.h>

/* ---- What the options amount to ------------------------------------------------------------ */

static uint64_t bytes_of(uint64_t limit, uint64_t whole) {
    return dpool_is_share(limit) ? (uint64_t)(dpool_share_of(limit) * (double)whole) : limit;
}

static uint64_t hard_limit(const ductile_options *o, uint64_t device_bytes) {
    return o->limit_bytes != 0 ? bytes_of(o->limit_bytes, device_bytes) : UINT64_MAX;
}

static uint64_t soft_limit(const ductile_options *o, uint64_t hard, uint64_t device_bytes) {
    uint64_t whole = dti_min(hard, device_bytes);
    return o->soft_limit_bytes != 0 ? dti_min(bytes_of(o->soft_limit_bytes, whole), hard) : hard;
}

void dpool_limits_apply_locked(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t hard = hard_limit(&a->options, a->device_bytes);
    a->store.limit_bytes = hard;
    a->soft_limit = soft_limit(&a->options, hard, a->device_bytes);
    a->store.spill_limit_bytes = bytes_of(a->options.spill_bytes, dvmm_store_host_total(&a->store));
    a->sizes.calls_until_look = 0; /* at the room */
    a->counts.limit = a->store.limit_bytes;
    a->counts.soft_limit = a->soft_limit;
}

/* ---- Changing them ------------------------------------------------------------------------- */

static bool is_wanted_limit(uint64_t limit) {
    return limit == DUCTILE_LIMIT_KEEP || dpool_is_limit(limit);
}

static void change(uint64_t *limit, uint64_t wanted) {
    *limit = wanted == DUCTILE_LIMIT_KEEP ? *limit : wanted;
}

ductile_status ductile_set_limits(ductile_allocator *a, const ductile_limits *limits) {
    if (a == NULL || limits == NULL || limits->struct_size < sizeof limits->struct_size) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_limits l = {.limit_bytes = DUCTILE_LIMIT_KEEP, .soft_limit_bytes = DUCTILE_LIMIT_KEEP};
    memcpy(&l, limits, dti_min(limits->struct_size, sizeof l));
    if (!is_wanted_limit(l.limit_bytes) || !is_wanted_limit(l.soft_limit_bytes)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    DTI_TRY(dvmm_usable(a->driver));
    dpool_lock_both(a);
    change(&a->options.limit_bytes, l.limit_bytes);
    change(&a->options.soft_limit_bytes, l.soft_limit_bytes);
    dpool_limits_apply_locked(a);
    dpool_unlock_both(a);
    return DUCTILE_OK;
}

ductile_status ductile_set_margin(ductile_allocator *a, uint64_t margin_bytes) {
    ductile_status status = dpool_may_change(a);
    if (status == DUCTILE_OK) {
        dpool_lock_both(a);
        a->store.margin_bytes = margin_bytes;
        a->sizes.calls_until_look = 0; /* at the room */
        dpool_unlock_both(a);
    }
    return status;
}

/* ---- Reading them -------------------------------------------------------------------------- */

ductile_status ductile_get_limits(ductile_allocator *a, ductile_limits *out) {
    DTI_TRY(dpool_may_fill(a, out, sizeof *out));
    size_t size = out->struct_size;
    dti_lock_acquire(&a->index_lock);
    uint64_t limit = dti_min(a->counts.limit, a->device_bytes);
    ductile_limits limits = {.struct_size = size,
                             .limit_bytes = limit,
                             .soft_limit_bytes = dti_min(a->counts.soft_limit, limit),
                             .device_bytes = a->device_bytes,
                             .margin_bytes = a->store.margin_bytes}; /* changed under both locks */
    dti_lock_release(&a->index_lock);
    memcpy(out, &limits, size);
    return DUCTILE_OK;
}

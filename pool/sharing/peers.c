/* SPDX-License-Identifier: Apache-2.0 */
/* Access of peer devices to everything that an allocator maps. */
#include "pool/base/allocator.h"
#include "pool/sharing/import.h"

#include <ductile_share.h>

/* The index of the device in the list of devices with access; n_devices when it is not listed. */
static size_t place_of(const dvmm_handle_store *store, int device) {
    size_t i = 0;
    while (i < store->n_devices && store->devices[i] != device) {
        i++;
    }
    return i;
}

static ductile_status can_access(ductile_allocator *a, int device) {
    bool can = false;
    ductile_status status = dvmm_can_reach(&a->store, device, &can);
    return status == DUCTILE_OK && !can ? DUCTILE_ERR_UNSUPPORTED : status;
}

/* Changes the access of a device to the first n segments. */
static ductile_status set_segments(ductile_allocator *a, uint32_t n, int device, bool may_access,
                                   uint32_t *n_done) {
    for (*n_done = 0; *n_done < n; (*n_done)++) {
        DTI_TRY(dseg_set_device(a->segments.items[*n_done], device, may_access));
    }
    return DUCTILE_OK;
}

/* All or nothing: a failure undoes what was done before. */
static ductile_status set_everywhere(ductile_allocator *a, int device, bool may_access) {
    uint32_t n_done = 0;
    uint32_t n_undone = 0;
    ductile_status status = set_segments(a, a->segments.count, device, may_access, &n_done);
    if (status == DUCTILE_OK) {
        status = dpool_imports_set_device(a, device, may_access);
    }
    if (status != DUCTILE_OK) {
        (void)set_segments(a, n_done, device, !may_access, &n_undone);
    }
    return status;
}

static ductile_status enable(ductile_allocator *a, int device) {
    dvmm_handle_store *store = &a->store;
    if (place_of(store, device) < store->n_devices) {
        return DUCTILE_OK;
    }
    ductile_status status =
        store->n_devices < DVMM_MAX_DEVICES ? can_access(a, device) : DUCTILE_ERR_UNSUPPORTED;
    if (status == DUCTILE_OK) {
        status = set_everywhere(a, device, true);
    }
    if (status == DUCTILE_OK) {
        store->devices[store->n_devices++] = device;
    }
    return status;
}

static ductile_status disable(ductile_allocator *a, int device) {
    dvmm_handle_store *store = &a->store;
    size_t place = place_of(store, device);
    if (place == store->n_devices) {
        return DUCTILE_OK;
    }
    ductile_status status = set_everywhere(a, device, false);
    if (status == DUCTILE_OK) {
        store->devices[place] = store->devices[--store->n_devices];
    }
    return status;
}

static ductile_status change(ductile_allocator *a, int device,
                             ductile_status (*what)(ductile_allocator *a, int device)) {
    if (a == NULL || device < 0) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    DTI_TRY(dvmm_usable(a->driver));
    if (device == dvmm_get_caps(a->driver)->ordinal) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    dvmm_capture_mode mode = dpool_grow_lock(a);
    ductile_status status = what(a, device);
    dpool_grow_unlock(a, mode);
    return status;
}

ductile_status ductile_enable_peer(ductile_allocator *a, int device) {
    return change(a, device, enable);
}

ductile_status ductile_disable_peer(ductile_allocator *a, int device) {
    return change(a, device, disable);
}

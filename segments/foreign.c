/* SPDX-License-Identifier: Apache-2.0 */
#include "segments/foreign.h"

#include "vmm/base/check.h"

ductile_status dseg_foreign_open(dvmm_handle_store *store, uint64_t bytes, uint64_t budget_bytes,
                                 dvmm_access access, dseg_foreign *out) {
    *out = (dseg_foreign){.access = access};
    uint64_t granule = dvmm_get_caps(store->driver)->granule_bytes;
    return dvmm_range_reserve(store->driver, bytes, bytes, 0, budget_bytes, granule, &out->range);
}

/* The codes of the driver for a descriptor that is not its own, or for a wrong size. */
static ductile_status blame_sender(ductile_status status) {
    int code = dvmm_last_code();
    bool is_senders = code == DVMM_INVALID_VALUE || code == DVMM_NOT_SUPPORTED ||
                      code == DVMM_INVALID_HANDLE || code == DVMM_OPERATING_SYSTEM ||
                      code == DVMM_UNKNOWN; /* what an H200 returns for any other descriptor */
    return status != DUCTILE_OK && is_senders ? DUCTILE_ERR_BAD_MESSAGE : status;
}

/* A failed map call may have mapped the handle; with it the range could not be freed. */
static ductile_status map(dvmm_handle_store *store, ductile_addr at, uint64_t bytes,
                          dvmm_phys phys) {
    ductile_status status = blame_sender(dvmm_map(store->driver, at, bytes, phys));
    dvmm_access access;
    if (status != DUCTILE_OK && dvmm_get_access(store->driver, at, &access) == DUCTILE_OK) {
        (void)dvmm_unmap(store->driver, at, bytes);
    }
    return status;
}

/* The mapping keeps the memory, so the handle is released at once:
 * no later step has to release it. */
ductile_status dseg_foreign_add(dvmm_handle_store *store, dseg_foreign *f, uint64_t bytes,
                                const dvmm_shared *shared) {
    dvmm_phys phys = 0;
    ductile_addr at = f->range.addr + f->mapped_bytes;
    DTI_TRY(blame_sender(dvmm_phys_import(store->driver, shared, &phys)));
    ductile_status status = map(store, at, bytes, phys);
    f->mapped_bytes += status == DUCTILE_OK ? bytes : 0;
    return dti_first_error(status, dvmm_phys_release(store->driver, phys));
}

ductile_status dseg_foreign_grant(dvmm_handle_store *store, const dseg_foreign *f) {
    return dvmm_store_grant(store, f->range.addr, f->mapped_bytes, f->access);
}

ductile_status dseg_foreign_set_device(dvmm_handle_store *store, const dseg_foreign *f, int device,
                                       bool may_access) {
    return dvmm_set_access_for(store->driver, f->range.addr, f->mapped_bytes,
                               may_access ? f->access : DVMM_ACCESS_NONE, &device, 1);
}

ductile_status dseg_foreign_undo(dvmm_handle_store *store, dseg_foreign *f) {
    ductile_status status = DUCTILE_OK;
    if (f->mapped_bytes != 0) {
        status = dvmm_unmap(store->driver, f->range.addr, f->mapped_bytes);
    }
    f->mapped_bytes = 0;
    return status == DUCTILE_OK ? dvmm_range_free(store->driver, &f->range) : status;
}

ductile_status dseg_foreign_close(dvmm_handle_store *store, dseg_foreign *f, dseg_idle proof) {
    DTI_ASSERT(dseg_is_proven(proof));
    (void)proof;
    return dseg_foreign_undo(store, f);
}

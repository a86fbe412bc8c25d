/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The start probe. Attributes promise more than some systems keep (a device may report virtual
 * memory management and fail the first cuMemSetAccess), so the probe runs one granule through all
 * calls before the device is used.
 */
#include "vmm/cuda/probe.h"

#include "vmm/cuda/backend.h"

/* Names the driver's call that failed; the steps below pass it through to the report. */
typedef struct probe {
    cuda_backend *backend;
    uint64_t granule;
    ductile_addr addr;
    dvmm_phys phys;
    const char *failed;
} probe;

static int record_failure(probe *p, const char *call, int code) {
    if (code != DVMM_SUCCESS && p->failed == NULL) {
        p->failed = call;
    }
    return code;
}

/* A mapping without the access that was set is unusable. */
static int open_and_check(probe *p) {
    const dvmm_driver_ops *ops = &dvmm_cuda_ops;
    int code = record_failure(p, "cuMemSetAccess",
                              ops->set_access(p->backend, p->addr, p->granule, DVMM_ACCESS_RW));
    if (code != DVMM_SUCCESS) {
        return code;
    }
    dvmm_access access = DVMM_ACCESS_NONE;
    code = ops->get_access(p->backend, p->addr, &access);
    if (code == DVMM_SUCCESS && access != DVMM_ACCESS_RW) {
        code = DVMM_ILLEGAL_STATE;
    }
    return record_failure(p, "cuMemGetAccess", code);
}

/* After a failed unmap the state of the mapping is unknown, so the caller releases neither handle
 * nor range. */
static int map_and_unmap(probe *p, bool *is_unmapped) {
    const dvmm_driver_ops *ops = &dvmm_cuda_ops;
    *is_unmapped = true;
    int code = record_failure(p, "cuMemMap", ops->map(p->backend, p->addr, p->granule, 0, p->phys));
    if (code != DVMM_SUCCESS) {
        return code;
    }
    code = open_and_check(p);
    int undo = record_failure(p, "cuMemUnmap", ops->unmap(p->backend, p->addr, p->granule));
    *is_unmapped = undo == DVMM_SUCCESS;
    return code != DVMM_SUCCESS ? code : undo;
}

static int back_and_release(probe *p, bool *may_free) {
    const dvmm_driver_ops *ops = &dvmm_cuda_ops;
    const dvmm_phys_props plain = {0};
    *may_free = true;
    int code = record_failure(p, "cuMemCreate",
                              ops->phys_create(p->backend, p->granule, &plain, &p->phys));
    if (code != DVMM_SUCCESS) {
        return code;
    }
    code = map_and_unmap(p, may_free);
    if (!*may_free) {
        return code;
    }
    int undo = record_failure(p, "cuMemRelease", ops->phys_release(p->backend, p->phys));
    return code != DVMM_SUCCESS ? code : undo;
}

static int run_probe(probe *p) {
    const dvmm_driver_ops *ops = &dvmm_cuda_ops;
    int code = record_failure(p, "cuMemAddressReserve",
                              ops->address_reserve(p->backend, p->granule, 0, 0, &p->addr));
    if (code != DVMM_SUCCESS) {
        return code;
    }
    bool may_free = false;
    code = back_and_release(p, &may_free);
    if (!may_free) {
        return code;
    }
    int undo =
        record_failure(p, "cuMemAddressFree", ops->address_free(p->backend, p->addr, p->granule));
    return code != DVMM_SUCCESS ? code : undo;
}

/* A refusal means the system cannot do it; anything else may be different next time. */
static ductile_status status_of_failure(int code) {
    bool is_refusal = code == DVMM_NOT_SUPPORTED || code == DVMM_NOT_PERMITTED;
    return is_refusal ? DUCTILE_ERR_NO_VMM : DUCTILE_ERR_DRIVER;
}

ductile_status dvmm_cuda_probe(cuda_backend *b, const dvmm_caps *caps, cu_reason why) {
    probe p = {.backend = b, .granule = caps->granule_bytes};
    int code = run_probe(&p);
    if (code == DVMM_SUCCESS) {
        return DUCTILE_OK;
    }
    return dvmm_cuda_refuse(status_of_failure(code), why,
                            "device %d cannot map memory on demand: %s failed with %s (%d)",
                            caps->ordinal, p.failed, dvmm_code_name(code), code);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/driver/probe.h"

/* One probe under way, on the stack. */
typedef struct probe {
    const dvmm_driver_ops *ops;
    void *ctx;
    uint64_t bytes;
    const dvmm_phys_props *props;
    ductile_addr addr;
    dvmm_phys phys;
    dvmm_probe_failure failure;
} probe;

static bool passed(probe *p, const char *call, int code) {
    if (code != DVMM_SUCCESS && p->failure.code == DVMM_SUCCESS) {
        p->failure = (dvmm_probe_failure){call, code};
    }
    return code == DVMM_SUCCESS;
}

/* A mapping without the access that was set is unusable. */
static bool can_access(probe *p) {
    dvmm_access access = DVMM_ACCESS_NONE;
    int code = p->ops->set_access(p->ctx, p->addr, p->bytes, DVMM_ACCESS_RW);
    if (!passed(p, "cuMemSetAccess", code)) {
        return false;
    }
    code = p->ops->get_access(p->ctx, p->addr, &access);
    bool is_other = code == DVMM_SUCCESS && access != DVMM_ACCESS_RW;
    return passed(p, "cuMemGetAccess", is_other ? DVMM_ILLEGAL_STATE : code);
}

static void export(probe *p) {
    dvmm_share_type type = (dvmm_share_type)p->props->handle_types;
    dvmm_shared shared = {.type = type, .fd = -1};
    if (type != DVMM_SHARE_NONE && passed(p, "cuMemExportToShareableHandle",
                                          p->ops->phys_export(p->ctx, p->phys, type, &shared))) {
        dvmm_shared_drop(&shared);
    }
}

/* False: after a failed unmap the state of the mapping is unknown, so the caller releases neither
 * handle nor range. */
static bool map_and_unmap(probe *p) {
    if (!passed(p, "cuMemMap", p->ops->map(p->ctx, p->addr, p->bytes, 0, p->phys))) {
        return true;
    }
    if (can_access(p)) {
        export(p);
    }
    return passed(p, "cuMemUnmap", p->ops->unmap(p->ctx, p->addr, p->bytes));
}

static bool create_and_release(probe *p) {
    if (!passed(p, "cuMemCreate", p->ops->phys_create(p->ctx, p->bytes, p->props, &p->phys))) {
        return true;
    }
    if (!map_and_unmap(p)) {
        return false;
    }
    (void)passed(p, "cuMemRelease", p->ops->phys_release(p->ctx, p->phys));
    return true;
}

bool dvmm_probe(const dvmm_driver_ops *ops, void *ctx, uint64_t granule_bytes,
                const dvmm_phys_props *props, dvmm_probe_failure *failure) {
    probe p = {.ops = ops, .ctx = ctx, .bytes = granule_bytes, .props = props};
    int code = ops->address_reserve(ctx, p.bytes, 0, 0, &p.addr);
    if (passed(&p, "cuMemAddressReserve", code) && create_and_release(&p)) {
        (void)passed(&p, "cuMemAddressFree", ops->address_free(ctx, p.addr, p.bytes));
    }
    *failure = p.failure;
    return p.failure.code == DVMM_SUCCESS;
}

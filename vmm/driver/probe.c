/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/driver/probe.h"

#include <stdarg.h>
#include <stdio.h>

ductile_status dvmm_refuse(ductile_status status, dvmm_reason why, const char *format, ...) {
    if (why.text != NULL && why.size > 0) {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(why.text, why.size, format, args);
        va_end(args);
    }
    return status;
}

/* ---- The probe ----------------------------------------------------------------------------- */

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

/* ---- Properties ---------------------------------------------------------------------------- */

static const char *kind_of(const dvmm_phys_props *props) {
    if (props->is_host) {
        return "spill_bytes";
    }
    switch (props->handle_types) {
    case DVMM_SHARE_FD:
        return props->rdma ? "shareable:fd with rdma:on" : "shareable:fd";
    case DVMM_SHARE_FABRIC:
        return props->rdma ? "shareable:fabric with rdma:on" : "shareable:fabric";
    default:
        return "rdma:on";
    }
}

static bool is_offered(const dvmm_caps *caps, const dvmm_phys_props *props) {
    return (props->handle_types & ~caps->share_types) == 0 && (!props->rdma || caps->has_rdma);
}

ductile_status dvmm_probe_props(dvmm_driver *d, const dvmm_phys_props *props, char *reason,
                                size_t reason_size) {
    const dvmm_caps *caps = dvmm_get_caps(d);
    if (!is_offered(caps, props)) {
        (void)snprintf(reason, reason_size, "device %d does not offer what %s needs", caps->ordinal,
                       kind_of(props));
        return DUCTILE_ERR_UNSUPPORTED;
    }
    void *ctx = NULL;
    const dvmm_driver_ops *ops = dvmm_raw_ops(d, &ctx);
    dvmm_probe_failure failure;
    bool works = dvmm_probe(ops, ctx, caps->granule_bytes, props, &failure);
    ductile_status status = works ? DUCTILE_OK : dvmm_status_of(failure.code);
    if (status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY) {
        return DUCTILE_OK; /* a device that is full at the moment may support it */
    }
    (void)snprintf(
        reason, reason_size, "%s does not work on device %d: %s failed with %s (%d)%s",
        kind_of(props), caps->ordinal, failure.call, dvmm_code_name(failure.code), failure.code,
        props->handle_types == DVMM_SHARE_FABRIC ? "; is the IMEX service running?" : "");
    return status == DUCTILE_ERR_DRIVER ? DUCTILE_ERR_UNSUPPORTED : status;
}

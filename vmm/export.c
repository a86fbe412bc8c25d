/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/export.h"

#include "vmm/driver/probe.h"

#include <stdio.h>

/* ---- Probing ------------------------------------------------------------------------------- */

static const char *kind_of(const dvmm_phys_props *props) {
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

/* ---- Handles that leave -------------------------------------------------------------------- */

ductile_status dvmm_share_out(dvmm_handle_store *store, dvmm_phys phys, dvmm_shared *out) {
    dvmm_share_type type = (dvmm_share_type)store->props.handle_types;
    *out = (dvmm_shared){.type = type, .fd = -1};
    if (type == DVMM_SHARE_NONE) {
        return DUCTILE_ERR_UNSUPPORTED;
    }
    return dvmm_phys_export(store->driver, phys, type, out);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/export.h"

#include <stdio.h>
#include <unistd.h>

/* ---- Probing ------------------------------------------------------------------------------- */

/* One probe under way, on the stack. */
typedef struct props_probe {
    dvmm_driver *driver;
    const dvmm_phys_props *props;
    uint64_t bytes;
    ductile_addr addr;
    dvmm_phys phys;
    const char *failed; /* the first call that failed */
    int code;
} props_probe;

static ductile_status record_failure(props_probe *p, const char *call, ductile_status status) {
    if (status != DUCTILE_OK && p->failed == NULL) {
        p->failed = call;
        p->code = dvmm_last_code();
    }
    return status;
}

static ductile_status probe_export(props_probe *p) {
    if (p->props->handle_types == DVMM_SHARE_NONE) {
        return DUCTILE_OK;
    }
    dvmm_shared shared;
    dvmm_share_type type = (dvmm_share_type)p->props->handle_types;
    ductile_status status = record_failure(p, "cuMemExportToShareableHandle",
                                           dvmm_phys_export(p->driver, p->phys, type, &shared));
    dvmm_shared_drop(&shared);
    return status;
}

static ductile_status probe_mapped(props_probe *p) {
    ductile_status status = record_failure(
        p, "cuMemSetAccess", dvmm_set_access(p->driver, p->addr, p->bytes, DVMM_ACCESS_RW));
    return status == DUCTILE_OK ? probe_export(p) : status;
}

static ductile_status probe_created(props_probe *p) {
    ductile_status status =
        record_failure(p, "cuMemMap", dvmm_map(p->driver, p->addr, p->bytes, p->phys));
    if (status == DUCTILE_OK) {
        status = probe_mapped(p);
        ductile_status undone =
            record_failure(p, "cuMemUnmap", dvmm_unmap(p->driver, p->addr, p->bytes));
        status = status == DUCTILE_OK ? undone : status;
    }
    ductile_status released =
        record_failure(p, "cuMemRelease", dvmm_phys_release(p->driver, p->phys));
    return status == DUCTILE_OK ? released : status;
}

static ductile_status probe_reserved(props_probe *p) {
    ductile_status status =
        record_failure(p, "cuMemCreate", dvmm_phys_create(p->driver, p->bytes, p->props, &p->phys));
    return status == DUCTILE_OK ? probe_created(p) : status;
}

static ductile_status run_probe(props_probe *p) {
    ductile_status status = record_failure(p, "cuMemAddressReserve",
                                           dvmm_address_reserve(p->driver, p->bytes, &p->addr));
    if (status != DUCTILE_OK) {
        return status;
    }
    status = probe_reserved(p);
    ductile_status freed =
        record_failure(p, "cuMemAddressFree", dvmm_address_free(p->driver, p->addr, p->bytes));
    return status == DUCTILE_OK ? freed : status;
}

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
    props_probe p = {.driver = d, .props = props, .bytes = caps->granule_bytes};
    ductile_status status = run_probe(&p);
    if (status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY) {
        return DUCTILE_OK; /* a device that is full at the moment may support it */
    }
    (void)snprintf(reason, reason_size, "%s does not work on device %d: %s failed with %s (%d)%s",
                   kind_of(props), caps->ordinal, p.failed, dvmm_code_name(p.code), p.code,
                   props->handle_types == DVMM_SHARE_FABRIC ? "; is the IMEX service running?"
                                                            : "");
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

void dvmm_shared_drop(dvmm_shared *shared) {
    if (shared->type == DVMM_SHARE_FD && shared->fd >= 0) {
        (void)close(shared->fd);
    }
    shared->fd = -1;
}

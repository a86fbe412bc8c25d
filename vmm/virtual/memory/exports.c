/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other devices and other processes, as the virtual GPU models them.
 *
 * Devices: this one is number 0; the others exist as far as access goes. Each mapping remembers
 * the access of each; nothing runs on them.
 *
 * Processes: a descriptor made by an export is one end of a socket pair, the GPU keeps the other.
 * A message queued in it names the memory, and is only ever peeked at, so that copies of the
 * descriptor can be imported any number of times. When the last copy is closed, wherever it went,
 * the kept end hangs up: then the export no longer keeps the memory. A descriptor of another
 * process's virtual GPU leads to memory of that size and nothing in it: it stands in for what only
 * one device in both processes could give.
 */
#include "vmm/virtual/memory/exports.h"

#include "vmm/base/array.h"
#include "vmm/virtual/addresses/addresses.h"
#include "vmm/virtual/memory/memory.h"
#include "vmm/virtual/state/state.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Other devices ------------------------------------------------------------------------- */

static bool is_device(const vgpu *gpu, int device) {
    return device >= 0 && (uint32_t)device < gpu->options.n_devices;
}

static bool can_reach(const vgpu *gpu, int device) {
    return device == 0 || (gpu->options.unreachable_devices >> device & 1) == 0;
}

int dvmm_vgpu_can_access_peer(const vgpu *gpu, int device, int *out) {
    if (!is_device(gpu, device)) {
        return DVMM_INVALID_DEVICE;
    }
    *out = device != 0 && can_reach(gpu, device); /* the driver says no of a device and itself */
    return DVMM_SUCCESS;
}

/* The driver's answer for a device that cannot reach has not been measured. */
static int may_be_opened_for(const vgpu *gpu, int device) {
    if (!is_device(gpu, device)) {
        return DVMM_INVALID_VALUE;
    }
    return can_reach(gpu, device) ? DVMM_SUCCESS : DVMM_INVALID_DEVICE;
}

int dvmm_vgpu_set_access_for(vgpu *gpu, ductile_addr addr, uint64_t size, dvmm_access access,
                             const int *devices, size_t n_devices) {
    int code = n_devices > 0 ? DVMM_SUCCESS : DVMM_INVALID_VALUE;
    for (size_t i = 0; i < n_devices && code == DVMM_SUCCESS; i++) {
        code = may_be_opened_for(gpu, devices[i]);
    }
    for (size_t i = 0; i < n_devices && code == DVMM_SUCCESS; i++) {
        code = dvmm_vgpu_set_device_access(gpu, addr, size, devices[i], access);
    }
    return code;
}

int dvmm_vgpu_get_access_for(const vgpu *gpu, ductile_addr addr, int device, dvmm_access *out) {
    const vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, addr);
    if (mapping == NULL) {
        return DVMM_INVALID_VALUE;
    }
    if (!is_device(gpu, device)) {
        return DVMM_INVALID_DEVICE;
    }
    *out = dvmm_vgpu_access_of(mapping, device);
    return DVMM_SUCCESS;
}

/* ---- Names of exported memory -------------------------------------------------------------- */

typedef struct export_name {
    uint64_t magic;
    uint64_t gpu; /* its number among all of all processes */
    uint64_t size;
    dvmm_phys phys;
    uint32_t handle_types;
} export_name;

_Static_assert(sizeof(export_name) <= DVMM_FABRIC_BYTES, "fits a fabric handle");

static const uint64_t MAGIC = 0x4455435449564750u; /* "DUCTIVGP" */

static export_name name_of(const vgpu *gpu, dvmm_phys phys, const vgpu_phys *found) {
    return (export_name){MAGIC, gpu->identity, found->size, phys, found->handle_types};
}

/* ---- Descriptors --------------------------------------------------------------------------- */

/* A process may close a descriptor at any time and anywhere: asked before it matters. */
void dvmm_vgpu_exports_sweep(vgpu *gpu) {
    vgpu_memory *m = &gpu->memory;
    for (size_t i = m->n_exports; i-- > 0;) {
        struct pollfd kept = {.fd = m->exports[i].kept};
        if (poll(&kept, 1, 0) == 1 && (kept.revents & (POLLHUP | POLLERR)) != 0) {
            vgpu_phys *phys = m->exports[i].phys;
            (void)close(m->exports[i].kept);
            m->exports[i] = m->exports[--m->n_exports];
            dvmm_vgpu_drop_ref(gpu, phys);
        }
    }
}

void dvmm_vgpu_exports_fini(vgpu *gpu) {
    for (size_t i = 0; i < gpu->memory.n_exports; i++) {
        (void)close(gpu->memory.exports[i].kept);
    }
    free(gpu->memory.exports);
}

static int export_fd(vgpu *gpu, dvmm_phys phys, vgpu_phys *found, int *out) {
    int ends[2];
    export_name name = name_of(gpu, phys, found);
    vgpu_memory *m = &gpu->memory;
    if (!dti_have_room(&m->exports, sizeof *m->exports, &m->exports_room, m->n_exports + 1) ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return DVMM_OPERATING_SYSTEM;
    }
    if (send(ends[0], &name, sizeof(name), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(name)) {
        (void)close(ends[0]);
        (void)close(ends[1]);
        return DVMM_OPERATING_SYSTEM;
    }
    m->exports[m->n_exports++] = (vgpu_export){found, ends[0]};
    found->n_refs++;
    *out = ends[1];
    return DVMM_SUCCESS;
}

int dvmm_vgpu_phys_export(vgpu *gpu, dvmm_phys phys, dvmm_share_type type, dvmm_shared *out) {
    vgpu_phys *found = dvmm_vgpu_find_phys(gpu, phys);
    if (found == NULL || type == DVMM_SHARE_NONE || (found->handle_types & type) == 0) {
        return DVMM_INVALID_VALUE;
    }
    if (type == DVMM_SHARE_FD) {
        return export_fd(gpu, phys, found, &out->fd);
    }
    export_name name = name_of(gpu, phys, found);
    memcpy(out->fabric, &name, sizeof(name));
    return DVMM_SUCCESS;
}

/* ---- Imports ------------------------------------------------------------------------------- */

static bool read_name(const dvmm_shared *shared, export_name *name) {
    if (shared->type == DVMM_SHARE_FABRIC) {
        memcpy(name, shared->fabric, sizeof(*name));
        return true;
    }
    ssize_t n = recv(shared->fd, name, sizeof(*name), MSG_PEEK | MSG_DONTWAIT);
    return shared->type == DVMM_SHARE_FD && n == (ssize_t)sizeof(*name);
}

/* While a descriptor is open, its export keeps the memory: it is found. */
static int import_own(vgpu *gpu, const export_name *name, dvmm_phys *out) {
    vgpu_phys *phys = dvmm_vgpu_find_phys(gpu, name->phys);
    if (phys == NULL) {
        return DVMM_INVALID_VALUE;
    }
    phys->n_refs++;
    *out = name->phys;
    return DVMM_SUCCESS;
}

int dvmm_vgpu_phys_import(vgpu *gpu, const dvmm_shared *shared, dvmm_phys *out) {
    export_name name;
    if (!read_name(shared, &name) || name.magic != MAGIC ||
        (name.handle_types & shared->type) == 0) {
        return shared->type == DVMM_SHARE_FD ? DVMM_UNKNOWN : DVMM_INVALID_VALUE;
    }
    if (name.gpu == gpu->identity) {
        return import_own(gpu, &name, out);
    }
    const dvmm_phys_props props = {.handle_types = name.handle_types};
    return dvmm_vgpu_phys_create(gpu, name.size, &props, out);
}

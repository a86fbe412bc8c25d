/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory on its way to other processes: what a device can do, and handles that become descriptors.
 */
#ifndef DUCTILE_VMM_EXPORT_H
#define DUCTILE_VMM_EXPORT_H

#include "vmm/handle.h"

/* Can the device make memory with these properties? See dvmm_probe. ERR_UNSUPPORTED, with one line
 * in `reason`; otherwise the errors of the calls. */
ductile_status dvmm_probe_props(dvmm_driver *d, const dvmm_phys_props *props, char *reason,
                                size_t reason_size);

/* Exports a handle. ERR_UNSUPPORTED when it was not created for that type. The caller releases the
 * result with dvmm_shared_drop. */
ductile_status dvmm_share_out(dvmm_handle_store *store, dvmm_phys phys, dvmm_shared *out);

#endif

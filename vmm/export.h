/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory on its way to other processes: what a device can do, and handles that become descriptors.
 */
#ifndef DUCTILE_VMM_EXPORT_H
#define DUCTILE_VMM_EXPORT_H

#include "vmm/handle.h"

/*
 * Leads one granule with these properties through all that Ductile will do with such memory:
 * create, map, access, export, unmap, release. A device's claim is not enough: some refuse at the
 * last step. ERR_UNSUPPORTED, with one line in `reason`; the other errors as of the calls.
 * On failure nothing is left, unless the driver would not undo.
 */
ductile_status dvmm_probe_props(dvmm_driver *d, const dvmm_phys_props *props, char *reason,
                                size_t reason_size);

/* Makes a handle ready to be sent. ERR_UNSUPPORTED when it was not made for that type. The
 * caller gives it back with dvmm_shared_drop. */
ductile_status dvmm_share_out(dvmm_handle_store *store, dvmm_phys phys, dvmm_shared *out);

/* Closes the descriptor, if there is one. */
void dvmm_shared_drop(dvmm_shared *shared);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a device can serve, and why not, in one sentence. The probe proves that it can do what
 * its attributes promise: some report virtual memory management, or a way of sharing, and refuse at
 * the last step.
 */
#ifndef DUCTILE_VMM_DRIVER_PROBE_H
#define DUCTILE_VMM_DRIVER_PROBE_H

#include "vmm/driver/driver.h"

/* A buffer for one sentence; text may be NULL. */
typedef struct dvmm_reason {
    char *text;
    size_t size;
} dvmm_reason;

/* Writes one sentence, cut to fit. Returns `status`, for the caller's return. */
__attribute__((format(printf, 3, 4))) ductile_status
dvmm_refuse(ductile_status status, dvmm_reason why, const char *format, ...);

/* The first call that failed. */
typedef struct dvmm_probe_failure {
    const char *call;
    int code;
} dvmm_probe_failure;

/*
 * Runs one granule with these properties through every call that they need: create, map, access,
 * export, unmap, release. The calls are not counted. False when one failed; then nothing is left,
 * unless the driver refused to undo a step.
 */
bool dvmm_probe(const dvmm_driver_ops *ops, void *ctx, uint64_t granule_bytes,
                const dvmm_phys_props *props, dvmm_probe_failure *failure);

/* Can the device make memory with these properties? See dvmm_probe. ERR_UNSUPPORTED, with one line
 * in `reason`; otherwise the errors of the calls. */
ductile_status dvmm_probe_props(dvmm_driver *d, const dvmm_phys_props *props, char *reason,
                                size_t reason_size);

#endif

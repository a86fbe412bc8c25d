/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proves that a device can do what its attributes promise: some report virtual memory management,
 * or a way of sharing, and refuse at the last step.
 */
#ifndef DUCTILE_VMM_DRIVER_PROBE_H
#define DUCTILE_VMM_DRIVER_PROBE_H

#include "vmm/driver/driver.h"

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

#endif

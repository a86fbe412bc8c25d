/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a wrapper makes its call: between dvmm_begin_call and dvmm_end_call. The library's wrappers
 * are in calls.c; another table of the same device has its own, and makes calls in the same way.
 */
#ifndef DUCTILE_VMM_DRIVER_WRAP_H
#define DUCTILE_VMM_DRIVER_WRAP_H

#include "vmm/driver/driver.h"

/* One call under way, on the stack of its wrapper. */
typedef struct dvmm_seam_call {
    dvmm_driver *driver;
    dvmm_call call;
    uint64_t address; /* operands, for the trace only */
    uint64_t size;
    bool is_timed;
    uint64_t driver_start_ns; /* both valid when it is timed */
    uint64_t host_start_ns;
    ductile_status refusal; /* valid when dvmm_begin_call returned false */
} dvmm_seam_call;

/* False: the call must not be made, and c->refusal says why. The clock is read last. */
bool dvmm_begin_call(dvmm_seam_call *c, dvmm_driver *d, dvmm_call call, uint64_t address,
                     uint64_t size);
/* The call just returned `code`: the clock is read first. Returns the code's status. */
ductile_status dvmm_end_call(const dvmm_seam_call *c, int code);

/* A handle as an operand for the trace. */
static inline uint64_t dvmm_word(const void *handle) {
    return (uint64_t)(uintptr_t)handle;
}

#endif

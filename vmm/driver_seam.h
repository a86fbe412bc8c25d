/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the seam, shared by driver.c (object, guard, accounts), driver_calls.c (one wrapper
 * per call) and driver_codes.c (what the driver's codes mean). Of it, backends use only the
 * question whether a code is sticky. */
#ifndef DUCTILE_VMM_DRIVER_SEAM_H
#define DUCTILE_VMM_DRIVER_SEAM_H

#include "vmm/base/ticks.h"
#include "vmm/driver.h"

#include <stdatomic.h>

/* One open device. Owned by whoever opened it. No lock: every field that changes is atomic. */
struct dvmm_driver {
    dvmm_vital vital; /* first: see dvmm_is_usable */
    /* constant after opening */
    const dvmm_driver_ops *ops;
    void *ctx; /* the backend's; closed with the driver */
    dvmm_caps caps;

    /* statistics, relaxed: each number is right, two of them need not be of one moment */
    _Atomic uint64_t calls[DVMM_N_CALLS];
    _Atomic uint64_t failures[DVMM_N_CALLS];
    _Atomic uint64_t driver_time_ns;
    _Atomic uint64_t host_ticks;

    /* trace is published last, so that who sees it sees the two others */
    void *trace_user;
    bool trace_all;
    _Atomic(dvmm_trace_fn) trace;
};

/* One call under way, on the stack of its wrapper. */
typedef struct seam_call {
    dvmm_driver *driver;
    dvmm_call call;
    uint64_t address; /* operands, for the trace only */
    uint64_t size;
    uint64_t host_start; /* in ticks */
    uint64_t driver_start;
    ductile_status refusal; /* valid when dvmm_begin_call returned false */
} seam_call;

/* False: the call must not be made, and c->refusal says why. */
bool dvmm_begin_call(seam_call *c, dvmm_driver *d, dvmm_call call, uint64_t address, uint64_t size);

/* The call under way has succeeded and another one follows, with no clock read in between. */
void dvmm_next_call(seam_call *c, dvmm_call call, uint64_t address, uint64_t size);

/* Accounts for the call that just returned `code`; its status. */
ductile_status dvmm_end_call(seam_call *c, int code);

/* The driver says that it, or the context, is gone for good. */
bool dvmm_code_is_sticky(int code);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the seam, shared by driver.c (object, guard, accounts), driver_calls.c (one wrapper
 * per call) and driver_codes.c (what the driver's codes mean). Of it, backends use only the
 * question whether a code is sticky. */
#ifndef DUCTILE_VMM_DRIVER_SEAM_H
#define DUCTILE_VMM_DRIVER_SEAM_H

#include "vmm/base/lock.h"
#include "vmm/base/ticks.h"
#include "vmm/driver/driver.h"

#include <stdatomic.h>

/* What one thread's calls add up to: its owner alone adds, so that adding is a load and a store,
 * and whoever reads sums over all. A thread that has ended leaves its tally as it is. */
typedef struct seam_tally {
    _Atomic uint64_t owner; /* a number that no other thread ever has, or SEAM_NOBODY */
    _Atomic uint64_t host_ticks;
    _Atomic uint64_t driver_time_ns;
    _Atomic uint64_t calls[DVMM_N_CALLS];
    char apart[64]; /* no two tallies have a line of the cache in common */
} seam_tally;

#define SEAM_NOBODY UINT64_MAX

enum { SEAM_TALLIES = 16 };

/* One open device. Owned by whoever opened it. No lock: every field that changes is atomic. */
struct dvmm_driver {
    dvmm_vital vital; /* first: see dvmm_is_usable */
    /* constant after opening */
    const dvmm_driver_ops *ops;
    void *ctx; /* the backend's; closed with the driver */
    dvmm_caps caps;

    /* statistics, relaxed: each number is right, two of them need not be of one moment */
    seam_tally tallies[SEAM_TALLIES]; /* thread n has number n % SEAM_TALLIES, if it came first */
    seam_tally shared;                /* of threads that came later: added to atomically        */
    _Atomic uint64_t failures[DVMM_N_CALLS];

    /* published after trace_user, so that who sees them sees that */
    void *trace_user;
    _Atomic(dvmm_trace_fn) trace_failure;
    _Atomic(dvmm_trace_fn) trace_answer; /* of a call that did not fail; mostly NULL */
};

/* One call under way, on the stack of its wrapper. */
typedef struct seam_call {
    dvmm_driver *driver;
    dvmm_call before; /* the one that was made before it and succeeded, or DVMM_N_CALLS for none */
    dvmm_call call;
    uint64_t address; /* operands, for the trace only */
    uint64_t size;
    uint64_t host_start; /* in ticks */
    uint64_t host_end;
    uint64_t driver_start;
    ductile_status refusal; /* valid when dvmm_begin_call returned false */
} seam_call;

/* Says in c->refusal why no call may be made. Returns false. */
bool dvmm_refuse_call(seam_call *c, const dvmm_driver *d);

/* False: the call must not be made, and c->refusal says why. The clock is read last. */
static inline bool dvmm_begin_call(seam_call *c, dvmm_driver *d, dvmm_call call, uint64_t address,
                                   uint64_t size) {
    DTI_ASSERT_MAY_CALL_DRIVER();
    if (__builtin_expect(!dvmm_is_usable(d), 0)) {
        return dvmm_refuse_call(c, d);
    }
    c->driver = d;
    c->before = DVMM_N_CALLS;
    c->call = call;
    c->address = address;
    c->size = size;
    /* a device with a clock of its own is read at both ends of a call; others share the host's */
    c->driver_start = d->ops->clock_ns != NULL ? d->ops->clock_ns(d->ctx) : 0;
    c->host_start = dti_ticks();
    return true;
}

/* Tells the trace of a call that did not fail, if it wants to know. */
static inline void dvmm_report_answer(const seam_call *c, int code) {
    dvmm_trace_fn trace = atomic_load_explicit(&c->driver->trace_answer, memory_order_acquire);
    if (__builtin_expect(trace != NULL, 0)) {
        trace(c->driver->trace_user, c->call, code, c->address, c->size);
    }
}

/* The call under way, the first of two, has succeeded; the other one follows, with no clock read in
 * between. Both are counted at the end. */
static inline void dvmm_next_call(seam_call *c, dvmm_call call, uint64_t address, uint64_t size) {
    dvmm_report_answer(c, DVMM_SUCCESS);
    c->before = c->call;
    c->call = call;
    c->address = address;
    c->size = size;
}

/* Accounts for the call that returned `code`; its status. */
ductile_status dvmm_account(const seam_call *c, int code);

/* The call just returned `code`: the clock is read first. Its status. */
static inline ductile_status dvmm_end_call(seam_call *c, int code) {
    c->host_end = dti_ticks();
    return dvmm_account(c, code);
}

/* The driver says that it, or the context, is gone for good. */
bool dvmm_code_is_sticky(int code);

#endif

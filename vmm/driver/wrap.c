/* SPDX-License-Identifier: Apache-2.0 */
/* What comes before and after each call of the driver. */
#include "vmm/driver/wrap.h"

#include "vmm/base/lock.h"

#include <limits.h>

static _Thread_local int last_code;

int dvmm_last_code(void) {
    return last_code;
}

static void add(_Atomic uint64_t *counter, uint64_t n) {
    (void)atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* NOT_READY answers a query; from any other call it is an error. Of other tables the queries alone
 * answer so. */
static bool is_answer(dvmm_call call, int code) {
    return code == DVMM_SUCCESS ||
           (code == DVMM_NOT_READY && (call == DVMM_CALL_event_query || call == DVMM_OTHER_CALL));
}

static void report_to(dvmm_trace_fn trace, const dvmm_seam_call *c, int code) {
    if (__builtin_expect(trace != NULL, 0)) {
        trace(c->driver->trace_user, c->call, code, c->address, c->size);
    }
}

/* Keeps the first sticky code: later ones are its consequence. No process becomes UINT_MAX forks
 * old. */
static void poison_if_sticky(dvmm_driver *d, int code) {
    int healthy = 0;
    if (dvmm_code_is_sticky(code)) {
        (void)atomic_compare_exchange_strong(&d->poison, &healthy, code);
        atomic_store_explicit(&d->usable_at, UINT_MAX, memory_order_release);
    }
}

/* The code that the driver would have returned. */
static int code_of_refusal(const dvmm_driver *d, ductile_status refusal) {
    switch ((int)refusal) {
    case DUCTILE_ERR_EXITING:
        return DVMM_DEINITIALIZED;
    case DUCTILE_ERR_FORKED:
        return DVMM_NOT_INITIALIZED;
    default:
        return atomic_load_explicit(&d->poison, memory_order_relaxed);
    }
}

static __attribute__((noinline)) bool refuse_call(dvmm_seam_call *c, const dvmm_driver *d) {
    c->refusal = dvmm_usable(d);
    last_code = code_of_refusal(d, c->refusal);
    return false;
}

/* Not inlined: the wrappers would be half as long again. */
bool dvmm_begin_call(dvmm_seam_call *c, dvmm_driver *d, dvmm_call call, uint64_t address,
                     uint64_t size) {
    DTI_ASSERT_MAY_CALL_DRIVER();
    if (__builtin_expect(!dvmm_is_usable(d), 0)) {
        return refuse_call(c, d);
    }
    c->driver = d;
    c->call = call;
    c->address = address;
    c->size = size;
    c->is_timed = atomic_load_explicit(&d->times_calls, memory_order_acquire);
    if (c->is_timed) {
        c->driver_start_ns = d->ops->clock_ns != NULL ? d->ops->clock_ns(d->ctx) : 0;
        c->host_start_ns = dvmm_host_clock_ns();
    }
    return true;
}

/* A device without a clock of its own takes as long as the host sees. Of the two readings one lies
 * between them; the other, and the addition, are added: timing is not the caller's time. */
static void add_times(const dvmm_seam_call *c) {
    dvmm_driver *d = c->driver;
    uint64_t timing_ns = atomic_load_explicit(&d->timing_ns, memory_order_relaxed);
    add(&d->host_time_ns, dvmm_host_clock_ns() - c->host_start_ns + timing_ns);
    if (d->ops->clock_ns != NULL) {
        add(&d->driver_time_ns, d->ops->clock_ns(d->ctx) - c->driver_start_ns);
    }
}

static __attribute__((noinline)) ductile_status count_failure(const dvmm_seam_call *c, int code) {
    add(&c->driver->failures[c->call], 1);
    poison_if_sticky(c->driver, code);
    report_to(atomic_load_explicit(&c->driver->trace_failure, memory_order_acquire), c, code);
    return dvmm_status_of(code);
}

ductile_status dvmm_end_call(const dvmm_seam_call *c, int code) {
    dvmm_driver *d = c->driver;
    if (c->is_timed) {
        add_times(c);
    }
    add(&d->calls[c->call], 1);
    last_code = code;
    if (__builtin_expect(!is_answer(c->call, code), 0)) {
        return count_failure(c, code);
    }
    report_to(atomic_load_explicit(&d->trace_answer, memory_order_acquire), c, code);
    return code == DVMM_SUCCESS ? DUCTILE_OK : dvmm_status_of(code);
}

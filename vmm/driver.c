/* SPDX-License-Identifier: Apache-2.0 */
/* The seam: an open device, the guard before every call, the accounts after it. */
#include "vmm/driver_seam.h"

#include "vmm/base/align.h"
#include "vmm/base/lock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Process life -------------------------------------------------------------------------- */

/* Calling the driver after exit has begun, or in a forked child, is undefined and the driver
 * cannot detect it. A number does, at the price of a load; a getpid would be a system call. */
_Atomic unsigned dvmm_process_age;

#define EXITS (1u << 31)

static void note_exit(void) {
    atomic_fetch_or_explicit(&dvmm_process_age, EXITS, memory_order_release);
}

static void note_fork_in_child(void) {
    atomic_fetch_add_explicit(&dvmm_process_age, 1, memory_order_relaxed);
}

static bool watches_life;

static void watch_life(void) {
    watches_life = atexit(note_exit) == 0 && pthread_atfork(NULL, NULL, note_fork_in_child) == 0;
}

static bool life_is_watched(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    return pthread_once(&once, watch_life) == 0 && watches_life;
}

ductile_status dvmm_usable(const dvmm_driver *d) {
    unsigned age = atomic_load_explicit(&dvmm_process_age, memory_order_relaxed);
    /* A child may exit too, and must not wait for locks that nobody in it holds: forks come first
     */
    if (d->vital.birth != (age & ~EXITS)) {
        return DUCTILE_ERR_FORKED;
    }
    if ((age & EXITS) != 0) {
        return DUCTILE_ERR_EXITING;
    }
    int poison = atomic_load_explicit(&d->vital.poison, memory_order_relaxed);
    return poison == DVMM_SUCCESS ? DUCTILE_OK : dvmm_status_of(poison);
}

/* ---- The object ---------------------------------------------------------------------------- */

ductile_status dvmm_driver_new(const dvmm_driver_ops *ops, void *ctx, const dvmm_caps *caps,
                               dvmm_driver **out) {
    DTI_ASSERT(dti_is_power_of_two(caps->granule_bytes));
    *out = NULL;
    dvmm_driver *d = life_is_watched() ? calloc(1, sizeof(*d)) : NULL;
    if (d == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    d->ops = ops;
    d->ctx = ctx;
    d->caps = *caps;
    dti_ticks_prepare();
    d->vital.birth = atomic_load_explicit(&dvmm_process_age, memory_order_relaxed) & ~EXITS;
    *out = d;
    return DUCTILE_OK;
}

/* A poisoned device is closed like any other; what may not be touched any more is left alone. */
void dvmm_close(dvmm_driver *d) {
    if (d == NULL) {
        return;
    }
    ductile_status usable = dvmm_usable(d);
    if (usable != DUCTILE_ERR_EXITING && usable != DUCTILE_ERR_FORKED) {
        d->ops->close(d->ctx);
    }
    free(d);
}

const dvmm_caps *dvmm_get_caps(const dvmm_driver *d) {
    return &d->caps;
}

const dvmm_driver_ops *dvmm_raw_ops(const dvmm_driver *d, void **ctx) {
    *ctx = d->ctx;
    return d->ops;
}

/* ---- Clocks -------------------------------------------------------------------------------- */

/* A device with a clock of its own is read at both ends of a call; another shares the host's. */
static uint64_t device_clock_ns(const dvmm_driver *d) {
    return d->ops->clock_ns != NULL ? d->ops->clock_ns(d->ctx) : 0;
}

uint64_t dvmm_clock_ns(dvmm_driver *d) {
    return d->ops->clock_ns != NULL ? d->ops->clock_ns(d->ctx) : dti_clock_ns();
}

/* ---- Accounts ------------------------------------------------------------------------------ */

static _Thread_local int last_code;

int dvmm_last_code(void) {
    return last_code;
}

void dvmm_set_trace(dvmm_driver *d, dvmm_trace_fn trace, void *user, bool trace_all) {
    atomic_store_explicit(&d->trace, NULL, memory_order_relaxed);
    d->trace_user = user;
    d->trace_all = trace_all;
    atomic_store_explicit(&d->trace, trace, memory_order_release);
}

void dvmm_get_counters(const dvmm_driver *d, dvmm_counters *out) {
    for (int i = 0; i < DVMM_N_CALLS; i++) {
        out->calls[i] = atomic_load_explicit(&d->calls[i], memory_order_relaxed);
        out->failures[i] = atomic_load_explicit(&d->failures[i], memory_order_relaxed);
    }
    out->host_time_ns = dti_ticks_to_ns(atomic_load_explicit(&d->host_ticks, memory_order_relaxed));
    out->driver_time_ns = d->ops->clock_ns != NULL
                              ? atomic_load_explicit(&d->driver_time_ns, memory_order_relaxed)
                              : out->host_time_ns;
}

static void add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void account_time(const seam_call *c) {
    add(&c->driver->host_ticks, dti_ticks() - c->host_start);
    if (c->driver->ops->clock_ns != NULL) {
        add(&c->driver->driver_time_ns, device_clock_ns(c->driver) - c->driver_start);
    }
}

/* "Not yet" answers a question; from a call that asked none it is an error. */
static bool is_answer(dvmm_call call, int code) {
    return code == DVMM_SUCCESS || (code == DVMM_NOT_READY && (call == DVMM_CALL_event_query ||
                                                               call == DVMM_CALL_stream_query));
}

static void report(const seam_call *c, int code, bool failed) {
    dvmm_trace_fn trace = atomic_load_explicit(&c->driver->trace, memory_order_acquire);
    if (trace != NULL && (failed || c->driver->trace_all)) {
        trace(c->driver->trace_user, c->call, code, c->address, c->size);
    }
}

/* The first sticky code stays: later ones are its echo. */
static void poison_if_sticky(dvmm_driver *d, int code) {
    int healthy = 0;
    if (dvmm_code_is_sticky(code)) {
        (void)atomic_compare_exchange_strong(&d->vital.poison, &healthy, code);
    }
}

/* What the driver would have said, had it been asked. */
static int code_of_refusal(const dvmm_driver *d, ductile_status refusal) {
    switch ((int)refusal) {
    case DUCTILE_ERR_EXITING:
        return DVMM_DEINITIALIZED;
    case DUCTILE_ERR_FORKED:
        return DVMM_NOT_INITIALIZED;
    default:
        return atomic_load_explicit(&d->vital.poison, memory_order_relaxed);
    }
}

bool dvmm_begin_call(seam_call *c, dvmm_driver *d, dvmm_call call, uint64_t address,
                     uint64_t size) {
    DTI_ASSERT_MAY_CALL_DRIVER();
    c->refusal = dvmm_usable(d);
    if (c->refusal != DUCTILE_OK) {
        last_code = code_of_refusal(d, c->refusal);
        return false;
    }
    c->driver = d;
    c->call = call;
    c->address = address;
    c->size = size;
    c->driver_start = device_clock_ns(d);
    c->host_start = dti_ticks();
    return true;
}

void dvmm_next_call(seam_call *c, dvmm_call call, uint64_t address, uint64_t size) {
    add(&c->driver->calls[c->call], 1);
    report(c, DVMM_SUCCESS, false);
    c->call = call;
    c->address = address;
    c->size = size;
}

ductile_status dvmm_end_call(seam_call *c, int code) {
    account_time(c);
    add(&c->driver->calls[c->call], 1);
    bool failed = !is_answer(c->call, code);
    if (failed) {
        add(&c->driver->failures[c->call], 1);
        poison_if_sticky(c->driver, code);
    }
    last_code = code;
    report(c, code, failed);
    return dvmm_status_of(code);
}

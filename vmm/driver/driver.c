/* SPDX-License-Identifier: Apache-2.0 */
/* The seam: an open device, the check before every call, the counters after it. */
#include "vmm/driver/seam.h"

#include "vmm/base/align.h"

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
    if (d->process_age != (age & ~EXITS)) {
        return DUCTILE_ERR_FORKED;
    }
    if ((age & EXITS) != 0) {
        return DUCTILE_ERR_EXITING;
    }
    int poison = atomic_load_explicit(&d->poison, memory_order_relaxed);
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
    d->process_age = atomic_load_explicit(&dvmm_process_age, memory_order_relaxed) & ~EXITS;
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

static uint64_t host_clock_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t dvmm_clock_ns(dvmm_driver *d) {
    return d->ops->clock_ns != NULL ? d->ops->clock_ns(d->ctx) : host_clock_ns();
}

void dvmm_time_calls(dvmm_driver *d) {
    d->times_calls = true;
}

/* ---- Counters ------------------------------------------------------------------------------ */

static _Thread_local int last_code;

int dvmm_last_code(void) {
    return last_code;
}

void dvmm_set_trace(dvmm_driver *d, dvmm_trace_fn trace, void *user, bool trace_all) {
    atomic_store_explicit(&d->trace_failure, NULL, memory_order_relaxed);
    atomic_store_explicit(&d->trace_answer, NULL, memory_order_relaxed);
    d->trace_user = user;
    atomic_store_explicit(&d->trace_failure, trace, memory_order_release);
    atomic_store_explicit(&d->trace_answer, trace_all ? trace : NULL, memory_order_release);
}

static uint64_t read(const _Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void dvmm_get_counters(const dvmm_driver *d, dvmm_counters *out) {
    for (int i = 0; i < DVMM_N_CALLS; i++) {
        out->calls[i] = read(&d->calls[i]);
        out->failures[i] = read(&d->failures[i]);
    }
    out->driver_time_ns = read(&d->driver_time_ns);
    out->host_time_ns = read(&d->host_time_ns);
}

static void add(_Atomic uint64_t *counter, uint64_t n) {
    (void)atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* "Not yet" answers a question; from a call that asked none it is an error. */
static bool is_answer(dvmm_call call, int code) {
    return code == DVMM_SUCCESS || (code == DVMM_NOT_READY && (call == DVMM_CALL_event_query ||
                                                               call == DVMM_CALL_stream_query));
}

static void report_to(dvmm_trace_fn trace, const seam_call *c, int code) {
    if (__builtin_expect(trace != NULL, 0)) {
        trace(c->driver->trace_user, c->call, code, c->address, c->size);
    }
}

/* The first sticky code stays: later ones are its echo. */
static void poison_if_sticky(dvmm_driver *d, int code) {
    int healthy = 0;
    if (dvmm_code_is_sticky(code)) {
        (void)atomic_compare_exchange_strong(&d->poison, &healthy, code);
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
        return atomic_load_explicit(&d->poison, memory_order_relaxed);
    }
}

static __attribute__((noinline)) bool refuse_call(seam_call *c, const dvmm_driver *d) {
    c->refusal = dvmm_usable(d);
    last_code = code_of_refusal(d, c->refusal);
    return false;
}

bool dvmm_begin_call(seam_call *c, dvmm_driver *d, dvmm_call call, uint64_t address,
                     uint64_t size) {
    DTI_ASSERT_MAY_CALL_DRIVER();
    if (__builtin_expect(!dvmm_is_usable(d), 0)) {
        return refuse_call(c, d);
    }
    c->driver = d;
    c->call = call;
    c->address = address;
    c->size = size;
    if (d->times_calls) {
        c->driver_start_ns = d->ops->clock_ns != NULL ? d->ops->clock_ns(d->ctx) : 0;
        c->host_start_ns = host_clock_ns();
    }
    return true;
}

/* A device without a clock of its own takes as long as the host sees. */
static void add_times(const seam_call *c) {
    dvmm_driver *d = c->driver;
    uint64_t host_ns = host_clock_ns() - c->host_start_ns;
    bool has_clock = d->ops->clock_ns != NULL;
    add(&d->host_time_ns, host_ns);
    add(&d->driver_time_ns, has_clock ? d->ops->clock_ns(d->ctx) - c->driver_start_ns : host_ns);
}

static __attribute__((noinline)) ductile_status count_failure(const seam_call *c, int code) {
    add(&c->driver->failures[c->call], 1);
    poison_if_sticky(c->driver, code);
    report_to(atomic_load_explicit(&c->driver->trace_failure, memory_order_acquire), c, code);
    return dvmm_status_of(code);
}

ductile_status dvmm_end_call(const seam_call *c, int code) {
    dvmm_driver *d = c->driver;
    if (d->times_calls) {
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

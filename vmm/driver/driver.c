/* SPDX-License-Identifier: Apache-2.0 */
/* An open device: opening, closing, clocks and counters. */
#include "vmm/driver/driver.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Process life -------------------------------------------------------------------------- */

/* Calling the driver after exit has begun, or in a forked child, is undefined and the driver
 * cannot detect it. A number does, at the price of a load; a getpid would be a system call. */
_Atomic unsigned dvmm_process_age;

#define EXITS (1u << 31)

static void record_exit(void) {
    atomic_fetch_or_explicit(&dvmm_process_age, EXITS, memory_order_release);
}

static void record_fork(void) {
    atomic_fetch_add_explicit(&dvmm_process_age, 1, memory_order_relaxed);
}

static bool watches_life;

static void watch_life(void) {
    watches_life = atexit(record_exit) == 0 && pthread_atfork(NULL, NULL, record_fork) == 0;
}

static bool life_is_watched(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    return pthread_once(&once, watch_life) == 0 && watches_life;
}

ductile_status dvmm_usable(const dvmm_driver *d) {
    unsigned age = atomic_load_explicit(&dvmm_process_age, memory_order_relaxed);
    /* Forks come first: a child may exit too, and none of its threads would release a lock that
     * the parent held. */
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
    atomic_init(&d->usable_at, d->process_age);
    *out = d;
    return DUCTILE_OK;
}

/* A poisoned device is closed like any other. After a fork or an exit the driver is not called. */
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

uint64_t dvmm_host_clock_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t dvmm_clock_ns(dvmm_driver *d) {
    return d->ops->clock_ns != NULL ? d->ops->clock_ns(d->ctx) : dvmm_host_clock_ns();
}

/* One reading of the clock and one addition. The least of several rounds: a round may have been
 * interrupted. */
static uint64_t cost_of_timing_ns(void) {
    enum { ROUNDS = 8, READINGS = 128 };
    _Atomic uint64_t sum = 0;
    uint64_t least = UINT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = dvmm_host_clock_ns();
        for (int i = 1; i < READINGS; i++) {
            (void)atomic_fetch_add_explicit(&sum, dvmm_host_clock_ns(), memory_order_relaxed);
        }
        least = dti_min(least, (dvmm_host_clock_ns() - start) / READINGS);
    }
    return least;
}

void dvmm_time_calls(dvmm_driver *d) {
    atomic_store_explicit(&d->timing_ns, cost_of_timing_ns(), memory_order_relaxed);
    atomic_store_explicit(&d->times_calls, true, memory_order_release);
}

/* ---- Counters ------------------------------------------------------------------------------ */

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
    for (int i = 0; i <= DVMM_N_CALLS; i++) {
        out->calls[i] = read(&d->calls[i]);
        out->failures[i] = read(&d->failures[i]);
    }
    out->driver_time_ns = read(d->ops->clock_ns != NULL ? &d->driver_time_ns : &d->host_time_ns);
    out->host_time_ns = read(&d->host_time_ns);
}

uint64_t dvmm_count_host_waits(const dvmm_counters *c) {
    return dvmm_successes(c, DVMM_CALL_stream_sync) + dvmm_successes(c, DVMM_CALL_event_sync) +
           dvmm_successes(c, DVMM_CALL_context_sync);
}

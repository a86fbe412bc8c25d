/* SPDX-License-Identifier: Apache-2.0 */
/* The seam: an open device, the guard before every call, the accounts after it. */
#include "vmm/driver/seam.h"

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
    for (int i = 0; i < SEAM_TALLIES; i++) {
        atomic_init(&d->tallies[i].owner, SEAM_NOBODY);
    }
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

uint64_t dvmm_clock_ns(dvmm_driver *d) {
    return d->ops->clock_ns != NULL ? d->ops->clock_ns(d->ctx) : dti_clock_ns();
}

/* ---- Accounts ------------------------------------------------------------------------------ */

/* One thread as the seam knows it. */
static _Thread_local struct {
    uint64_t number; /* from 1, of no other thread of the process; 0: none yet */
    int last_code;
} self;

int dvmm_last_code(void) {
    return self.last_code;
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

/* Returns the ticks. */
static uint64_t sum_tally(const seam_tally *t, dvmm_counters *out) {
    for (int i = 0; i < DVMM_N_CALLS; i++) {
        out->calls[i] += read(&t->calls[i]);
    }
    out->driver_time_ns += read(&t->driver_time_ns);
    return read(&t->host_ticks);
}

void dvmm_get_counters(const dvmm_driver *d, dvmm_counters *out) {
    *out = (dvmm_counters){0};
    uint64_t ticks = sum_tally(&d->shared, out);
    for (int i = 0; i < SEAM_TALLIES; i++) {
        ticks += sum_tally(&d->tallies[i], out);
    }
    for (int i = 0; i < DVMM_N_CALLS; i++) {
        out->failures[i] = read(&d->failures[i]);
    }
    out->host_time_ns = dti_ticks_to_ns(ticks);
    if (d->ops->clock_ns == NULL) {
        out->driver_time_ns = out->host_time_ns;
    }
}

static void add_shared(_Atomic uint64_t *counter, uint64_t n) {
    (void)atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline void add(_Atomic uint64_t *counter, uint64_t n, bool is_mine) {
    if (__builtin_expect(is_mine, 1)) {
        atomic_store_explicit(counter, read(counter) + n, memory_order_relaxed);
    } else {
        add_shared(counter, n);
    }
}

/* A tally is its first comer's for good: a thread that finds its place taken, perhaps by one that
 * has ended, counts where many do, which is slower and no less exact. */
static __attribute__((noinline)) seam_tally *claim_tally(dvmm_driver *d) {
    static _Atomic uint64_t last_number;
    if (self.number == 0) {
        self.number = 1 + atomic_fetch_add_explicit(&last_number, 1, memory_order_relaxed);
    }
    seam_tally *t = &d->tallies[self.number % SEAM_TALLIES];
    uint64_t owner = SEAM_NOBODY;
    bool is_mine = read(&t->owner) == SEAM_NOBODY &&
                   atomic_compare_exchange_strong_explicit(
                       &t->owner, &owner, self.number, memory_order_relaxed, memory_order_relaxed);
    return is_mine ? t : &d->shared;
}

static inline seam_tally *tally_of(dvmm_driver *d) {
    seam_tally *t = &d->tallies[self.number % SEAM_TALLIES];
    return __builtin_expect(read(&t->owner) == self.number, 1) ? t : claim_tally(d);
}

/* "Not yet" answers a question; from a call that asked none it is an error. */
static bool is_answer(dvmm_call call, int code) {
    return code == DVMM_SUCCESS || (code == DVMM_NOT_READY && (call == DVMM_CALL_event_query ||
                                                               call == DVMM_CALL_stream_query));
}

static void report_failure(const seam_call *c, int code) {
    dvmm_trace_fn trace = atomic_load_explicit(&c->driver->trace_failure, memory_order_acquire);
    if (trace != NULL) {
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

__attribute__((noinline)) bool dvmm_refuse_call(seam_call *c, const dvmm_driver *d) {
    c->refusal = dvmm_usable(d);
    self.last_code = code_of_refusal(d, c->refusal);
    return false;
}

static __attribute__((noinline)) ductile_status account_failure(const seam_call *c, int code) {
    add_shared(&c->driver->failures[c->call], 1);
    poison_if_sticky(c->driver, code);
    report_failure(c, code);
    return dvmm_status_of(code);
}

ductile_status dvmm_account(const seam_call *c, int code) {
    dvmm_driver *d = c->driver;
    seam_tally *t = tally_of(d);
    bool is_mine = t != &d->shared;
    add(&t->host_ticks, c->host_end - c->host_start, is_mine);
    add(&t->calls[c->call], 1, is_mine);
    if (c->before != DVMM_N_CALLS) {
        add(&t->calls[c->before], 1, is_mine);
    }
    if (d->ops->clock_ns != NULL) {
        add(&t->driver_time_ns, d->ops->clock_ns(d->ctx) - c->driver_start, is_mine);
    }
    self.last_code = code;
    if (__builtin_expect(!is_answer(c->call, code), 0)) {
        return account_failure(c, code);
    }
    dvmm_report_answer(c, code);
    return code == DVMM_SUCCESS ? DUCTILE_OK : dvmm_status_of(code);
}

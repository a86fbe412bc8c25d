/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/captures.h"

#include "vmm/base/lock.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

/* ---- Calls beside captures ----------------------------------------------------------------- */

dvmm_capture_mode dvmm_capture_relax(dvmm_driver *d) {
    dvmm_capture_mode mode = DVMM_CAPTURE_RELAXED;
    if (dvmm_capture_exchange_mode(d, &mode) != DUCTILE_OK) {
        mode = DVMM_CAPTURE_RELAXED; /* nothing was changed: restoring changes nothing either */
    }
    return mode;
}

void dvmm_capture_restore(dvmm_driver *d, dvmm_capture_mode mode) {
    if (mode != DVMM_CAPTURE_RELAXED) {
        (void)dvmm_capture_exchange_mode(d, &mode);
    }
}

bool dvmm_is_capturing(dvmm_driver *d, ductile_stream stream) {
    dvmm_capture_status capture = DVMM_CAPTURE_BROKEN;
    ductile_status status = dvmm_capture_status_of(d, stream, &capture);
    return status != DUCTILE_OK || capture != DVMM_CAPTURE_NONE;
}

bool dvmm_is_surely_capturing(dvmm_driver *d, ductile_stream stream) {
    dvmm_capture_status capture = DVMM_CAPTURE_NONE;
    ductile_status status = dvmm_capture_status_of(d, stream, &capture);
    return status == DUCTILE_OK && capture != DVMM_CAPTURE_NONE;
}

/* ---- The gate ------------------------------------------------------------------------------ */

static dti_lock gate;         /* guards the numbers; no driver call is made while it is held */
static uint64_t under_way[2]; /* captures, by notice */
static uint64_t
    n_holders[2]; /* which announcements they keep waiting: the surest one alone, or both */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Also in a forked child: captures and holders, and a thread inside the gate, are the parent's. */
static void start_over(void) {
    dti_lock_init(&gate, DTI_RANK_LEAF);
    memset(under_way, 0, sizeof under_way);
    memset(n_holders, 0, sizeof n_holders);
}

static void prepare(void) {
    start_over();
    (void)pthread_atfork(NULL, NULL, start_over);
}

static void lock_gate(void) {
    (void)pthread_once(&once, prepare);
    dti_lock_acquire(&gate);
}

static bool is_held(dvmm_capture_notice notice) {
    bool is_sure = notice == DVMM_CAPTURE_ANNOUNCED;
    return n_holders[DVMM_CAPTURE_POSSIBLE] > 0 ||
           (is_sure && n_holders[DVMM_CAPTURE_ANNOUNCED] > 0);
}

static void wait_for_holders(dvmm_capture_notice notice) {
    const struct timespec moment = {.tv_nsec = 1000};
    bool any = true;
    while (any) {
        lock_gate();
        any = is_held(notice);
        dti_lock_release(&gate);
        if (any) {
            (void)nanosleep(&moment, NULL);
        }
    }
}

void dvmm_captures_begin(dvmm_capture_notice notice) {
    lock_gate();
    under_way[notice]++;
    dti_lock_release(&gate);
    wait_for_holders(notice);
}

void dvmm_captures_end(dvmm_capture_notice notice) {
    lock_gate();
    under_way[notice] -= under_way[notice] > 0; /* one end too many announces nothing */
    dti_lock_release(&gate);
}

/* False when captures are announced, or more possible ones than that. */
static bool hold(uint64_t most_possible, dvmm_capture_notice notice) {
    lock_gate();
    bool any =
        under_way[DVMM_CAPTURE_ANNOUNCED] > 0 || under_way[DVMM_CAPTURE_POSSIBLE] > most_possible;
    n_holders[notice] += !any;
    dti_lock_release(&gate);
    return !any;
}

bool dvmm_captures_hold(bool all_are_announced) {
    return all_are_announced ? hold(UINT64_MAX, DVMM_CAPTURE_ANNOUNCED)
                             : hold(0, DVMM_CAPTURE_POSSIBLE);
}

bool dvmm_captures_hold_beside(uint64_t own) {
    return hold(own, DVMM_CAPTURE_POSSIBLE);
}

void dvmm_captures_release(bool all_are_announced) {
    lock_gate();
    n_holders[all_are_announced ? DVMM_CAPTURE_ANNOUNCED : DVMM_CAPTURE_POSSIBLE]--;
    dti_lock_release(&gate);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver around a driver, real or virtual: it passes every call on, and one of them fails as
 * planned, before it does anything or after it has done it. It also keeps a list of what exists on
 * the device through it, so that a test sees what a fault has left, and can give that back: the
 * allocator cannot know of a handle whose creation "failed".
 *
 * Owner: one test, which installs it in a driver that was just opened. It outlives that driver.
 * Calls are made by one thread at a time.
 */
#ifndef TESTS_SUPPORT_FAULTY_DRIVER_H
#define TESTS_SUPPORT_FAULTY_DRIVER_H

#include "tests/support/resources.h"

typedef struct faulty_plan {
    uint64_t nth;  /* which call fails, from 1; 0: none */
    int code;      /* the driver's                      */
    bool is_late;  /* it does what it was asked, and then says that it failed */
    bool for_good; /* all later calls of the same name fail too               */
} faulty_plan;

typedef struct faulty_driver {
    const dvmm_driver_ops *inner;
    void *inner_ctx;
    dvmm_driver_ops ops;
    faulty_plan plan;
    uint64_t n_calls;    /* since faulty_plan_fault */
    uint64_t n_failures; /* of them, planned        */
    dvmm_call failing;   /* valid when n_failures > 0 */
    resources left;      /* what exists on the device */
} faulty_driver;

/* From now on the driver's calls go through f. */
void faulty_install(faulty_driver *f, dvmm_driver *d);

/* Starts to count calls again. NULL: no call fails. */
void faulty_plan_fault(faulty_driver *f, const faulty_plan *plan);

/* Gives all of it back through `d`, a driver of the same device in which no fault is planned. NULL
 * or a complaint. */
const char *faulty_clean_up(faulty_driver *f, dvmm_driver *d);

#endif

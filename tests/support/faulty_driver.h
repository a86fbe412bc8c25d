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

#include "vmm/driver/driver.h"

typedef struct faulty_plan {
    uint64_t nth;  /* which call fails, from 1; 0: none */
    int code;      /* the driver's                      */
    bool is_late;  /* it does what it was asked, and then says that it failed */
    bool for_good; /* all later calls of the same name fail too               */
} faulty_plan;

typedef enum faulty_kind {
    FAULTY_RANGE,
    FAULTY_HANDLE,
    FAULTY_MAPPING,
    FAULTY_EVENT,
    FAULTY_STREAM,
    FAULTY_HOST_MEMORY,
    FAULTY_REGISTRATION,
    FAULTY_N_KINDS
} faulty_kind;

/* Something that exists on the device. */
typedef struct faulty_thing {
    faulty_kind kind;
    uint64_t name; /* address or handle */
    uint64_t size; /* 0: it has none    */
} faulty_thing;

enum { FAULTY_MOST_THINGS = 4096 };

typedef struct faulty_driver {
    const dvmm_driver_ops *inner;
    void *inner_ctx;
    dvmm_driver_ops ops;
    faulty_plan plan;
    uint64_t n_calls;    /* since faulty_plan_fault */
    uint64_t n_failures; /* of them, planned        */
    dvmm_call failing;   /* valid when n_failures > 0 */
    faulty_thing things[FAULTY_MOST_THINGS];
    size_t n_things;
    bool has_overflowed; /* there was more than the list holds */
} faulty_driver;

/* From now on the driver's calls go through f. */
void faulty_install(faulty_driver *f, dvmm_driver *d);

/* Starts to count calls again. NULL: no call fails. */
void faulty_plan_fault(faulty_driver *f, const faulty_plan *plan);

size_t faulty_count(const faulty_driver *f, faulty_kind kind);
const char *faulty_kind_name(faulty_kind kind);

/* Gives all of it back through `d`, a driver of the same device in which no fault is planned. NULL
 * or a complaint. */
const char *faulty_clean_up(faulty_driver *f, dvmm_driver *d);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a scenario again and again with the first, second, third ... driver call of a kind failing,
 * until a run sees no failure. After each: statuses were clean, the allocator's own check and all
 * identities hold, every live block has its contents, the next request succeeds, and what is left
 * on the device after destroy is at most what the failed calls were about, and was reported.
 */
#ifndef TESTS_SUPPORT_FAULT_SWEEP_H
#define TESTS_SUPPORT_FAULT_SWEEP_H

#include "tests/support/world.h"

typedef struct fault_scenario {
    const char *name;
    fixture_setup setup;
    const char *(*prepare)(world *w); /* runs before the fault is planned; NULL: nothing */
    const char *(*run)(world *w);     /* goes on after a call that failed                */
} fault_scenario;

typedef struct fault_kind {
    const char *call; /* NULL: any                         */
    int code;         /* the driver's                      */
    int persistent;   /* 1: all later ones fail too        */
    int effect;       /* as in ductile_virtual_fault       */
    bool in_destroy;  /* the fault stays through destroy   */
} fault_kind;

/* NULL, or which call of which run failed and what was wrong. *n_faulted receives the runs that
 * saw a failure. */
const char *fault_sweep(const fault_scenario *scenario, const fault_kind *kind,
                        uint64_t *n_faulted);

#endif

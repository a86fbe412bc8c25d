/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a scenario with one of its driver calls failing. After that: statuses were clean, the
 * allocator's own check and all identities hold, every live block has its contents, the next
 * request succeeds, and what is left on the device after destroy is at most what the failed calls
 * were about, and was reported.
 */
#ifndef TESTS_SUPPORT_FAULT_SWEEP_H
#define TESTS_SUPPORT_FAULT_SWEEP_H

#include "tests/support/fault_sites.h"
#include "tests/support/world.h"

typedef struct fault_scenario {
    const char *name;
    fixture_setup setup;
    const char *(*prepare)(world *w); /* runs before the fault is planned; NULL: nothing */
    const char *(*run)(world *w);     /* goes on after a call that failed                */
} fault_scenario;

typedef struct fault_kind {
    const char *call; /* as in ductile_virtual_fault       */
    int code;         /* the driver's                      */
    int persistent;   /* 1: all later ones fail too        */
    int effect;       /* as in ductile_virtual_fault       */
    bool in_destroy;  /* the fault stays through destroy   */
} fault_kind;

/* The calls of a run in which none fails, in order, destroy's at the end. */
const char *fault_find_sites(const fault_scenario *scenario, fault_sites *sites);

/* The nth call of kind->call fails. NULL, or what was wrong. */
const char *fault_run(const fault_scenario *scenario, const fault_kind *kind, uint64_t nth);

#endif

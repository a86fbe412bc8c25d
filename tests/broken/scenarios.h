/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Situations that a random program seldom comes into, built step by step: each on a device of its
 * own, the same on every run and under every schedule.
 */
#ifndef TESTS_BROKEN_SCENARIOS_H
#define TESTS_BROKEN_SCENARIOS_H

#include "tests/broken/program.h"

typedef struct scenario {
    const char *name;
    const char *conf; /* options, as in DUCTILE_CONF; NULL: defaults */
    void (*play)(play *p);
} scenario;

/* NULL behind the last one. */
const scenario *scenario_at(size_t i);

/* Those of them about the proof that free memory may leave its stream (scenarios_proof.c). */
const scenario *proof_scenario_at(size_t i);

/* And about blocks that are freed first and joined later (scenarios_debts.c). */
const scenario *debt_scenario_at(size_t i);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on an allocator beside its model. After every operation everything that can
 * be seen is audited; at the end all is freed, destroyed, and the leak gate passed. The run is a
 * function of its setup alone.
 */
#ifndef TESTS_SUPPORT_CHURN_H
#define TESTS_SUPPORT_CHURN_H

#include "tests/support/world.h"

typedef struct churn_setup {
    fixture_setup fixture;
    uint64_t seed;
    uint64_t n_ops;
    bool has_contents;
    bool breathes;   /* another process takes and gives back memory, the soft limit moves      */
    bool may_refuse; /* handles of several granules: a refusal is not held against the model */
} churn_setup;

/* What a run did, so that tests can ask that it did enough. */
typedef struct churn_tally {
    uint64_t allocs, refusals, frees, recorded, trims, verified, breaths;
    uint64_t recycled_handles, compacted_handles, pending_peak_bytes;
} churn_tally;

/* NULL, or seed, step, the latest operations and what went wrong. tally may be NULL. */
const char *churn_run(const churn_setup *setup, churn_tally *tally);

/* `fallback`, unless the environment variable `name` holds a number. */
uint64_t churn_setting(const char *name, uint64_t fallback);

#endif

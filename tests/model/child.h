/* SPDX-License-Identifier: Apache-2.0 */
/* A run in a process of its own, so that a crash is a finding like any other. */
#ifndef TESTS_MODEL_CHILD_H
#define TESTS_MODEL_CHILD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct outcome {
    bool is_broken;
    uint64_t n_operations;
    char why[1024];
} outcome;

typedef const char *(*runner)(void *user, bool trace, uint64_t *n_operations);

/* trace: what the run prints is wanted. */
outcome child_run(runner run, void *user, bool trace);

#endif

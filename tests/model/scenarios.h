/* SPDX-License-Identifier: Apache-2.0 */
/* Plays all scenarios of a file, each in a process of its own. */
#ifndef TESTS_MODEL_SCENARIOS_H
#define TESTS_MODEL_SCENARIOS_H

#include <stdbool.h>
#include <stdint.h>

/* NULL, 0, false: none. */
typedef struct scenarios_setup {
    const char *path;
    const char *only;     /* that name, or those whose name has it */
    const char *schedule; /* else each that the scenario holds under */
    const char *conf;     /* further options */
    bool detects_only;    /* nothing but what the device sees is a finding */
    bool is_listed;
    uint64_t fault_step; /* each so-manieth driver call fails, in a play of its own */
    bool sweeps;         /* each driver call fails in all ways there are */
} scenarios_setup;

/* False: a scenario has found something. Prints what. */
bool scenarios_run(const scenarios_setup *setup);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* One long run at 95 % occupancy, in which nothing may grow. */
#ifndef TESTS_MODEL_SOAK_H
#define TESTS_MODEL_SOAK_H

#include <stdint.h>

/* Prints what it measured. NULL, or what grew or went wrong. */
const char *soak_run(uint64_t n_operations);

#endif

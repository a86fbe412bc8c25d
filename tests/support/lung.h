/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another program on the same device, which breathes: it takes between 10 % and 95 % of the memory
 * and gives it back, at random. On CUDA it is a process; on the virtual GPU, which lives in one
 * process, a thread with a driver of its own. It begins with its breath held, and nothing taken.
 *
 * Functions return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_LUNG_H
#define TESTS_SUPPORT_LUNG_H

#include <ductile_virtual.h>

#include <stdbool.h>

typedef struct lung lung;

/* Before this process opens anything of CUDA. */
const char *lung_fork(lung **out, int device, uint64_t seed);
const char *lung_start(lung **out, ductile_virtual_gpu *gpu, uint64_t seed);

/* Between the two calls it takes nothing and gives nothing back. lung_hold waits until that is so,
 * also at the beginning; then lung_breathe. */
const char *lung_hold(lung *l);
void lung_breathe(lung *l);

/* Has it met an error of the driver? */
bool lung_is_broken(const lung *l);
uint64_t lung_breaths(const lung *l);

/* It gives all back and ends; complains when it was broken. NULL: nothing to do. */
const char *lung_end(lung *l);

#endif

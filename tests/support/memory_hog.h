/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another program on the same device, which breathes: it takes between 10 % and 95 % of the memory
 * and gives it back, at random. On CUDA it is a process; on the virtual GPU, which lives in one
 * process, a thread with a driver of its own. It begins with its breath held, and nothing taken.
 *
 * Functions return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_MEMORY_HOG_H
#define TESTS_SUPPORT_MEMORY_HOG_H

#include <ductile_virtual.h>

#include <stdbool.h>

typedef struct memory_hog memory_hog;

/* Before this process opens anything of CUDA. */
const char *memory_hog_fork(memory_hog **out, int device, uint64_t seed);
const char *memory_hog_start(memory_hog **out, ductile_virtual_gpu *gpu, uint64_t seed);

/* Between the two calls it takes nothing and gives nothing back. memory_hog_hold waits until that
 * is so, also at the beginning; then memory_hog_go_on. */
const char *memory_hog_hold(memory_hog *hog);
void memory_hog_go_on(memory_hog *hog);

/* Has it met an error of the driver? */
bool memory_hog_is_broken(const memory_hog *hog);
uint64_t memory_hog_breaths(const memory_hog *hog);

/* It gives all back and ends; complains when it was broken. NULL: nothing to do. */
const char *memory_hog_end(memory_hog *hog);

#endif

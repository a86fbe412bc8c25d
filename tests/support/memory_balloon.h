/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A memory balloon: another program on the same device, which takes between 10 % and 95 % of the
 * memory and gives it back, at random. On CUDA it is a process; on the virtual GPU, which lives in
 * one process, a thread with a driver of its own. It begins held, with nothing taken.
 *
 * Functions return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_MEMORY_BALLOON_H
#define TESTS_SUPPORT_MEMORY_BALLOON_H

#include <ductile_virtual.h>

#include <stdbool.h>

typedef struct memory_balloon memory_balloon;

/* Before this process opens anything of CUDA. */
const char *memory_balloon_fork(memory_balloon **out, int device, uint64_t seed);
const char *memory_balloon_start(memory_balloon **out, ductile_virtual_gpu *gpu, uint64_t seed);

/* Between the two calls it takes nothing and gives nothing back. memory_balloon_hold waits until
 * that is so, also at the beginning; then memory_balloon_go_on. */
const char *memory_balloon_hold(memory_balloon *balloon);
void memory_balloon_go_on(memory_balloon *balloon);

/* Has it met an error of the driver? */
bool memory_balloon_is_broken(const memory_balloon *balloon);
/* How often it has gone to another size. */
uint64_t memory_balloon_swings(const memory_balloon *balloon);

/* It gives all back and ends; complains when it was broken. NULL: nothing to do. */
const char *memory_balloon_end(memory_balloon *balloon);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Independent parts of a command, each in a child process, so that they run beside each other and
 * share what the parent has read. Their output comes in order.
 */
#ifndef DUCTILE_BENCH_CLI_IN_CHILDREN_H
#define DUCTILE_BENCH_CLI_IN_CHILDREN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { IN_CHILDREN_MAX = 16 };

/* Writes to `out`; errors go to standard error. False: it failed, and what it wrote is dropped. */
typedef bool (*in_children_part)(void *user, size_t index, FILE *out);

/* Runs parts 0 to n - 1, and writes to `out` what they wrote up to the first that failed. False:
 * one failed. Where no process can be started, a part runs in this one. Pre: n <= IN_CHILDREN_MAX;
 * this process has one thread. */
bool in_children(in_children_part part, void *user, size_t n, FILE *out);

#endif

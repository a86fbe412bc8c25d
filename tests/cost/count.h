/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts instructions without a tool: a parent process steps through the child, one instruction at
 * a time, between two marks. The counts are the same in every run and on every machine that runs
 * the same code, whatever else the machine does.
 */
#ifndef TESTS_COST_COUNT_H
#define TESTS_COST_COUNT_H

#include <stdint.h>

/* Runs `work` in a child process that is stepped between count_begin and count_end. Returns what
 * the child returns, or COMMAND_SKIPPED where processes may not trace each other. */
int count_run(int (*work)(void));

void count_begin(void);

/* The instructions since count_begin, without those of the two marks. */
uint64_t count_end(void);

#endif

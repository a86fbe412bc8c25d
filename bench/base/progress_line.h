/* SPDX-License-Identifier: Apache-2.0 */
/* One line on standard error that is written over and over; nothing unless that is a terminal. */
#ifndef DUCTILE_BENCH_BASE_PROGRESS_LINE_H
#define DUCTILE_BENCH_BASE_PROGRESS_LINE_H

#include <stdbool.h>
#include <stdint.h>

bool progress_is_shown(void);
void progress_show(const char *trace, const char *contender, uint64_t pass, uint64_t n_passes,
                   uint64_t percent);
void progress_clear(void);
/* Until the next call each line begins with the share of a whole that lies behind.
 * of 0: no more. */
void progress_set_whole(uint64_t done, uint64_t of);

#endif

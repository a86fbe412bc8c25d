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

#endif

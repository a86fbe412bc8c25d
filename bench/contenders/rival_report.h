/* SPDX-License-Identifier: Apache-2.0 */
/* What every rival reports alike: one line when it cannot start, and what its driver counted. */
#ifndef DUCTILE_BENCH_CONTENDERS_RIVAL_REPORT_H
#define DUCTILE_BENCH_CONTENDERS_RIVAL_REPORT_H

#include "bench/contenders/contender.h"

/* Writes `text` as the message of a failed init and returns `status`. */
ductile_status rival_refuse(ductile_status status, const char *text, char *message, size_t size);

/* Fills what the driver's counters know; the rest is left alone. */
void rival_driver_stats(const dvmm_driver *driver, contender_stats *out);

#endif

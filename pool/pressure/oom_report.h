/* SPDX-License-Identifier: Apache-2.0 */
/* The report about a refused request: taken at the refusal, kept for the thread. */
#ifndef DUCTILE_POOL_PRESSURE_OOM_REPORT_H
#define DUCTILE_POOL_PRESSURE_OOM_REPORT_H

#include "pool/growth/attempt.h"

/* A number that no other allocator of the process gets, unlike its address, which may be reused. */
uint64_t dpool_next_instance_id(void);

/* Counts the refusal and takes its report: one driver call, and a bounded number of free blocks,
 * in pieces. captured: a capture forbade waiting. Grow lock held, index lock not. */
void dpool_report_take(ductile_allocator *a, const dpool_request *r, bool captured);

/* Logs a refused request: the requested bytes, who holds what, and the first failure of the driver.
 * No lock held. */
void dpool_log_refusal(ductile_allocator *a, ductile_status status, uint64_t requested);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The report about a refused request: taken while it is refused, kept for the thread. */
#ifndef DUCTILE_POOL_PRESSURE_OOM_REPORT_H
#define DUCTILE_POOL_PRESSURE_OOM_REPORT_H

#include "pool/growth/attempt.h"

/* A number that no other allocator of the process has: an address may be given out again. */
uint64_t dpool_next_instance_id(void);

/* Counts the refusal and takes its report: one driver call, and a bounded number of free blocks,
 * in pieces. captured: a capture forbade waiting. Grow lock held, index lock not. */
void dpool_report_take(ductile_allocator *a, const dpool_request *r, bool captured);

/* A request was refused: what was asked, what is held by whom, the driver's first failure. No lock
 * held. */
void dpool_log_refusal(ductile_allocator *a, ductile_status status, uint64_t requested);

#endif

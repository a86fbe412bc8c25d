/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for the caller's log callback. No lock may be held: the callback may call back. */
#ifndef DUCTILE_POOL_BASE_LOG_H
#define DUCTILE_POOL_BASE_LOG_H

#include "pool/base/allocator.h"

void dpool_log(const ductile_allocator *a, ductile_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The trace callback of the driver: keeps, for this thread, the first driver call that failed since
 * dpool_forget_failure. */
void dpool_record_failure(void *user, dvmm_call call, int code, uint64_t address, uint64_t size);
void dpool_forget_failure(void);

enum { DPOOL_FAILURE_BYTES = 128 };

/* Writes its name and code. False, and nothing is written, when none failed. */
bool dpool_describe_failure(char *text, size_t size);

/* Logs how much memory failed undos have newly lost, if any. */
void dpool_log_losses(ductile_allocator *a);

/* A request was refused, for another reason than that memory is short:
 * the driver's first failure. */
void dpool_log_failure(const ductile_allocator *a, ductile_status status, uint64_t requested);

#endif

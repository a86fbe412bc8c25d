/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for the caller's log callback. No lock may be held: the callback may call back. */
#ifndef DUCTILE_POOL_LOG_H
#define DUCTILE_POOL_LOG_H

#include "pool/arena.h"

void dpool_log(const ductile_allocator *a, ductile_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A request was refused: what was asked, what is held by whom, the driver's last code. */
void dpool_log_refusal(ductile_allocator *a, ductile_status status, uint64_t requested);

#endif

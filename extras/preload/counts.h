/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who asked for how much, and who served it. Kept in a file, mapped into the process, of the folder
 * that DUCTILE_PRELOAD_COUNTS names: it is complete however the process ends, and is not made
 * before the first request. Without the variable nothing is counted. python/preload/_counts.py
 * reads it.
 */
#ifndef DUCTILE_PRELOAD_COUNTS_H
#define DUCTILE_PRELOAD_COUNTS_H

#include <stdbool.h>
#include <stddef.h>

/* The caller of the interposed function. */
#define CALLER __builtin_return_address(0)

/* A request of `size` bytes that Ductile has served, or the driver. */
void dpre_count(const void *caller, size_t size, bool is_served);

/* One sentence on what was refused, or why a device is not served; the latest is kept. */
void dpre_note(const char *sentence);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synchronous frees beside a capture. A wait for the device would break the capture, and a program
 * may free memory beside it (in the relaxed mode, or in a thread of its own). So the block stays
 * live until the last capture has ended, and is freed then, behind the wait.
 */
#ifndef DUCTILE_PRELOAD_DEFERRED_H
#define DUCTILE_PRELOAD_DEFERRED_H

#include "pool/preload/abi.h"

#include <stdbool.h>

/* The captures that programs have begun. */
void dpre_capture_begins(void);
void dpre_capture_ended(void);
bool dpre_is_capture_known(void);

/* Keeps a block of ours for later. False: the host has no memory. */
bool dpre_defer(ductile_addr address);

/* Waits for the device of each block that was kept, and frees it. */
void dpre_free_deferred(void);

#endif

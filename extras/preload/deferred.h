/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synchronous frees beside a capture. A wait for the device would break the capture, and a program
 * may free memory beside it (in the relaxed mode, or in a thread of its own). So the block stays
 * live until the last capture has ended, and is freed then, behind the wait.
 */
#ifndef DUCTILE_PRELOAD_DEFERRED_H
#define DUCTILE_PRELOAD_DEFERRED_H

#include "abi.h"

#include <stdbool.h>

/* The captures that programs have begun, on a stream of a device's primary context; -1: of another
 * one. Those of a device that is reset end with it. */
void dpre_capture_begins(int device);
void dpre_capture_ended(int device);
void dpre_captures_gone(int device);
bool dpre_is_capture_known(void);

/* Around a wait for all work of a device: a capture that would begin during it waits for it. False,
 * and nothing to release: one is under way. */
bool dpre_hold_captures(void);
void dpre_release_captures(void);

/* Keeps a block of a device for later. Returns the driver's code of a free: CU_INVALID_VALUE where
 * it is kept already, CU_OUT_OF_MEMORY where the host has no memory. */
cu_result dpre_defer(int device, ductile_addr address);

/* For the program such a block is freed. */
bool dpre_is_deferred(ductile_addr address);

/* Waits for the device of each block that was kept, and frees it. */
void dpre_free_deferred(void);

/* The device's memory is gone: the next allocator may have the addresses again. */
void dpre_forget_deferred(int device);

#endif

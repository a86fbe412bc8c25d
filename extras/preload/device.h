/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which allocator serves a request: the one of the device whose primary context is current, or is
 * the stream's. Other contexts are not served. A device is entered and left around each use, so
 * that a reset of it waits for them.
 */
#ifndef DUCTILE_PRELOAD_DEVICE_H
#define DUCTILE_PRELOAD_DEVICE_H

#include "abi.h"

#include <stdbool.h>

typedef struct dpre_device dpre_device;

enum { DPRE_N_DEVICES = 64 };

/* DUCTILE_PRELOAD: what is served. */
typedef enum dpre_mode {
    DPRE_ALL,            /* unset, empty, "all"                                                */
    DPRE_STREAM_ORDERED, /* "async": cuMemAlloc and what is made of it stay the driver's       */
    DPRE_OFF             /* "off", and anything that is none of these, which a note then says  */
} dpre_mode;

dpre_mode dpre_served(void);

/* ---- Entering and leaving ------------------------------------------------------------------ */

/* The device of the thread's current context, and that of a stream, if it is the device's primary
 * one; its allocator is made if there is none. NULL: not served. */
dpre_device *dpre_enter_current(void);
dpre_device *dpre_enter_stream(ductile_stream stream);

/* Does it name a default stream, which is that of the current context? */
bool dpre_is_default_stream(ductile_stream stream);

/* The device whose block holds the address, with a block info of the block. NULL: none of ours. */
dpre_device *dpre_enter_owner(ductile_addr address, ductile_block_info *block);

/* The same without opening an allocator, by ordinal, below dpre_n_devices. */
dpre_device *dpre_enter_open(int device);
int dpre_n_devices(void);

/* NULL does nothing. */
void dpre_leave(dpre_device *device);

/* ---- Of an entered device ------------------------------------------------------------------ */

ductile_allocator *dpre_allocator(const dpre_device *device);
cu_context dpre_context(const dpre_device *device);
int dpre_ordinal(const dpre_device *device);

/* Is its context the thread's current one? */
bool dpre_is_current(const dpre_device *device);

/* A stream of this library's own, on which nothing runs: memory of it is done when it is handed
 * out, and usable on every stream. */
ductile_stream dpre_plain_stream(const dpre_device *device);

/* May memory come behind a wait, or other work, on the plain stream? */
bool dpre_plain_works(const dpre_device *device);

/* Is it the device's default pool? And is that the current one, of which cuMemAllocAsync is? */
bool dpre_is_default_pool(const dpre_device *device, cu_mem_pool pool);
bool dpre_default_is_current(const dpre_device *device);

/* Waits for all work of the device, and of those that have access. Returns the driver's code. */
cu_result dpre_wait(const dpre_device *device);

/* Gives the driver what the allocator of a device, by ordinal, holds free.
 * False: it was nothing. */
enum { DPRE_EVERY_DEVICE = -2 };
bool dpre_give_back(int device);

/* ---- Peers and resets ---------------------------------------------------------------------- */

/* The device of a primary context, of a stream of one, and of a default pool; -1: it is none. */
int dpre_primary_device(cu_context context);
int dpre_stream_device(ductile_stream stream);
int dpre_pool_device(cu_mem_pool pool);

/* By which call a program gives access. It lasts until each of them has taken it back. */
typedef enum dpre_access { DPRE_OF_CONTEXT, DPRE_OF_POOL, DPRE_N_ACCESS } dpre_access;

/* Lets another device, or no longer, use the memory of a device, also before there is any; -1 does
 * nothing. Returns 0, or the driver's code for what cannot be. */
cu_result dpre_set_peer(int owner, int device, dpre_access by, bool is_allowed);

/* The ordinal of the current context; -1 where there is none. */
int dpre_current_device(void);

/* Destroys the allocator of a device whose primary context is about to be reset. False: there is
 * none, or an adapter uses it too. */
bool dpre_close(int device);

#endif

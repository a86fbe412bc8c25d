/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What adapters ask of libductile_preload.so, where it is in the process: one allocator for each
 * device serves them and all interposed calls. They declare the function weak, so that it is NULL
 * in other processes: `#pragma weak ductile_preload_open`.
 */
#ifndef DUCTILE_PRELOAD_H
#define DUCTILE_PRELOAD_H

#include <ductile.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The process's allocator of a device, made when first asked for. It lives to the end of the
 * process, and belongs to this library.
 *
 * Arguments: create: the address of the caller's ductile_create, which tells whether both speak of
 *            the same libductile. device: ordinal. options: how to make it, where this is the first
 *            use of the device; NULL means those of the interposed calls. From now on its log gets
 *            the lines of the allocator, if it has one.
 * Returns:   the allocator; NULL where the two libductiles differ, DUCTILE_PRELOAD is off, or the
 *            allocator cannot be made.
 * Threads:   safe.
 * Cost:      the first call: as ductile_create.
 */
DUCTILE_API ductile_allocator *ductile_preload_open(const void *create, int device,
                                                    const ductile_options *options);

#ifdef __cplusplus
}
#endif
#endif

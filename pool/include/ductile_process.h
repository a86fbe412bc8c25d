/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One allocator for all libraries of a process. A library that serves each library's requests for
 * GPU memory, whatever they call, defines the function below and exports it. Adapters, which serve
 * the requests of one library, ask it before they make an allocator of their own. No library of
 * Ductile defines it, so adapters declare it weak, and it is NULL in other processes:
 *
 *     #pragma weak ductile_process_open
 *     allocator = ductile_process_open != NULL ? ductile_process_open(...) : NULL;
 */
#ifndef DUCTILE_PROCESS_H
#define DUCTILE_PROCESS_H

#include "ductile.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The process's allocator of a device, made when first asked for. It lives to the end of the
 * process, and belongs to the library that defines this function.
 *
 * Arguments: create: the address of the caller's ductile_create, which tells whether both speak of
 *            the same libductile. device: ordinal. options: how to make it, where this is the first
 *            use of the device; NULL means those of the library. From now on its log gets the lines
 *            of the allocator, if it has one.
 * Returns:   the allocator; NULL where the two libductiles differ, the library does not serve the
 *            device, or the allocator cannot be made: then the caller makes its own.
 * Threads:   safe.
 * Cost:      the first call: as ductile_create.
 */
ductile_allocator *ductile_process_open(const void *create, int device,
                                        const ductile_options *options);

#ifdef __cplusplus
}
#endif
#endif

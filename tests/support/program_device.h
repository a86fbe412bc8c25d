/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs in tests/gpu stand on: a device that is real, or virtual where `gpu` is not
 * NULL, and an allocator on it. Functions return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_PROGRAM_DEVICE_H
#define TESTS_SUPPORT_PROGRAM_DEVICE_H

#include "vmm/driver/driver.h"

#include <ductile_virtual.h>

/* What --virtual and --device ask for: a virtual GPU with the options, or, where they are NULL, the
 * device. Ends the program as skipped where there is none. `*gpu` is NULL on a device. Closed by
 * dvmm_close, then program_close_virtual. */
const char *program_open(const ductile_virtual_options *options, int device,
                         ductile_virtual_gpu **gpu, dvmm_driver **driver);

/* With the default options but for the limit; 0: none. */
const char *program_allocator(ductile_virtual_gpu *gpu, int device, uint64_t limit_bytes,
                              ductile_allocator **out);

/* Passes the leak gate, finds no violation and destroys the device. NULL: nothing to do. */
const char *program_close_virtual(ductile_virtual_gpu *gpu);

#endif

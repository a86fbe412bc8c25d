/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Being harmless to stream capture: a thread in relaxed mode may query and wait beside other
 * threads' captures without invalidating them; nobody may wait for a stream that is captured.
 */
#ifndef DUCTILE_VMM_CAPTURE_MODE_H
#define DUCTILE_VMM_CAPTURE_MODE_H

#include "vmm/driver/driver.h"

/* Puts the calling thread into relaxed mode; returns the mode to restore. Cheap. */
dvmm_capture_mode dvmm_capture_relax(dvmm_driver *d);
void dvmm_capture_restore(dvmm_driver *d, dvmm_capture_mode mode);

/* True also when the answer cannot be had. */
bool dvmm_is_capturing(dvmm_driver *d, ductile_stream stream);

/* True only when the driver says so. */
bool dvmm_is_surely_capturing(dvmm_driver *d, ductile_stream stream);

#endif

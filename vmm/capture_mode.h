/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls beside stream captures: a thread in relaxed mode may query and wait beside the captures of
 * other threads without invalidating them. No thread may wait for a stream that is being captured.
 */
#ifndef DUCTILE_VMM_CAPTURE_MODE_H
#define DUCTILE_VMM_CAPTURE_MODE_H

#include "vmm/driver/driver.h"

/* Puts the calling thread into relaxed mode; returns the mode to restore. Cheap. */
dvmm_capture_mode dvmm_capture_relax(dvmm_driver *d);
void dvmm_capture_restore(dvmm_driver *d, dvmm_capture_mode mode);

/* Is the stream being captured? True also when the driver cannot tell. */
bool dvmm_is_capturing(dvmm_driver *d, ductile_stream stream);

/* Is the stream surely being captured? True only when the driver says so. */
bool dvmm_is_surely_capturing(dvmm_driver *d, ductile_stream stream);

#endif

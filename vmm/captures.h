/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream captures. A thread in relaxed mode may query and wait beside the captures of other threads
 * without invalidating them. No thread may wait for a stream that is being captured, and while a
 * capture may be under way none may record an event of a whole context. So the process counts
 * captures at one gate.
 */
#ifndef DUCTILE_VMM_CAPTURES_H
#define DUCTILE_VMM_CAPTURES_H

#include "vmm/driver/driver.h"

/* ---- Calls beside captures ----------------------------------------------------------------- */

/* Puts the calling thread into relaxed mode; returns the mode to restore. Cheap. */
dvmm_capture_mode dvmm_capture_relax(dvmm_driver *d);
void dvmm_capture_restore(dvmm_driver *d, dvmm_capture_mode mode);

/* Is the stream being captured? True also when the driver cannot tell. */
bool dvmm_is_capturing(dvmm_driver *d, ductile_stream stream);

/* Is the stream surely being captured? True only when the driver says so. */
bool dvmm_is_surely_capturing(dvmm_driver *d, ductile_stream stream);

/* ---- The gate ------------------------------------------------------------------------------ */

/* One gate for all allocators and devices of the process: captures are announced before they begin
 * and after they end, and records of whole contexts are held back meanwhile. Safe from any thread;
 * no index lock may be held. */

/* How surely a capture is under way. */
typedef enum dvmm_capture_notice {
    DVMM_CAPTURE_ANNOUNCED, /* a capture                                              */
    DVMM_CAPTURE_POSSIBLE   /* a pool, which may be for one; matters to those who hear of captures
                               by pools alone */
} dvmm_capture_notice;

/* Between the two, captures may be under way. The first waits for records that have begun. */
void dvmm_captures_begin(dvmm_capture_notice notice);
void dvmm_captures_end(dvmm_capture_notice notice);

/* Keeps announcements of captures waiting until dvmm_captures_release. False, and nothing to
 * release, when one may be under way; `all_are_announced`: possible ones do not count. */
bool dvmm_captures_hold(bool all_are_announced);
void dvmm_captures_release(bool all_are_announced);

/* The same for a wait for the whole device, which breaks captures, too. `own`: possible captures
 * that the caller has announced itself and looks at by other means; UINT64_MAX: none counts.
 * Release with dvmm_captures_release(false). */
bool dvmm_captures_hold_beside(uint64_t own);

#endif

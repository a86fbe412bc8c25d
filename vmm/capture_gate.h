/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the process knows of captures: they are announced before they begin and after they end, and
 * while one may be under way no thread may record an event of a whole context. One gate for all
 * allocators and devices. Safe from any thread; no index lock may be held.
 */
#ifndef DUCTILE_VMM_CAPTURE_GATE_H
#define DUCTILE_VMM_CAPTURE_GATE_H

#include <stdbool.h>
#include <stdint.h>

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

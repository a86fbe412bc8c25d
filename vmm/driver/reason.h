/* SPDX-License-Identifier: Apache-2.0 */
/* Why a device cannot be opened, in one sentence. */
#ifndef DUCTILE_VMM_DRIVER_REASON_H
#define DUCTILE_VMM_DRIVER_REASON_H

#include <ductile.h>

#include <stddef.h>

/* A buffer for one sentence; text may be NULL. */
typedef struct dvmm_reason {
    char *text;
    size_t size;
} dvmm_reason;

/* Writes one sentence, cut to fit. Returns `status`, for the caller's return. */
__attribute__((format(printf, 3, 4))) ductile_status
dvmm_refuse(ductile_status status, dvmm_reason why, const char *format, ...);

#endif

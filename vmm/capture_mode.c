/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/capture_mode.h"

dvmm_capture_mode dvmm_capture_relax(dvmm_driver *d) {
    dvmm_capture_mode mode = DVMM_CAPTURE_RELAXED;
    if (dvmm_capture_exchange_mode(d, &mode) != DUCTILE_OK) {
        mode = DVMM_CAPTURE_RELAXED; /* nothing was changed: restoring changes nothing either */
    }
    return mode;
}

void dvmm_capture_restore(dvmm_driver *d, dvmm_capture_mode mode) {
    if (mode != DVMM_CAPTURE_RELAXED) {
        (void)dvmm_capture_exchange_mode(d, &mode);
    }
}

bool dvmm_is_capturing(dvmm_driver *d, ductile_stream stream) {
    dvmm_capture_status capture = DVMM_CAPTURE_BROKEN;
    ductile_status status = dvmm_capture_status_of(d, stream, &capture);
    return status != DUCTILE_OK || capture != DVMM_CAPTURE_NONE;
}

bool dvmm_is_surely_capturing(dvmm_driver *d, ductile_stream stream) {
    dvmm_capture_status capture = DVMM_CAPTURE_NONE;
    ductile_status status = dvmm_capture_status_of(d, stream, &capture);
    return status == DUCTILE_OK && capture != DVMM_CAPTURE_NONE;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/host_buffer.h"

#include "vmm/capture_mode.h"

void *dvmm_host_buffer_make(dvmm_driver *driver, uint64_t size) {
    void *made = NULL;
    return dvmm_host_alloc(driver, size, &made) == DUCTILE_OK ? made : NULL;
}

void dvmm_host_buffer_drop(dvmm_driver *driver, void *buffer) {
    dvmm_capture_mode mode = dvmm_capture_relax(driver);
    (void)dvmm_host_free(driver, buffer);
    dvmm_capture_restore(driver, mode);
}

ductile_status dvmm_host_buffer_read(dvmm_driver *driver, void *buffer, ductile_addr addr,
                                     uint64_t size, ductile_stream stream, bool *is_idle) {
    ductile_status status = dvmm_read_back(driver, buffer, addr, size, stream);
    ductile_status waited = dvmm_stream_sync(driver, stream); /* a call that failed may copy, too */
    *is_idle = waited == DUCTILE_OK;
    return status == DUCTILE_OK ? waited : status;
}

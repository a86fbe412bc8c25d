/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host buffer: page-locked memory into which device memory is copied, to be read by the host.
 * Page-locked, because the driver copies to other memory through a buffer of its own.
 */
#ifndef DUCTILE_VMM_HOST_BUFFER_H
#define DUCTILE_VMM_HOST_BUFFER_H

#include "vmm/driver/driver.h"

/* NULL: the driver gives none. */
void *dvmm_host_buffer_make(dvmm_driver *driver, uint64_t size);

/* Pre: no copy into it is under way. */
void dvmm_host_buffer_drop(dvmm_driver *driver, void *buffer);

/*
 * Copies device memory into the buffer, behind the work of the stream, and waits. On failure the
 * contents of the buffer are undefined; if then *is_idle is false the copy may land at any time,
 * and the buffer has to be left to it.
 */
ductile_status dvmm_host_buffer_read(dvmm_driver *driver, void *buffer, ductile_addr addr,
                                     uint64_t size, ductile_stream stream, bool *is_idle);

#endif

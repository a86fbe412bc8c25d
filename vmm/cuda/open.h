/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a device through libcuda. */
#ifndef DUCTILE_VMM_CUDA_OPEN_H
#define DUCTILE_VMM_CUDA_OPEN_H

#include "vmm/driver/driver.h"

/* Opens device `ordinal` through libcuda. Returns DUCTILE_OK, ERR_NO_LIBRARY, ERR_NO_DEVICE,
 * ERR_DRIVER_TOO_OLD, ERR_NO_VMM, ERR_FORKED, ERR_DRIVER, ERR_OUT_OF_HOST_MEMORY. On failure
 * `reason` (if not NULL) receives one sentence. The start probe has passed on success. */
ductile_status dvmm_open_cuda(int ordinal, dvmm_driver **out, char *reason, size_t reason_size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The virtual GPU as a device of the driver seam. */
#ifndef DUCTILE_VMM_VIRTUAL_GPU_H
#define DUCTILE_VMM_VIRTUAL_GPU_H

#include "vmm/driver/driver.h"

/* Opens a virtual GPU; NULL makes a private one with defaults that close destroys. */
ductile_status dvmm_open_virtual(ductile_virtual_gpu *gpu, dvmm_driver **out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Before and after every driver call: the check whether it may be made, the counters.
 * For calls.c. */
#ifndef DUCTILE_VMM_DRIVER_SEAM_H
#define DUCTILE_VMM_DRIVER_SEAM_H

#include "vmm/driver/driver.h"

/* One call under way, on the stack of its wrapper. */
typedef struct seam_call {
    dvmm_driver *driver;
    dvmm_call call;
    uint64_t address; /* operands, for the trace only */
    uint64_t size;
    bool is_timed;
    uint64_t driver_start_ns; /* both valid when it is timed */
    uint64_t host_start_ns;
    ductile_status refusal; /* valid when dvmm_begin_call returned false */
} seam_call;

/* False: the call must not be made, and c->refusal says why. The clock is read last. */
bool dvmm_begin_call(seam_call *c, dvmm_driver *d, dvmm_call call, uint64_t address, uint64_t size);

/* The call just returned `code`: the clock is read first. Returns the code's status. */
ductile_status dvmm_end_call(const seam_call *c, int code);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Planned faults, violations and the call log of the virtual GPU. */
#include "vmm/driver_virtual.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool dvmm_vgpu_watch_init(vgpu *gpu) {
    gpu->watch.log_room = gpu->options.log_calls;
    if (gpu->watch.log_room != 0) {
        gpu->watch.log = calloc(gpu->watch.log_room, sizeof(*gpu->watch.log));
    }
    return gpu->watch.log_room == 0 || gpu->watch.log != NULL;
}

void dvmm_vgpu_watch_fini(vgpu *gpu) {
    free(gpu->watch.log);
}

const ductile_virtual_fault *dvmm_vgpu_fault_for(vgpu *gpu, dvmm_call call) {
    vgpu_watch *watch = &gpu->watch;
    if (!watch->has_fault || (watch->fault_call != DVMM_N_CALLS && watch->fault_call != call)) {
        return NULL;
    }
    watch->fault_seen++;
    bool is_hit = watch->fault.persistent ? watch->fault_seen >= watch->fault.nth
                                          : watch->fault_seen == watch->fault.nth;
    watch->fault_fired += is_hit;
    return is_hit ? &watch->fault : NULL;
}

void dvmm_vgpu_log(vgpu *gpu, dvmm_call call, uint64_t address, uint64_t size, int code) {
    vgpu_watch *watch = &gpu->watch;
    watch->calls[call]++;
    watch->n_calls++;
    if (watch->log_room != 0) {
        watch->log[(watch->n_calls - 1) % watch->log_room] =
            (vgpu_log_entry){watch->n_calls, call, code, address, size};
    }
}

void dvmm_vgpu_violation(vgpu *gpu, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(gpu->watch.violation, sizeof(gpu->watch.violation), format, args);
    va_end(args);
    gpu->watch.n_violations++;
}

void dvmm_vgpu_poison(vgpu *gpu, int code) {
    if (gpu->poison == 0) {
        gpu->poison = code;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The pipeline of a call: planned faults, poison, time, the log. */
#include "vmm/virtual/serve.h"

#include "vmm/virtual/state/watch.h"

/* Memory management goes on working on a device that is lost to everything else. */
static bool ignores_poison(vgpu_call call) {
    switch (call) {
    case DVMM_CALL_address_reserve:
    case DVMM_CALL_address_free:
    case DVMM_CALL_phys_create:
    case DVMM_CALL_phys_release:
    case DVMM_CALL_map:
    case DVMM_CALL_unmap:
    case DVMM_CALL_set_access:
    case DVMM_CALL_get_access:
    case DVMM_CALL_can_access_peer:
    case DVMM_CALL_set_access_for:
    case DVMM_BENCH_get_access_for:
    case DVMM_CALL_phys_export:
    case DVMM_CALL_phys_import:
    case DVMM_CALL_capture_exchange_mode:
        return true;
    default:
        return false;
    }
}

static void spend(vgpu *gpu, uint64_t ns) {
    atomic_fetch_add_explicit(&gpu->time_ns, ns, memory_order_relaxed);
}

vgpu_served dvmm_vgpu_serve_begin(vgpu *gpu, vgpu_call call, uint64_t address, uint64_t size) {
    dti_lock_acquire(&gpu->lock);
    const ductile_virtual_fault *fault = dvmm_vgpu_fault_for(gpu, call);
    gpu->race.is_unanswered = fault != NULL;
    return (vgpu_served){gpu, call, address, size, fault};
}

int dvmm_vgpu_serve_refusal(const vgpu_served *c) {
    if (c->fault != NULL && c->fault->effect == EFFECT_NONE) {
        return c->fault->code;
    }
    return ignores_poison(c->call) ? DVMM_SUCCESS : c->gpu->poison;
}

int dvmm_vgpu_serve_end(const vgpu_served *c, uint64_t cost_ns, int code) {
    if (c->fault != NULL) {
        code = c->fault->code;
        if (dvmm_code_is_sticky(code)) {
            dvmm_vgpu_poison(c->gpu, code);
        }
    }
    c->gpu->race.is_unanswered = false;
    spend(c->gpu, cost_ns);
    dvmm_vgpu_log(c->gpu, c->call, c->address, c->size, code);
    dti_lock_release(&c->gpu->lock);
    return code;
}

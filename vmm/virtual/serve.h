/* SPDX-License-Identifier: Apache-2.0 */
/* How an entry of a table of the virtual GPU serves a call. These lock and unlock by themselves. */
#ifndef DUCTILE_VMM_VIRTUAL_SERVE_H
#define DUCTILE_VMM_VIRTUAL_SERVE_H

#include "vmm/virtual/cost.h"
#include "vmm/virtual/state/state.h"

/* One driver call under way. */
typedef struct vgpu_served {
    vgpu *gpu;
    vgpu_call call;
    uint64_t address, size; /* for the log */
    const ductile_virtual_fault *fault;
} vgpu_served;

enum { EFFECT_NONE = 0, EFFECT_ALL = 1, EFFECT_FIRST = 2 };

/* Takes the lock. */
vgpu_served dvmm_vgpu_serve_begin(vgpu *gpu, vgpu_call call, uint64_t address, uint64_t size);
/* The code of a call that is not served; SUCCESS: serve it. */
int dvmm_vgpu_serve_refusal(const vgpu_served *c);
/* Releases the lock. Returns `code`, or the planned one. */
int dvmm_vgpu_serve_end(const vgpu_served *c, uint64_t cost_ns, int code);

/* The entry of call `number`: `cost` and `action` are evaluated under the lock. */
#define SERVE_NUMBER(number, cost, name, parameters, address, size, action)                        \
    static int serve_##name parameters {                                                           \
        vgpu *gpu = ctx;                                                                           \
        vgpu_served served = dvmm_vgpu_serve_begin(gpu, (number), (address), (size));              \
        uint64_t cost_ns = (cost);                                                                 \
        int code = dvmm_vgpu_serve_refusal(&served);                                               \
        return dvmm_vgpu_serve_end(&served, cost_ns, code != DVMM_SUCCESS ? code : (action));      \
    }

/* A handle, for the log. */
static inline uint64_t dvmm_vgpu_word(const void *handle) {
    return (uint64_t)(uintptr_t)handle;
}

#endif

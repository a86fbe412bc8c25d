/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls with the device's primary context current. The caller's current context is not ours to rely
 * on or to change. Usually it is the primary one, and asking costs 6 ns; otherwise the primary
 * context is pushed and popped again.
 */
#ifndef DUCTILE_VMM_CUDA_CONTEXT_H
#define DUCTILE_VMM_CUDA_CONTEXT_H

#include "vmm/cuda/cuda_state.h"

static inline int dvmm_cuda_enter(const cuda_backend *b, bool *was_pushed) {
    cu_context current = NULL;
    *was_pushed = false;
    int code = b->api->cuCtxGetCurrent(&current);
    if (code != DVMM_SUCCESS || current == b->context) {
        return code;
    }
    code = b->api->cuCtxPushCurrent(b->context);
    *was_pushed = code == DVMM_SUCCESS;
    return code;
}

/* A failing pop has no cure, and the call's own code matters more. */
static inline void dvmm_cuda_leave(const cuda_backend *b, bool was_pushed) {
    if (was_pushed) {
        cu_context ours = NULL;
        (void)b->api->cuCtxPopCurrent(&ours);
    }
}

/* Makes one driver call with the primary context current and returns its code from the entry. */
#define RETURN_IN_CONTEXT(b, call)                                                                 \
    do {                                                                                           \
        bool was_pushed;                                                                           \
        int code_in_context = dvmm_cuda_enter(b, &was_pushed);                                     \
        if (code_in_context == DVMM_SUCCESS) {                                                     \
            code_in_context = (call);                                                              \
            dvmm_cuda_leave(b, was_pushed);                                                        \
        }                                                                                          \
        return code_in_context;                                                                    \
    } while (0)

/* The entry of a call that is made so. */
#define IN_CONTEXT(name, parameters, call)                                                         \
    static int cuda_##name parameters {                                                            \
        cuda_backend *b = ctx;                                                                     \
        RETURN_IN_CONTEXT(b, call);                                                                \
    }

#endif

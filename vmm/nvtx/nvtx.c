/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/nvtx/nvtx.h"

#include "vmm/base/lock.h"
#include "vmm/nvtx/nvtx_state.h"

#include <stdlib.h>

ductile_status dvmm_nvtx_open(bool memory, dvmm_nvtx **out, char *message, size_t size) {
    *out = NULL;
    const nvtx_tool *tool = dvmm_nvtx_attach(memory, message, size);
    if (tool == NULL) {
        return DUCTILE_OK;
    }
    dvmm_nvtx *n = calloc(1, sizeof *n);
    if (n == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    n->tool = tool;
    dti_lock_init(&n->lock, DTI_RANK_DRIVER);
    *out = n;
    return DUCTILE_OK;
}

void dvmm_nvtx_close(dvmm_nvtx *n) {
    if (n != NULL) {
        free(n->heaps.items);
        free(n->blocks.items);
        free(n);
    }
}

bool dvmm_nvtx_has_memory(const dvmm_nvtx *n) {
    return n != NULL && n->tool->has_memory;
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

void dvmm_nvtx_begin(const dvmm_nvtx *n, const char *what, uint64_t bytes) {
    DTI_ASSERT_MAY_CALL_DRIVER();
    nvtx_event event = {.version = NVTX_INTERFACE_VERSION,
                        .size = sizeof event,
                        .payload_type = bytes != 0 ? NVTX_PAYLOAD_UINT64 : 0,
                        .payload = bytes,
                        .message_type = NVTX_MESSAGE_ASCII,
                        .message.ascii = what};
    dvmm_nvtx_tool_push(n->tool, &event);
}

void dvmm_nvtx_finish(const dvmm_nvtx *n) {
    DTI_ASSERT_MAY_CALL_DRIVER();
    dvmm_nvtx_tool_pop(n->tool);
}

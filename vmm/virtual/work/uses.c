/* SPDX-License-Identifier: Apache-2.0 */
/* Work with memory on the virtual GPU: kernels, fills, copies; host memory and waits for it. */
#include "vmm/virtual/work/uses.h"

#include "vmm/virtual/addresses/content.h"
#include "vmm/virtual/memory/memory.h"
#include "vmm/virtual/race/race.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/work/capture.h"
#include "vmm/virtual/work/streams.h"
#include "vmm/virtual/work/work.h"

#include <stdlib.h>
#include <string.h>

/* ---- Work with memory ---------------------------------------------------------------------- */

static ductile_virtual_use use_of(ductile_addr address, uint64_t size, bool writes) {
    return (ductile_virtual_use){.address = address, .size = size, .writes = writes};
}

/* May the stream's device use the memory? */
static int check_span(vgpu *gpu, ductile_stream stream, ductile_addr at, uint64_t size,
                      dvmm_access access) {
    vgpu_queue *queue;
    DTI_TRY(dvmm_vgpu_find_queue(gpu, stream, &queue));
    bool may_use = dvmm_vgpu_is_accessible(gpu, at, size, queue->device, access);
    return may_use ? DVMM_SUCCESS : DVMM_INVALID_VALUE;
}

int dvmm_vgpu_launch(vgpu *gpu, ductile_stream stream, const ductile_virtual_use *uses,
                     size_t n_uses) {
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_USE, n_uses);
    if (op != NULL && n_uses != 0) {
        memcpy(op->uses, uses, n_uses * sizeof(*uses));
    }
    return dvmm_vgpu_issue_on(gpu, stream, op);
}

static vgpu_op *fill_op(ductile_addr to, uint8_t value, uint64_t size) {
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_FILL, 1);
    if (op != NULL) {
        op->uses[0] = use_of(to, size, true);
        op->value = value;
    }
    return op;
}

int dvmm_vgpu_fill(vgpu *gpu, ductile_addr to, uint8_t value, uint64_t size,
                   ductile_stream stream) {
    DTI_TRY(check_span(gpu, stream, to, size, DVMM_ACCESS_RW));
    return dvmm_vgpu_issue_on(gpu, stream, fill_op(to, value, size));
}

int dvmm_vgpu_copy(vgpu *gpu, ductile_addr to, ductile_addr from, uint64_t size,
                   ductile_stream stream) {
    int code = check_span(gpu, stream, to, size, DVMM_ACCESS_RW);
    code = code == DVMM_SUCCESS ? check_span(gpu, stream, from, size, DVMM_ACCESS_READ) : code;
    if (code != DVMM_SUCCESS) {
        return code;
    }
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_COPY, 2);
    if (op != NULL) {
        op->uses[0] = use_of(to, size, true);
        op->uses[1] = use_of(from, size, false);
    }
    return dvmm_vgpu_issue_on(gpu, stream, op);
}

static bool is_one_value(const uint8_t *bytes, uint64_t size) {
    return size != 0 && memcmp(bytes, bytes + 1, size - 1) == 0;
}

/* The page-locked block that has a byte of [memory, memory + size). */
static const vgpu_host_block *find_overlap(const vgpu *gpu, const void *memory, uint64_t size) {
    const vgpu_host_block *block = gpu->work.host_blocks;
    while (block != NULL && ((uintptr_t)memory - (uintptr_t)block->memory >= block->size) &&
           ((uintptr_t)block->memory - (uintptr_t)memory >= size)) {
        block = block->next;
    }
    return block;
}

/* One copy's host memory lies in one page-locked block, or none of it is page-locked. */
static int check_host(const vgpu *gpu, const void *memory, uint64_t size, bool *is_pinned) {
    const vgpu_host_block *block = find_overlap(gpu, memory, size);
    uint64_t distance = block != NULL ? (uintptr_t)memory - (uintptr_t)block->memory : 0;
    *is_pinned = block != NULL;
    return block == NULL || (distance < block->size && block->size - distance >= size)
               ? DVMM_SUCCESS
               : DVMM_INVALID_VALUE;
}

/* The bytes are kept. Those that are all alike are not: to write them is a fill. */
static vgpu_op *kept_upload_op(ductile_addr to, const uint8_t *from, uint64_t size) {
    if (is_one_value(from, size)) {
        return fill_op(to, from[0], size);
    }
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_UPLOAD, 1);
    if (op == NULL) {
        return NULL;
    }
    op->uses[0] = use_of(to, size, true);
    op->bytes = malloc(size != 0 ? size : 1);
    if (op->bytes == NULL) {
        dvmm_vgpu_op_free(op);
        return NULL;
    }
    memcpy(op->bytes, from, size);
    return op;
}

static vgpu_op *late_upload_op(ductile_addr to, const void *from, uint64_t size) {
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_UPLOAD, 1);
    if (op != NULL) {
        op->uses[0] = use_of(to, size, true);
        op->host = (uint8_t *)(uintptr_t)from;
    }
    return op;
}

/* Page-locked memory is read when the copy runs. A graph's is read at the capture, unlike on
 * hardware: it may have gone when the graph is launched. */
int dvmm_vgpu_upload(vgpu *gpu, ductile_addr to, const void *from, uint64_t size,
                     ductile_stream stream) {
    bool is_pinned;
    vgpu_queue *queue;
    int code = check_span(gpu, stream, to, size, DVMM_ACCESS_RW);
    code = code == DVMM_SUCCESS ? check_host(gpu, from, size, &is_pinned) : code;
    code = code == DVMM_SUCCESS ? dvmm_vgpu_find_queue(gpu, stream, &queue) : code;
    if (code != DVMM_SUCCESS) {
        return code;
    }
    bool is_late = is_pinned && queue->capture == NULL;
    return dvmm_vgpu_issue_on(
        gpu, stream, is_late ? late_upload_op(to, from, size) : kept_upload_op(to, from, size));
}

int dvmm_vgpu_read_back(vgpu *gpu, void *to, ductile_addr from, uint64_t size,
                        ductile_stream stream) {
    int code = check_span(gpu, stream, from, size, DVMM_ACCESS_READ);
    if (code == DVMM_SUCCESS) {
        code = dvmm_vgpu_stream_sync(gpu, stream);
    }
    if (code == DVMM_SUCCESS) {
        dvmm_vgpu_race_read(gpu, from, size);
        dvmm_vgpu_read_bytes(gpu, to, from, size);
    }
    return code;
}

/* To memory that is not page-locked the driver copies before it returns. */
int dvmm_vgpu_download(vgpu *gpu, void *to, ductile_addr from, uint64_t size,
                       ductile_stream stream) {
    bool is_pinned;
    int code = check_host(gpu, to, size, &is_pinned);
    if (code == DVMM_SUCCESS && !is_pinned) {
        return dvmm_vgpu_read_back(gpu, to, from, size, stream);
    }
    code = code == DVMM_SUCCESS ? check_span(gpu, stream, from, size, DVMM_ACCESS_READ) : code;
    if (code != DVMM_SUCCESS) {
        return code;
    }
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_DOWNLOAD, 1);
    if (op != NULL) {
        op->uses[0] = use_of(from, size, false);
        op->host = to;
    }
    return dvmm_vgpu_issue_on(gpu, stream, op);
}

static int copy_of_batch(vgpu *gpu, const dvmm_batch *batch, uint32_t i, ductile_stream stream) {
    void *host = (void *)(uintptr_t)batch->host[i];
    return batch->is_out ? dvmm_vgpu_download(gpu, host, batch->device[i], batch->sizes[i], stream)
                         : dvmm_vgpu_upload(gpu, batch->device[i], host, batch->sizes[i], stream);
}

int dvmm_vgpu_copy_batch(vgpu *gpu, const dvmm_batch *batch, uint32_t n, ductile_stream stream) {
    int code = DVMM_SUCCESS;
    for (uint32_t i = 0; i < n && code == DVMM_SUCCESS; i++) {
        code = copy_of_batch(gpu, batch, i, stream);
    }
    return code;
}

/* ---- Host memory --------------------------------------------------------------------------- */

int dvmm_vgpu_host_alloc(vgpu *gpu, uint64_t size, void **out) {
    DTI_TRY(dvmm_vgpu_check_prohibited(gpu));
    vgpu_host_block *block = calloc(1, sizeof(*block));
    void *memory = size != 0 ? calloc(1, size) : NULL;
    if (block == NULL || memory == NULL) {
        free(block);
        free(memory);
        return size == 0 ? DVMM_INVALID_VALUE : DVMM_OUT_OF_MEMORY;
    }
    *block = (vgpu_host_block){gpu->work.host_blocks, memory, size, false};
    gpu->work.host_blocks = block;
    *out = memory;
    return DVMM_SUCCESS;
}

static void drop_block(vgpu *gpu, vgpu_host_block **link) {
    vgpu_host_block *block = *link;
    dvmm_vgpu_forget_words(gpu, block);
    *link = block->next;
    if (!block->is_registered) {
        free(block->memory);
    }
    free(block);
}

static int find_and_drop(vgpu *gpu, const void *memory, bool is_registered, int not_found) {
    DTI_TRY(dvmm_vgpu_check_prohibited(gpu));
    vgpu_host_block **link = &gpu->work.host_blocks;
    while (*link != NULL &&
           ((*link)->memory != memory || (*link)->is_registered != is_registered)) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        return not_found;
    }
    drop_block(gpu, link);
    return DVMM_SUCCESS;
}

int dvmm_vgpu_host_free(vgpu *gpu, void *memory) {
    return find_and_drop(gpu, memory, false, DVMM_INVALID_VALUE);
}

int dvmm_vgpu_host_register(vgpu *gpu, void *memory, uint64_t size) {
    int code = dvmm_vgpu_check_prohibited(gpu);
    if (code == DVMM_SUCCESS && find_overlap(gpu, memory, size) != NULL) {
        code = DVMM_ALREADY_REGISTERED;
    }
    if (code != DVMM_SUCCESS) {
        return code;
    }
    vgpu_host_block *block = calloc(1, sizeof(*block));
    if (block == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    *block = (vgpu_host_block){gpu->work.host_blocks, memory, size, true};
    gpu->work.host_blocks = block;
    return DVMM_SUCCESS;
}

int dvmm_vgpu_host_unregister(vgpu *gpu, void *memory) {
    return find_and_drop(gpu, memory, true, DVMM_NOT_REGISTERED);
}

void dvmm_vgpu_host_fini(vgpu *gpu) {
    while (gpu->work.host_blocks != NULL) {
        drop_block(gpu, &gpu->work.host_blocks);
    }
}

static bool is_host_word(const vgpu *gpu, const uint64_t *word) {
    const vgpu_host_block *block = gpu->work.host_blocks;
    for (; block != NULL; block = block->next) {
        uintptr_t distance = (uintptr_t)word - (uintptr_t)block->memory;
        if (distance < block->size && block->size - distance >= sizeof(*word)) {
            return (uintptr_t)word % sizeof(*word) == 0;
        }
    }
    return false;
}

int dvmm_vgpu_stream_wait_value(vgpu *gpu, ductile_stream stream, const uint64_t *word,
                                uint64_t value) {
    if (!is_host_word(gpu, word)) {
        return DVMM_INVALID_VALUE;
    }
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_WAIT_VALUE, 0);
    if (op != NULL) {
        op->word = word;
        op->value = value;
    }
    return dvmm_vgpu_issue_on(gpu, stream, op);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tool is told through NVTX (option nvtx): ranges of the slow paths, and, in regions.h,
 * which memory belongs to blocks. NULL stands for an allocator that tells nothing: then every
 * function here does nothing.
 */
#ifndef DUCTILE_VMM_NVTX_NVTX_H
#define DUCTILE_VMM_NVTX_NVTX_H

#include <ductile.h>

#include <stdbool.h>

typedef struct dvmm_nvtx dvmm_nvtx;

/* DUCTILE_OK, with *out NULL when no tool listens; ERR_OUT_OF_HOST_MEMORY. `message` gets one
 * sentence when a tool was named that does not do what is wanted; otherwise it is empty. */
ductile_status dvmm_nvtx_open(bool memory, dvmm_nvtx **out, char *message, size_t size);

/* Makes no call of the tool: dvmm_nvtx_end_all comes first where it may be called. */
void dvmm_nvtx_close(dvmm_nvtx *n);

/* Are blocks registered? */
bool dvmm_nvtx_has_memory(const dvmm_nvtx *n);

void dvmm_nvtx_begin(const dvmm_nvtx *n, const char *what, uint64_t bytes);
void dvmm_nvtx_finish(const dvmm_nvtx *n);

/* A range of this thread: each push has its pop, on the same thread, in the reverse order. `what`
 * is a literal; `bytes` is shown with it, 0 for none. Any lock but the index lock may be held. */
static inline void dvmm_nvtx_push(const dvmm_nvtx *n, const char *what, uint64_t bytes) {
    if (__builtin_expect(n != NULL, 0)) {
        dvmm_nvtx_begin(n, what, bytes);
    }
}

static inline void dvmm_nvtx_pop(const dvmm_nvtx *n) {
    if (__builtin_expect(n != NULL, 0)) {
        dvmm_nvtx_finish(n);
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tool is told through NVTX (option nvtx): ranges of the slow paths. The tool is the library
 * that NVTX_INJECTION64_PATH names, as profilers set it for the programs they start. It is asked
 * once for the process, and stays loaded.
 */
#ifndef DUCTILE_VMM_NVTX_NVTX_H
#define DUCTILE_VMM_NVTX_NVTX_H

#include <ductile.h>

/* NULL stands for an allocator that tells nothing: then the functions below do nothing. */
typedef struct dvmm_nvtx dvmm_nvtx;

/* The tool, or NULL when none is there, or none that works: then `message` says in one sentence
 * why, or is empty when none is named. */
const dvmm_nvtx *dvmm_nvtx_attach(char *message, size_t size);

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

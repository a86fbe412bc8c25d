/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/base/stream_id.h"

#include <stdatomic.h>

/* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD. The latter is another stream in each thread. */
#define LEGACY_STREAM ((uintptr_t)1)
#define PER_THREAD_STREAM ((uintptr_t)2)

ductile_stream dpool_canonical_stream(ductile_stream stream) {
    return (uintptr_t)stream == LEGACY_STREAM ? NULL : stream;
}

/* Unlike addresses and thread ids of the system. */
uint64_t dpool_this_thread(void) {
    static _Atomic uint64_t n_threads;
    static _Thread_local uint64_t mine;
    if (mine == 0) {
        mine = atomic_fetch_add_explicit(&n_threads, 1, memory_order_relaxed) + 1;
    }
    return mine;
}

uint64_t dpool_thread_of(ductile_stream stream) {
    return (uintptr_t)stream == PER_THREAD_STREAM ? dpool_this_thread() : 0;
}

bool dpool_may_name(ductile_stream stream, uint64_t thread) {
    return thread == dpool_thread_of(stream);
}

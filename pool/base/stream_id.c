/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/base/stream_id.h"

#include "vmm/base/lock.h"

/* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD, which names a different stream in each thread. */
#define LEGACY_STREAM ((uintptr_t)1)
#define PER_THREAD_STREAM ((uintptr_t)2)

ductile_stream dpool_canonical_stream(ductile_stream stream) {
    return (uintptr_t)stream == LEGACY_STREAM ? NULL : stream;
}

uint64_t dpool_thread_of(ductile_stream stream) {
    return (uintptr_t)stream == PER_THREAD_STREAM ? dti_thread_number() : 0;
}

bool dpool_may_name(ductile_stream stream, uint64_t thread) {
    return thread == dpool_thread_of(stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/thread.h"

#include <stdatomic.h>

uint64_t dti_thread_number(void) {
    static _Atomic uint64_t n_threads;
    static _Thread_local uint64_t mine;
    if (mine == 0) {
        mine = atomic_fetch_add_explicit(&n_threads, 1, memory_order_relaxed) + 1;
    }
    return mine;
}

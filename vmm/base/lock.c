/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

_Thread_local unsigned dti_held_ranks;

enum { SPINS_BEFORE_SLEEP = 100 };

static void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static bool spin_for(dti_lock *lock) {
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        uint32_t open = 0;
        if (atomic_load_explicit(&lock->state, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_weak_explicit(&lock->state, &open, 1, memory_order_acquire,
                                                  memory_order_relaxed)) {
            return true;
        }
        cpu_relax();
    }
    return false;
}

void dti_lock_wait(dti_lock *lock) {
    if (spin_for(lock)) {
        return;
    }
    while (atomic_exchange_explicit(&lock->state, 2, memory_order_acquire) != 0) {
        (void)syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
    }
}

void dti_lock_wake(dti_lock *lock) {
    (void)syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

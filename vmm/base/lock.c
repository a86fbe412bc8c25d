/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/lock.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

_Thread_local unsigned dti_held_ranks;

enum { SPINS_BEFORE_SLEEP = 100 };

_Atomic bool dti_lock_needs_fence;

static void register_barrier(void) {
    long status = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    atomic_store(&dti_lock_needs_fence, status != 0);
}

void dti_lock_prepare(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, register_barrier);
}

static void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static bool take_if_open(dti_lock *lock) {
    uint32_t open = 0;
    return atomic_load_explicit(&lock->taken, memory_order_relaxed) == 0 &&
           atomic_compare_exchange_strong_explicit(&lock->taken, &open, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* After this, every thread that has given a lock back has either shown it or sees our wish. */
static void pass_barrier(void) {
    if (!atomic_load_explicit(&dti_lock_needs_fence, memory_order_relaxed)) {
        (void)syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    }
}

static bool spin_for(dti_lock *lock) {
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        if (take_if_open(lock)) {
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
    atomic_fetch_add_explicit(&lock->sleepers, 1, memory_order_seq_cst);
    pass_barrier();
    while (!take_if_open(lock)) {
        (void)syscall(SYS_futex, &lock->taken, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    }
    atomic_fetch_sub_explicit(&lock->sleepers, 1, memory_order_relaxed);
}

void dti_lock_wake(dti_lock *lock) {
    (void)syscall(SYS_futex, &lock->taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

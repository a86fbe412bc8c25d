/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/lock.h"

#include "vmm/base/thread.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Thread_local unsigned dti_held_ranks;

enum {
    SPINS_BEFORE_SLEEP = 100,
    LATE_NS = 10 * 1000 * 1000 /* long after every processor has shown its stores */
};

static bool has_barrier;

static void register_barrier(void) {
    has_barrier = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void dti_lock_init(dti_lock *lock, dti_lock_rank rank) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, register_barrier);
    atomic_init(&lock->taken, 0);
    atomic_init(&lock->sleepers, has_barrier ? 0 : DTI_LOCK_FENCED);
    lock->rank = (uint32_t)rank;
}

static bool win_if_free(dti_lock *lock) {
    return atomic_load_explicit(&lock->taken, memory_order_relaxed) == 0 && dti_lock_win(lock);
}

static bool spin_for(dti_lock *lock) {
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        if (win_if_free(lock)) {
            return true;
        }
        dti_cpu_relax();
    }
    return false;
}

/* After this, we see all stores of other threads, and they see ours. A system call
 * that was allowed may have been forbidden since: then release uses its own barrier from now on. */
static bool pass_barrier(dti_lock *lock) {
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) {
        return true;
    }
    (void)atomic_fetch_or_explicit(&lock->sleepers, DTI_LOCK_FENCED, memory_order_seq_cst);
    return false;
}

/* A release that began before the barrier was refused may have missed this sleeper: it looks again
 * after a while. A processor shows its stores within far less. */
void dti_lock_wait(dti_lock *lock) {
    if (spin_for(lock)) {
        return;
    }
    uint32_t before = atomic_fetch_add_explicit(&lock->sleepers, 1, memory_order_seq_cst);
    bool is_seen = (before & DTI_LOCK_FENCED) != 0 || pass_barrier(lock);
    struct timespec late = {.tv_nsec = LATE_NS};
    while (!win_if_free(lock)) {
        (void)syscall(SYS_futex, &lock->taken, FUTEX_WAIT_PRIVATE, 1, is_seen ? NULL : &late, NULL,
                      0);
    }
    atomic_fetch_sub_explicit(&lock->sleepers, 1, memory_order_relaxed);
}

/* The read that is ordered behind the store of the release finds every sleeper. */
void dti_lock_wake(dti_lock *lock) {
    uint32_t sleepers = atomic_fetch_add_explicit(&lock->sleepers, 0, memory_order_seq_cst);
    if (sleepers == DTI_LOCK_FENCED) {
        return;
    }
    (void)syscall(SYS_futex, &lock->taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

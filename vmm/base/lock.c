/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Thread_local unsigned dti_held_ranks;
dti_lock_holder dti_lock_nobody;

enum {
    SPINS_BEFORE_SLEEP = 100,
    MOST_HOLDERS = 256,     /* threads that a lock was ever biased to */
    BIAS_PAYS_AFTER = 4096, /* takes: what they save is more than taking the bias away costs */
    MOST_FOR_BIAS = 1 << 20,
    LATE_NS = 10 * 1000 * 1000 /* by then every processor has shown its stores */
};

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
    return atomic_load_explicit(&lock->taken, memory_order_relaxed) == 0 && dti_lock_win(lock);
}

/* After this, all that other threads have stored is seen, and they see what we have. */
static bool pass_barrier(void) {
    return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
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

/* A system call that was allowed may have been forbidden since: then nobody relies on it from now
 * on, and who is late looks again after a while. A processor shows its stores within far less. */
static bool pass_barrier_or_say_so(void) {
    if (pass_barrier()) {
        return true;
    }
    atomic_store(&dti_lock_needs_fence, true);
    return false;
}

void dti_lock_wait(dti_lock *lock) {
    if (spin_for(lock)) {
        return;
    }
    atomic_fetch_add_explicit(&lock->sleepers, 1, memory_order_seq_cst);
    bool is_seen = atomic_load_explicit(&dti_lock_needs_fence, memory_order_relaxed) ||
                   pass_barrier_or_say_so();
    struct timespec late = {.tv_nsec = LATE_NS};
    while (!take_if_open(lock)) {
        (void)syscall(SYS_futex, &lock->taken, FUTEX_WAIT_PRIVATE, 1, is_seen ? NULL : &late, NULL,
                      0);
    }
    atomic_fetch_sub_explicit(&lock->sleepers, 1, memory_order_relaxed);
}

void dti_lock_wake(dti_lock *lock) {
    (void)syscall(SYS_futex, &lock->taken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* ---- Bias ---------------------------------------------------------------------------------- */

/* Not the library's function: a thread that is cancelled in there would keep the lock. */
static void sleep_for(long ns) {
    struct timespec time = {.tv_nsec = ns};
    while (syscall(SYS_nanosleep, &time, &time) != 0 && errno == EINTR) {
    }
}

/* It may have been preempted there, or walk through all blocks. */
static void wait_until_outside(const dti_lock_holder *holder, const dti_lock *lock) {
    long ns = 20 * 1000;
    for (int i = 0; atomic_load_explicit(&holder->inside, memory_order_acquire) == lock; i++) {
        if (i < SPINS_BEFORE_SLEEP) {
            cpu_relax();
        } else {
            sleep_for(ns);
            ns = ns < LATE_NS / 2 ? 2 * ns : LATE_NS;
        }
    }
}

/* `taken` is ours. */
void dti_lock_revoke_bias(dti_lock *lock) {
    dti_lock_holder *holder = atomic_load_explicit(&lock->biased_to, memory_order_relaxed);
    atomic_store_explicit(&lock->biased_to, &dti_lock_nobody, memory_order_seq_cst);
    if (!pass_barrier_or_say_so()) {
        sleep_for(LATE_NS);
    }
    wait_until_outside(holder, lock);
    bool paid = lock->n_biased >= BIAS_PAYS_AFTER;
    uint32_t more = lock->n_for_bias < MOST_FOR_BIAS ? 2 * lock->n_for_bias : MOST_FOR_BIAS;
    lock->n_for_bias = paid ? DTI_LOCK_FIRST_BIAS : more;
}

/* The place of the thread, or of an earlier one with its pointer; NULL when all are taken. No place
 * is given back: that would need a hook that outlives this library if it is unloaded. */
static dti_lock_holder *holder_of(uintptr_t thread) {
    static dti_lock_holder holders[MOST_HOLDERS];
    static _Atomic uint32_t n_holders;
    uint32_t n = atomic_load_explicit(&n_holders, memory_order_acquire);
    for (uint32_t i = 0; i < n && i < MOST_HOLDERS; i++) {
        if (atomic_load_explicit(&holders[i].thread, memory_order_relaxed) == thread) {
            return &holders[i];
        }
    }
    if (n >= MOST_HOLDERS) {
        return NULL;
    }
    uint32_t i = atomic_fetch_add_explicit(&n_holders, 1, memory_order_acq_rel);
    if (i >= MOST_HOLDERS) {
        return NULL;
    }
    atomic_store_explicit(&holders[i].thread, thread, memory_order_relaxed);
    return &holders[i];
}

/* `taken` is ours, and nobody has a bias. */
void dti_lock_consider_bias(dti_lock *lock) {
    lock->n_in_row = 0;
    bool may_bias = lock->rank == DTI_RANK_INDEX &&
                    !atomic_load_explicit(&dti_lock_needs_fence, memory_order_relaxed);
    dti_lock_holder *holder = may_bias ? holder_of(lock->latest) : NULL;
    if (holder != NULL) {
        lock->n_biased = 0;
        atomic_store_explicit(&lock->biased_to, holder, memory_order_relaxed);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/lock.h"

#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t dti_thread_number(void) {
    static _Atomic uint64_t n_threads;
    static _Thread_local uint64_t mine;
    if (mine == 0) {
        mine = atomic_fetch_add_explicit(&n_threads, 1, memory_order_relaxed) + 1;
    }
    return mine;
}

/* Between two looks at what another thread writes: leaves the processor to it for a moment. */
static void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* ---- The mutex ----------------------------------------------------------------------------- */

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
        cpu_relax();
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

/* ---- Turns --------------------------------------------------------------------------------- */

/* Some tens of microseconds: as long as most calls take. */
enum { LOOKS_BEFORE_SLEEP = 1000 };

static bool is_up(const dti_turns *t, uint32_t number) {
    return atomic_load_explicit(&t->serving, memory_order_acquire) == number;
}

static bool look_for(const dti_turns *t, uint32_t number) {
    for (int i = 0; i < LOOKS_BEFORE_SLEEP && !is_up(t, number); i++) {
        cpu_relax();
    }
    return is_up(t, number);
}

/* Counted before it looks once more: a thread that ends its turn after that look sees a sleeper. */
static void sleep_until(dti_turns *t, uint32_t number) {
    (void)atomic_fetch_add(&t->sleepers, 1);
    for (;;) {
        uint32_t serving = atomic_load(&t->serving);
        if (serving == number) {
            break;
        }
        (void)syscall(SYS_futex, &t->serving, FUTEX_WAIT_PRIVATE, serving, NULL, NULL, 0);
    }
    (void)atomic_fetch_sub(&t->sleepers, 1);
}

void dti_turn_take(dti_turns *t) {
    uint32_t number = atomic_fetch_add(&t->next, 1);
    if (!look_for(t, number)) {
        sleep_until(t, number);
    }
}

void dti_turn_end(dti_turns *t) {
    (void)atomic_fetch_add(&t->serving, 1);
    if (atomic_load(&t->sleepers) != 0) {
        (void)syscall(SYS_futex, &t->serving, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

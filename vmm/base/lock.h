/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex that costs one atomic exchange to take and a plain store to give back while nobody else
 * wants it: pthread_mutex costs two and a call each, and the hot path takes one lock per call.
 * Waiters sleep in the kernel. Not recursive.
 *
 * Giving back looks at `sleepers` after the store, and the processor may do so before it. So
 * whoever is about to sleep says so first, then has the kernel pass a barrier through all running
 * threads (membarrier), then looks at the lock once more: either it sees the store, or the other
 * side sees the sleeper. Where the kernel has no such barrier, giving back uses one itself.
 *
 * Ranks say in which order locks may be taken: a thread takes only a higher rank than it holds.
 */
#ifndef DUCTILE_VMM_BASE_LOCK_H
#define DUCTILE_VMM_BASE_LOCK_H

#include "vmm/base/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum dti_lock_rank {
    DTI_RANK_SLOW = 1,   /* growth, healing and return, one at a time            */
    DTI_RANK_HOT = 2,    /* blocks and indexes; no driver call while it is held  */
    DTI_RANK_DRIVER = 3, /* state of a driver backend                            */
    DTI_RANK_LEAF = 4    /* small lists that call nothing                        */
} dti_lock_rank;

typedef struct dti_lock {
    _Atomic uint32_t taken;    /* 0 or 1 */
    _Atomic uint32_t sleepers; /* threads that sleep, or are about to */
    uint32_t rank;
} dti_lock;

/* No barrier from the kernel: giving back must bring its own. */
extern _Atomic bool dti_lock_needs_fence;

/* Bit r set: this thread holds a lock of rank r. Kept at check level 2 and above. */
extern _Thread_local unsigned dti_held_ranks;

/* Once per process, before the first lock is contended: dti_lock_init does it. */
void dti_lock_prepare(void);
void dti_lock_wait(dti_lock *lock);
void dti_lock_wake(dti_lock *lock);

static inline void dti_lock_init(dti_lock *lock, dti_lock_rank rank) {
    atomic_init(&lock->taken, 0);
    atomic_init(&lock->sleepers, 0);
    lock->rank = (uint32_t)rank;
    dti_lock_prepare();
}

static inline bool dti_lock_is_held(const dti_lock *lock) {
    return ((dti_held_ranks >> lock->rank) & 1u) != 0;
}

static inline void dti_lock_note_taken(const dti_lock *lock) {
#if DUCTILE_CHECK >= 2
    DTI_CHECK("L1", (dti_held_ranks >> lock->rank) == 0);
    dti_held_ranks |= 1u << lock->rank;
#else
    (void)lock;
#endif
}

static inline void dti_lock_note_open(const dti_lock *lock) {
#if DUCTILE_CHECK >= 2
    DTI_CHECK("L1", dti_lock_is_held(lock));
    dti_held_ranks &= ~(1u << lock->rank);
#else
    (void)lock;
#endif
}

static inline void dti_lock_take(dti_lock *lock) {
    uint32_t open = 0;
    if (__builtin_expect(!atomic_compare_exchange_strong_explicit(
                             &lock->taken, &open, 1, memory_order_acquire, memory_order_relaxed),
                         0)) {
        dti_lock_wait(lock);
    }
    dti_lock_note_taken(lock);
}

/* Takes the lock if it is open. */
static inline bool dti_lock_try(dti_lock *lock) {
    uint32_t open = 0;
    bool taken = atomic_compare_exchange_strong_explicit(
        &lock->taken, &open, 1, memory_order_acquire, memory_order_relaxed);
    if (taken) {
        dti_lock_note_taken(lock);
    }
    return taken;
}

static inline void dti_lock_open(dti_lock *lock) {
    dti_lock_note_open(lock);
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps the order, too */
    uint32_t sleepers = atomic_load_explicit(&lock->sleepers, memory_order_relaxed);
    if (__builtin_expect(atomic_load_explicit(&dti_lock_needs_fence, memory_order_relaxed), 0)) {
        sleepers = atomic_fetch_add_explicit(&lock->sleepers, 0, memory_order_seq_cst);
    }
    if (__builtin_expect(sleepers != 0, 0)) {
        dti_lock_wake(lock);
    }
}

/* For the first line of a function whose name ends in _locked. */
#define DTI_ASSERT_HELD(lock) DTI_CHECK("L2", dti_lock_is_held(lock))

/* No driver call is made while the hot lock is held (invariant L3). */
#define DTI_ASSERT_MAY_CALL_DRIVER() DTI_CHECK("L3", (dti_held_ranks & (1u << DTI_RANK_HOT)) == 0)

#endif

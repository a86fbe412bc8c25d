/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex of one word that costs one atomic exchange to take and one to give back while nobody
 * else wants it (pthread_mutex costs about twice that, and the hot path takes one lock per call).
 * Waiters sleep in the kernel. Not recursive.
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
    _Atomic uint32_t state; /* 0 open, 1 taken, 2 taken and somebody sleeps */
    uint32_t rank;
} dti_lock;

/* Bit r set: this thread holds a lock of rank r. Kept at check level 2 and above. */
extern _Thread_local unsigned dti_held_ranks;

void dti_lock_wait(dti_lock *lock);
void dti_lock_wake(dti_lock *lock);

static inline void dti_lock_init(dti_lock *lock, dti_lock_rank rank) {
    atomic_init(&lock->state, 0);
    lock->rank = (uint32_t)rank;
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
                             &lock->state, &open, 1, memory_order_acquire, memory_order_relaxed),
                         0)) {
        dti_lock_wait(lock);
    }
    dti_lock_note_taken(lock);
}

/* Takes the lock if it is open. */
static inline bool dti_lock_try(dti_lock *lock) {
    uint32_t open = 0;
    bool taken = atomic_compare_exchange_strong_explicit(
        &lock->state, &open, 1, memory_order_acquire, memory_order_relaxed);
    if (taken) {
        dti_lock_note_taken(lock);
    }
    return taken;
}

static inline void dti_lock_open(dti_lock *lock) {
    dti_lock_note_open(lock);
    if (__builtin_expect(atomic_exchange_explicit(&lock->state, 0, memory_order_release) == 2, 0)) {
        dti_lock_wake(lock);
    }
}

/* For the first line of a function whose name ends in _locked. */
#define DTI_ASSERT_HELD(lock) DTI_CHECK("L2", dti_lock_is_held(lock))

/* No driver call is made while the hot lock is held (invariant L3). */
#define DTI_ASSERT_MAY_CALL_DRIVER() DTI_CHECK("L3", (dti_held_ranks & (1u << DTI_RANK_HOT)) == 0)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads, and how they wait for each other: a mutex, and turns.
 *
 * The mutex is for short sections that every call enters. Waiters sleep in the kernel. Not
 * recursive.
 *
 * Uncontended, it costs one atomic exchange to acquire and a plain store to release; pthread_mutex
 * costs two exchanges and a call each. Release reads `sleepers` after the store, and the processor
 * may do that read first. So a thread that is about to sleep counts itself as a sleeper, has the
 * kernel run a barrier on all running threads (membarrier), and looks at the lock once more: either
 * it sees the store, or the releasing thread sees the sleeper. Where the kernel has no such
 * barrier, the lock always counts as slept on, and release uses one itself.
 *
 * Ranks say in which order locks may be acquired: a thread acquires only a higher rank than it
 * holds.
 */
#ifndef DUCTILE_VMM_BASE_LOCK_H
#define DUCTILE_VMM_BASE_LOCK_H

#include "vmm/base/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The number of the calling thread, from 1. No other thread of the process ever gets it. */
uint64_t dti_thread_number(void);

/* ---- The mutex ----------------------------------------------------------------------------- */

typedef enum dti_lock_rank {
    DTI_RANK_HOST = 0,   /* host memory for contents is made or given back       */
    DTI_RANK_GROW = 1,   /* growth, compaction and return, one at a time         */
    DTI_RANK_INDEX = 2,  /* blocks and indexes; no driver call while it is held  */
    DTI_RANK_DRIVER = 3, /* state of a driver backend                            */
    DTI_RANK_LEAF = 4    /* small lists that call nothing                        */
} dti_lock_rank;

typedef struct dti_lock {
    _Atomic uint32_t taken;    /* 0 or 1 */
    _Atomic uint32_t sleepers; /* threads that sleep, or are about to; DTI_LOCK_FENCED */
    uint32_t rank;             /* constant */
} dti_lock;

/* A bit of `sleepers`, never taken back: the kernel has no barrier for this lock. */
#define DTI_LOCK_FENCED (UINT32_C(1) << 31)

/* Bit r set: this thread holds a lock of rank r. Kept at check level 2 and above. */
extern _Thread_local unsigned dti_held_ranks;

void dti_lock_init(dti_lock *lock, dti_lock_rank rank);
void dti_lock_wait(dti_lock *lock);
void dti_lock_wake(dti_lock *lock);

static inline bool dti_lock_is_held(const dti_lock *lock) {
    return ((dti_held_ranks >> lock->rank) & 1u) != 0;
}

static inline void dti_lock_record_acquired(const dti_lock *lock) {
#if DUCTILE_CHECK >= 2
    DTI_CHECK("L1", (dti_held_ranks >> lock->rank) == 0);
    dti_held_ranks |= 1u << lock->rank;
#else
    (void)lock;
#endif
}

static inline void dti_lock_record_released(const dti_lock *lock) {
#if DUCTILE_CHECK >= 2
    DTI_CHECK("L1", dti_lock_is_held(lock));
    dti_held_ranks &= ~(1u << lock->rank);
#else
    (void)lock;
#endif
}

/* Locks if the lock is free, and returns whether it did. For lock.c: keeps no record. */
static inline bool dti_lock_win(dti_lock *lock) {
    return atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) == 0;
}

static inline void dti_lock_acquire(dti_lock *lock) {
    if (__builtin_expect(!dti_lock_win(lock), 0)) {
        dti_lock_wait(lock);
    }
    dti_lock_record_acquired(lock);
}

/* Locks if the lock is free; false: another thread holds it. Never waits. */
static inline bool dti_lock_try_acquire(dti_lock *lock) {
    if (!dti_lock_win(lock)) {
        return false;
    }
    dti_lock_record_acquired(lock);
    return true;
}

static inline void dti_lock_release(dti_lock *lock) {
    dti_lock_record_released(lock);
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps the order, too */
    if (__builtin_expect(atomic_load_explicit(&lock->sleepers, memory_order_relaxed) != 0, 0)) {
        dti_lock_wake(lock);
    }
}

/* No thread holds it. The answer holds for longer than a moment only where no other thread runs. */
static inline bool dti_lock_is_free(const dti_lock *lock) {
    return atomic_load_explicit(&lock->taken, memory_order_acquire) == 0;
}

/* For the first line of a function whose name ends in _locked. */
#define DTI_ASSERT_HELD(lock) DTI_CHECK("L2", dti_lock_is_held(lock))

/* No driver call is made while the index lock is held (invariant L3). */
#define DTI_ASSERT_MAY_CALL_DRIVER() DTI_CHECK("L3", (dti_held_ranks & (1u << DTI_RANK_INDEX)) == 0)

/* ---- Turns --------------------------------------------------------------------------------- */

/*
 * Turns at something that serves one at a time, first come, first served, where its own lock may
 * let one thread keep others waiting. Who waits looks for a while, then sleeps in the kernel.
 *
 * Taken last of all: who has a turn makes one call, and takes no other lock of ours. Zero is ready.
 */
typedef struct dti_turns {
    _Atomic uint32_t next;     /* the number of the thread that comes next   */
    _Atomic uint32_t serving;  /* whose turn it is                           */
    _Atomic uint32_t sleepers; /* threads that sleep, or are about to        */
} dti_turns;

/* Returns when all that came before have ended their turn. Not recursive. */
void dti_turn_take(dti_turns *t);
void dti_turn_end(dti_turns *t);

#endif

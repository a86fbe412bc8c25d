/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex for short sections that every call enters. Waiters sleep in the kernel. Not recursive.
 *
 * Shared, it costs one atomic exchange to take and a plain store to give back while nobody else
 * wants it; pthread_mutex costs two and a call each. Giving back looks at `sleepers` after the
 * store, and the processor may do so before it. So whoever is about to sleep says so first, then
 * has the kernel pass a barrier through all running threads (membarrier), then looks at the lock
 * once more: either it sees the store, or the other side sees the sleeper. Where the kernel has no
 * such barrier, giving back uses one itself.
 *
 * Biased to a thread, it costs that thread no atomic operation at all, which is a third of what a
 * small critical section takes: it says that it is inside, sees that the bias is still its own, and
 * is. Another thread takes the lock from the others as ever, then takes the bias away, passes the
 * barrier, and waits until the thread is not inside: either that one sees that its bias is gone, or
 * this one sees that it is inside. The lock becomes biased to a thread that has taken it often
 * without another between. Only locks of rank INDEX do; a thread that is inside one takes a second
 * one (of another allocator, in a walk) as if it had no bias.
 *
 * Ranks say in which order locks may be taken: a thread takes only a higher rank than it holds.
 */
#ifndef DUCTILE_VMM_BASE_LOCK_H
#define DUCTILE_VMM_BASE_LOCK_H

#include "vmm/base/check.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <errno.h>
#endif
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum dti_lock_rank {
    DTI_RANK_GROW = 1,   /* growth, healing and return, one at a time            */
    DTI_RANK_INDEX = 2,  /* blocks and indexes; no driver call while it is held  */
    DTI_RANK_DRIVER = 3, /* state of a driver backend                            */
    DTI_RANK_LEAF = 4    /* small lists that call nothing                        */
} dti_lock_rank;

/* A thread to which locks may be biased. Never freed: others look at it after the thread's end. A
 * later thread may have the same pointer; it takes the place over. */
typedef struct dti_lock_holder {
    _Alignas(64) _Atomic(const struct dti_lock *) inside; /* what it holds, or tries, by its bias */
    _Atomic uintptr_t thread;                             /* dti_thread_pointer(); 0: nobody's */
} dti_lock_holder;

typedef struct dti_lock {
    _Atomic uint32_t taken;               /* 0 or 1 */
    _Atomic uint32_t sleepers;            /* threads that sleep, or are about to */
    _Atomic(dti_lock_holder *) biased_to; /* never NULL: dti_lock_nobody */
    /* guarded by the lock */
    dti_lock_holder *held_by; /* who holds it by its bias; NULL: somebody without */
    uint64_t n_biased;        /* takes by the present bias */
    uintptr_t latest;         /* thread that took it without a bias */
    uint32_t n_in_row;        /* takes by the latest, without another between */
    uint32_t n_for_bias;      /* as many make a bias */
    uint32_t rank;
} dti_lock;

extern dti_lock_holder dti_lock_nobody;

/* No barrier from the kernel: giving back must bring its own. */
extern _Atomic bool dti_lock_needs_fence;

/* Bit r set: this thread holds a lock of rank r. Kept at check level 2 and above. */
extern _Thread_local unsigned dti_held_ranks;

/* Once per process, before the first lock is contended: dti_lock_init does it. */
void dti_lock_prepare(void);
void dti_lock_wait(dti_lock *lock);
void dti_lock_wake(dti_lock *lock);
void dti_lock_revoke_bias(dti_lock *lock);
void dti_lock_consider_bias(dti_lock *lock);

/* Few where checks are on, so that tests see many a bias come and go. */
#define DTI_LOCK_FIRST_BIAS (DUCTILE_CHECK >= 2 ? 16u : 1024u)

static inline void dti_lock_init(dti_lock *lock, dti_lock_rank rank) {
    atomic_init(&lock->taken, 0);
    atomic_init(&lock->sleepers, 0);
    atomic_init(&lock->biased_to, &dti_lock_nobody);
    lock->held_by = NULL;
    lock->n_biased = 0;
    lock->latest = 0;
    lock->n_in_row = 0;
    lock->n_for_bias = DTI_LOCK_FIRST_BIAS;
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

/* Different for all threads that live. Not a thread-local variable: to be quick it would have to
 * lie in the static block, of which glibc has little left for libraries that are loaded late. */
static inline uintptr_t dti_thread_pointer(void) {
    uintptr_t pointer;
#if defined(__x86_64__)
    __asm__("mov %%fs:0, %0" : "=r"(pointer));
#elif defined(__aarch64__)
    __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
#else
    pointer = (uintptr_t)&errno;
#endif
    return pointer;
}

/* Only for the thread to which the lock is biased, if it still is. */
static inline bool dti_lock_take_biased(dti_lock *lock) {
    dti_lock_holder *self = atomic_load_explicit(&lock->biased_to, memory_order_relaxed);
    if (atomic_load_explicit(&self->thread, memory_order_relaxed) != dti_thread_pointer() ||
        atomic_load_explicit(&self->inside, memory_order_relaxed) != NULL) {
        return false;
    }
    atomic_store_explicit(&self->inside, lock, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* the processor's part is the revoker's barrier */
    if (__builtin_expect(atomic_load_explicit(&lock->biased_to, memory_order_relaxed) != self, 0)) {
        atomic_store_explicit(&self->inside, NULL, memory_order_release);
        return false;
    }
    lock->held_by = self;
    lock->n_biased++;
    return true;
}

/* After `taken` has been won: nobody is inside by a bias any more. */
static inline void dti_lock_settle(dti_lock *lock) {
    if (__builtin_expect(
            atomic_load_explicit(&lock->biased_to, memory_order_relaxed) != &dti_lock_nobody, 0)) {
        dti_lock_revoke_bias(lock);
    }
    uintptr_t self = dti_thread_pointer();
    lock->held_by = NULL;
    lock->n_in_row = lock->latest == self ? lock->n_in_row + 1 : 0;
    lock->latest = self;
    if (__builtin_expect(lock->n_in_row >= lock->n_for_bias, 0)) {
        dti_lock_consider_bias(lock);
    }
}

static inline bool dti_lock_win(dti_lock *lock) {
    uint32_t open = 0;
    return atomic_compare_exchange_strong_explicit(&lock->taken, &open, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void dti_lock_acquire(dti_lock *lock) {
    if (!dti_lock_take_biased(lock)) {
        if (__builtin_expect(!dti_lock_win(lock), 0)) {
            dti_lock_wait(lock);
        }
        dti_lock_settle(lock);
    }
    dti_lock_note_taken(lock);
}

/* Takes the lock if it is open. Of a lock that is biased to another thread it waits for that one,
 * which is inside for a moment at most. */
static inline bool dti_lock_try_acquire(dti_lock *lock) {
    if (!dti_lock_take_biased(lock)) {
        if (!dti_lock_win(lock)) {
            return false;
        }
        dti_lock_settle(lock);
    }
    dti_lock_note_taken(lock);
    return true;
}

static inline void dti_lock_open_shared(dti_lock *lock) {
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

static inline void dti_lock_release(dti_lock *lock) {
    dti_lock_note_open(lock);
    dti_lock_holder *holder = lock->held_by;
    if (holder != NULL) {
        atomic_store_explicit(&holder->inside, NULL, memory_order_release);
    } else {
        dti_lock_open_shared(lock);
    }
}

/* Nobody has taken it, nor is the thread inside to which it is biased. Says nothing about the next
 * moment but where all other threads are gone. */
static inline bool dti_lock_is_free(const dti_lock *lock) {
    const dti_lock_holder *holder = atomic_load_explicit(&lock->biased_to, memory_order_acquire);
    return atomic_load_explicit(&lock->taken, memory_order_acquire) == 0 &&
           atomic_load_explicit(&holder->inside, memory_order_acquire) != lock;
}

/* For the first line of a function whose name ends in _locked. */
#define DTI_ASSERT_HELD(lock) DTI_CHECK("L2", dti_lock_is_held(lock))

/* No driver call is made while the index lock is held (invariant L3). */
#define DTI_ASSERT_MAY_CALL_DRIVER() DTI_CHECK("L3", (dti_held_ranks & (1u << DTI_RANK_INDEX)) == 0)

#endif

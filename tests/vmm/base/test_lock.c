/* SPDX-License-Identifier: Apache-2.0 */
/* The lock: it excludes, wakes its waiters, and checks ranks. Many threads: stress-lock_stress. */
#include "tests/support/expect.h"

#include "vmm/base/lock.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

static dti_lock lock;

static void set_up(void) {
    dti_lock_init(&lock, DTI_RANK_INDEX);
}

TestSuite(lock, .init = set_up);

static _Atomic bool is_trying, is_through;

static void *acquire_once(void *unused) {
    atomic_store(&is_trying, true);
    dti_lock_acquire(&lock);
    dti_lock_release(&lock);
    atomic_store(&is_through, true);
    return unused;
}

/* The waiter has stopped spinning by then, and sleeps. */
static pthread_t start_waiter(void) {
    pthread_t other;
    cr_assert_eq(pthread_create(&other, NULL, acquire_once, NULL), 0);
    while (!atomic_load(&is_trying)) {
        (void)usleep(100);
    }
    (void)usleep(30 * 1000);
    return other;
}

static void expect_that_a_waiter_gets_it_on_release(void) {
    dti_lock_acquire(&lock);
    pthread_t other = start_waiter();
    cr_assert(!atomic_load(&is_through), "two threads hold the lock");
    assert_u64(atomic_load(&lock.sleepers) & ~DTI_LOCK_FENCED, 1);
    dti_lock_release(&lock);
    cr_assert_eq(pthread_join(other, NULL), 0);
    cr_assert(atomic_load(&is_through));
    assert_u64(atomic_load(&lock.sleepers) & ~DTI_LOCK_FENCED, 0);
}

Test(lock, waiter_sleeps_until_release_wakes_it) {
    expect_that_a_waiter_gets_it_on_release();
}

/* The barrier is then the waiter's: a release is a store. */
Test(lock, a_release_fences_by_itself_only_where_the_kernel_has_no_barrier) {
    long offers = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    bool has_barrier = offers > 0 && (offers & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0;
    cr_assert_eq(atomic_load(&lock.sleepers), has_barrier ? 0 : DTI_LOCK_FENCED);
}

Test(lock, waiter_is_woken_without_a_barrier_from_the_kernel) {
    atomic_store(&lock.sleepers, DTI_LOCK_FENCED);
    expect_that_a_waiter_gets_it_on_release();
}

static void *try_once(void *got_it) {
    *(bool *)got_it = dti_lock_try_acquire(&lock);
    if (*(bool *)got_it) {
        dti_lock_release(&lock);
    }
    return NULL;
}

static bool other_thread_gets_it_by_trying(void) {
    pthread_t other;
    bool got_it = false;
    cr_assert_eq(pthread_create(&other, NULL, try_once, &got_it), 0);
    cr_assert_eq(pthread_join(other, NULL), 0);
    return got_it;
}

Test(lock, try_acquire_fails_while_another_thread_holds_it) {
    dti_lock_acquire(&lock);
    cr_assert(!other_thread_gets_it_by_trying());
    dti_lock_release(&lock);
    cr_assert(other_thread_gets_it_by_trying());
}

Test(lock, is_free_unless_a_thread_holds_it) {
    cr_assert(dti_lock_is_free(&lock));
    dti_lock_acquire(&lock);
    cr_assert(!dti_lock_is_free(&lock));
    dti_lock_release(&lock);
    cr_assert(dti_lock_is_free(&lock));
}

static const char *invariant = "";

static void remember(const dti_failure *failure) {
    invariant = failure->invariant;
}

Test(lock, acquiring_a_lower_rank_than_held_violates_l1) {
    if (DUCTILE_CHECK < 2) {
        cr_skip_test("ranks are checked from check level 2 on");
    }
    dti_lock lower;
    dti_lock_init(&lower, DTI_RANK_GROW);
    dti_lock_acquire(&lock);
    dti_set_fail_handler(remember);
    dti_lock_acquire(&lower);
    cr_assert_str_eq(invariant, "L1");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The lock: whom it is biased to, and how a bias ends. That it excludes: stress-lock_stress. */
#include "tests/support/expect.h"

#include "vmm/base/lock.h"

#include <pthread.h>
#include <unistd.h>

static dti_lock lock;

static void set_up(void) {
    dti_lock_init(&lock, DTI_RANK_INDEX);
}

TestSuite(lock, .init = set_up);

static void take_times(dti_lock *of, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        dti_lock_acquire(of);
        dti_lock_release(of);
    }
}

static void take_often(uint64_t n) {
    take_times(&lock, n);
}

static bool is_biased(void) {
    return atomic_load(&lock.biased_to) != &dti_lock_nobody;
}

static void take_until_biased(void) {
    take_often((uint64_t)lock.n_for_bias + 2);
}

static void *take_once(void *unused) {
    take_often(1);
    return unused;
}

static void *become_the_one(void *unused) {
    take_until_biased();
    return unused;
}

static void run_thread(void *(*body)(void *)) {
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, body, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
}

/* Elsewhere the lock stays shared, which other tests cover. */
static void need_a_barrier(void) {
    if (atomic_load(&dti_lock_needs_fence)) {
        cr_skip_test("the kernel has no private expedited membarrier");
    }
}

Test(lock, thread_that_takes_it_often_needs_no_exchange_any_more) {
    need_a_barrier();
    cr_assert(!is_biased());
    take_until_biased();
    cr_assert(is_biased());
    dti_lock_acquire(&lock);
    assert_u64(atomic_load(&lock.taken), 0);
    cr_assert_eq(atomic_load(&lock.biased_to->inside), &lock);
    dti_lock_release(&lock);
    cr_assert_null(atomic_load(&lock.biased_to->inside));
}

Test(lock, take_of_another_thread_ends_the_bias) {
    need_a_barrier();
    take_until_biased();
    run_thread(take_once);
    cr_assert(!is_biased());
    dti_lock_acquire(&lock);
    assert_u64(atomic_load(&lock.taken), 1);
    dti_lock_release(&lock);
    assert_u64(atomic_load(&lock.taken), 0);
}

Test(lock, bias_of_a_thread_that_has_ended_is_taken_away) {
    need_a_barrier();
    run_thread(become_the_one);
    cr_assert(is_biased());
    take_often(1);
    cr_assert(!is_biased());
}

Test(lock, biases_that_do_not_pay_become_rarer_and_one_that_pays_makes_them_frequent_again) {
    need_a_barrier();
    uint32_t first = lock.n_for_bias;
    take_until_biased();
    run_thread(take_once);
    assert_u64(lock.n_for_bias, 2 * (uint64_t)first);
    take_until_biased();
    run_thread(take_once);
    assert_u64(lock.n_for_bias, 4 * (uint64_t)first);
    take_until_biased();
    take_often(10000);
    run_thread(take_once);
    assert_u64(lock.n_for_bias, first);
}

Test(lock, without_a_barrier_from_the_kernel_it_is_never_biased) {
    atomic_store(&dti_lock_needs_fence, true);
    take_often(100000);
    cr_assert(!is_biased());
}

Test(lock, only_the_hot_lock_is_biased) {
    dti_lock_init(&lock, DTI_RANK_LEAF);
    take_often(100000);
    cr_assert(!is_biased());
}

Test(lock, threads_that_come_and_go_do_not_use_up_the_places) {
    need_a_barrier();
    for (int i = 0; i < 1000; i++) {
        run_thread(become_the_one);
        cr_assert(is_biased(), "the thread number %d", i);
        dti_lock_init(&lock, DTI_RANK_INDEX);
    }
}

/* ---- What a bias excludes ------------------------------------------------------------------ */

static _Atomic bool is_inside, is_through;

static void *take_and_tell(void *unused) {
    atomic_store(&is_inside, true);
    take_often(1);
    atomic_store(&is_through, true);
    return unused;
}

/* The lock is ours. */
static void expect_that_others_wait(void) {
    pthread_t other;
    cr_assert_eq(pthread_create(&other, NULL, take_and_tell, NULL), 0);
    while (!atomic_load(&is_inside)) {
        (void)usleep(100);
    }
    (void)usleep(30 * 1000);
    cr_assert(!atomic_load(&is_through), "two threads are inside");
    dti_lock_release(&lock);
    cr_assert_eq(pthread_join(other, NULL), 0);
    cr_assert(atomic_load(&is_through));
}

Test(lock, others_wait_while_the_biased_thread_is_inside) {
    need_a_barrier();
    take_until_biased();
    cr_assert(is_biased());
    dti_lock_acquire(&lock);
    expect_that_others_wait();
}

Test(lock, others_wait_while_a_thread_is_inside_without_a_bias) {
    dti_lock_acquire(&lock);
    expect_that_others_wait();
}

static void ignore(const dti_failure *failure) {
    (void)failure;
}

/* Ranks forbid it where they are checked; where they are not, it must exclude all the same. */
Test(lock, others_wait_after_the_biased_thread_took_and_opened_another_lock_inside) {
    need_a_barrier();
    (void)dti_set_fail_handler(ignore);
    dti_lock second;
    dti_lock_init(&second, DTI_RANK_INDEX);
    take_times(&second, (uint64_t)second.n_for_bias + 2);
    take_until_biased();
    dti_lock_acquire(&lock);
    take_times(&second, 1);
    expect_that_others_wait();
}

Test(lock, try_of_another_thread_takes_a_biased_lock_that_nobody_is_in) {
    need_a_barrier();
    run_thread(become_the_one);
    cr_assert(dti_lock_try_acquire(&lock));
    dti_lock_release(&lock);
    cr_assert(!is_biased());
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Turns: one at a time, in the order in which threads came, asleep or not. */
#include "tests/support/expect.h"

#include "vmm/base/lock.h"

#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

enum { N_THREADS = 6, N_TURNS = 20000 };

static dti_turns turns;
static unsigned served[N_THREADS], n_served; /* by those whose turn it is */

static void *take_one(void *number) {
    dti_turn_take(&turns);
    served[n_served++] = *(unsigned *)number;
    dti_turn_end(&turns);
    return NULL;
}

/* Each stands behind the one before it. */
static void expect_order(unsigned us_between) {
    static unsigned numbers[N_THREADS];
    pthread_t threads[N_THREADS];
    n_served = 0;
    uint32_t first = atomic_load(&turns.next);
    dti_turn_take(&turns);
    for (unsigned i = 0; i < N_THREADS; i++) {
        numbers[i] = i;
        cr_assert_eq(pthread_create(&threads[i], NULL, take_one, &numbers[i]), 0);
        while (atomic_load(&turns.next) != first + i + 2) {
            (void)usleep(10);
        }
        (void)usleep(us_between);
    }
    cr_assert_eq(n_served, 0);
    dti_turn_end(&turns);
    for (unsigned i = 0; i < N_THREADS; i++) {
        (void)pthread_join(threads[i], NULL);
        cr_assert_eq(served[i], i);
    }
    cr_assert_eq(atomic_load(&turns.sleepers), 0);
}

Test(turns, threads_are_served_in_the_order_in_which_they_came) {
    expect_order(0);
}

Test(turns, threads_that_sleep_are_served_in_that_order_too) {
    expect_order(20 * 1000);
}

Test(turns, the_order_holds_where_the_numbers_begin_again) {
    atomic_store(&turns.next, UINT32_MAX - 2);
    atomic_store(&turns.serving, UINT32_MAX - 2);
    expect_order(0);
}

static unsigned long sum; /* not atomic */

static void *take_many(void *unused) {
    for (int i = 0; i < N_TURNS; i++) {
        dti_turn_take(&turns);
        sum++;
        dti_turn_end(&turns);
    }
    return unused;
}

Test(turns, one_thread_at_a_time_has_its_turn) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, take_many, NULL), 0);
    }
    for (int i = 0; i < 2; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    cr_assert_eq(sum, 2ul * N_TURNS);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* In place of the scheduler: threads of the system, for the thread sanitizer, which sees what no
 * order of one processor shows. */
#include "tests/orders/scheduler.h"

#include "vmm/base/check.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

const bool scheduler_chooses = false;

static pthread_mutex_t test_lock; /* recursive */
static pthread_barrier_t start;
static finding_fn report_now;
static void (*work_now)(void *user, unsigned number);
static void *work_user;

void scheduler_found(const char *kind, const char *why) {
    (void)pthread_mutex_lock(&test_lock);
    report_now(kind, why);
    (void)fflush(stdout);
    _exit(1);
}

static void on_failed_check(const dti_failure *failure) {
    scheduler_found("check", failure->condition);
}

void scheduler_init(finding_fn report) {
    pthread_mutexattr_t recursive;
    report_now = report;
    (void)pthread_mutexattr_init(&recursive);
    (void)pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    (void)pthread_mutex_init(&test_lock, &recursive);
    dti_set_fail_handler(on_failed_check);
}

static void *start_thread(void *number) {
    (void)pthread_barrier_wait(&start);
    work_now(work_user, (unsigned)(uintptr_t)number);
    return NULL;
}

void scheduler_run(unsigned n, void (*work)(void *user, unsigned number), void *user,
                   choose_fn choose, void *chooser) {
    pthread_t threads[MOST_THREADS];
    (void)choose, (void)chooser;
    work_now = work;
    work_user = user;
    (void)pthread_barrier_init(&start, NULL, n);
    for (uintptr_t i = 0; i < n; i++) {
        if (pthread_create(&threads[i], NULL, start_thread, (void *)i) != 0) {
            scheduler_found("crash", "a thread cannot be made");
        }
    }
    for (unsigned i = 0; i < n; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    (void)pthread_barrier_destroy(&start);
}

const step *scheduler_steps(size_t *n) {
    *n = 0;
    return NULL;
}

void scheduler_mute(void) {
    (void)pthread_mutex_lock(&test_lock);
}

void scheduler_unmute(void) {
    (void)pthread_mutex_unlock(&test_lock);
}

void scheduler_forked(void) {
}

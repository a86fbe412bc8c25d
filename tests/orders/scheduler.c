/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/orders/scheduler.h"

#include "tests/orders/points.h"
#include "vmm/base/check.h"
#include "vmm/base/lock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_MUTEXES = 32, MOST_IDLE_ROUNDS = 2000, BORING = 1, OF_INTEREST = 2 };

typedef struct worker {
    pthread_t thread;
    sem_t go;
    unsigned number;
    bool is_done;
    bool is_fresh; /* nothing that others see has happened since its latest point */
    unsigned n_mutes;
    const dti_lock *lock;         /* it waits for, or NULL */
    const pthread_mutex_t *mutex; /* the same              */
    const pthread_cond_t *signal; /* the same              */
    bool rests;                   /* asks again once others have gone on */
    size_t rests_since;           /* step                                */
} worker;

static worker workers[MOST_THREADS];
static unsigned n_started, n_now, n_done;
static _Thread_local worker *me;
static bool is_child;
static sem_t all_done;
static const pthread_mutex_t *owned[MOST_MUTEXES];
static step steps[MOST_STEPS];
static size_t n_steps, n_idle_rounds;
static void (*work_now)(void *user, unsigned number);
static void *work_user;
static choose_fn choose_now;
static void *chooser_now;
static finding_fn report_now;

const bool scheduler_chooses = true;

/* ---- What is found ------------------------------------------------------------------------- */

void scheduler_found(const char *kind, const char *why) {
    static bool has_begun;
    if (!has_begun) {
        has_begun = true;
        report_now(kind, why);
    }
    (void)fflush(stdout);
    _exit(1);
}

static void on_failed_check(const dti_failure *failure) {
    char why[512];
    (void)snprintf(why, sizeof why, "%s %s (%s:%d)", failure->invariant, failure->condition,
                   failure->file, failure->line);
    scheduler_found("check", why);
}

static void on_signal(int number) {
    scheduler_found("crash", strsignal(number));
}

static void on_sanitizer(void) {
    scheduler_found("crash", "a sanitizer's report, above");
}

__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

void scheduler_init(finding_fn report) {
    report_now = report;
    dti_set_fail_handler(on_failed_check);
    (void)sem_init(&all_done, 0, 0);
    (void)signal(SIGABRT, on_signal);
    if (__sanitizer_set_death_callback != NULL) {
        __sanitizer_set_death_callback(on_sanitizer);
    } else {
        (void)signal(SIGSEGV, on_signal);
    }
}

/* ---- Choosing ------------------------------------------------------------------------------ */

static bool is_owned(const pthread_mutex_t *mutex) {
    for (unsigned i = 0; i < MOST_MUTEXES; i++) {
        if (owned[i] == mutex) {
            return true;
        }
    }
    return false;
}

static bool can_go_on(const worker *w) {
    return !w->is_done && (w->lock == NULL || dti_lock_is_free(w->lock)) &&
           (w->mutex == NULL || !is_owned(w->mutex)) && w->signal == NULL &&
           (!w->rests || n_steps > w->rests_since);
}

static unsigned all_enabled(void) {
    unsigned enabled = 0;
    for (unsigned i = 0; i < n_now; i++) {
        enabled |= (unsigned)can_go_on(&workers[i]) << i;
    }
    return enabled;
}

/* All wait; those that only rest look again. */
static unsigned wake_resting(void) {
    bool any = false;
    for (unsigned i = 0; i < n_now; i++) {
        any |= workers[i].rests && !workers[i].is_done;
        workers[i].rests = false;
    }
    if (!any) {
        scheduler_found("deadlock", "every thread waits for another one");
    }
    if (++n_idle_rounds == MOST_IDLE_ROUNDS) {
        scheduler_found("livelock", "threads ask again and again for what no thread does");
    }
    return all_enabled();
}

static worker *choose(const char *what, const char *where) {
    if (n_steps == MOST_STEPS) {
        scheduler_found("livelock", "no end after very many steps");
    }
    step *now = &steps[n_steps];
    *now = (step){.before = me != NULL ? (uint8_t)me->number : NOBODY,
                  .rests = me != NULL && me->rests,
                  .what = what,
                  .where = where};
    unsigned enabled = all_enabled();
    now->enabled = (uint8_t)(enabled != 0 ? enabled : wake_resting());
    now->chosen = (uint8_t)choose_now(chooser_now, now, n_steps);
    n_steps++;
    workers[now->chosen].rests = false;
    return &workers[now->chosen];
}

static void sleep_until(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0 && errno == EINTR) {
    }
}

/* Back when it is this thread's turn again. */
static void pass(const char *what, const char *where) {
    worker *next = choose(what, where);
    me->is_fresh = true;
    if (next != me) {
        (void)sem_post(&next->go);
        sleep_until(&me->go);
    }
}

static void child_waits(void) {
    _exit(FORKED_CHILD_WAITS);
}

/* ---- Points -------------------------------------------------------------------------------- */

static const char *name_of(const dti_lock *lock) {
    static const char *const names[] = {"", "the grow lock", "the index lock", "the driver",
                                        "a leaf lock"};
    return names[lock->rank];
}

void orders_before_lock(dti_lock *lock, const char *where) {
    bool is_free = dti_lock_is_free(lock);
    if (me == NULL || (is_free && (me->is_fresh || me->n_mutes > 0))) {
        if (!is_free && is_child) {
            child_waits();
        }
        if (me != NULL && me->n_mutes == 0) {
            me->is_fresh = false;
        }
        return;
    }
    me->lock = lock;
    pass(name_of(lock), where);
    me->lock = NULL;
    me->is_fresh = false;
}

static void point(const char *what, const char *where) {
    if (me != NULL && me->n_mutes == 0) {
        pass(what, where);
    }
}

void orders_before_try(dti_lock *lock, const char *where) {
    point(name_of(lock), where);
    if (me != NULL) {
        me->is_fresh = false;
    }
}

void orders_after_unlock(dti_lock *lock, const char *where) {
    static const char *const names[] = {"", "has unlocked the grow lock",
                                        "has unlocked the index lock", "has unlocked the driver",
                                        "has unlocked a leaf lock"};
    point(names[lock->rank], where);
}

/* Counters of calls, and words that no order of these programs changes. */
static signed char interest_in(const char *what) {
    static const char *const boring[] = {
        "lock->taken", "lock->sleepers", "counter",      "usable_at",   "process_age",
        "poison",      "trace_failure",  "trace_answer", "current_han", "n_threads",
        "time_ns",     "process_total",  "n_made",       "n_given",     "starter"};
    for (size_t i = 0; i < sizeof boring / sizeof *boring; i++) {
        if (strstr(what, boring[i]) != NULL) {
            return BORING;
        }
    }
    return OF_INTEREST;
}

void orders_at_atomic(signed char *site, const char *what, const char *where) {
    if (*site == 0) {
        *site = interest_in(what);
    }
    if (*site == OF_INTEREST && me != NULL) {
        point(what, where);
        me->is_fresh = false;
    }
}

void scheduler_mute(void) {
    if (me != NULL) {
        me->n_mutes++;
    }
}

void scheduler_unmute(void) {
    if (me != NULL) {
        me->n_mutes--;
    }
}

void scheduler_forked(void) {
    me = NULL;
    is_child = true;
}

const step *scheduler_steps(size_t *n) {
    *n = n_steps;
    return steps;
}

/* ---- Threads ------------------------------------------------------------------------------- */

static void hand_over(void) {
    me->is_done = true;
    if (++n_done == n_now) {
        (void)sem_post(&all_done);
    } else {
        (void)sem_post(&choose("has ended", "")->go);
    }
}

static void *start_thread(void *user) {
    worker *self = user;
    for (;;) {
        sleep_until(&self->go);
        me = self;
        work_now(work_user, self->number);
        hand_over();
    }
    return NULL;
}

static void start_worker(unsigned number) {
    worker *w = &workers[number];
    w->number = number;
    (void)sem_init(&w->go, 0, 0);
    if (pthread_create(&w->thread, NULL, start_thread, w) != 0) {
        scheduler_found("crash", "a thread cannot be made");
    }
}

void scheduler_run(unsigned n, void (*work)(void *user, unsigned number), void *user,
                   choose_fn choose_one, void *chooser) {
    while (n_started < n) {
        start_worker(n_started++);
    }
    for (unsigned i = 0; i < n; i++) {
        workers[i].is_done = workers[i].rests = false;
        workers[i].is_fresh = true;
    }
    work_now = work;
    work_user = user;
    choose_now = choose_one;
    chooser_now = chooser;
    n_now = n;
    n_done = 0;
    n_steps = n_idle_rounds = 0;
    (void)sem_post(&choose("begins", "")->go);
    sleep_until(&all_done);
}

/* ---- The library's other waits ------------------------------------------------------------- */

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __real_pthread_cond_wait(pthread_cond_t *signal, pthread_mutex_t *mutex);
int __real_pthread_cond_broadcast(pthread_cond_t *signal);
int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __real_poll(struct pollfd *all, nfds_t n, int ms);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *signal, pthread_mutex_t *mutex);
int __wrap_pthread_cond_broadcast(pthread_cond_t *signal);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_poll(struct pollfd *all, nfds_t n, int ms);

static void own(const pthread_mutex_t *mutex) {
    unsigned i = 0;
    while (owned[i] != NULL) {
        i++;
    }
    owned[i] = mutex;
}

static void disown(const pthread_mutex_t *mutex) {
    unsigned i = 0;
    while (owned[i] != mutex) {
        i++;
    }
    owned[i] = NULL;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
    if (me == NULL) {
        if (is_child && is_owned(mutex)) {
            child_waits();
        }
        return __real_pthread_mutex_lock(mutex);
    }
    me->mutex = mutex;
    pass("a mutex", "");
    me->mutex = NULL;
    own(mutex);
    return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex) {
    if (me == NULL) {
        return __real_pthread_mutex_trylock(mutex);
    }
    pass("a mutex, if it is free", "");
    if (is_owned(mutex)) {
        return EBUSY;
    }
    own(mutex);
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex) {
    if (me == NULL) {
        return __real_pthread_mutex_unlock(mutex);
    }
    disown(mutex);
    pass("has unlocked a mutex", "");
    return 0;
}

/* No other thread can run between the two waits: there is no point in between. */
int __wrap_pthread_cond_wait(pthread_cond_t *signal, pthread_mutex_t *mutex) {
    if (me == NULL) {
        return __real_pthread_cond_wait(signal, mutex);
    }
    disown(mutex);
    me->signal = signal;
    me->mutex = mutex;
    pass("waits for a signal", "");
    me->mutex = NULL;
    own(mutex);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *signal) {
    if (me == NULL) {
        return __real_pthread_cond_broadcast(signal);
    }
    for (unsigned i = 0; i < n_now; i++) {
        if (workers[i].signal == signal) {
            workers[i].signal = NULL;
        }
    }
    return 0;
}

static void rest(const char *what) {
    me->rests = true;
    me->rests_since = n_steps;
    pass(what, "");
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left) {
    if (me == NULL) {
        return __real_nanosleep(time, left);
    }
    rest("sleeps for a moment");
    return 0;
}

int __wrap_poll(struct pollfd *all, nfds_t n, int ms) {
    int ready = __real_poll(all, n, me == NULL ? ms : 0);
    while (me != NULL && ms != 0 && ready == 0) {
        rest("waits for a message");
        ready = __real_poll(all, n, 0);
    }
    return ready;
}

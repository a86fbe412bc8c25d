/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of threads and processes at bad moments: an exit while threads allocate, forks while
 * they do, threads that leave blocks behind, a device that is lost inside a callback. No thread
 * hangs or crashes, and after the end no driver call is made. A device that is lost in any call is
 * in tests/scenarios/faults.txt.
 */
#include "tests/support/in_child.h"
#include "tests/support/limits.h"
#include "tests/support/one_fixture.h"
#include "vmm/driver/driver.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void rest(long milliseconds) {
    const struct timespec pause = {.tv_nsec = milliseconds * 1000000};
    (void)nanosleep(&pause, NULL);
}

/* ---- Threads that go on --------------------------------------------------------------------- */

enum { N_THREADS = 4 };

static _Atomic bool is_over;
static _Atomic uint64_t n_rounds;
static _Atomic int last_status;

/* Hits, misses, recorded uses and trims, until the process says otherwise. */
static void *hammer(void *user) {
    size_t stream = (size_t)(uintptr_t)user % 2;
    for (size_t i = 0; !atomic_load(&is_over); i++) {
        ductile_addr address = 0;
        size_t size = 1 + i % 7 * (3 << 20);
        ductile_status status = ductile_alloc(f.allocator, size, f.streams[stream], &address);
        if (status == DUCTILE_OK) {
            status = i % 3 == 0
                         ? ductile_free_ex(f.allocator, address, &f.streams[1 - stream], 1, NULL)
                         : ductile_free(f.allocator, address);
        }
        if (i % 16 == 0 && status == DUCTILE_OK) {
            status = ductile_trim(f.allocator, NULL, 0, NULL);
        }
        atomic_store(&last_status, (int)status);
        atomic_fetch_add(&n_rounds, 1);
    }
    return NULL;
}

static bool start_hammering(pthread_t *threads) {
    const fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_RANDOM, .seed = 3, .n_streams = 2};
    if (fixture_open(&f, &setup) != NULL) {
        return false;
    }
    for (size_t i = 0; i < N_THREADS; i++) {
        if (pthread_create(&threads[i], NULL, hammer, (void *)(uintptr_t)i) != 0) {
            return false;
        }
    }
    while (atomic_load(&n_rounds) < 50) {
        rest(1);
    }
    return true;
}

/* ---- Exit ----------------------------------------------------------------------------------- */

/* All threads go on and are told, and the driver is not called. */
static bool is_silent_for_a_while(void) {
    uint64_t calls = fixture_state(&f).calls;
    uint64_t rounds = atomic_load(&n_rounds);
    rest(30);
    return fixture_state(&f).calls == calls && atomic_load(&n_rounds) > rounds &&
           atomic_load(&last_status) == DUCTILE_ERR_EXITING;
}

/* Registered before the library sees the process, so it runs after the library saw the exit. The
 * threads are still at it; calls that had begun may end, and on a busy machine that takes time. */
static void watch_the_exit(void) {
    for (size_t i = 0; i < 100; i++) {
        if (is_silent_for_a_while()) {
            _exit(42);
        }
    }
    _exit(1);
}

static int exit_among_threads(void (*last)(void)) {
    pthread_t threads[N_THREADS];
    if (atexit(last) != 0 || !start_hammering(threads)) {
        return 10;
    }
    exit(11);
}

static int exit_watched(void) {
    return exit_among_threads(watch_the_exit);
}

Test(process_life, an_exit_while_threads_allocate_ends_all_driver_calls) {
    int answer = in_child(exit_watched);
    cr_assert_eq(answer, 42, "the child answered %d", answer);
}

/* The last word of the child: a leak check among running threads would see what is none. */
static void end_now(void) {
    _exit(0);
}

static int exit_unwatched(void) {
    return exit_among_threads(end_now);
}

Test(process_life, leaving_while_threads_allocate_is_no_crash) {
    for (size_t i = 0; i < 5; i++) {
        int answer = in_child(exit_unwatched);
        cr_assert_eq(answer, 0, "the child answered %d", answer);
    }
}

/* ---- Fork ------------------------------------------------------------------------------------ */

static ductile_addr parents;

/* 0, or the number of the call that answered wrongly; test_refusals.c has them all. */
static int ask_in_child(void) {
    ductile_addr address = 1;
    ductile_stats stats = {.struct_size = sizeof stats};
    const ductile_status answers[] = {
        ductile_alloc(f.allocator, 64 * MIB, f.streams[0], &address),
        ductile_free_ex(f.allocator, parents, &f.streams[1], 1, NULL),
        ductile_stream_done(f.allocator, f.streams[1]),
        ductile_trim(f.allocator, NULL, 0, NULL),
        ductile_remove_oom_callback(f.allocator, 1),
        ductile_get_stats(f.allocator, NULL, &stats),
        ductile_destroy(f.allocator),
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        if (answers[i] != DUCTILE_ERR_FORKED) {
            return 1 + (int)i;
        }
    }
    return 0;
}

/* Whatever the threads were in the middle of, and whichever locks they held. */
Test(process_life, a_child_forked_at_any_moment_is_told_and_the_parent_goes_on) {
    pthread_t threads[N_THREADS];
    cr_assert(start_hammering(threads));
    assert_ok(ductile_alloc(f.allocator, 512, f.streams[0], &parents));
    for (size_t i = 0; i < 60; i++) {
        int answer = in_child(ask_in_child);
        cr_assert_eq(answer, 0, "child %zu: call %d answered something else", i, answer);
    }
    uint64_t rounds = atomic_load(&n_rounds);
    while (atomic_load(&n_rounds) < rounds + 20) {
        rest(1);
    }
    atomic_store(&is_over, true);
    for (size_t i = 0; i < N_THREADS; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    assert_ok(ductile_free(f.allocator, parents));
    close_audited();
}

static int child_of_callback = -2;

static uint64_t fork_inside(void *user, ductile_allocator *a, uint64_t missing,
                            ductile_stream stream) {
    (void)user;
    (void)missing;
    (void)stream;
    child_of_callback = in_child(ask_in_child);
    return ductile_free(a, parents) == DUCTILE_OK ? 100 * MIB : 0;
}

Test(process_life, a_fork_inside_a_callback_is_told_too) {
    assert_fine(fixture_open(&f, &(fixture_setup){.n_streams = 2}));
    uint64_t id = 0;
    ductile_addr address = 0;
    assert_ok(ductile_add_oom_callback(f.allocator, fork_inside, NULL, 0, &id));
    assert_ok(ductile_alloc(f.allocator, 200 * MIB, f.streams[0], &parents));
    assert_ok(ductile_alloc(f.allocator, 100 * MIB, f.streams[0], &address));
    cr_assert_eq(child_of_callback, 0, "call %d answered something else", child_of_callback);
    close_audited();
}

/* ---- Threads that die ----------------------------------------------------------------------- */

static ductile_addr left[N_THREADS];

#define PER_THREAD_STREAM ((ductile_stream)(uintptr_t)2)

/* On the thread's own default stream, which no other thread may name, and on a shared one. */
static void *leave_blocks(void *user) {
    size_t i = (size_t)(uintptr_t)user;
    ductile_stream stream = i % 2 == 0 ? PER_THREAD_STREAM : f.streams[0];
    ductile_addr freed = 0;
    ductile_status status = ductile_alloc(f.allocator, 20 * MIB, stream, &left[i]);
    if (status == DUCTILE_OK) {
        status = ductile_alloc(f.allocator, 30 * MIB, stream, &freed);
    }
    if (status == DUCTILE_OK) {
        status = ductile_free(f.allocator, freed);
    }
    return (void *)(uintptr_t)status;
}

Test(process_life, what_dead_threads_left_is_freed_by_others_and_serves_again) {
    assert_fine(fixture_open(&f, NULL));
    for (size_t i = 0; i < N_THREADS; i++) {
        pthread_t thread;
        void *status = NULL;
        cr_assert_eq(pthread_create(&thread, NULL, leave_blocks, (void *)(uintptr_t)i), 0);
        cr_assert_eq(pthread_join(thread, &status), 0);
        assert_ok((ductile_status)(uintptr_t)status);
    }
    for (size_t i = 0; i < N_THREADS; i++) {
        assert_ok(ductile_virtual_fill(f.gpu, left[i], 7, 20 * MIB, f.streams[0]));
        assert_ok(ductile_free(f.allocator, left[i]));
    }
    ductile_addr all = 0;
    assert_ok(ductile_alloc(f.allocator, 256 * MIB, f.streams[0], &all));
    close_audited();
}

/* ---- A device lost ---------------------------------------------------------------------------*/

/* The callback's own work ends the device while a request waits for it. */
static uint64_t lose_device(void *user, ductile_allocator *a, uint64_t missing,
                            ductile_stream stream) {
    (void)user;
    (void)a;
    ductile_virtual_use use = {.address = GIB, .size = missing, .writes = 1};
    return ductile_virtual_launch(f.gpu, stream, &use, 1) == DUCTILE_OK &&
                   ductile_virtual_stream_sync(f.gpu, stream) != DUCTILE_OK
               ? missing
               : 0;
}

Test(process_life, a_device_lost_inside_a_callback_is_said) {
    assert_fine(fixture_open(&f, &(fixture_setup){.n_streams = 2}));
    uint64_t id = 0;
    ductile_addr address = 0;
    assert_ok(ductile_add_oom_callback(f.allocator, lose_device, NULL, 0, &id));
    assert_ok(ductile_alloc(f.allocator, 200 * MIB, f.streams[0], &address));
    assert_status(ductile_alloc(f.allocator, 100 * MIB, f.streams[0], &address),
                  DUCTILE_ERR_DEVICE_LOST);
    assert_u64(address, 0);
    assert_status(ductile_destroy(f.allocator), DUCTILE_ERR_DEVICE_LOST);
    fixture_abandon(&f);
}

Test(process_life, a_device_lost_at_the_end_of_a_stream_is_said) {
    open_fixture(&(fixture_setup){.n_streams = 2});
    (void)take(MIB, 1);
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .nth = 1, .code = DVMM_ILLEGAL_ADDRESS};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    assert_status(ductile_stream_done(f.allocator, f.streams[1]), DUCTILE_ERR_DEVICE_LOST);
    assert_status(ductile_destroy(f.allocator), DUCTILE_ERR_DEVICE_LOST);
    fixture_abandon(&f);
}

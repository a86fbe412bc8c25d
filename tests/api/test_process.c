/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of a process, beyond what test_refusals.c asks of every call and tests/gpu/exits.c of
 * the ways to end, and of what tests/orders asks of a fork at any moment; and that driver errors
 * reach the log callback.
 */
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/in_child.h"
#include "vmm/captures.h"

#include <ductile_elastic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static fixture f;

static void close_fixture(void) {
    assert_fine(fixture_close(&f));
}

/* ---- Fork ---------------------------------------------------------------------------------- */

/* The child's capture may be under way; what its parent had open is not its own to end. */
static int destroy_an_open_pool(void) {
    dvmm_captures_begin(DVMM_CAPTURE_POSSIBLE);
    (void)ductile_destroy(f.allocator);
    return dvmm_captures_hold(false) ? 1 : 0;
}

Test(process, a_child_that_destroys_an_open_pool_ends_no_capture_of_its_own,
     .fini = close_fixture) {
    const ductile_pool_id pool = {1, 0};
    assert_fine(fixture_open(&f, NULL));
    assert_ok(ductile_pool_begin(f.allocator, pool, NULL, NULL));
    cr_assert_eq(in_child(destroy_an_open_pool), 0);
    assert_ok(ductile_pool_end(f.allocator, pool));
    assert_ok(ductile_pool_release(f.allocator, pool));
}

static ductile_addr parents;

static int ask_in_child(void) {
    ductile_addr address = 1;
    return ductile_alloc(f.allocator, 512, f.streams[0], &address) != DUCTILE_ERR_FORKED ||
           ductile_free(f.allocator, parents) != DUCTILE_ERR_FORKED ||
           ductile_destroy(f.allocator) != DUCTILE_ERR_FORKED;
}

static int child_of_callback = -2;

static uint64_t fork_inside(void *user, ductile_allocator *a, uint64_t missing,
                            ductile_stream stream) {
    (void)user, (void)missing, (void)stream;
    child_of_callback = in_child(ask_in_child);
    return ductile_free(a, parents) == DUCTILE_OK ? 100 * MIB : 0;
}

Test(process, a_fork_inside_a_callback_is_told_too, .fini = close_fixture) {
    uint64_t id = 0;
    ductile_addr address = 0;
    assert_fine(fixture_open(&f, NULL));
    assert_ok(ductile_add_oom_callback(f.allocator, fork_inside, NULL, 0, &id));
    assert_ok(ductile_alloc(f.allocator, 200 * MIB, f.streams[0], &parents));
    assert_ok(ductile_alloc(f.allocator, 100 * MIB, f.streams[0], &address));
    cr_assert_eq(child_of_callback, 0);
}

static ductile_elastic *range;

static int close_and_destroy(void) {
    return ductile_elastic_close(range) != DUCTILE_ERR_FORKED ||
           ductile_destroy(f.allocator) != DUCTILE_ERR_FORKED;
}

Test(process, a_child_that_closes_a_range_can_destroy_the_allocator_too, .fini = close_fixture) {
    assert_fine(fixture_open(&f, NULL));
    assert_ok(ductile_elastic_open(f.allocator, 64 * MIB, f.streams[0], NULL, &range));
    assert_ok(ductile_elastic_commit(range, 0, 32 * MIB));
    cr_assert_eq(in_child(close_and_destroy), 0);
    assert_ok(ductile_elastic_close(range));
}

/* ---- Exit ---------------------------------------------------------------------------------- */

static void rest(long milliseconds) {
    const struct timespec span = {.tv_nsec = milliseconds * 1000000};
    (void)nanosleep(&span, NULL);
}

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

static bool start_hammering(void) {
    const fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_RANDOM, .seed = 3, .n_streams = 2};
    if (fixture_open(&f, &setup) != NULL) {
        return false;
    }
    for (size_t i = 0; i < N_THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, hammer, (void *)(uintptr_t)i) != 0) {
            return false;
        }
    }
    while (atomic_load(&n_rounds) < 50) {
        rest(1);
    }
    return true;
}

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

static int exit_among_threads(void) {
    if (atexit(watch_the_exit) != 0 || !start_hammering()) {
        return 10;
    }
    exit(11);
}

Test(process, an_exit_while_threads_allocate_ends_all_driver_calls) {
    int answer = in_child(exit_among_threads);
    cr_assert_eq(answer, 42, "the child answered %d", answer);
}

/* ---- Log ----------------------------------------------------------------------------------- */

typedef struct heard {
    ductile_allocator *allocator;
    int n;
    int n_reentered;
    char text[512];
} heard;

static void hear(void *user, ductile_log_level level, const char *text) {
    heard *h = user;
    h->n++;
    if (level == DUCTILE_LOG_ERROR || level == DUCTILE_LOG_WARNING) {
        (void)snprintf(h->text, sizeof h->text, "%s", text);
    }
    ductile_stats s = {.struct_size = sizeof s};
    if (h->allocator != NULL && ductile_get_stats(h->allocator, NULL, &s) == DUCTILE_OK) {
        h->n_reentered++;
    }
}

Test(process, driver_errors_reach_the_log_with_name_and_code) {
    heard h = {.n = 0};
    fixture_setup setup = {.log = hear, .log_user = &h};
    assert_fine(fixture_open(&f, &setup));
    h.allocator = f.allocator;
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "map", .nth = 2, .code = 999};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    ductile_addr address = 1;
    assert_status(ductile_alloc(f.allocator, 10 * MIB, f.streams[0], &address), DUCTILE_ERR_DRIVER);
    assert_u64(address, 0);
    cr_assert_gt(h.n, 0, "nothing was logged");
    cr_assert_not_null(strstr(h.text, "map"), "\"%s\" does not name the call", h.text);
    cr_assert(strstr(h.text, "999") != NULL || strstr(h.text, "UNKNOWN") != NULL,
              "\"%s\" does not have the code", h.text);
    cr_assert_gt(h.n_reentered, 0, "the callback could not call back");
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    assert_ok(ductile_alloc(f.allocator, 10 * MIB, f.streams[0], &address));
    h.allocator = NULL;
    assert_fine(fixture_close(&f));
}

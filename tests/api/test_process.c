/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of a process: a child gets a status and touches nothing, an exit with a live allocator
 * makes no driver call, and driver errors reach the log callback, not standard error.
 */
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/in_child.h"
#include "vmm/capture_gate.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static fixture f;

static void close_fixture(void) {
    assert_fine(fixture_close(&f));
}

/* ---- Fork ---------------------------------------------------------------------------------- */

static ductile_addr parents;

/* 0, or the number of the call that answered wrongly. */
static int use_parents_allocator(void) {
    ductile_addr address = 1;
    uint64_t calls = fixture_state(&f).calls;
    if (ductile_alloc(f.allocator, 512, f.streams[0], &address) != DUCTILE_ERR_FORKED ||
        address != 0) {
        return 1;
    }
    if (ductile_alloc(f.allocator, 64 * MIB, f.streams[0], &address) != DUCTILE_ERR_FORKED) {
        return 2;
    }
    if (ductile_free(f.allocator, parents) != DUCTILE_ERR_FORKED) {
        return 3;
    }
    if (ductile_trim(f.allocator, 0, NULL) != DUCTILE_ERR_FORKED) {
        return 4;
    }
    if (ductile_empty_cache(f.allocator) != DUCTILE_ERR_FORKED) {
        return 5;
    }
    if (ductile_destroy(f.allocator) != DUCTILE_ERR_FORKED) {
        return 6;
    }
    return fixture_state(&f).calls == calls ? 0 : 7;
}

Test(process, a_forked_child_is_told_and_the_parent_is_untouched, .fini = close_fixture) {
    assert_fine(fixture_open(&f, NULL));
    assert_ok(ductile_alloc(f.allocator, 10 * MIB, f.streams[0], &parents));
    cr_assert_eq(in_child(use_parents_allocator), 0);
    assert_ok(ductile_virtual_fill(f.gpu, parents, 1, 10 * MIB, f.streams[0]));
    assert_ok(ductile_free(f.allocator, parents));
    assert_fine(audit_fixture(&f, NULL));
}

static sem_t is_inside;
static sem_t may_leave;

static int stay_inside(void *user, const ductile_block_info *block) {
    (void)user;
    (void)block;
    (void)sem_post(&is_inside);
    (void)sem_wait(&may_leave);
    return 1;
}

/* A walk's callback runs with the index lock held. */
static void *hold_index_lock(void *user) {
    ductile_status *status = user;
    *status = ductile_walk(f.allocator, stay_inside, NULL);
    return NULL;
}

static int end_walk(void *user, const ductile_block_info *block) {
    (void)user;
    (void)block;
    return 1;
}

static int end_text(void *user, const char *text, size_t length) {
    (void)user;
    (void)text;
    (void)length;
    return 1;
}

static int inspect_parents_allocator(void) {
    (void)alarm(600); /* a call that hangs ends the child by a signal */
    ductile_stats s = {.struct_size = sizeof s};
    if (ductile_get_stats(f.allocator, &s) != DUCTILE_ERR_FORKED) {
        return 21;
    }
    ductile_block_info info = {.struct_size = sizeof info};
    if (ductile_query_block(f.allocator, parents, &info) != DUCTILE_ERR_FORKED) {
        return 22;
    }
    if (ductile_walk(f.allocator, end_walk, NULL) != DUCTILE_ERR_FORKED) {
        return 23;
    }
    if (ductile_snapshot_json(f.allocator, end_text, NULL) != DUCTILE_ERR_FORKED) {
        return 24;
    }
    char report[256];
    if (ductile_check(f.allocator, report, sizeof report) != DUCTILE_ERR_FORKED) {
        return 25;
    }
    ductile_reset_peaks(f.allocator);
    ductile_options options = {.struct_size = sizeof options};
    ductile_get_options(f.allocator, &options);
    return use_parents_allocator();
}

Test(process, a_child_forked_while_a_lock_was_held_does_not_hang, .fini = close_fixture) {
    assert_fine(fixture_open(&f, NULL));
    assert_ok(ductile_alloc(f.allocator, 10 * MIB, f.streams[0], &parents));
    pthread_t thread;
    ductile_status walked = DUCTILE_ERR_BUSY;
    cr_assert_eq(sem_init(&is_inside, 0, 0), 0);
    cr_assert_eq(sem_init(&may_leave, 0, 0), 0);
    cr_assert_eq(pthread_create(&thread, NULL, hold_index_lock, &walked), 0);
    cr_assert_eq(sem_wait(&is_inside), 0);
    int answer = in_child(inspect_parents_allocator);
    (void)sem_post(&may_leave);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_ok(walked);
    cr_assert_eq(answer, 0, "the child answered %d", answer);
    assert_ok(ductile_free(f.allocator, parents));
    assert_fine(audit_fixture(&f, NULL));
}

Test(process, a_child_forked_while_nobody_was_inside_is_told_too, .fini = close_fixture) {
    assert_fine(fixture_open(&f, NULL));
    assert_ok(ductile_alloc(f.allocator, 10 * MIB, f.streams[0], &parents));
    cr_assert_eq(in_child(inspect_parents_allocator), 0);
    assert_ok(ductile_free(f.allocator, parents));
}

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

/* ---- Exit ---------------------------------------------------------------------------------- */

static ductile_addr kept;
static uint64_t calls_before_exit;

/* Registered before the library, so it runs after the library has seen the exit. */
static void use_allocator_at_exit(void) {
    ductile_addr address = 1;
    int wrong = 0;
    if (ductile_alloc(f.allocator, 64 * MIB, f.streams[0], &address) != DUCTILE_ERR_EXITING) {
        wrong = 1;
    } else if (ductile_free(f.allocator, kept) != DUCTILE_ERR_EXITING) {
        wrong = 2;
    } else if (ductile_trim(f.allocator, 0, NULL) != DUCTILE_ERR_EXITING) {
        wrong = 3;
    } else if (ductile_destroy(f.allocator) != DUCTILE_ERR_EXITING) {
        wrong = 4;
    } else if (fixture_state(&f).calls != calls_before_exit) {
        wrong = 5;
    }
    _exit(wrong == 0 ? 42 : wrong);
}

static int exit_with_live_allocator(void) {
    if (atexit(use_allocator_at_exit) != 0 || fixture_open(&f, NULL) != NULL ||
        ductile_alloc(f.allocator, 10 * MIB, f.streams[0], &kept) != DUCTILE_OK) {
        return 10;
    }
    calls_before_exit = fixture_state(&f).calls;
    exit(11); /* the handler has the last word */
}

Test(process, no_driver_call_after_exit_has_begun) {
    cr_assert_eq(in_child(exit_with_live_allocator), 42);
}

static int exit_quietly(void) {
    if (fixture_open(&f, NULL) != NULL ||
        ductile_alloc(f.allocator, 10 * MIB, f.streams[0], &kept) != DUCTILE_OK) {
        return 10;
    }
    return 0;
}

Test(process, leaving_without_destroy_is_no_crash) {
    cr_assert_eq(in_child(exit_quietly), 0);
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
    if (h->allocator != NULL && ductile_get_stats(h->allocator, &s) == DUCTILE_OK) {
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

Test(process, memory_that_is_lost_is_said_and_counted) {
    heard h = {.n = 0};
    fixture_setup setup = {.log = hear, .log_user = &h};
    assert_fine(fixture_open(&f, &setup));
    ductile_addr address = 0;
    assert_ok(ductile_alloc(f.allocator, 10 * MIB, f.streams[0], &address));
    assert_ok(ductile_free(f.allocator, address));
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "unmap", .nth = 1, .code = 999};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    assert_status(ductile_trim(f.allocator, 0, NULL), DUCTILE_ERR_DRIVER);
    ductile_stats s = fixture_stats(f.allocator);
    cr_assert(s.quarantined_bytes > 0 && h.n > 0, "%llu bytes quarantined, %d lines logged",
              (unsigned long long)s.quarantined_bytes, h.n);
    assert_fine(audit_allocator(f.allocator, NULL));
    (void)ductile_destroy(f.allocator);
    fixture_abandon(&f);
}

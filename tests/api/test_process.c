/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of a process, beyond what test_refusals.c asks of every call; and that driver errors
 * reach the log callback.
 */
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/in_child.h"
#include "vmm/capture_gate.h"

#include <stdio.h>
#include <string.h>

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

/* ---- Exit ---------------------------------------------------------------------------------- */

static int exit_quietly(void) {
    ductile_addr kept = 0;
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
    assert_status(ductile_trim(f.allocator, NULL, 0, NULL), DUCTILE_ERR_DRIVER);
    ductile_stats s = fixture_stats(f.allocator);
    cr_assert(s.quarantined_bytes > 0 && h.n > 0, "%llu bytes quarantined, %d lines logged",
              (unsigned long long)s.quarantined_bytes, h.n);
    assert_fine(audit_allocator(f.allocator, NULL));
    (void)ductile_destroy(f.allocator);
    fixture_abandon(&f);
}

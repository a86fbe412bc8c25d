/* SPDX-License-Identifier: Apache-2.0 */
/* The option `check`: a broken invariant reaches the log, and a whole heap says nothing. */
#include "tests/support/internals.h"

static char logged[512];

static void keep_error(void *user, ductile_log_level level, const char *text) {
    (void)user;
    if (level == DUCTILE_LOG_ERROR) {
        (void)snprintf(logged, sizeof logged, "%s", text);
    }
}

static void open_checking(const char *conf) {
    logged[0] = '\0';
    open_fixture(&(fixture_setup){.conf = conf, .log = keep_error});
}

Test(audit, a_whole_heap_says_nothing) {
    open_checking("check:3");
    for (uint64_t n = 1; n < 5; n++) {
        ductile_addr block = take_granules(n, 0);
        give(take(512, 0));
        give(block);
        assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    }
    cr_assert_str_empty(logged);
    close_audited();
}

/* At level 1 after a trim, at level 2 also after growth, at level 3 after each call. */
Test(audit, a_broken_invariant_is_told_when_the_level_says_so) {
    if (DUCTILE_CHECK >= 3) {
        cr_skip_test("this build ends the process");
    }
    static const char *const confs[] = {"check:0", "check:1", "check:2", "check:3"};
    for (int level = 0; level <= 3; level++) {
        open_checking(confs[level]);
        ductile_addr block = take(512, 0);
        f.allocator->counts.imported++;
        give(take(512, 0));
        cr_assert_eq(logged[0] != '\0', level >= 3, "a hit at level %d: %s", level, logged);
        logged[0] = '\0';
        ductile_addr large = take_granules(7, 0);
        cr_assert_eq(logged[0] != '\0', level >= 2, "growth at level %d: %s", level, logged);
        logged[0] = '\0';
        assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
        cr_assert_eq(logged[0] != '\0', level >= 1, "a trim at level %d: %s", level, logged);
        f.allocator->counts.imported--;
        give(block);
        give(large);
        close_audited();
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What another user could have put there is not loaded. Modes stand for the other user. */
#include "tests/support/expect.h"
#include "vmm/driver/open_virtual.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "trusted-XXXXXX"; /* of the build */
static char file[PATH_MAX], other[PATH_MAX], link_in_other[PATH_MAX];

static void make(void) {
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_not_null(realpath(folder, file));
    size_t length = strlen(file);
    (void)snprintf(other, sizeof other, "%.*s/other", (int)length, file);
    (void)snprintf(link_in_other, sizeof link_in_other, "%.*s/other/link", (int)length, file);
    (void)snprintf(file + length, sizeof file - length, "/library");
    int made = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    cr_assert(made >= 0 && close(made) == 0);
    cr_assert(mkdir(other, 0700) == 0 && symlink(file, link_in_other) == 0);
}

static void drop(void) {
    cr_expect(unlink(link_in_other) == 0 && rmdir(other) == 0 && unlink(file) == 0 &&
              rmdir(folder) == 0);
}

TestSuite(trusted_file, .init = make, .fini = drop);

static bool is_trusted(const char *path) {
    return dvmm_is_trusted_file(path, geteuid());
}

/* Users whose files are writable by a group of their own are many. */
static void assert_modes(const char *path, const char *asked) {
    const mode_t trusted[] = {0500, 0700, 0755, 0775, 02775};
    const mode_t not_trusted[] = {0702, 0707, 0777, 01777};
    for (size_t i = 0; i < sizeof trusted / sizeof *trusted; i++) {
        cr_assert(chmod(path, trusted[i]) == 0);
        cr_assert(is_trusted(asked), "mode %o", (unsigned)trusted[i]);
    }
    for (size_t i = 0; i < sizeof not_trusted / sizeof *not_trusted; i++) {
        cr_assert(chmod(path, not_trusted[i]) == 0);
        cr_assert(!is_trusted(asked), "mode %o", (unsigned)not_trusted[i]);
    }
    cr_assert(chmod(path, 0700) == 0);
}

Test(trusted_file, is_not_written_by_everyone) {
    assert_modes(file, file);
}

Test(trusted_file, lies_where_not_everyone_writes) {
    assert_modes(folder, file);
}

Test(trusted_file, is_trusted_through_a_link_if_both_places_are) {
    assert_modes(folder, link_in_other);
    assert_modes(other, link_in_other);
    assert_modes(file, link_in_other);
}

Test(trusted_file, belongs_to_this_user_to_root_or_to_the_owner_of_the_running_file) {
    const uid_t another = 54321;
    if (chown(file, another, (gid_t)-1) != 0) { /* only root may */
        cr_assert(dvmm_is_trusted_file("/etc/passwd", another));
        return;
    }
    cr_assert(!is_trusted(file) && !dvmm_is_trusted_file(file, another + 1));
    cr_assert(dvmm_is_trusted_file(file, another));
    cr_assert(chown(folder, another + 1, (gid_t)-1) == 0);
    cr_assert(!dvmm_is_trusted_file(file, another));
    cr_assert(chown(folder, another, (gid_t)-1) == 0 && dvmm_is_trusted_file(file, another));
}

Test(trusted_file, is_there) {
    cr_assert(!is_trusted("no/such/file") && !is_trusted(""));
}

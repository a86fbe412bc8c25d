/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses memory of a GPU, by the word of a library that may be missing, refuse, or fail. */
#include "tests/support/expect.h"

#include <ductile_pressure.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#define GPU "0000:18:00.0"

static ductile_gpu_process found[4];
static size_t n;

static ductile_status list(const char *gpu) {
    n = 99;
    return ductile_list_gpu_processes(gpu, found, sizeof found / sizeof *found, &n);
}

/* The library that is found by its name from now on. */
static void load_fake(const char *does) {
    cr_assert_eq(setenv("FAKE_NVML", does, 1), 0);
    cr_assert_not_null(dlopen(FAKE_NVML, RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
}

static void refuses(ductile_status status) {
    cr_expect_eq(list(GPU), status);
    cr_expect_eq(n, 0);
}

Test(gpu_processes, are_listed_with_their_bytes_and_this_one_among_them) {
    load_fake("4711:1073741824 self:2097152");
    cr_assert_eq(list(GPU), DUCTILE_OK);
    cr_assert_eq(n, 2);
    cr_expect_eq(found[0].pid, 4711);
    cr_expect_eq(found[0].used_bytes, 1073741824);
    cr_expect_eq(found[1].pid, (uint64_t)getpid());
    cr_expect_eq(found[1].used_bytes, 2097152);
}

Test(gpu_processes, are_none_where_nobody_uses_the_gpu) {
    load_fake("");
    refuses(DUCTILE_OK);
}

Test(gpu_processes, whose_bytes_are_not_told_are_left_out) {
    load_fake("1:? 2:512");
    cr_assert_eq(list(GPU), DUCTILE_OK);
    cr_assert_eq(n, 1);
    cr_expect_eq(found[0].pid, 2);
}

Test(gpu_processes, are_counted_beyond_the_room_and_not_written_there) {
    load_fake("1:1 2:2 3:3");
    found[2].pid = 77;
    cr_assert_eq(ductile_list_gpu_processes(GPU, found, 2, &n), DUCTILE_OK);
    cr_expect_eq(n, 3);
    cr_expect_eq(found[2].pid, 77);
    cr_assert_eq(ductile_list_gpu_processes(GPU, NULL, 0, &n), DUCTILE_OK);
    cr_expect_eq(n, 3);
}

Test(gpu_processes, are_not_known_where_the_library_may_not_be_used) {
    load_fake("denied");
    refuses(DUCTILE_ERR_UNSUPPORTED);
}

Test(gpu_processes, are_known_when_a_failure_to_open_is_over) {
    load_fake("denied");
    refuses(DUCTILE_ERR_UNSUPPORTED);
    load_fake("3:1");
    cr_expect_eq(list(GPU), DUCTILE_OK);
    cr_expect_eq(n, 1);
}

Test(gpu_processes, are_not_known_of_a_gpu_that_the_library_does_not_know) {
    load_fake("elsewhere");
    refuses(DUCTILE_ERR_UNSUPPORTED);
}

Test(gpu_processes, are_not_known_where_the_library_does_not_say) {
    load_fake("silent");
    refuses(DUCTILE_ERR_DRIVER);
}

Test(gpu_processes, are_not_known_without_the_library) {
    if (dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL) != NULL) {
        cr_skip_test("this machine has a driver");
    }
    refuses(DUCTILE_ERR_UNSUPPORTED);
}

Test(gpu_processes, arguments_that_cannot_be_meant_are_refused) {
    load_fake("1:1");
    cr_expect_eq(ductile_list_gpu_processes(GPU, found, 4, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_expect_eq(ductile_list_gpu_processes(NULL, found, 4, &n), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_expect_eq(ductile_list_gpu_processes(GPU, NULL, 4, &n), DUCTILE_ERR_INVALID_ARGUMENT);
}

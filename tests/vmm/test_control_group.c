/* SPDX-License-Identifier: Apache-2.0 */
/* What a container may still take, in the files that the kernel shows it. */
#include "vmm/control_group.h"

#include "tests/support/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[64];

static void open_root(void) {
    (void)snprintf(root, sizeof root, "%s/control_group.XXXXXX", P_tmpdir);
    cr_assert_not_null(mkdtemp(root));
}

static void close_root(void) {
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r '%s'", root);
    cr_assert_eq(system(command), 0);
}

TestSuite(control_group, .init = open_root, .fini = close_root);

/* Writes a file below the root, and makes the folders that it lies in. */
static void put(const char *name, const char *text) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        (void)mkdir(path, 0700);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    cr_assert_geq(fputs(text, file), 0);
    cr_assert_eq(fclose(file), 0);
}

static uint64_t rest(const char *groups) {
    char path[128];
    put("groups", groups);
    (void)snprintf(path, sizeof path, "%s/groups", root);
    return dvmm_control_group_rest(path, root);
}

Test(control_group, a_limit_is_lowered_by_what_is_used_but_for_files) {
    put("job/memory.max", "1000\n");
    put("job/memory.current", "700\n");
    put("job/memory.stat", "anon 550\nfile 150\ninactive_file 100\nactive_file 50\n");
    assert_u64(rest("0::/job\n"), 450);
}

Test(control_group, of_all_groups_that_one_lies_in_the_narrowest_counts) {
    put("outer/memory.max", "1000\n");
    put("outer/memory.current", "900\n");
    put("outer/inner/memory.max", "5000\n");
    put("outer/inner/memory.current", "100\n");
    assert_u64(rest("0::/outer/inner\n"), 100);
    put("outer/memory.max", "max\n");
    assert_u64(rest("0::/outer/inner\n"), 4900);
}

/* Its path is that of the machine, its files are at the top. */
Test(control_group, a_container_that_sees_only_its_own_group_finds_its_limit) {
    put("memory.max", "1000\n");
    put("memory.current", "1\n");
    assert_u64(rest("0::/kubepods/pod7/box\n"), 999);
    assert_u64(rest("0::/\n"), 999);
}

Test(control_group, version_1_has_a_tree_for_memory) {
    put("memory/batch/memory.limit_in_bytes", "2000\n");
    put("memory/batch/memory.usage_in_bytes", "1500\n");
    put("memory/batch/memory.stat", "total_inactive_file 100\ntotal_active_file 1\n");
    assert_u64(rest("5:cpu,cpuacct:/\n4:hugetlb,memory:/batch\n0::/\n"), 601);
    assert_u64(rest("4:memoryless:/batch\n"), UINT64_MAX);
}

Test(control_group, what_is_above_its_limit_has_no_rest) {
    put("memory.max", "1000\n");
    put("memory.current", "1200\n");
    assert_u64(rest("0::/\n"), 0);
}

Test(control_group, where_nothing_is_said_there_is_no_limit) {
    assert_u64(rest(""), UINT64_MAX);
    assert_u64(rest("0::/none\n"), UINT64_MAX);
    assert_u64(rest("nonsense\n4:memory\n::\n"), UINT64_MAX);
    assert_u64(dvmm_control_group_rest("/nowhere", root), UINT64_MAX);
    put("memory.max", "max\n");
    put("memory.current", "5\n");
    assert_u64(rest("0::/\n"), UINT64_MAX);
}

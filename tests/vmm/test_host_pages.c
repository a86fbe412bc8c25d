/* SPDX-License-Identifier: Apache-2.0 */
/* What the process has of its address space while pages of the host are reserved, and what its
 * control groups leave it of the machine's memory. */
#include "vmm/host_pages.h"

#include "tests/support/expect.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Addresses ----------------------------------------------------------------------------- */

enum { N_PAGES = 3 };
#define SIZE (N_PAGES * DVMM_HUGE_PAGE)

/* Does the address belong to the process? */
static bool is_reserved(const uint8_t *at) {
    unsigned char is_there;
    return mincore((void *)(uintptr_t)at, 1, &is_there) == 0 || errno != ENOMEM;
}

/* In bytes. Read without memory of the heap, which would count. */
static uint64_t address_space(void) {
    char text[64] = "";
    int file = open("/proc/self/statm", O_RDONLY);
    cr_assert_gt(read(file, text, sizeof text - 1), 0);
    (void)close(file);
    return strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

Test(host_pages, a_reservation_begins_at_a_huge_page_and_holds_no_more_than_it_says) {
    uint64_t before = address_space();
    uint8_t *at = dvmm_host_pages_reserve(SIZE);
    cr_assert_not_null(at);
    assert_u64((uintptr_t)at % DVMM_HUGE_PAGE, 0);
    assert_u64(address_space(), before + SIZE);
    cr_assert(is_reserved(at) && is_reserved(at + SIZE - 1));
    cr_assert_not(is_reserved(at + SIZE), "what the alignment needed is still there");
    dvmm_host_pages_unreserve(at, SIZE);
    assert_u64(address_space(), before);
}

/* The kernel may align whole huge pages, but not these. */
Test(host_pages, a_reservation_of_any_size_holds_no_more_than_it_says) {
    enum { N = 8 };
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t before = address_space();
    uint64_t sum = 0;
    uint8_t *at[N];
    for (uint64_t i = 0; i < N; i++) {
        at[i] = dvmm_host_pages_reserve(SIZE + i * page);
        cr_assert_not_null(at[i]);
        assert_u64((uintptr_t)at[i] % DVMM_HUGE_PAGE, 0);
        sum += SIZE + i * page;
    }
    assert_u64(address_space(), before + sum);
    for (uint64_t i = 0; i < N; i++) {
        dvmm_host_pages_unreserve(at[i], SIZE + i * page);
    }
    assert_u64(address_space(), before);
}

/* Several threads touch it. */
Test(host_pages, all_that_is_made_is_there_at_once) {
    enum { N = 128 };
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t size = N * DVMM_HUGE_PAGE;
    unsigned char *is_there = malloc(size / page);
    uint8_t *at = dvmm_host_pages_reserve(size);
    cr_assert(is_there != NULL && at != NULL);
    cr_assert(dvmm_host_pages_make(at, size));
    cr_assert_eq(mincore(at, size, is_there), 0);
    for (uint64_t i = 0; i < size / page; i++) {
        cr_assert(is_there[i] & 1, "page %llu", (unsigned long long)i);
    }
    dvmm_host_pages_drop(at, size);
    dvmm_host_pages_unreserve(at, size);
    free(is_there);
}

/* A stray write would take memory that was not asked for. */
Test(host_pages, what_was_dropped_can_be_used_no_more) {
    int ends[2];
    uint8_t *at = dvmm_host_pages_reserve(DVMM_HUGE_PAGE);
    cr_assert(at != NULL && pipe(ends) == 0);
    cr_assert(dvmm_host_pages_make(at, DVMM_HUGE_PAGE));
    cr_assert_eq(write(ends[1], at, 1), 1);
    dvmm_host_pages_drop(at, DVMM_HUGE_PAGE);
    cr_assert(write(ends[1], at, 1) == -1 && errno == EFAULT);
    (void)close(ends[0]);
    (void)close(ends[1]);
    dvmm_host_pages_unreserve(at, DVMM_HUGE_PAGE);
}

/* ---- Control groups: what a container may still take, of files as the kernel shows them ------ */

static char root[64];

static void make_root(void) {
    (void)snprintf(root, sizeof root, "%s/control_group.XXXXXX", P_tmpdir);
    cr_assert_not_null(mkdtemp(root));
}

static void remove_root(void) {
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r '%s'", root);
    cr_assert_eq(system(command), 0);
}

TestSuite(control_groups, .init = make_root, .fini = remove_root);

/* One more line of the file, in folders that are made. */
static void add_line(const char *name, const char *line) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        (void)mkdir(path, 0700);
        *at = '/';
    }
    FILE *file = fopen(path, "a");
    cr_assert_not_null(file);
    (void)fprintf(file, "%s\n", line);
    cr_assert_eq(fclose(file), 0);
}

/* Of version 2. */
static void make_group(const char *folder, const char *most, const char *now) {
    char name[64];
    (void)snprintf(name, sizeof name, "%smemory.max", folder);
    add_line(name, most);
    (void)snprintf(name, sizeof name, "%smemory.current", folder);
    add_line(name, now);
}

/* Where the process is in those groups; NULL: it is in none. */
static uint64_t rest_of(const char *groups) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s/groups", root);
    (void)unlink(path);
    if (groups != NULL) {
        add_line("groups", groups);
    }
    return dvmm_control_group_rest(path, root);
}

Test(control_groups, a_limit_is_lowered_by_what_is_used_but_for_files) {
    make_group("job/", "1000", "700");
    add_line("job/memory.stat", "anon 550\nfile 150\ninactive_file 100\nactive_file 50");
    assert_u64(rest_of("0::/job"), 450);
}

Test(control_groups, of_all_that_one_lies_in_the_narrowest_counts) {
    make_group("outer/", "1000", "900");
    make_group("outer/inner/", "5000", "100");
    assert_u64(rest_of("0::/outer/inner"), 100);
}

Test(control_groups, one_without_a_limit_does_not_count) {
    make_group("outer/", "max", "900");
    make_group("outer/inner/", "5000", "100");
    assert_u64(rest_of("0::/outer/inner"), 4900);
}

/* Its path is that of the machine, its files are at the top. */
Test(control_groups, a_container_that_sees_only_its_own_finds_its_limit) {
    make_group("", "1000", "1");
    assert_u64(rest_of("0::/kubepods/pod7/box"), 999);
    assert_u64(rest_of("0::/"), 999);
}

/* Its own files have names that no file can have; those of the groups it lies in can be read. */
Test(control_groups, of_one_whose_path_is_too_long_those_above_count) {
    char line[4080 + sizeof "0::/outer/"] = "0::/outer/";
    memset(line + strlen(line), 'x', 4080);
    make_group("outer/", "1000", "900");
    assert_u64(rest_of(line), 100);
}

Test(control_groups, version_1_has_a_tree_for_memory) {
    add_line("memory/batch/memory.limit_in_bytes", "2000");
    add_line("memory/batch/memory.usage_in_bytes", "1500");
    add_line("memory/batch/memory.stat", "total_inactive_file 100\ntotal_active_file 1");
    assert_u64(rest_of("5:cpu,cpuacct:/\n4:hugetlb,memory:/batch\n0::/"), 601);
    assert_u64(rest_of("4:memoryless:/batch"), UINT64_MAX);
}

Test(control_groups, what_is_above_its_limit_has_no_rest) {
    make_group("", "1000", "1200");
    assert_u64(rest_of("0::/"), 0);
}

Test(control_groups, where_nothing_is_said_there_is_no_limit) {
    assert_u64(rest_of(NULL), UINT64_MAX);
    assert_u64(rest_of("0::/none"), UINT64_MAX);
    assert_u64(rest_of("nonsense\n4:memory\n::"), UINT64_MAX);
    make_group("", "max", "5");
    assert_u64(rest_of("0::/"), UINT64_MAX);
}

/* ---- What may be locked ---------------------------------------------------------------------- */

#define GIB (UINT64_C(1) << 30)

Test(host_room, a_sixteenth_of_the_machine_stays_free) {
    const dvmm_host_room room = {256 * GIB, 100 * GIB, UINT64_MAX};
    cr_assert(dvmm_host_room_has(&room, 84 * GIB, 0));
    cr_assert_not(dvmm_host_room_has(&room, 84 * GIB + 1, 0));
    cr_assert(dvmm_host_room_has(&room, 84 * GIB, 100 * GIB), "what is available counts it");
    const dvmm_host_room small = {4 * GIB, 3 * GIB, UINT64_MAX};
    cr_assert(dvmm_host_room_has(&small, 2 * GIB, 0));
    cr_assert_not(dvmm_host_room_has(&small, 2 * GIB + 1, 0));
}

Test(host_room, a_group_that_is_a_small_part_of_the_machine_can_be_used) {
    const dvmm_host_room room = {2048 * GIB, 1800 * GIB, 64 * GIB};
    cr_assert(dvmm_host_room_has(&room, 63 * GIB, 0));
    cr_assert(dvmm_host_room_has(&room, 32 * GIB, 31 * GIB));
    cr_assert_not(dvmm_host_room_has(&room, 32 * GIB, 31 * GIB + 1));
    cr_assert_not(dvmm_host_room_has(&room, 1, 80 * GIB));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: one table of small experiments, run on both backends. What an H200 answered is kept in
 * a file; the virtual GPU has to answer the same, row by row, except where the table names a
 * difference as deliberate. On a machine with a device, the device is held to the same file.
 */
#include "tests/conformance/conformance.h"

#include <criterion/criterion.h>
#include <string.h>

typedef struct comparison {
    golden_lines *golden;
    size_t n_compared;
    bool is_virtual;
} comparison;

/* On a device, a row may end its process. */
static void expect_sound(const char *line, bool is_allowed) {
    cr_expect(strstr(line, " | died ") == NULL && strstr(line, " | hung ") == NULL &&
                  strstr(line, " | left ") == NULL,
              "the row ended its process: %s", line);
    cr_expect(is_allowed || strstr(line, "setup") == NULL, "the preparation failed: %s", line);
}

static void compare_line(void *user, const conformance_row *row, const char *line) {
    comparison *c = user;
    const char *expected = golden_find(c->golden, row->name);
    bool is_allowed = conformance_why_different(row->name) != NULL;
    cr_expect_not_null(expected, "the file has no line for %s", row->name);
    if (expected != NULL && !is_allowed) {
        cr_expect_str_eq(line, expected, "%s\n  here: %s\n  file: %s", row->what, line, expected);
    }
    if (c->is_virtual) {
        expect_sound(line, is_allowed);
    }
    c->n_compared++;
}

static void compare_all(const conformance_device *device) {
    comparison c = {golden_read(golden_default_path()), 0, device->is_virtual};
    cr_assert_not_null(c.golden, "cannot be read: %s", golden_default_path());
    size_t n_rows = conformance_run(device, NULL, compare_line, &c);
    cr_expect(n_rows > 0 && c.n_compared == n_rows, "%zu of %zu rows gave a line", c.n_compared,
              n_rows);
    golden_free(c.golden);
}

Test(driver_conformance, virtual_gpu_answers_as_the_hardware_did) {
    const conformance_device device = {.is_virtual = true};
    compare_all(&device);
}

Test(driver_conformance, device_answers_as_the_kept_one_did) {
    const conformance_device device = {.ordinal = 0};
    char reason[512];
    if (conformance_find(&device, reason, sizeof(reason)) != DUCTILE_OK) {
        cr_skip_test("%s", reason);
    }
    compare_all(&device);
}

Test(driver_conformance, names_are_unique) {
    const conformance_row *row;
    for (size_t i = 0; (row = conformance_row_at(i)) != NULL; i++) {
        for (size_t j = 0; j < i; j++) {
            cr_expect_str_neq(row->name, conformance_row_at(j)->name);
        }
    }
}

/* The facts that the allocator's correctness rests on, stated here and not only in a file that a
 * new device may rewrite. */
static const char *const facts[] = {
    "map.offset | 801 | ",
    "map.more_than_handle | 801 | ",
    "map.over_mapped | 1 | first=3",
    "map.alias | 0,0,0 | first=3 second=0 first=!1 second=3",
    "unmap.half | 1 | first=3 second=3",
    "unmap.unmapped | 0 | ",
    "free.while_mapped | 1 | access=3",
    "release.while_mapped | 0,0,0 | byte=5a access=3",
    "event.never_recorded | 0,0,0,0 | ",
    "capture.global.map | 0,0,0,0 | active/0 active/0 active/0 active/0",
};

static void expect_fact(void *user, const conformance_row *row, const char *line) {
    (void)row;
    cr_expect_str_eq(line, user, "\n  here: %s\n  fact: %s", line, (const char *)user);
}

Test(driver_conformance, virtual_gpu_keeps_the_facts) {
    const conformance_device device = {.is_virtual = true};
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
        char name[128];
        (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(facts[i], " "), facts[i]);
        size_t n = conformance_run(&device, name, expect_fact, (void *)(uintptr_t)facts[i]);
        cr_expect_eq(n, 1, "no row has the name %s", name);
    }
}

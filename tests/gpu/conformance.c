/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what a device answers, one line a row, and compares it with a file of such lines.
 *
 *     conformance [--virtual | --device N] [--row PATTERN] [--compare [FILE]] [--list]
 *
 * Without --compare every line goes to standard output: that, below a few lines of provenance, is
 * the file to commit. With it only rows that differ are printed, and a row that differs without
 * being named as deliberate ends the program with 1. No device: one line, and 77.
 */
#include "tests/conformance/conformance.h"
#include "tests/support/command.h"

#include <string.h>

typedef struct request {
    conformance_device device;
    const char *only;
    const char *compare; /* NULL: print everything */
    bool list;
} request;

typedef struct counts {
    golden_lines *golden; /* NULL: print everything */
    size_t same, deliberate, different, missing;
} counts;

/* ---- Lines --------------------------------------------------------------------------------- */

static void compare_line(counts *t, const conformance_row *row, const char *line) {
    const char *expected = golden_find(t->golden, row->name);
    const char *why = conformance_why_different(row->name);
    if (expected == NULL) {
        t->missing++;
        (void)printf("not in the file: %s\n", line);
    } else if (strcmp(expected, line) == 0) {
        t->same++;
    } else if (why != NULL) {
        t->deliberate++;
        (void)printf("deliberate: %s\n  here: %s\n  file: %s\n", why, line, expected);
    } else {
        t->different++;
        (void)printf("different: %s\n  here: %s\n  file: %s\n", row->what, line, expected);
    }
}

static void take_line(void *user, const conformance_row *row, const char *line) {
    counts *t = user;
    if (t->golden != NULL) {
        compare_line(t, row, line);
    } else {
        (void)printf("%s\n", line);
    }
    (void)fflush(stdout);
}

static int list_rows(void) {
    const conformance_row *row;
    for (size_t i = 0; (row = conformance_row_at(i)) != NULL; i++) {
        (void)printf("%s | %s\n", row->name, row->what);
    }
    return 0;
}

static int run(const request *r, counts *t) {
    if (conformance_run(&r->device, r->only, take_line, t) == 0) {
        (void)fprintf(stderr, "conformance: no row has a name like %s\n", r->only);
        return 1;
    }
    if (t->golden != NULL) {
        (void)printf("%zu rows as in the file, %zu deliberately different, %zu different, %zu not "
                     "in the file\n",
                     t->same, t->deliberate, t->different, t->missing);
    }
    return t->different + t->missing > 0 ? 1 : 0;
}

int main(int argc, char **argv) {
    request r = {.compare = NULL};
    counts t = {.golden = NULL};
    char reason[512];
    const command_option options[] = {
        {"--virtual", .flag = &r.device.is_virtual},
        {"--device", .device = &r.device.ordinal},
        {"--row", .text = &r.only, .placeholder = "PATTERN"},
        {"--compare", .text = &r.compare, .placeholder = "[FILE]",
         .otherwise = golden_default_path()},
        {"--list", .flag = &r.list},
    };
    command_read("conformance", options, sizeof options / sizeof *options, argc, argv);
    if (r.list) {
        return list_rows();
    }
    if (conformance_find(&r.device, reason, sizeof(reason)) != DUCTILE_OK) {
        command_skip(reason);
    }
    (void)printf("# %s\n", reason);
    if (r.compare != NULL && (t.golden = golden_read(r.compare)) == NULL) {
        (void)fprintf(stderr, "conformance: %s cannot be read\n", r.compare);
        return COMMAND_MISUSED;
    }
    int code = run(&r, &t);
    golden_free(t.golden);
    return code;
}

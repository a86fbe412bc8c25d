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

#include <stdlib.h>
#include <string.h>

enum { EXIT_NO_DEVICE = 77 };

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

/* ---- The command line ---------------------------------------------------------------------- */

static bool take_value(int argc, char **argv, int *i, const char **out) {
    bool is_there = *i + 1 < argc && strncmp(argv[*i + 1], "--", 2) != 0;
    if (is_there) {
        *out = argv[++*i];
    }
    return is_there;
}

static bool parse_option(request *r, int argc, char **argv, int *i) {
    const char *value = NULL;
    if (strcmp(argv[*i], "--virtual") == 0) {
        r->device.is_virtual = true;
    } else if (strcmp(argv[*i], "--list") == 0) {
        r->list = true;
    } else if (strcmp(argv[*i], "--compare") == 0) {
        r->compare = take_value(argc, argv, i, &value) ? value : golden_default_path();
    } else if (strcmp(argv[*i], "--row") == 0) {
        return take_value(argc, argv, i, &r->only);
    } else if (strcmp(argv[*i], "--device") == 0 && take_value(argc, argv, i, &value)) {
        r->device.ordinal = atoi(value);
    } else {
        return false;
    }
    return true;
}

static bool parse(request *r, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (!parse_option(r, argc, argv, &i)) {
            (void)fprintf(stderr, "conformance: %s: unknown option, or its value is missing\n",
                          argv[i]);
            return false;
        }
    }
    return true;
}

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
    if (!parse(&r, argc, argv)) {
        return 2;
    }
    if (r.list) {
        return list_rows();
    }
    if (conformance_find(&r.device, reason, sizeof(reason)) != DUCTILE_OK) {
        (void)fprintf(stderr, "conformance: skipped: %s\n", reason);
        return EXIT_NO_DEVICE;
    }
    (void)printf("# %s\n", reason);
    if (r.compare != NULL && (t.golden = golden_read(r.compare)) == NULL) {
        (void)fprintf(stderr, "conformance: %s cannot be read\n", r.compare);
        return 2;
    }
    int code = run(&r, &t);
    golden_free(t.golden);
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: what a device answers, call by call. One table of rows (rows.txt), each a small
 * experiment on the raw driver table of either backend, each giving one line:
 *
 *     name | code[,code...] | state
 *
 * Codes are the driver's own, in the order of the calls under test. State says what could be seen
 * afterwards. A line never holds an address, a time or a size of the machine, so that the lines of
 * a real device can be kept in a file and the virtual GPU compared with them.
 */
#ifndef TESTS_SUPPORT_CONFORMANCE_H
#define TESTS_SUPPORT_CONFORMANCE_H

#include "vmm/driver/driver.h"

#include <stdio.h>

typedef struct session session;

enum {
    ROW_ALONE = 1, /* may lose the context or the process: needs a process of its own */
    NO_CAPTURE = -1
};

typedef struct conformance_row {
    const char *name;
    const char *what;       /* what is done, in words          */
    const char *operations; /* the same, in those of rows.txt  */
    unsigned flags;
    int mode; /* of the capture in which they are done; NO_CAPTURE: in none */
} conformance_row;

/* The rows in the order in which they run; NULL after the last. */
const conformance_row *conformance_row_at(size_t index);

/* Why the line of a row on the virtual GPU is meant to differ from the hardware's; NULL: it is
 * not. */
const char *conformance_why_different(const char *row_name);

/* ---- Running (conformance_run.c) ----------------------------------------------------------- */

typedef struct conformance_device {
    bool is_virtual;
    int ordinal; /* CUDA */
} conformance_device;

/* DUCTILE_OK when the device opens; it is asked in a child, so that the caller stays untouched by
 * the driver and can fork. `reason` then holds the device's name and driver. */
ductile_status conformance_find(const conformance_device *device, char *reason, size_t size);

typedef void (*conformance_line_fn)(void *user, const conformance_row *row, const char *line);

/*
 * Runs all rows, or those whose names `only` matches ("peer.*"), in child processes: a row that
 * kills its process gives the line "name | died N |", one that never ends "name | hung |", and the
 * rest go on. The calling process must not have opened a CUDA device. Returns how many rows ran.
 */
size_t conformance_run(const conformance_device *device, const char *only, conformance_line_fn line,
                       void *user);

/* ---- Comparing with a file of lines (conformance_golden.c) --------------------------------- */

typedef struct golden_lines golden_lines;

/* NULL when the file cannot be read. */
golden_lines *golden_read(const char *path);
void golden_free(golden_lines *golden);

/* The line of a row, or NULL. */
const char *golden_find(const golden_lines *golden, const char *row_name);

/* The committed lines of an H200, in the source tree that this was built from. */
const char *golden_default_path(void);

#endif

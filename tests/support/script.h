/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios as text: a file of tests/scenarios has lines like
 *
 *     scenario  a freed block serves its stream at once, behind a wait on the GPU
 *     with      record_stream:wait
 *     schedules lazy
 *         a = alloc 1M 0; write a 1; record a 1; free a
 *         b = alloc 1M 0; expect address:b = a; expect event_waits = 1
 *
 * `scenario` begins one and says what it claims. `with` gives options, `device` the memory, `lag`
 * the lag, `threads` how many there are, `driver old` one without context events,
 * `callback maps` one that keeps a table of all mappings, `callback memory` one that frees blocks
 * when memory is short; `schedules` those under which it holds (all). What stands before the first
 * scenario holds for all of the file. Every other line is operations, which docs/dev/testing.md
 * lists. A line that begins with # is a comment, and one that ends with a backslash goes on in the
 * next.
 */
#ifndef TESTS_SUPPORT_SCRIPT_H
#define TESTS_SUPPORT_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SCRIPT_CONF = 256, SCRIPT_LINES = 80 };

typedef struct scenario {
    const char *name;
    char conf[SCRIPT_CONF];
    uint64_t capacity_bytes, lag, n_threads;
    unsigned schedules; /* bit i: ductile_schedule i */
    bool has_old_driver;
    bool has_listener, has_giver; /* a map callback; one for memory that is short */
    const char *lines[SCRIPT_LINES];
    unsigned numbers[SCRIPT_LINES]; /* of these lines in the file */
    size_t n_lines;
} scenario;

typedef struct script {
    scenario *all;
    size_t n;
    char *text;
} script;

/* NULL, or what is wrong with the file. */
const char *script_read(script *s, const char *path);

/* The text of the file, which the caller frees. */
const char *script_text(const char *path, char **out);

/* "512", "4M"; false: the text is none. */
bool script_number(const char *text, uint64_t *out);

#endif

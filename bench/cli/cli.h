/* SPDX-License-Identifier: Apache-2.0 */
/* What every subcommand needs of the command line: exit statuses, error lines, numbers. */
#ifndef DUCTILE_BENCH_CLI_CLI_H
#define DUCTILE_BENCH_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bench_exit {
    BENCH_DONE = 0,
    BENCH_FAILED = 1, /* an input, a device or an output failed */
    BENCH_MISUSED = 2 /* the command line is wrong; nothing was run */
} bench_exit;

/* What error lines begin with: the last part of argv[0], for ductile-gpu runs this program too. */
void bench_set_program(const char *path);

/* Writes exactly one line, "ductile-bench: ...", to standard error. Control characters and bytes
 * that are no UTF-8, which file names and file contents may contain, are printed as '?'. */
__attribute__((format(printf, 1, 2))) void bench_complain(const char *format, ...);

/* The same about a line of a file; line 0: about the file. */
void bench_complain_of(const char *path, uint64_t line, const char *reason);

/* For tables. */
static inline double bench_mib(uint64_t bytes) {
    return (double)bytes / (1 << 20);
}

/* Digits with at most one suffix K, M, G or T (powers of 1024). False: malformed, or more than
 * 64 bits; *out is then untouched. */
bool bench_parse_bytes(const char *text, uint64_t *out);

/* Digits alone, between min and max. */
bool bench_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *out);

#endif

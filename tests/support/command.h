/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of the plain test programs: a table of options, which is also their --help, and
 * the ways a program ends. All complaints begin with the name of the program.
 */
#ifndef TESTS_SUPPORT_COMMAND_H
#define TESTS_SUPPORT_COMMAND_H

#include <ductile_virtual.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* By value. */
extern const char *const schedule_names[4];
/* False: no schedule has that name. */
bool schedule_named(const char *name, ductile_schedule *out);

/* Exit statuses. CTest counts 77 as skipped. */
enum {
    COMMAND_PASSED = 0,
    COMMAND_BROKEN = 1,
    COMMAND_MISUSED = 2,
    COMMAND_TIME_IS_OVER = 3,
    COMMAND_SKIPPED = 77
};

/* Where an option's value goes: exactly one place is not NULL. What is there before is the default.
 * A number is decimal, or hexadecimal after 0x. */
typedef struct command_option {
    const char *name; /* "--seed" */
    bool *flag;       /* without a value */
    uint64_t *number;
    int *device;
    ductile_schedule *schedule; /* by name */
    const char **text;
    const char *placeholder; /* of a text, in the usage */
    const char *otherwise;   /* a text where no value follows; NULL: one has to follow */
} command_option;

/* Reads the command line of `program`. Prints the usage and ends the program at --help, and with
 * COMMAND_MISUSED at an option that is unknown or whose value is missing or malformed. The names
 * are kept: they are literals. */
void command_read(const char *program, const command_option *options, size_t n_options, int argc,
                  char **argv);

/* The program cannot do what its options say: prints why and ends it with COMMAND_MISUSED. */
_Noreturn void command_refuse(const char *why);

/* There is no device, or not the one that is needed: the same with COMMAND_SKIPPED. */
_Noreturn void command_skip(const char *why);

/* After so many seconds the program says so and ends with COMMAND_TIME_IS_OVER. */
void command_end_after(uint64_t seconds);

/* Prints the complaint, and the driver's latest code if that was a failure. NULL: prints nothing.
 * Returns the exit status. */
int command_end(const char *why);

/* One line, "name value", on standard output. */
void command_figure(const char *name, uint64_t value);

#endif

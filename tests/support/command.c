/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/command.h"

#include "vmm/driver/driver.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *the_program = "test";
static char time_is_over_text[80];

/* ---- The usage ----------------------------------------------------------------------------- */

static const char *placeholder_of(const command_option *o) {
    if (o->schedule != NULL) {
        return " eager|lagging|lazy|random";
    }
    return o->flag != NULL ? "" : " N";
}

static void print_usage(FILE *to, const command_option *options, size_t n) {
    (void)fprintf(to, "usage: %s", the_program);
    for (size_t i = 0; i < n; i++) {
        bool is_text = options[i].text != NULL;
        (void)fprintf(to, " [%s%s%s]", options[i].name, is_text ? " " : "",
                      is_text ? options[i].placeholder : placeholder_of(&options[i]));
    }
    (void)fputc('\n', to);
}

/* ---- Values -------------------------------------------------------------------------------- */

static bool read_number(const char *text, uint64_t *out) {
    bool is_hexadecimal = strncmp(text, "0x", 2) == 0;
    char *end = NULL;
    *out = strtoull(text, &end, is_hexadecimal ? 16 : 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0';
}

static bool read_device(const char *text, int *out) {
    uint64_t number = 0;
    bool is_device = read_number(text, &number) && number <= INT16_MAX;
    *out = (int)number;
    return is_device;
}

const char *const schedule_names[4] = {"eager", "lagging", "lazy", "random"};

bool schedule_named(const char *name, ductile_schedule *out) {
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, schedule_names[i]) == 0) {
            *out = (ductile_schedule)i;
            return true;
        }
    }
    return false;
}

static bool read_value(const command_option *o, const char *text) {
    if (o->number != NULL) {
        return read_number(text, o->number);
    }
    if (o->device != NULL) {
        return read_device(text, o->device);
    }
    if (o->schedule != NULL) {
        return schedule_named(text, o->schedule);
    }
    *o->text = text;
    return true;
}

/* ---- The command line ---------------------------------------------------------------------- */

static const command_option *find_option(const command_option *options, size_t n,
                                         const char *name) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(options[i].name, name) == 0) {
            return &options[i];
        }
    }
    return NULL;
}

/* Reads the option at argv[*i] and moves to its last word. */
static bool read_option(const command_option *options, size_t n, char **argv, int *i) {
    const command_option *o = find_option(options, n, argv[*i]);
    if (o == NULL) {
        return false;
    }
    if (o->flag != NULL) {
        *o->flag = true;
        return true;
    }
    const char *value = argv[*i + 1]; /* NULL behind the last word */
    if (o->otherwise != NULL && (value == NULL || strncmp(value, "--", 2) == 0)) {
        return read_value(o, o->otherwise);
    }
    *i += value != NULL;
    return value != NULL && read_value(o, value);
}

void command_read(const char *program, const command_option *options, size_t n_options, int argc,
                  char **argv) {
    the_program = program;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--help") == 0) {
            print_usage(stdout, options, n_options);
            exit(COMMAND_PASSED);
        }
        if (!read_option(options, n_options, argv, &i)) {
            (void)fprintf(stderr, "%s: %s is unknown, or its value is missing or malformed\n",
                          the_program, word);
            print_usage(stderr, options, n_options);
            exit(COMMAND_MISUSED);
        }
    }
}

/* ---- Ends ---------------------------------------------------------------------------------- */

void command_refuse(const char *why) {
    (void)fprintf(stderr, "%s: %s\n", the_program, why);
    exit(COMMAND_MISUSED);
}

void command_skip(const char *why) {
    (void)fprintf(stderr, "%s: skipped: %s\n", the_program, why);
    exit(COMMAND_SKIPPED);
}

static void time_is_over(int signal_number) {
    (void)signal_number;
    (void)!write(STDERR_FILENO, time_is_over_text, strlen(time_is_over_text));
    _exit(COMMAND_TIME_IS_OVER);
}

void command_end_after(uint64_t seconds) {
    (void)snprintf(time_is_over_text, sizeof time_is_over_text, "%s: out of time\n", the_program);
    (void)signal(SIGALRM, time_is_over);
    (void)alarm((unsigned)seconds);
}

int command_end(const char *why) {
    if (why == NULL) {
        return COMMAND_PASSED;
    }
    int code = dvmm_last_code();
    (void)fflush(stdout);
    (void)fprintf(stderr, "%s: %s", the_program, why);
    if (code != 0) {
        (void)fprintf(stderr, " (driver's code %d)", code);
    }
    (void)fputc('\n', stderr);
    return COMMAND_BROKEN;
}

void command_figure(const char *name, uint64_t value) {
    (void)printf("%s %llu\n", name, (unsigned long long)value);
}

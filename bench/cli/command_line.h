/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options that benches share, and the reading of a command line against a table. A bench adds
 * a table of its own.
 */
#ifndef DUCTILE_BENCH_CLI_COMMAND_LINE_H
#define DUCTILE_BENCH_CLI_COMMAND_LINE_H

#include "bench/base/device.h"
#include "bench/contenders/contender.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_MAX_CONTENDERS = 16, BENCH_MAX_SETTINGS = 64 };

/* Strings point into the command line. */
typedef struct bench_options {
    bench_device_kind device;
    int ordinal;
    const contender_ops *contenders[BENCH_MAX_CONTENDERS]; /* all of them unless chosen */
    size_t n_contenders;
    uint64_t capacity_bytes; /* 0: what the device has */
    const char *settings[BENCH_MAX_SETTINGS];
    size_t n_settings;
    bool json;
    bool help;
} bench_options;

/* The command line being read. */
typedef struct bench_parser {
    bench_options *shared;
    void *own; /* what the bench's own table fills */
    char *message;
    size_t message_size;
} bench_parser;

/* Returns false: the message is set. */
typedef bool (*bench_option_fn)(bench_parser *p, const char *value);

/*
 * In a bench's own table an entry without parse stands for the shared option of that name: it
 * gives it its place in the help and, unless NULL, a help of its own.
 */
typedef struct bench_option {
    const char *name;  /* "--repeat" */
    const char *value; /* what it is called in the help; NULL: takes none, parse gets NULL */
    bench_option_fn parse;
    const char *help;
} bench_option;

/* A subcommand. Its own table ends with an entry whose name is NULL. */
typedef struct bench_command {
    const char *name;
    const char *summary; /* a paragraph for --help */
    const bench_option *own;
    const char *operand;            /* what a word that is no option is called; NULL: takes none */
    bench_option_fn take_operand;   /* together with operand */
    bool (*check)(bench_parser *p); /* of options against each other; NULL: nothing to check */
    bool runs_nothing; /* no contender on no device: of the shared options only --help counts */
    const char *exit_status; /* for --help, without the line's end; NULL: the usual */
} bench_command;

/* argv[0] is the subcommand's name. False: message holds one line. */
bool bench_options_parse(const bench_command *command, int argc, char **argv, bench_options *shared,
                         void *own, char *message, size_t message_size);
void bench_options_print_help(const bench_command *command);

/* Sets the message and returns false. */
__attribute__((format(printf, 2, 3))) bool bench_refuse(bench_parser *p, const char *format, ...);

#endif

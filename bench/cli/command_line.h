/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a command is, the options that all commands share, and the reading of a command line against
 * these and a table of the command's own.
 */
#ifndef DUCTILE_BENCH_CLI_COMMAND_LINE_H
#define DUCTILE_BENCH_CLI_COMMAND_LINE_H

#include "bench/replay/testbed.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { BENCH_MAX_SETTINGS = 64 };

/* First member of the options of each command. Strings point into the command line. */
typedef struct bench_options {
    bench_device_kind device;
    int ordinal;
    const contender_ops *contenders[N_CONTENDERS]; /* all but studies unless chosen */
    size_t n_contenders;
    uint64_t capacity_bytes; /* 0: what the device has */
    const char *settings[BENCH_MAX_SETTINGS];
    size_t n_settings;
    const char **operands; /* owned: bench_options_drop */
    size_t n_operands;
    bool json;
    bool help;
} bench_options;

typedef struct bench_option bench_option;

/* The command line being read. */
typedef struct bench_parser {
    const bench_option *option; /* the one being read */
    bench_options *shared;
    void *own; /* the command's options, of which `shared` is the first member */
    char *message;
    size_t message_size;
} bench_parser;

/* Returns false: the message is set. */
typedef bool (*bench_option_fn)(bench_parser *p, const char *value);

/*
 * In a command's own table an entry without parse stands for the shared option of that name: it
 * sets its place in the help and, unless NULL, its text there.
 */
struct bench_option {
    const char *name;  /* "--repeat" */
    const char *value; /* what it is called in the help; NULL: takes none, parse gets NULL */
    bench_option_fn parse;
    const char *help; /* without a closing bracket at its end, a default of kind (*) follows */
    size_t offset;    /* of the member that the parse functions below fill */
    uint64_t min;     /* of that number */
    uint64_t max;     /* 0: no bound here */
};

/* What a command runs on, which says which shared options it has. */
typedef enum bench_runs_on {
    BENCH_ON_ANY_DEVICE,  /* all of them */
    BENCH_ON_VIRTUAL_GPU, /* those of contenders: it prints JSON alone, of one device */
    BENCH_ON_NO_DEVICE    /* --help */
} bench_runs_on;

/* A subcommand. Its tables end with an entry whose name is NULL. */
typedef struct bench_command {
    const char *name;    /* "replay"; "generate fsdp" */
    const char *brief;   /* half a line for the list of commands */
    const char *summary; /* a paragraph for --help */
    const bench_option *own;
    const bench_option *also; /* a table that several commands have; NULL: none */
    const char *operand;      /* the help's names for words that are no options; NULL: takes none */
    const bench_options *defaults; /* first member of a struct of `size` bytes: the defaults */
    size_t size;
    bool (*complete)(bench_parser *p); /* fills in what follows from other options, and refuses what
                                          does not go together; NULL: nothing to do */
    bench_runs_on runs_on;
    const char *exit_status;            /* for --help, without the line's end; NULL: the usual */
    int (*run)(const bench_options *o); /* returns the exit status; `o` as `defaults` */
} bench_command;

/* Reads the command line and does what it says. argv[0] is the command's name. Returns the exit
 * status of the program. */
int bench_command_run(const bench_command *command, int argc, char **argv);

/* Fills *out, of command->size bytes. False: message holds one line. Release with
 * bench_options_drop, also on failure. */
bool bench_options_parse(const bench_command *command, int argc, char **argv, bench_options *out,
                         char *message, size_t message_size);
void bench_options_drop(bench_options *options);

/* Finds the device that the options name. False: there is none, and the user has been told. */
bool bench_find_device(const bench_options *options, bench_device *out);

/* What they say of a run of one contender there. */
testbed_plan bench_plan_of(const bench_options *options, const bench_device *device,
                           const contender_ops *contender);

/* Of a table: " --layers 12 --batch 1:24",
 * of those options that the functions marked with * fill. */
void bench_print_options(FILE *out, const bench_option *table, const void *own);

/* Fill the member at the option's offset: a bool with true, */
bool bench_parse_flag(bench_parser *p, const char *unused);
#define BENCH_FLAG_OPTION(option, options, member, text)                                           \
    { option, NULL, bench_parse_flag, .help = text, .offset = offsetof(options, member) }
/* a const char * with a text that is not empty, */
bool bench_parse_text(bench_parser *p, const char *value);
/* a uint64_t with a number from min to max (*), */
bool bench_parse_number(bench_parser *p, const char *value);
#define BENCH_NUMBER_OPTION(option, options, member, least, text)                                  \
    {                                                                                              \
        option, "N", bench_parse_number, .help = text, .offset = offsetof(options, member),        \
                                         .min = least                                              \
    }
/* an int with the number of a GPU in a snapshot, */
bool bench_parse_gpu(bench_parser *p, const char *value);
#define BENCH_GPU_OPTION(options)                                                                  \
    {                                                                                              \
        "--gpu", "N", bench_parse_gpu,                                                             \
            .help = "which GPU of a PyTorch snapshot (one that refused memory, else the fullest)", \
            .offset = offsetof(options, gpu)                                                       \
    }
/* two uint64_t that follow each other; the value is MIN:MAX, or one number for both (*); */
bool bench_parse_interval(bench_parser *p, const char *value);
#define BENCH_INTERVAL_OPTION(option, options, member, text)                                       \
    {                                                                                              \
        option, "MIN:MAX", bench_parse_interval, .help = text,                                     \
                                                 .offset = offsetof(options, member), .min = 1     \
    }
/* a bool, with whether it is the first of the two words that the option's `value` names (*). */
bool bench_parse_either(bench_parser *p, const char *value);

/* Sets the message and returns false. */
__attribute__((format(printf, 2, 3))) bool bench_refuse(bench_parser *p, const char *format, ...);

#endif

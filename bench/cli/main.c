/* SPDX-License-Identifier: Apache-2.0 */
/* ductile-bench: picks the command. */
#include "bench/base/provenance.h"
#include "bench/cli/cli.h"
#include "bench/cli/commands.h"

#include <ductile.h>

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const bench_command *const commands[] = {
    &command_replay, &command_view,    &command_convert, &command_export, &command_varybatch,
    &command_fsdp,   &command_offload, &command_oneshot, &command_churn,
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static int print_help(void) {
    printf("usage: ductile-bench COMMAND [ARGUMENT]...\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        printf("  %-10s  %s\n", commands[i]->name, commands[i]->brief);
    }
    printf("\n  --help      this text; `ductile-bench COMMAND --help` says more\n"
           "  --version   the version, also -V\n");
    return BENCH_DONE;
}

static int print_version(void) {
    printf("ductile-bench %s\n", ductile_version());
    return BENCH_DONE;
}

static const bench_command *find_command(const char *name) {
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        return print_help();
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        return print_version();
    }
    const bench_command *chosen = find_command(argv[1]);
    if (chosen == NULL) {
        bench_complain("unknown command '%s'; see ductile-bench --help", argv[1]);
        return BENCH_MISUSED;
    }
    return bench_command_run(chosen, argc - 1, argv + 1);
}

/* The reader has seen enough, as `head` has. */
static bool is_reader_gone(void) {
    struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&output, 1, 0) > 0 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

/* A full disk or a closed pipe shows only when the buffer is written. */
static int finish_output(int status) {
    bool failed = ferror(stdout) != 0;
    failed = fflush(stdout) != 0 || failed;
    if (!failed || status != BENCH_DONE) {
        return status;
    }
    if (!is_reader_gone()) {
        bench_complain("standard output cannot be written");
    }
    return BENCH_FAILED;
}

int main(int argc, char **argv) {
    if (argc > 0) {
        bench_set_program(argv[0]);
    }
    provenance_set_command(argc, argv);
    return finish_output(dispatch(argc, argv));
}

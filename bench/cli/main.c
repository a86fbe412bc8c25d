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

/* Has no options of its own: the next word is a model, which is a command. */
static const bench_command generate = {
    .name = "generate",
    .brief = "run a synthetic program under several allocators, or write its trace",
};

static const bench_command *const commands[] = {
    &command_replay, &generate, &command_view, &command_convert, NULL,
};

static const bench_command *const models[] = {
    &generate_vary, &generate_offload, &generate_oneshot, &generate_fsdp, &generate_churn, NULL,
};

/* Without that of the command whose model it is. */
static const char *last_name(const bench_command *command) {
    const char *blank = strrchr(command->name, ' ');
    return blank != NULL ? blank + 1 : command->name;
}

static void print_list(const bench_command *const *list) {
    for (; *list != NULL; list++) {
        printf("  %-10s  %s\n", last_name(*list), (*list)->brief);
    }
}

static const bench_command *find(const bench_command *const *list, const char *name) {
    while (*list != NULL && strcmp(last_name(*list), name) != 0) {
        list++;
    }
    return *list;
}

static bool is_help(const char *word) {
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int print_help(void) {
    printf("usage: ductile-bench COMMAND [ARGUMENT]...\n\n");
    print_list(commands);
    printf("\n  --help      this text; `ductile-bench COMMAND --help` says more\n"
           "  --version   the version, also -V\n");
    return BENCH_DONE;
}

static int print_models(void) {
    printf("usage: ductile-bench generate MODEL [OPTION]...\n\n"
           "Runs a synthetic program under each contender. MODEL is one of\n\n");
    print_list(models);
    printf("\n  --help      this text; `ductile-bench generate MODEL --help` has the options\n");
    return BENCH_DONE;
}

static int print_version(void) {
    printf("ductile-bench %s\n", ductile_version());
    return BENCH_DONE;
}

static int run_model(int argc, char **argv) {
    if (argc < 2 || is_help(argv[1])) {
        return print_models();
    }
    const bench_command *model = find(models, argv[1]);
    if (model == NULL) {
        bench_complain("generate: no model is called '%s'; see ductile-bench generate --help",
                       argv[1]);
        return BENCH_MISUSED;
    }
    return bench_command_run(model, argc - 1, argv + 1);
}

static int dispatch(int argc, char **argv) {
    if (argc < 2 || is_help(argv[1])) {
        return print_help();
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        return print_version();
    }
    const bench_command *chosen = find(commands, argv[1]);
    if (chosen == &generate) {
        return run_model(argc - 1, argv + 1);
    }
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

/* SPDX-License-Identifier: Apache-2.0 */
/* ductile-bench: picks the subcommand. */
#include "bench/base/provenance.h"
#include "bench/cli/cli.h"
#include "bench/cli/commands.h"

#include <ductile.h>

#include <stdio.h>
#include <string.h>

typedef struct subcommand {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} subcommand;

static const subcommand subcommands[] = {
    {"replay", "replay recorded allocation traces under several allocators", run_replay},
    {"convert", "a PyTorch snapshot or an older trace as a trace of the newest version",
     run_convert},
    {"varybatch", "a training loop whose batch size changes at every step", run_varybatch},
    {"fsdp", "training steps with sharded parameters: two streams that use each other's memory",
     run_fsdp},
    {"churn", "the time of one allocation and one free at many sizes", run_churn},
};

enum { N_SUBCOMMANDS = sizeof subcommands / sizeof subcommands[0] };

static int print_help(void) {
    printf("usage: ductile-bench COMMAND [ARGUMENT]...\n\n");
    for (size_t i = 0; i < N_SUBCOMMANDS; i++) {
        printf("  %-10s  %s\n", subcommands[i].name, subcommands[i].summary);
    }
    printf("\n  --help      this text; `ductile-bench COMMAND --help` says more\n"
           "  --version   the version\n");
    return BENCH_DONE;
}

static int print_version(void) {
    printf("ductile-bench %s\n", ductile_version());
    return BENCH_DONE;
}

static const subcommand *find_subcommand(const char *name) {
    for (size_t i = 0; i < N_SUBCOMMANDS; i++) {
        if (strcmp(subcommands[i].name, name) == 0) {
            return &subcommands[i];
        }
    }
    return NULL;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        bench_complain("no command given; see ductile-bench --help");
        return BENCH_MISUSED;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        return print_help();
    }
    if (strcmp(argv[1], "--version") == 0) {
        return print_version();
    }
    const subcommand *chosen = find_subcommand(argv[1]);
    if (chosen == NULL) {
        bench_complain("unknown command '%s'; see ductile-bench --help", argv[1]);
        return BENCH_MISUSED;
    }
    return chosen->run(argc - 1, argv + 1);
}

/* A full disk or a closed pipe shows only when the buffer is written. */
static int finish_output(int status) {
    bool failed = ferror(stdout) != 0;
    failed = fflush(stdout) != 0 || failed;
    if (failed && status == BENCH_DONE) {
        bench_complain("standard output cannot be written");
        return BENCH_FAILED;
    }
    return status;
}

int main(int argc, char **argv) {
    provenance_set_command(argc, argv);
    return finish_output(dispatch(argc, argv));
}

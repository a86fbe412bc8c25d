/* SPDX-License-Identifier: Apache-2.0 */
/* What every command's options have in common, and that misuse has an exit status of its own. */
#include "bench/cli/command_line.h"
#include "bench/cli/commands.h"

#include <criterion/criterion.h>

static const bench_option no_options[] = {{0}};
static const bench_options no_defaults;
static const bench_command bare = {.name = "bare",
                                   .summary = "",
                                   .own = no_options,
                                   .defaults = &no_defaults,
                                   .size = sizeof no_defaults};

static bool parses(bench_options *out, int argc, const char *const *words) {
    char *argv[8] = {0};
    char message[256] = "";
    for (int i = 0; i < argc; i++) {
        argv[i] = (char *)(uintptr_t)words[i];
    }
    bool ok = bench_options_parse(&bare, argc, argv, out, message, sizeof message);
    bench_options_drop(out);
    cr_expect(ok == (message[0] == '\0'), "%s", message);
    return ok;
}

#define PARSES(out, ...)                                                                           \
    parses(out, (int)(sizeof((const char *const[]){"bare", __VA_ARGS__}) / sizeof(char *)),        \
           (const char *const[]){"bare", __VA_ARGS__})

Test(command_line, takes_values_after_a_blank_or_an_equals_sign) {
    bench_options o;
    cr_assert(PARSES(&o, "--capacity", "3G", "--contender=classic,ductile"));
    cr_expect_eq(o.capacity_bytes, (uint64_t)3 << 30);
    cr_assert_eq(o.n_contenders, 2);
    cr_expect_eq(o.contenders[0], &contender_classic);
    cr_expect_eq(o.contenders[1], &contender_ductile);
}

Test(command_line, runs_every_contender_unless_told_otherwise) {
    bench_options o;
    cr_assert(PARSES(&o, "--json"));
    cr_expect(o.json);
    cr_expect_eq(o.n_contenders, N_CONTENDERS);
}

Test(command_line, refuses_what_it_does_not_know) {
    bench_options o;
    cr_expect_not(PARSES(&o, "--nonsense"));
    cr_expect_not(PARSES(&o, "word"));
    cr_expect_not(PARSES(&o, "--capacity"));
    cr_expect_not(PARSES(&o, "--capacity", "many"));
    cr_expect_not(PARSES(&o, "--json=yes"));
    cr_expect_not(PARSES(&o, "--contender", "classic,classic"));
    cr_expect_not(PARSES(&o, "--contender", "nobody"));
    cr_expect_not(PARSES(&o, "--device", "tpu"));
    cr_expect_not(PARSES(&o, "--contender", "classic", "--set", "compact=off"));
    cr_expect_not(PARSES(&o, "--set", "no_such_key=1"));
}

Test(command_line, misuse_is_exit_status_2) {
    char *heads[] = {(char[]){"generate vary"}, (char[]){"--heads=7"}};
    char *live[] = {(char[]){"generate churn"}, (char[]){"--live=0"}};
    cr_expect_eq(bench_command_run(&generate_vary, 2, heads), 2);
    cr_expect_eq(bench_command_run(&generate_churn, 2, live), 2);
}

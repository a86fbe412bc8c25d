/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of the replay: what it means, and that what cannot be meant is refused. */
#include "bench/cli/cli.h"
#include "bench/cli/commands.h"
#include "bench/cli/replay_options.h"
#include "bench/trace/trace_read.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

enum { MAX_WORDS = 16 };

static recorded_options now;
static char message[256];

/* Words separated by single blanks, as no shell would have to quote them. */
static bool parse(const char *words) {
    static char text[512];
    char *argv[MAX_WORDS];
    int argc = 0;
    (void)snprintf(text, sizeof text, "replay %s", words);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) {
        cr_assert_lt(argc, MAX_WORDS);
        argv[argc++] = word;
    }
    message[0] = '\0';
    return bench_options_parse(&command_replay, argc, argv, &now.replay.shared, message,
                               sizeof message);
}

static const replay_options *parse_good(const char *words) {
    cr_assert(parse(words), "%s: %s", words, message);
    return &now.replay;
}

static void drop_now(void) {
    bench_options_drop(&now.replay.shared);
}

TestSuite(replay_options, .fini = drop_now);

Test(replay_options, defaults) {
    const replay_options *o = parse_good("x.trace");
    size_t n = 0;
    for (size_t i = 0; all_contenders[i] != NULL; i++) {
        n += !all_contenders[i]->is_study;
    }
    cr_assert_eq(o->shared.device, BENCH_DEVICE_AUTO);
    cr_assert_eq(o->shared.n_contenders, n);
    cr_assert_eq(o->shared.capacity_bytes, 0);
    cr_assert_eq(o->n_passes, 1);
    cr_assert_eq(o->pace.lag, 0);
    cr_assert_eq(now.gpu, TRACE_BUSIEST_GPU);
    cr_assert_not(o->shared.json);
    cr_assert_not(o->min_capacity);
    cr_assert_not(o->tight);
    cr_assert_eq(o->shared.n_operands, 1);
    cr_assert_str_eq(o->shared.operands[0], "x.trace");
}

Test(replay_options, every_option_is_heard) {
    const replay_options *o =
        parse_good("a --device cuda:3 --contender classic,ductile --repeat 40 "
                   "--capacity=24G --json b --set compact=off --gpu 2");
    cr_assert_eq(o->shared.device, BENCH_DEVICE_CUDA);
    cr_assert_eq(o->shared.ordinal, 3);
    cr_assert_eq(o->shared.n_contenders, 2);
    cr_assert_eq(o->shared.contenders[0], &contender_classic);
    cr_assert_eq(o->shared.contenders[1], &contender_ductile);
    cr_assert_eq(o->n_passes, 40);
    cr_assert_eq(o->shared.capacity_bytes, (uint64_t)24 << 30);
    cr_assert(o->shared.json);
    cr_assert_eq(o->shared.n_settings, 1);
    cr_assert_str_eq(o->shared.settings[0], "compact=off");
    cr_assert_eq(now.gpu, 2);
    cr_assert_eq(o->shared.n_operands, 2);
    cr_assert_str_eq(o->shared.operands[1], "b");
}

Test(replay_options, a_lag_means_the_virtual_gpu) {
    cr_assert_eq(parse_good("--lag 5 x")->shared.device, BENCH_DEVICE_VIRTUAL);
    drop_now();
    cr_assert_eq(parse_good("--lag 0 x")->shared.device, BENCH_DEVICE_AUTO);
}

Test(replay_options, behind_two_dashes_everything_is_a_trace) {
    cr_assert_str_eq(parse_good("-- --json")->shared.operands[0], "--json");
    cr_assert_not(now.replay.shared.json);
}

Test(replay_options, help_needs_no_trace) {
    cr_assert(parse_good("--help")->shared.help);
}

typedef struct bad_case {
    char words[80];
    char message[64];
} bad_case;

static const bad_case bad_cases[] = {
    {"", "needs a trace"},
    {"--unknown x", "unknown option '--unknown'"},
    {"-j x", "unknown option '-j'"},
    {"--jso x", "unknown option '--jso'"},
    {"--json=1 x", "--json takes no value"},
    {"x --repeat", "--repeat needs a value"},
    {"--repeat 0 x", "--repeat is a number from 1"},
    {"--repeat -1 x", "--repeat is a number from 1"},
    {"--repeat 1000001 x", "--repeat is a number from 1"},
    {"--repeat 2x x", "--repeat is a number from 1"},
    {"--lag -1 x", "--lag is a number"},
    {"--lag 5 --device cuda x", "--lag works on the virtual GPU only"},
    {"--lag 5 --schedule lazy x", "--lag is a schedule"},
    {"--schedule lazy --device cuda x", "--schedule works on the virtual GPU only"},
    {"--check --device cuda x", "--check works on the virtual GPU only"},
    {"--schedule sometimes x", "--schedule is eager"},
    {"--schedule random:x x", "--schedule is eager"},
    {"--capacity 0 x", "--capacity is a number of bytes"},
    {"--capacity 5X x", "--capacity is a number of bytes"},
    {"--capacity 5GB x", "--capacity is a number of bytes"},
    {"--capacity 1.5G x", "--capacity is a number of bytes"},
    {"--capacity 99999999999999999999 x", "--capacity is a number of bytes"},
    {"--capacity 16777216T x", "--capacity is a number of bytes"},
    {"--capacity 1G --min-capacity x", "--min-capacity searches"},
    {"--capacity 1G --tight 2 x", "--tight searches"},
    {"--tight -2 x", "--tight is a percentage"},
    {"--tight 2% x", "--tight is a percentage"},
    {"--contender unheard x", "no contender is called 'unheard'"},
    {"--contender ductile, x", "no contender is called ''"},
    {"--contender ductile,ductile x", "'ductile' is named twice"},
    {"--device gpu x", "--device is auto"},
    {"--device cuda: x", "--device is auto"},
    {"--device cuda:-1 x", "--device is auto"},
    {"--gpu one x", "--gpu is the number"},
    {"--set compact x", "key=value"},
    {"--set nonsense=1 x", "nonsense"},
    {"--set compact=maybe x", "compact"},
    {"--set limit_bytes=1G x", "--capacity"},
    {"--set device=1 x", "--device"},
    {"--set compact=off --contender classic x", "not among the contenders"},
    {"--timeline= x", "--timeline needs"},
};

Test(replay_options, what_cannot_be_meant_is_refused_with_its_name) {
    for (size_t i = 0; i < sizeof bad_cases / sizeof bad_cases[0]; i++) {
        cr_expect_not(parse(bad_cases[i].words), "taken: %s", bad_cases[i].words);
        cr_expect_not_null(strstr(message, bad_cases[i].message), "'%s' of: %s", message,
                           bad_cases[i].words);
        cr_expect_null(strchr(message, '\n'), "more than a line: %s", bad_cases[i].words);
        drop_now();
    }
}

Test(replay_options, bytes_take_suffixes_and_refuse_what_does_not_fit) {
    uint64_t bytes = 0;
    cr_assert(bench_parse_bytes("7", &bytes) && bytes == 7);
    cr_assert(bench_parse_bytes("7k", &bytes) && bytes == 7 << 10);
    cr_assert(bench_parse_bytes("7M", &bytes) && bytes == 7 << 20);
    cr_assert(bench_parse_bytes("7G", &bytes) && bytes == (uint64_t)7 << 30);
    cr_assert(bench_parse_bytes("7T", &bytes) && bytes == (uint64_t)7 << 40);
    cr_assert(bench_parse_bytes("18446744073709551615", &bytes) && bytes == UINT64_MAX);
    cr_assert_not(bench_parse_bytes("18446744073709551616", &bytes));
    cr_assert_not(bench_parse_bytes("16777216T", &bytes));
    cr_assert_not(bench_parse_bytes("", &bytes));
    cr_assert_not(bench_parse_bytes("K", &bytes));
    cr_assert_eq(bytes, UINT64_MAX, "changed by a refusal");
}

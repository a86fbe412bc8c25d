/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/command_line.h"

#include "bench/cli/cli.h"
#include "bench/contenders/settings.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool bench_refuse(bench_parser *p, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(p->message, p->message_size, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- Contenders ---------------------------------------------------------------------------- */

static const contender_ops *find_contender(const char *name, size_t length) {
    for (size_t i = 0; all_contenders[i] != NULL; i++) {
        const char *known = all_contenders[i]->name;
        if (strlen(known) == length && memcmp(known, name, length) == 0) {
            return all_contenders[i];
        }
    }
    return NULL;
}

static bool is_chosen(const bench_options *o, const contender_ops *contender) {
    for (size_t i = 0; i < o->n_contenders; i++) {
        if (o->contenders[i] == contender) {
            return true;
        }
    }
    return false;
}

static bool choose_contender(bench_parser *p, const char *name, size_t length) {
    const contender_ops *found = find_contender(name, length);
    if (found == NULL) {
        return bench_refuse(p, "--contender: no contender is called '%.*s'; see --help",
                            (int)(length < 64 ? length : 64), name);
    }
    if (is_chosen(p->shared, found)) {
        return bench_refuse(p, "--contender: '%s' is named twice", found->name);
    }
    p->shared->contenders[p->shared->n_contenders++] = found; /* at most one each: they fit */
    return true;
}

static bool parse_contenders(bench_parser *p, const char *value) {
    p->shared->n_contenders = 0;
    for (const char *name = value;;) {
        size_t length = strcspn(name, ",");
        if (!choose_contender(p, name, length)) {
            return false;
        }
        if (name[length] == '\0') {
            return true;
        }
        name += length + 1;
    }
}

static void choose_all_contenders(bench_options *o) {
    for (size_t i = 0; all_contenders[i] != NULL; i++) {
        o->contenders[o->n_contenders++] = all_contenders[i];
    }
}

/* ---- Values -------------------------------------------------------------------------------- */

static void *member_of(const bench_parser *p) {
    return (char *)p->own + p->option->offset;
}

bool bench_parse_flag(bench_parser *p, const char *unused) {
    (void)unused;
    *(bool *)member_of(p) = true;
    return true;
}

bool bench_parse_text(bench_parser *p, const char *value) {
    *(const char **)member_of(p) = value;
    return value[0] != '\0' ||
           bench_refuse(p, "%s needs a value: %s", p->option->name, p->option->value);
}

static uint64_t most_of(const bench_option *option) {
    return option->max != 0 ? option->max : UINT64_MAX;
}

bool bench_parse_number(bench_parser *p, const char *value) {
    const bench_option *o = p->option;
    if (bench_parse_count(value, o->min, most_of(o), member_of(p))) {
        return true;
    }
    return o->max != 0 ? bench_refuse(p, "%s is a number from %" PRIu64 " to %" PRIu64 ", not '%s'",
                                      o->name, o->min, o->max, value)
                       : bench_refuse(p, "%s is a number of at least %" PRIu64 ", not '%s'",
                                      o->name, o->min, value);
}

bool bench_parse_gpu(bench_parser *p, const char *value) {
    uint64_t number = 0;
    if (!bench_parse_count(value, 0, INT_MAX, &number)) {
        return bench_refuse(p, "--gpu is the number of a GPU in a snapshot, not '%s'", value);
    }
    *(int *)member_of(p) = (int)number;
    return true;
}

bool bench_parse_interval(bench_parser *p, const char *value) {
    uint64_t *out = member_of(p);
    char least[32];
    size_t length = strcspn(value, ":");
    const char *most = value[length] == ':' ? value + length + 1 : value;
    if (length < sizeof least) {
        memcpy(least, value, length);
        least[length] = '\0';
        if (bench_parse_count(least, p->option->min, most_of(p->option), &out[0]) &&
            bench_parse_count(most, p->option->min, most_of(p->option), &out[1])) {
            return true;
        }
    }
    return bench_refuse(p, "%s is MIN:MAX, not '%s'", p->option->name, value);
}

bool bench_parse_either(bench_parser *p, const char *value) {
    const char *words = p->option->value;
    size_t length = strcspn(words, "|");
    bool is_first = strlen(value) == length && memcmp(value, words, length) == 0;
    *(bool *)member_of(p) = is_first;
    return is_first || strcmp(value, words + length + 1) == 0 ||
           bench_refuse(p, "%s is %.*s or %s, not '%s'", p->option->name, (int)length, words,
                        words + length + 1, value);
}

/* Between two texts. Nothing of another kind of option, nor of a number that says "not given". */
static void print_value(FILE *out, const char *before, const bench_option *option, const void *own,
                        const char *after) {
    const void *member = (const char *)own + option->offset;
    const uint64_t *numbers = member;
    if (option->parse == bench_parse_number && numbers[0] >= option->min) {
        (void)fprintf(out, "%s%" PRIu64 "%s", before, numbers[0], after);
    } else if (option->parse == bench_parse_interval) {
        (void)fprintf(out, "%s%" PRIu64 ":%" PRIu64 "%s", before, numbers[0], numbers[1], after);
    } else if (option->parse == bench_parse_either) {
        int length = (int)strcspn(option->value, "|");
        (void)(*(const bool *)member
                   ? fprintf(out, "%s%.*s%s", before, length, option->value, after)
                   : fprintf(out, "%s%s%s", before, option->value + length + 1, after));
    }
}

void bench_print_options(FILE *out, const bench_option *table, const void *own) {
    for (; table->name != NULL; table++) {
        char before[64];
        (void)snprintf(before, sizeof before, " %s ", table->name);
        print_value(out, before, table, own, "");
    }
}

/* ---- Shared options ------------------------------------------------------------------------ */

/* "cuda" or "cuda:N". */
static bool parse_cuda(const char *value, int *ordinal) {
    size_t length = strlen("cuda");
    uint64_t number = 0;
    if (strncmp(value, "cuda", length) != 0 ||
        (value[length] != '\0' &&
         (value[length] != ':' || !bench_parse_count(value + length + 1, 0, INT_MAX, &number)))) {
        return false;
    }
    *ordinal = (int)number;
    return true;
}

static bool parse_device(bench_parser *p, const char *value) {
    bench_options *o = p->shared;
    o->ordinal = 0;
    if (strcmp(value, "auto") == 0) {
        o->device = BENCH_DEVICE_AUTO;
    } else if (strcmp(value, "virtual") == 0) {
        o->device = BENCH_DEVICE_VIRTUAL;
    } else if (parse_cuda(value, &o->ordinal)) {
        o->device = BENCH_DEVICE_CUDA;
    } else {
        return bench_refuse(p, "--device is auto, virtual, cuda or cuda:N, not '%s'", value);
    }
    return true;
}

static bool parse_capacity(bench_parser *p, const char *value) {
    return (bench_parse_bytes(value, &p->shared->capacity_bytes) && p->shared->capacity_bytes > 0 &&
            p->shared->capacity_bytes <= (uint64_t)1 << 48) ||
           bench_refuse(p, "--capacity is a number of bytes such as 24G, not '%s'", value);
}

static bool parse_setting(bench_parser *p, const char *value) {
    if (p->shared->n_settings == BENCH_MAX_SETTINGS) {
        return bench_refuse(p, "--set is given more than %d times", BENCH_MAX_SETTINGS);
    }
    p->shared->settings[p->shared->n_settings++] = value;
    return true;
}

/* By what they are for: each kind of command has those from its first one on. */
static const bench_option shared_options[] = {
    {"--device", "auto|virtual|cuda[:N]", parse_device,
     .help = "auto: a CUDA device if there is one, else the virtual GPU"},
    BENCH_FLAG_OPTION("--json", bench_options, json, "one JSON object a line instead of a table"),
    {"--contender", "A,B,..", parse_contenders, .help = "only these (all)"},
    {"--capacity", "BYTES", parse_capacity,
     .help = "cap on physical memory; K, M, G, T are powers of 1024 (the device)"},
    {"--set", "KEY=VALUE", parse_setting,
     .help = "an option of Ductile, as in DUCTILE_CONF; repeatable"},
    BENCH_FLAG_OPTION("--help", bench_options, help, "this text"),
    {0},
};

static const char *const first_shared[] = {[BENCH_ON_ANY_DEVICE] = "--device",
                                           [BENCH_ON_VIRTUAL_GPU] = "--contender",
                                           [BENCH_ON_NO_DEVICE] = "--help"};

/* ---- The command line ---------------------------------------------------------------------- */

static const bench_option *find_in(const bench_option *table, const char *word, size_t length) {
    for (; table != NULL && table->name != NULL; table++) {
        if (strlen(table->name) == length && memcmp(table->name, word, length) == 0) {
            return table;
        }
    }
    return NULL;
}

static const bench_option *shared_of(const bench_command *command) {
    const char *first = first_shared[command->runs_on];
    return find_in(shared_options, first, strlen(first));
}

static const bench_option *find_shared(const bench_option *entry) {
    return find_in(shared_options, entry->name, strlen(entry->name));
}

/* In the tables that are the command's. */
static const bench_option *find_own(const bench_command *command, const char *word, size_t length) {
    const bench_option *found = find_in(command->own, word, length);
    return found != NULL ? found : find_in(command->also, word, length);
}

static const bench_option *find_option(const bench_command *command, const char *word,
                                       size_t length) {
    const bench_option *found = find_own(command, word, length);
    return found != NULL && found->parse != NULL ? found
                                                 : find_in(shared_of(command), word, length);
}

static bool refuse_unknown(bench_parser *p, const bench_command *command, const char *word) {
    return command->operand != NULL
               ? bench_refuse(p, "unknown option '%s'; see ductile-bench %s --help", word,
                              command->name)
               : bench_refuse(p, "'%s' is not an option; see ductile-bench %s --help", word,
                              command->name);
}

/* Reads argv[*index], and the word after it if that is its value: then *index moves on. */
static bool parse_option(bench_parser *p, const bench_command *command, int argc, char **argv,
                         int *index) {
    const char *word = argv[*index];
    size_t length = strcspn(word, "=");
    const bench_option *found = find_option(command, word, length);
    const char *value = word[length] == '=' ? word + length + 1 : NULL;
    if (found == NULL) {
        return refuse_unknown(p, command, word);
    }
    if (found->value == NULL && value != NULL) {
        return bench_refuse(p, "%s takes no value", found->name);
    }
    if (found->value != NULL && value == NULL) {
        if (*index + 1 == argc) {
            return bench_refuse(p, "%s needs a value: %s", found->name, found->value);
        }
        value = argv[++*index];
    }
    p->option = found;
    return found->parse(p, value);
}

static bool looks_like_option(const char *word) {
    return word[0] == '-' && word[1] != '\0';
}

/* In a command with operands, every word after "--" is one. */
static bool parse_words(bench_parser *p, const bench_command *command, int argc, char **argv) {
    bool takes_operands = command->operand != NULL;
    bool only_operands = false;
    for (int i = 1; i < argc; i++) {
        bool ok = true;
        if (takes_operands && !only_operands && strcmp(argv[i], "--") == 0) {
            only_operands = true;
        } else if (takes_operands && (only_operands || !looks_like_option(argv[i]))) {
            p->shared->operands[p->shared->n_operands++] = argv[i]; /* as many as words: they fit */
        } else {
            ok = parse_option(p, command, argc, argv, &i);
        }
        if (!ok) {
            return false;
        }
    }
    return true;
}

static bool check_settings(bench_parser *p) {
    ductile_options scratch;
    char why[160] = "";
    if (p->shared->n_settings > 0 && !is_chosen(p->shared, &contender_ductile)) {
        return bench_refuse(p, "--set changes Ductile, which is not among the contenders");
    }
    ductile_options_init(&scratch);
    return settings_apply(&scratch, p->shared->settings, p->shared->n_settings, why, sizeof why) ||
           bench_refuse(p, "--set: %s", why);
}

static bool complete(bench_parser *p, const bench_command *command) {
    return (command->complete == NULL || command->complete(p)) && check_settings(p);
}

static bool set_defaults(bench_parser *p, const bench_command *command, int argc) {
    memcpy(p->own, command->defaults, command->size);
    p->shared->operands = calloc((size_t)argc, sizeof *p->shared->operands);
    return p->shared->operands != NULL || bench_refuse(p, "the host has no memory left");
}

bool bench_options_parse(const bench_command *command, int argc, char **argv, bench_options *out,
                         char *message, size_t message_size) {
    bench_parser p = {.shared = out, .own = out, .message = message, .message_size = message_size};
    if (!set_defaults(&p, command, argc) || !parse_words(&p, command, argc, argv)) {
        return false;
    }
    if (out->n_contenders == 0) {
        choose_all_contenders(out);
    }
    return out->help || complete(&p, command);
}

void bench_options_drop(bench_options *options) {
    free(options->operands);
    options->operands = NULL;
    options->n_operands = 0;
}

/* ---- Help ---------------------------------------------------------------------------------- */

static void print_option(const bench_option *option, const char *help, const void *defaults) {
    char left[64];
    (void)snprintf(left, sizeof left, "%s%s%s", option->name, option->value != NULL ? " " : "",
                   option->value != NULL ? option->value : "");
    printf("  %-32s  %s", left, help);
    if (help[strlen(help) - 1] != ')') {
        print_value(stdout, " (", option, defaults, ")");
    }
    printf("\n");
}

static void print_table(const bench_option *table, const void *defaults) {
    for (; table != NULL && table->name != NULL; table++) {
        const bench_option *option = table->parse != NULL ? table : find_shared(table);
        print_option(option, table->help != NULL ? table->help : option->help, defaults);
    }
}

/* Those that the command's own tables do not name. */
static void print_shared(const bench_command *command) {
    for (const bench_option *option = shared_of(command); option->name != NULL; option++) {
        if (find_own(command, option->name, strlen(option->name)) == NULL) {
            print_option(option, option->help, command->defaults);
        }
    }
}

static void print_contenders(void) {
    printf("\nContenders:\n");
    for (size_t i = 0; all_contenders[i] != NULL; i++) {
        printf("  %-16s  %s\n", all_contenders[i]->name, all_contenders[i]->summary);
    }
}

static void print_help(const bench_command *command) {
    bool takes_operands = command->operand != NULL;
    printf("usage: ductile-bench %s [OPTION]...%s%s\n\n%s\n\n", command->name,
           takes_operands ? " " : "", takes_operands ? command->operand : "", command->summary);
    print_table(command->own, command->defaults);
    print_table(command->also, command->defaults);
    print_shared(command);
    if (command->runs_on != BENCH_ON_NO_DEVICE) {
        print_contenders();
    }
    printf("\nExit status: %s\n", command->exit_status != NULL
                                      ? command->exit_status
                                      : "0 done, 1 something failed, 2 the command line is wrong.");
}

bool bench_find_device(const bench_options *options, bench_device *out) {
    char reason[256] = "";
    bool ok = bench_device_find(options->device, options->ordinal, out, reason, sizeof reason);
    if (!ok) {
        bench_complain("--device: %s", reason);
    }
    return ok;
}

testbed_plan bench_plan_of(const bench_options *options, const bench_device *device,
                           const contender_ops *contender) {
    return (testbed_plan){.device = device,
                          .contender = contender,
                          .settings = options->settings,
                          .n_settings = options->n_settings,
                          .capacity_bytes = options->capacity_bytes};
}

/* ---- Running ------------------------------------------------------------------------------- */

static int parse_and_run(const bench_command *command, int argc, char **argv,
                         bench_options *options) {
    char message[512] = "";
    if (!bench_options_parse(command, argc, argv, options, message, sizeof message)) {
        bench_complain("%s: %s", command->name, message);
        return BENCH_MISUSED;
    }
    if (options->help) {
        print_help(command);
        return BENCH_DONE;
    }
    return command->run(options);
}

int bench_command_run(const bench_command *command, int argc, char **argv) {
    bench_options *options = malloc(command->size);
    if (options == NULL) {
        bench_complain("the host has no memory left");
        return BENCH_FAILED;
    }
    int status = parse_and_run(command, argc, argv, options);
    bench_options_drop(options);
    free(options);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay_options.h"

#include "bench/cli.h"
#include "bench/settings.h"
#include "bench/trace.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The command line being read. */
typedef struct parser {
    replay_options *to;
    char *message;
    size_t message_size;
    bool has_gpu;
    bool has_lag;
} parser;

__attribute__((format(printf, 2, 3))) static bool refuse(parser *p, const char *format, ...) {
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

static bool is_chosen(const replay_options *o, const contender_ops *contender) {
    for (size_t i = 0; i < o->n_contenders; i++) {
        if (o->contenders[i] == contender) {
            return true;
        }
    }
    return false;
}

static bool choose_contender(parser *p, const char *name, size_t length) {
    const contender_ops *found = find_contender(name, length);
    if (found == NULL) {
        return refuse(p, "--contender: no contender is called '%.*s'; see --help",
                      (int)(length < 64 ? length : 64), name);
    }
    if (is_chosen(p->to, found)) {
        return refuse(p, "--contender: '%s' is named twice", found->name);
    }
    p->to->contenders[p->to->n_contenders++] = found; /* at most one each: they fit */
    return true;
}

static bool parse_contenders(parser *p, const char *value) {
    p->to->n_contenders = 0;
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

static void choose_all_contenders(replay_options *o) {
    while (o->n_contenders < REPLAY_MAX_CONTENDERS && all_contenders[o->n_contenders] != NULL) {
        o->contenders[o->n_contenders] = all_contenders[o->n_contenders];
        o->n_contenders++;
    }
}

/* ---- Options ------------------------------------------------------------------------------- */

static bool parse_device(parser *p, const char *value) {
    return bench_device_parse(value, &p->to->device, &p->to->ordinal) ||
           refuse(p, "--device is auto, virtual, cuda or cuda:N, not '%s'", value);
}

static bool parse_capacity(parser *p, const char *value) {
    return (bench_parse_bytes(value, &p->to->capacity_bytes) && p->to->capacity_bytes > 0 &&
            p->to->capacity_bytes <= TRACE_MAX_SIZE) ||
           refuse(p, "--capacity is a number of bytes such as 24G, not '%s'", value);
}

static bool parse_min_capacity(parser *p, const char *unused) {
    (void)unused;
    p->to->min_capacity = true;
    return true;
}

static bool parse_repeat(parser *p, const char *value) {
    return bench_parse_count(value, 1, REPLAY_MAX_PASSES, &p->to->n_passes) ||
           refuse(p, "--repeat is a number from 1 to %d, not '%s'", REPLAY_MAX_PASSES, value);
}

static bool parse_lag(parser *p, const char *value) {
    p->has_lag = true;
    return bench_parse_count(value, 0, UINT32_MAX, &p->to->lag) ||
           refuse(p, "--lag is a number of events, not '%s'", value);
}

static bool parse_setting(parser *p, const char *value) {
    if (p->to->n_settings == REPLAY_MAX_SETTINGS) {
        return refuse(p, "--set is given more than %d times", REPLAY_MAX_SETTINGS);
    }
    p->to->settings[p->to->n_settings++] = value;
    return true;
}

static bool parse_json(parser *p, const char *unused) {
    (void)unused;
    p->to->json = true;
    return true;
}

static bool parse_gpu(parser *p, const char *value) {
    uint64_t number = 0;
    p->has_gpu = true;
    if (!bench_parse_count(value, 0, INT_MAX, &number)) {
        return refuse(p, "--gpu is the number of a GPU in a snapshot, not '%s'", value);
    }
    p->to->gpu = (int)number;
    return true;
}

static bool parse_timeline(parser *p, const char *value) {
    p->to->timeline = value;
    return value[0] != '\0' || refuse(p, "--timeline needs a file or a folder");
}

static bool parse_help(parser *p, const char *unused) {
    (void)unused;
    p->to->help = true;
    return true;
}

typedef struct option {
    const char *name;
    const char *value; /* what it is called in the help; NULL: takes none */
    bool (*parse)(parser *p, const char *value);
    const char *help;
} option;

static const option options[] = {
    {"--device", "auto|virtual|cuda[:N]", parse_device,
     "auto: a CUDA device if there is one, else the virtual GPU"},
    {"--contender", "A,B,..", parse_contenders, "only these (all)"},
    {"--capacity", "BYTES", parse_capacity,
     "cap on physical memory; K, M, G, T are powers of 1024 (the device)"},
    {"--min-capacity", NULL, parse_min_capacity,
     "also find the smallest capacity from which the replay completes"},
    {"--repeat", "N", parse_repeat, "N passes through one allocator (1)"},
    {"--lag", "N", parse_lag, "virtual GPU: work completes N events after it was issued (0)"},
    {"--set", "KEY=VALUE", parse_setting, "an option of Ductile, as in DUCTILE_CONF; repeatable"},
    {"--json", NULL, parse_json, "one JSON object a line instead of tables"},
    {"--gpu", "N", parse_gpu, "of a PyTorch snapshot: which GPU (the one with most events)"},
    {"--timeline", "FILE", parse_timeline,
     "write live and reserved memory over time as CSV; a folder gets timeline.csv"},
    {"--help", NULL, parse_help, "this text"},
};

enum { N_OPTIONS = sizeof options / sizeof options[0] };

static const option *find_option(const char *word, size_t length) {
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (strlen(options[i].name) == length && memcmp(options[i].name, word, length) == 0) {
            return &options[i];
        }
    }
    return NULL;
}

/* Reads argv[*index], and the word after it if that is its value: then *index moves on. */
static bool parse_option(parser *p, char **argv, int argc, int *index) {
    const char *word = argv[*index];
    size_t length = strcspn(word, "=");
    const option *found = find_option(word, length);
    const char *value = word[length] == '=' ? word + length + 1 : NULL;
    if (found == NULL) {
        return refuse(p, "unknown option '%s'; see ductile-bench replay --help", word);
    }
    if (found->value == NULL && value != NULL) {
        return refuse(p, "%s takes no value", found->name);
    }
    if (found->value != NULL && value == NULL) {
        if (*index + 1 == argc) {
            return refuse(p, "%s needs a value: %s", found->name, found->value);
        }
        value = argv[++*index];
    }
    return found->parse(p, value);
}

static bool parse_words(parser *p, int argc, char **argv) {
    bool may_be_option = true;
    for (int i = 1; i < argc; i++) {
        if (may_be_option && strcmp(argv[i], "--") == 0) {
            may_be_option = false;
        } else if (may_be_option && argv[i][0] == '-' && argv[i][1] != '\0') {
            if (!parse_option(p, argv, argc, &i)) {
                return false;
            }
        } else {
            p->to->traces[p->to->n_traces++] = argv[i];
        }
    }
    return true;
}

/* ---- Combinations -------------------------------------------------------------------------- */

static bool check_settings(parser *p) {
    ductile_options scratch;
    char why[160] = "";
    if (p->to->n_settings > 0 && !is_chosen(p->to, &contender_ductile)) {
        return refuse(p, "--set changes Ductile, which is not among the contenders");
    }
    ductile_options_init(&scratch);
    return settings_apply(&scratch, p->to->settings, p->to->n_settings, why, sizeof why) ||
           refuse(p, "--set: %s", why);
}

static bool check_combination(parser *p) {
    replay_options *o = p->to;
    if (o->n_traces == 0) {
        return refuse(p, "replay needs a trace: ductile-bench replay FILE..., or bench/run without "
                         "arguments for the bundled ones");
    }
    if (o->min_capacity && o->capacity_bytes != 0) {
        return refuse(p, "--min-capacity searches what --capacity sets: give one of them");
    }
    if (p->has_lag && o->lag > 0 && o->device == BENCH_DEVICE_CUDA) {
        return refuse(p, "--lag works on the virtual GPU only");
    }
    return check_settings(p);
}

/* ---- The whole ----------------------------------------------------------------------------- */

static bool parse_all(parser *p, int argc, char **argv) {
    if (!parse_words(p, argc, argv)) {
        return false;
    }
    if (p->to->n_contenders == 0) {
        choose_all_contenders(p->to);
    }
    if (p->to->lag > 0 && p->to->device == BENCH_DEVICE_AUTO) {
        p->to->device = BENCH_DEVICE_VIRTUAL;
    }
    return p->to->help || check_combination(p);
}

bool replay_options_parse(int argc, char **argv, replay_options *out, char *message,
                          size_t message_size) {
    parser p = {.to = out, .message = message, .message_size = message_size};
    *out = (replay_options){.n_passes = 1, .gpu = TRACE_BUSIEST_GPU};
    out->traces = calloc((size_t)argc + 1, sizeof *out->traces);
    if (out->traces == NULL) {
        return refuse(&p, "the host has no memory left");
    }
    if (!parse_all(&p, argc, argv)) {
        replay_options_drop(out);
        return false;
    }
    return true;
}

void replay_options_drop(replay_options *o) {
    free(o->traces);
    o->traces = NULL;
    o->n_traces = 0;
}

void replay_options_print_help(void) {
    printf("usage: ductile-bench replay [OPTION]... TRACE...\n\n"
           "Replays allocation traces and says what each allocator would have needed. A TRACE is\n"
           "a text trace (bench/traces/README.md) or a PyTorch snapshot, gzipped or not:\n\n"
           "  torch.cuda.memory._record_memory_history()       # before the run\n"
           "  torch.cuda.memory._dump_snapshot(\"run.pickle\")   # after it\n\n");
    for (size_t i = 0; i < N_OPTIONS; i++) {
        char left[48];
        (void)snprintf(left, sizeof left, "%s%s%s", options[i].name,
                       options[i].value != NULL ? " " : "",
                       options[i].value != NULL ? options[i].value : "");
        printf("  %-32s  %s\n", left, options[i].help);
    }
    printf("\nContenders:\n");
    for (size_t i = 0; all_contenders[i] != NULL; i++) {
        printf("  %-16s  %s\n", all_contenders[i]->name, all_contenders[i]->summary);
    }
    printf("\nExit status: 0 done (running out of memory under a cap is a result), 1 something\n"
           "failed, 2 the command line cannot be meant.\n");
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the decoder on seeds, or on a file. Each run is a process of its own, so that a crash is a
 * finding like any other. After a failure: the seed, the shortest list of operations that was found
 * to fail, a file with it, and the command that repeats it.
 */
#include "tests/model/child.h"
#include "tests/model/decoder.h"
#include "tests/model/scenarios.h"
#include "tests/model/soak.h"
#include "tests/support/command.h"
#include "tests/support/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_SHRINKS = 3000, MOST_BYTES = 1 << 24 };

typedef struct arguments {
    uint64_t seed, seeds, operations, seconds, soak;
    const char *input, *save;
    scenarios_setup scenarios;
    bool list, no_shrink;
} arguments;

/* ---- Bytes of a seed ----------------------------------------------------------------------- */

typedef struct generator {
    rng r;
    uint64_t left; /* operations */
    bool has_head;
} generator;

static generator generator_of(uint64_t seed, uint64_t operations) {
    return (generator){rng_seeded(seed), operations, false};
}

static bool generate(void *user, uint8_t *out, size_t n) {
    generator *g = user;
    if (g->has_head && g->left == 0) {
        return false;
    }
    for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
        uint64_t word = rng_next(&g->r);
        memcpy(out + i, &word, sizeof word);
    }
    g->left -= g->has_head;
    g->has_head = true;
    return true;
}

/* ---- Programs ------------------------------------------------------------------------------ */

static const char *run_generator(void *user, bool trace, uint64_t *n) {
    generator g = *(generator *)user;
    return decoder_run(generate, &g, trace, n);
}

typedef struct bytes {
    uint8_t *at;
    size_t size;
} bytes;

static const char *run_bytes(void *user, bool trace, uint64_t *n) {
    const bytes *b = user;
    return decoder_run_bytes(b->at, b->size, trace, n);
}

/* ---- Shrinking ----------------------------------------------------------------------------- */

static bytes bytes_of(generator g) {
    bytes b = {malloc(DECODER_HEAD_BYTES + g.left * DECODER_RECORD_BYTES), 0};
    if (b.at == NULL) {
        command_refuse("no host memory");
    }
    size_t n = DECODER_HEAD_BYTES;
    while (generate(&g, b.at + b.size, n)) {
        b.size += n;
        n = DECODER_RECORD_BYTES;
    }
    return b;
}

/* Up to the first number. */
static bool begins_alike(const char *a, const char *b) {
    size_t n = strcspn(a, "0123456789");
    return n == strcspn(b, "0123456789") && strncmp(a, b, n) == 0;
}

/* What the operation says that was under way; "" at the end. */
static const char *operation_of(const char *why) {
    const char *in = strstr(why, ", in operation ");
    const char *text = in != NULL ? strchr(in, '(') : NULL;
    return text != NULL ? text : "";
}

/* The same finding, in the same operation. */
static bool is_same(const char *a, const char *b) {
    return begins_alike(a, b) && begins_alike(operation_of(a), operation_of(b));
}

static bool breaks_without(const bytes *b, size_t first, size_t n, bytes *shorter,
                           const outcome *o) {
    shorter->size = b->size - n;
    memcpy(shorter->at, b->at, first);
    memcpy(shorter->at + first, b->at + first + n, b->size - first - n);
    outcome now = child_run(run_bytes, shorter, false);
    return now.is_broken && is_same(now.why, o->why);
}

/* Leaves out ever smaller pieces as long as what is left fails. */
static void shrink(bytes *b, const outcome *o) {
    bytes shorter = {malloc(b->size), 0};
    size_t records = (b->size - DECODER_HEAD_BYTES) / DECODER_RECORD_BYTES;
    unsigned tries = 0;
    for (size_t piece = (records + 1) / 2; piece > 0 && shorter.at != NULL; piece /= 2) {
        size_t n = piece * DECODER_RECORD_BYTES;
        for (size_t first = DECODER_HEAD_BYTES; first + n <= b->size && tries < MOST_SHRINKS;) {
            tries++;
            if (breaks_without(b, first, n, &shorter, o)) {
                memcpy(b->at, shorter.at, shorter.size);
                b->size = shorter.size;
            } else {
                first += n;
            }
        }
    }
    free(shorter.at);
}

static void save(const bytes *b, const char *path) {
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(b->at, 1, b->size, f) != b->size || fclose(f) != 0) {
        command_refuse("the failing bytes cannot be written");
    }
}

static void explain(const arguments *a, uint64_t seed, const outcome *o, bytes *b) {
    char path[256];
    (void)printf("seed %llu: %s\n", (unsigned long long)seed, o->why);
    size_t used = DECODER_HEAD_BYTES + (o->n_operations + 1) * DECODER_RECORD_BYTES;
    if (o->n_operations > 0 && used < b->size && strstr(o->why, "at the end") == NULL) {
        b->size = used;
    }
    if (!a->no_shrink) {
        shrink(b, o);
    }
    (void)snprintf(path, sizeof path, "%s/failure-%llu.bytes", a->save, (unsigned long long)seed);
    save(b, path);
    outcome again = child_run(run_bytes, b, !a->no_shrink);
    (void)printf(
        "%s\nrepeat: model-run --list --input %s\n   all: model-run --seed %llu --operations "
        "%llu\n",
        again.why, path, (unsigned long long)seed, (unsigned long long)a->operations);
    (void)fflush(stdout);
}

/* ---- The program --------------------------------------------------------------------------- */

static bytes read_file(const char *path) {
    bytes b = {malloc(MOST_BYTES), 0};
    FILE *f = fopen(path, "rb");
    if (f == NULL || b.at == NULL) {
        command_refuse("the input cannot be read");
    }
    b.size = fread(b.at, 1, MOST_BYTES, f);
    (void)fclose(f);
    return b;
}

static int run_input(const arguments *a) {
    bytes b = read_file(a->input);
    outcome o = child_run(run_bytes, &b, a->list);
    free(b.at);
    (void)printf("%s\n", o.is_broken ? o.why : "nothing found");
    return o.is_broken ? COMMAND_BROKEN : COMMAND_PASSED;
}

/* Until one finds something. */
static int run_seeds(const arguments *a) {
    uint64_t n_operations = 0;
    uint64_t n_seeds = 0;
    bool is_broken = false;
    time_t end = time(NULL) + (time_t)a->seconds;
    while (!is_broken && n_seeds < a->seeds && (a->seconds == 0 || time(NULL) < end)) {
        uint64_t seed = a->seed + n_seeds++;
        generator g = generator_of(seed, a->operations);
        outcome o = child_run(run_generator, &g, a->list);
        n_operations += o.n_operations;
        is_broken = o.is_broken;
        if (is_broken) {
            bytes b = bytes_of(g);
            explain(a, seed, &o, &b);
            free(b.at);
        }
    }
    command_figure("seeds", n_seeds);
    command_figure("operations", n_operations);
    return is_broken ? COMMAND_BROKEN : COMMAND_PASSED;
}

int main(int argc, char **argv) {
    arguments a = {.seed = 1, .seeds = 200, .operations = 1000, .save = "."};
    const command_option options[] = {
        {"--seed", .number = &a.seed},
        {"--seeds", .number = &a.seeds},
        {"--operations", .number = &a.operations},
        {"--seconds", .number = &a.seconds},
        {"--soak", .number = &a.soak},
        {"--input", .text = &a.input, .placeholder = "FILE"},
        {"--save", .text = &a.save, .placeholder = "FOLDER"},
        {"--scenarios", .text = &a.scenarios.path, .placeholder = "FILE"},
        {"--only", .text = &a.scenarios.only, .placeholder = "PART"},
        {"--schedule", .text = &a.scenarios.schedule, .placeholder = "NAME"},
        {"--conf", .text = &a.scenarios.conf, .placeholder = "OPTIONS"},
        {"--detect-only", .flag = &a.scenarios.detects_only},
        {"--faults", .number = &a.scenarios.fault_step},
        {"--sweep", .flag = &a.scenarios.sweeps},
        {"--list", .flag = &a.list},
        {"--no-shrink", .flag = &a.no_shrink},
    };
    command_read("model-run", options, sizeof options / sizeof *options, argc, argv);
    (void)unsetenv("DUCTILE_CONF");
    if (a.soak > 0) {
        return command_end(soak_run(a.soak));
    }
    if (a.scenarios.path != NULL) {
        a.scenarios.is_listed = a.list;
        return scenarios_run(&a.scenarios) ? COMMAND_PASSED : COMMAND_BROKEN;
    }
    if (a.scenarios.conf != NULL || a.scenarios.schedule != NULL || a.scenarios.only != NULL) {
        command_refuse("--conf, --schedule and --only choose among --scenarios");
    }
    return a.input != NULL ? run_input(&a) : run_seeds(&a);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instructions of ductile_alloc and ductile_free where free memory fits, in a few situations,
 * against the reference for this compiler: more than 3 % off fails. Fewer instructions fail, too:
 * with the old reference they could come back unseen. And of ductile_get_stats, which is to need
 * the same beside many dedicated blocks as beside one.
 *
 *     hit_cost --reference FILE [--update]
 */
#include "tests/cost/count.h"
#include "tests/support/command.h"

#include <ductile_virtual.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((size_t)1 << 10)
#define STRINGIFIED(x) #x
#define STRING(x) STRINGIFIED(x)

#if defined(__clang__)
#define COMPILER "clang-" STRING(__clang_major__)
#else
#define COMPILER "gcc-" STRING(__GNUC__)
#endif
#if defined(__x86_64__)
#define MACHINE "x86_64"
#elif defined(__aarch64__)
#define MACHINE "aarch64"
#else
#define MACHINE "other"
#endif

static const char *const compiler = COMPILER "-" MACHINE;

enum {
    LAYERS = 40,
    N_LIVE = 100000,
    FEW_STREAMS = 10,
    N_STREAMS = 1000,
    N_DEDICATED = 1000,
    N_SPREAD = 120, /* free blocks of as many sizes: most of them in the bins */
    MOST_SLOTS = N_STREAMS,
    WARM_UP = 3,
    TOLERANCE_PERCENT = 3
};

static struct {
    const char *reference;
    bool updates;
} wanted;

/* Owner: main's child. */
typedef struct bench {
    ductile_virtual_gpu *gpu;
    ductile_allocator *allocator;
    ductile_stream streams[N_STREAMS];
    ductile_addr slots[MOST_SLOTS];
    bool is_counted;
    uint64_t n_allocs, n_frees;
    uint64_t in_alloc, in_free; /* instructions */
} bench;

static void need(ductile_status status) {
    if (status != DUCTILE_OK) {
        (void)fprintf(stderr, "hit_cost: %s\n", ductile_status_string(status));
        exit(COMMAND_BROKEN);
    }
}

static void take(bench *b, size_t slot, size_t size, size_t stream) {
    if (b->is_counted) {
        count_begin();
    }
    ductile_status status = ductile_alloc(b->allocator, size, b->streams[stream], &b->slots[slot]);
    if (b->is_counted) {
        b->in_alloc += count_end();
        b->n_allocs++;
    }
    need(status);
}

static void give(bench *b, size_t slot) {
    if (b->is_counted) {
        count_begin();
    }
    ductile_status status = ductile_free(b->allocator, b->slots[slot]);
    if (b->is_counted) {
        b->in_free += count_end();
        b->n_frees++;
    }
    need(status);
}

/* ---- Situations ---------------------------------------------------------------------------- */

static void play_same(bench *b) {
    for (size_t i = 0; i < LAYERS; i++) {
        take(b, 0, 1024 * KIB, 0);
        give(b, 0);
    }
}

static size_t activation(size_t layer) {
    return (layer * 37 % 17 + 1) * 64 * KIB + layer % 5 * 512;
}

/* A training step: each layer keeps an activation and has work space; then they go in reverse. */
static void play_step(bench *b) {
    enum { SPACE = LAYERS };
    for (size_t i = 0; i < LAYERS; i++) {
        take(b, i, activation(i), 0);
        take(b, SPACE, 3 * activation(i) / 2, 0);
        give(b, SPACE);
    }
    for (size_t i = LAYERS; i-- > 0;) {
        take(b, SPACE, activation(i), 0);
        give(b, i);
        give(b, SPACE);
    }
}

static void play_beside_many(bench *b) {
    static bool is_prepared;
    ductile_addr kept = 0;
    for (size_t i = 0; i < N_LIVE && !is_prepared; i++) {
        need(ductile_alloc(b->allocator, 512 + i % 7 * 512, b->streams[0], &kept));
    }
    is_prepared = true;
    play_step(b);
}

/* Between live blocks, so that free ones do not merge. */
static void play_bins(bench *b) {
    bool is_counted = b->is_counted;
    b->is_counted = false;
    for (size_t i = 0; i < N_SPREAD; i++) {
        take(b, 2 * i, (i * 29 % N_SPREAD + 1) * 32 * KIB, 0);
        take(b, 2 * i + 1, 512, 0);
    }
    for (size_t i = 0; i < N_SPREAD; i++) {
        give(b, 2 * i);
    }
    b->is_counted = is_counted;
    for (size_t i = 0; i < LAYERS; i++) {
        take(b, 2 * i, (i * 53 % N_SPREAD + 1) * 32 * KIB, 0);
    }
    for (size_t i = 0; i < LAYERS; i++) {
        give(b, 2 * i);
    }
    b->is_counted = false;
    for (size_t i = 0; i < N_SPREAD; i++) {
        give(b, 2 * i + 1);
    }
    b->is_counted = is_counted;
}

static void play_streams(bench *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        take(b, i, 256 * KIB, i);
    }
    for (size_t i = 0; i < n; i++) {
        give(b, i);
    }
}

static void play_few_streams(bench *b) {
    play_streams(b, FEW_STREAMS);
}

static void play_many_streams(bench *b) {
    play_streams(b, N_STREAMS);
}

static const struct situation {
    const char *name;
    void (*play)(bench *b);
} situations[] = {
    {"same_size_again", play_same},
    {"training_step", play_step},
    {"best_fit_in_bins", play_bins},
    {"10_streams_in_turn", play_few_streams},
    {"1000_streams_in_turn", play_many_streams},
    {"step_beside_100000", play_beside_many},
};

enum { N_SITUATIONS = sizeof situations / sizeof *situations };

/* ---- The reference: lines "COMPILER SITUATION alloc free" ----------------------------------- */

typedef struct cost {
    double alloc, free; /* instructions per call */
} cost;

static bool find_reference(const char *name, cost *out) {
    FILE *file = fopen(wanted.reference, "r");
    char line[256], of[64], situation[64];
    bool is_found = false;
    while (file != NULL && !is_found && fgets(line, sizeof line, file) != NULL) {
        is_found = sscanf(line, "%63s %63s %lf %lf", of, situation, &out->alloc, &out->free) == 4 &&
                   strcmp(of, compiler) == 0 && strcmp(situation, name) == 0;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return is_found;
}

static bool is_near(double value, double reference) {
    double off = value > reference ? value - reference : reference - value;
    return off * 100 <= reference * TOLERANCE_PERCENT;
}

static bool compare(const char *name, const cost *now) {
    cost then = {0, 0};
    if (!find_reference(name, &then)) {
        (void)fprintf(stderr, "hit_cost: skipped: %s has no %s; write it with --update\n",
                      wanted.reference, compiler);
        exit(COMMAND_SKIPPED);
    }
    if (is_near(now->alloc, then.alloc) && is_near(now->free, then.free)) {
        return true;
    }
    (void)fprintf(stderr,
                  "hit_cost: %s: %.1f and %.1f instructions, the reference has %.1f and %.1f\n",
                  name, now->alloc, now->free, then.alloc, then.free);
    return false;
}

/* The lines of other compilers stay. */
static void write_reference(const cost *costs) {
    char kept[16384] = "", line[256];
    FILE *file = fopen(wanted.reference, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        bool is_ours = strncmp(line, compiler, strlen(compiler)) == 0;
        if (!is_ours && strlen(kept) + strlen(line) < sizeof kept) {
            (void)strcat(kept, line);
        }
    }
    file = file != NULL ? freopen(wanted.reference, "w", file) : fopen(wanted.reference, "w");
    if (file == NULL) {
        command_refuse("the reference cannot be written");
    }
    (void)fputs(kept, file);
    for (size_t i = 0; i < N_SITUATIONS; i++) {
        (void)fprintf(file, "%s %s %.1f %.1f\n", compiler, situations[i].name, costs[i].alloc,
                      costs[i].free);
    }
    (void)fclose(file);
}

/* ---- The run ------------------------------------------------------------------------------- */

static cost measure(bench *b, const struct situation *s) {
    for (int i = 0; i < WARM_UP; i++) {
        s->play(b);
    }
    b->n_allocs = b->n_frees = b->in_alloc = b->in_free = 0;
    b->is_counted = true;
    s->play(b);
    b->is_counted = false;
    return (cost){(double)b->in_alloc / (double)b->n_allocs,
                  (double)b->in_free / (double)b->n_frees};
}

static void open_bench(bench *b) {
    ductile_virtual_options device;
    ductile_options options;
    ductile_virtual_options_init(&device);
    need(ductile_virtual_create(&b->gpu, &device));
    for (size_t i = 0; i < N_STREAMS; i++) {
        need(ductile_virtual_stream_create(b->gpu, &b->streams[i]));
    }
    ductile_options_init(&options);
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    options.virtual_gpu = b->gpu;
    need(ductile_create(&b->allocator, &options));
}

/* ---- Statistics ---------------------------------------------------------------------------- */

static void take_dedicated(bench *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        ductile_addr kept = 0;
        need(ductile_alloc_dedicated(b->allocator, KIB, b->streams[0], &kept));
    }
}

static uint64_t cost_of_stats(bench *b) {
    ductile_stats stats = {.struct_size = sizeof stats};
    count_begin();
    ductile_status status = ductile_get_stats(b->allocator, NULL, &stats);
    uint64_t n = count_end();
    need(status);
    return n;
}

static bool compare_stats(bench *b) {
    take_dedicated(b, 1);
    (void)cost_of_stats(b);
    uint64_t beside_one = cost_of_stats(b);
    take_dedicated(b, N_DEDICATED);
    uint64_t beside_many = cost_of_stats(b);
    (void)printf("%-22s %8llu          beside %d dedicated blocks; %llu beside one\n",
                 "ductile_get_stats", (unsigned long long)beside_many, N_DEDICATED,
                 (unsigned long long)beside_one);
    return is_near((double)beside_many, (double)beside_one);
}

static int run(void) {
    static bench b;
    cost costs[N_SITUATIONS];
    bool is_good = true;
    open_bench(&b);
    (void)printf("%-22s %8s %8s  instructions per call (%s)\n", "", "alloc", "free", compiler);
    for (size_t i = 0; i < N_SITUATIONS; i++) {
        costs[i] = measure(&b, &situations[i]);
        (void)printf("%-22s %8.1f %8.1f\n", situations[i].name, costs[i].alloc, costs[i].free);
        is_good = (wanted.updates || compare(situations[i].name, &costs[i])) && is_good;
    }
    if (!compare_stats(&b)) {
        (void)fprintf(stderr, "hit_cost: statistics cost more beside more dedicated blocks\n");
        return COMMAND_BROKEN;
    }
    if (wanted.updates) {
        write_reference(costs);
    }
    if (!is_good) {
        (void)fprintf(stderr,
                      "hit_cost: more than %d %% off. Where the change is wanted, say why in the "
                      "commit and write the new reference: hit_cost --reference %s --update\n",
                      TOLERANCE_PERCENT, wanted.reference);
    }
    return is_good ? COMMAND_PASSED : COMMAND_BROKEN;
}

int main(int argc, char **argv) {
    const command_option options[] = {
        {"--reference", .text = &wanted.reference, .placeholder = "FILE"},
        {"--update", .flag = &wanted.updates},
    };
    command_read("hit_cost", options, sizeof options / sizeof *options, argc, argv);
    if (wanted.reference == NULL) {
        command_refuse("--reference is missing");
    }
    return count_run(run);
}

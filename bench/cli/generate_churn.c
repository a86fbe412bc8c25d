/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench generate churn: what does one allocation or free cost the host, from a hundred live
 * blocks to a million? And, with --watch, does anything grow over a long run?
 */
#include "bench/base/provenance.h"
#include "bench/cli/cli.h"
#include "bench/cli/commands.h"
#include "bench/workloads/churn_measure.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LIVE_COUNTS = 16, MAX_LIVE = 16 << 20, DEFAULT_WATCHED = 100000 };

static const uint64_t default_live[] = {100, 1000, 10000, 100000, 1000000};

static const churn_sizes mixed_sizes = {512, 65536};

typedef struct churn_options {
    bench_options shared;
    uint64_t live[MAX_LIVE_COUNTS];
    size_t n_live;
    uint64_t ops;
    uint64_t seed;
    bool watch;
} churn_options;

/* One run of the command. */
typedef struct churn_command {
    const churn_options *own;
    bench_device device;
    churn_sizes sizes; /* as fitted to the device */
} churn_command;

/* ---- Options ------------------------------------------------------------------------------- */

static bool parse_live(bench_parser *p, const char *value) {
    churn_options *o = p->own;
    char text[256];
    o->n_live = 0;
    if (strlen(value) >= sizeof text) {
        return bench_refuse(p, "--live: the list is too long");
    }
    (void)strcpy(text, value);
    char *rest = NULL;
    for (char *word = strtok_r(text, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        if (o->n_live == MAX_LIVE_COUNTS ||
            !bench_parse_count(word, 1, MAX_LIVE, &o->live[o->n_live++])) {
            return bench_refuse(p, "--live: '%s' is not one of up to %d numbers from 1 to %d", word,
                                MAX_LIVE_COUNTS, MAX_LIVE);
        }
    }
    return o->n_live > 0 || bench_refuse(p, "--live needs numbers such as 100,10000");
}

static const bench_option own_options[] = {
    {"--live", "N,N,..", parse_live, .help = "live blocks (100,1000,10000,100000,1000000)"},
    {"--ops", "N", bench_parse_number, .help = "allocations and frees to time at each",
     .offset = offsetof(churn_options, ops), .min = 20, .max = UINT64_C(1) << 40},
    BENCH_NUMBER_OPTION("--seed", churn_options, seed, 0, "seed of the sizes and of what is freed"),
    BENCH_FLAG_OPTION(
        "--watch", churn_options, watch,
        "handles, mappings, addresses and host memory by tenths of the run (100000 live)"),
    {0},
};

static bool complete(bench_parser *p) {
    churn_options *o = p->own;
    if (o->n_live == 0 && o->watch) {
        o->live[o->n_live++] = DEFAULT_WATCHED;
    }
    if (o->n_live == 0) {
        memcpy(o->live, default_live, sizeof default_live);
        o->n_live = sizeof default_live / sizeof default_live[0];
    }
    return true;
}

static uint64_t most_live(const churn_options *o) {
    uint64_t most = 0;
    for (size_t i = 0; i < o->n_live; i++) {
        most = o->live[i] > most ? o->live[i] : most;
    }
    return most;
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static dti_json begin_row(const churn_command *c, const char *contender, uint64_t live,
                          bool completed) {
    dti_json j = provenance_begin_row(stdout);
    dti_json_text(&j, "bench", "churn");
    provenance_json(&j, &c->device);
    dti_json_text(&j, "contender", contender);
    dti_json_number(&j, "live", live);
    dti_json_text(&j, "sizes", "mixed");
    dti_json_number(&j, "min_size_bytes", c->sizes.min);
    dti_json_number(&j, "max_size_bytes", c->sizes.max);
    dti_json_number(&j, "seed", c->own->seed);
    dti_json_bool(&j, "completed", completed);
    return j;
}

static void end_row(dti_json *j, uint64_t ops, double ns, double wall_ns, const churn_stretch *s) {
    dti_json_number(j, "ops", ops);
    dti_json_real(j, "ns_per_op", ns, 2);
    dti_json_real(j, "wall_ns_per_op", wall_ns, 2);
    dti_json_number(j, "reserved_bytes", s->stats.reserved_bytes);
    dti_json_number(j, "reserved_peak_bytes", s->stats.reserved_peak_bytes);
    dti_json_number(j, "handles", s->stats.creates - s->stats.releases);
    dti_json_number(j, "mappings", s->stats.maps - s->stats.unmaps);
    dti_json_number(j, "address_span_bytes", s->stats.address_span_bytes);
    dti_json_number(j, "host_bytes", s->host_bytes);
    dti_json_end_line(j);
}

static void print_json(const churn_command *c, const char *contender, uint64_t live,
                       const churn_result *r) {
    const churn_stretch *last = &r->stretches[CHURN_STRETCHES - 1];
    if (r->outcome != RUN_COMPLETED) {
        dti_json j = begin_row(c, contender, live, false);
        dti_json_text(&j, "reason", r->message);
        dti_json_end_line(&j);
        return;
    }
    for (int i = 0; c->own->watch && i < CHURN_STRETCHES; i++) {
        const churn_stretch *s = &r->stretches[i];
        dti_json j = begin_row(c, contender, live, true);
        end_row(&j, s->ops, s->ns_per_op, s->wall_ns_per_op, s);
    }
    if (!c->own->watch) {
        dti_json j = begin_row(c, contender, live, true);
        end_row(&j, last->ops, r->ns_per_op, r->wall_ns_per_op, last);
    }
}

/* ---- Tables -------------------------------------------------------------------------------- */

static void print_heading(const churn_command *c) {
    provenance_print_heading(stdout, &c->device);
    printf("sizes    mixed, %" PRIu64 " to %" PRIu64 " bytes; seed %" PRIu64 "\n\n", c->sizes.min,
           c->sizes.max, c->own->seed);
    if (c->own->watch) {
        return;
    }
    printf("ns per allocation or free, without driver calls\n\n%-16s", "live blocks");
    for (size_t i = 0; i < c->own->n_live; i++) {
        printf(" %9" PRIu64, c->own->live[i]);
    }
    printf("   last/first\n");
}

static void print_cell(const churn_result *r) {
    static const char *const words[] = {
        [RUN_COMPLETED] = "",
        [RUN_OUT_OF_MEMORY] = "no memory",
        [RUN_ABSENT] = "absent",
        [RUN_FAILED] = "failed",
    };
    if (r->outcome == RUN_COMPLETED) {
        printf(" %9.1f", r->ns_per_op);
    } else {
        printf(" %9s", words[r->outcome]);
    }
}

static void print_watch(const char *contender, uint64_t live, const churn_result *r) {
    printf("%s, %" PRIu64 " live blocks\n\n", contender, live);
    if (r->outcome != RUN_COMPLETED) {
        printf("  %s\n\n", r->message);
        return;
    }
    printf("%14s %8s %8s %10s %10s %12s %12s %10s\n", "operations", "ns/op", "wall", "handles",
           "mappings", "reserved/MiB", "span/MiB", "host/MiB");
    for (int i = 0; i < CHURN_STRETCHES; i++) {
        const churn_stretch *s = &r->stretches[i];
        printf("%14" PRIu64 " %8.1f %8.1f %10" PRIu64 " %10" PRIu64 " %12.0f %12.0f %10.1f\n",
               s->ops, s->ns_per_op, s->wall_ns_per_op, s->stats.creates - s->stats.releases,
               s->stats.maps - s->stats.unmaps, bench_mib(s->stats.reserved_bytes),
               bench_mib(s->stats.address_span_bytes), bench_mib(s->host_bytes));
    }
    printf("\n");
}

/* ---- Running ------------------------------------------------------------------------------- */

static void run_one(const churn_command *c, const contender_ops *contender, uint64_t live,
                    churn_result *result) {
    const churn_spec spec = {
        .plan = bench_plan_of(&c->own->shared, &c->device, contender),
        .sizes = c->sizes,
        .live = live,
        .ops = c->own->ops,
        .seed = c->own->seed,
    };
    churn_measure(&spec, result);
}

/* False: something failed that is no result. */
static bool run_contender(const churn_command *c, const contender_ops *contender) {
    bool as_row = !c->own->shared.json && !c->own->watch;
    bool ok = true;
    double first = 0;
    double last = 0;
    if (as_row) {
        printf("%-16s", contender->name);
    }
    for (size_t i = 0; i < c->own->n_live; i++) {
        churn_result r;
        run_one(c, contender, c->own->live[i], &r);
        if (r.outcome == RUN_FAILED) {
            bench_complain("generate churn: %s: %s", contender->name, r.message);
            ok = false;
        }
        if (c->own->shared.json) {
            print_json(c, contender->name, c->own->live[i], &r);
        } else if (c->own->watch) {
            print_watch(contender->name, c->own->live[i], &r);
        } else {
            print_cell(&r);
        }
        first = i == 0 ? r.ns_per_op : first;
        last = r.outcome == RUN_COMPLETED ? r.ns_per_op : 0;
        (void)fflush(stdout);
    }
    if (as_row) {
        first > 0 && last > 0 ? printf("   %10.2f\n", last / first) : printf("   %10s\n", "-");
    }
    return ok;
}

static int run_all(churn_command *c) {
    const testbed_plan plan = bench_plan_of(&c->own->shared, &c->device, NULL);
    bool ok = true;
    c->sizes = churn_fit_sizes(mixed_sizes, most_live(c->own), testbed_capacity(&plan));
    if (!c->own->shared.json) {
        print_heading(c);
    }
    for (size_t i = 0; i < c->own->shared.n_contenders; i++) {
        ok = run_contender(c, c->own->shared.contenders[i]) && ok;
    }
    return ok ? BENCH_DONE : BENCH_FAILED;
}

static int run(const bench_options *options) {
    churn_command c = {.own = (const churn_options *)options};
    return bench_find_device(options, &c.device) ? run_all(&c) : BENCH_FAILED;
}

static const churn_options defaults = {.ops = 1000000, .seed = 1};

const bench_command generate_churn = {
    .name = "generate churn",
    .brief = "the time of one allocation and one free at many sizes",
    .summary =
        "Keeps a number of blocks alive, frees a random one and allocates a new one, over and\n"
        "over, and prints the host's nanoseconds per allocation or free without driver calls.\n"
        "Sizes are spread evenly over the orders of magnitude of their interval, which is the\n"
        "same for every number of blocks and is halved until the most blocks fit the device.",
    .own = own_options,
    .defaults = &defaults.shared,
    .size = sizeof defaults,
    .complete = complete,
    .run = run,
};

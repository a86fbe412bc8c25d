/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small programs of two and three threads on one allocator, in all orders of their lock and driver
 * calls up to a bound, and in random ones beyond it (explore.h). The programs are numbered: first
 * every pair of tasks (tasks.c), then random triples, each with its own settings of the device.
 *
 *     orders-run [--first N] [--programs N] [--stops N] [--most N] [--random N] [--seed N]
 *     orders-run --program TASK+TASK[+TASK] [--schedule S] [--conf OPTIONS] [--order STEPS]
 *     orders-run --delay [--seed N]
 *
 * Of each program `most` orders with one stop are tried, so many with up to two, and so on up to
 * `stops`, and `random` others.
 *
 * With --delay the first thread does each task, and is stopped at each of its steps. The second
 * one's hit then has to come to its end while the first one makes no driver call, however long that
 * would take.
 *
 * Exit status 0, or 1 after the first finding: what went wrong, the steps, and the command that
 * repeats it.
 */
#include "tests/orders/explore.h"
#include "tests/orders/shared_state.h"
#include "tests/support/command.h"

#include <stdio.h>
#include <string.h>

typedef struct program {
    const task *tasks[MOST_THREADS];
    unsigned n;
    run_settings how;
} program;

typedef struct effort {
    uint64_t first, programs, stops, most, random, seed;
} effort;

static program now;
static uint64_t n_orders, n_all_steps, n_complete; /* the last: searches without an order left */

/* ---- Names --------------------------------------------------------------------------------- */

static const task *find_task(const char *name, size_t length) {
    for (size_t i = 0; i < n_tasks; i++) {
        if (strlen(tasks[i].name) == length && strncmp(tasks[i].name, name, length) == 0) {
            return &tasks[i];
        }
    }
    return NULL;
}

static void read_program(const char *text) {
    while (*text != '\0') {
        size_t length = strcspn(text, "+");
        const task *found = find_task(text, length);
        if (found == NULL || now.n == MOST_THREADS) {
            command_refuse("no such task, or too many; see tests/orders/tasks.c");
        }
        now.tasks[now.n++] = found;
        text += length + (text[length] == '+');
    }
}

static void print_program(void) {
    (void)printf("--program ");
    for (unsigned i = 0; i < now.n; i++) {
        (void)printf("%s%s", i > 0 ? "+" : "", now.tasks[i]->name);
    }
    (void)printf(" --schedule %s --conf \"%s\"", schedule_names[now.how.schedule], now.how.conf);
}

/* ---- Findings ------------------------------------------------------------------------------ */

/* The steps at which another thread goes on, and the last ones. */
static void print_steps(const step *steps, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (steps[i].chosen != steps[i].before || i + 12 > n) {
            (void)printf("  %5zu  thread %u at: %s %s%s%s\n", i, steps[i].before % NOBODY + 1u,
                         steps[i].what, *steps[i].where != '\0' ? "in " : "", steps[i].where,
                         steps[i].chosen != steps[i].before ? "; another goes on" : "");
        }
    }
}

static void report(const char *kind, const char *why) {
    size_t n = 0;
    const step *steps = scheduler_steps(&n);
    (void)printf("%s=1 %s\n", kind, why);
    print_steps(steps, n);
    (void)printf("orders-run ");
    print_program();
    (void)printf(" --order ");
    print_order(steps, n);
    (void)printf("\n");
}

/* ---- One program --------------------------------------------------------------------------- */

static size_t run_once(choose_fn choose, void *chooser) {
    static shared_state s;
    size_t n = 0;
    memset(&s, 0, sizeof s);
    s.n_threads = now.n;
    for (unsigned i = 0; i < now.n; i++) {
        s.threads[i].task = now.tasks[i];
    }
    const char *why = shared_open(&s, &now.how);
    if (why == NULL) {
        scheduler_run(now.n, shared_run_task, &s, choose, chooser);
        why = shared_close(&s);
    }
    if (why != NULL) {
        scheduler_found("wrong", why);
    }
    (void)scheduler_steps(&n);
    n_orders++;
    n_all_steps += n;
    return n;
}

/* The number of steps of its first order. */
static size_t explore(unsigned stops, uint64_t most) {
    static explorer e;
    explorer_begin(&e, stops);
    size_t n_steps = run_once(explorer_choose, &e);
    bool is_left = explorer_next(&e);
    for (uint64_t i = 1; i < most && is_left; i++) {
        (void)run_once(explorer_choose, &e);
        is_left = explorer_next(&e);
    }
    n_complete += !is_left;
    return n_steps;
}

static unsigned marks_of_program(void) {
    unsigned marks = 0;
    for (unsigned i = 0; i < now.n; i++) {
        marks |= now.tasks[i]->marks;
    }
    return marks;
}

static void try_program(const effort *it, uint64_t seed) {
    const unsigned slow = scheduler_chooses ? IS_SLOW : IS_SLOW | DEFAULT_SLEEPS;
    uint64_t share = (marks_of_program() & slow) != 0 ? 10 : 1;
    size_t n_steps = 0;
    for (unsigned stops = 1; stops <= it->stops; stops++) { /* few stops first */
        n_steps = explore(stops, 1 + it->most / share);
    }
    rng r = rng_seeded(seed);
    for (uint64_t i = 0; i < it->random / share; i++) {
        pct p;
        pct_begin(&p, &r, now.n, n_steps);
        (void)run_once(pct_choose, &p);
    }
}

/* ---- All of them --------------------------------------------------------------------------- */

/* Those that any task may be a partner of. */
static const task *any_tasks[64];
static size_t n_any_tasks;

static void find_any_tasks(void) {
    for (size_t i = 0; i < n_tasks; i++) {
        if ((tasks[i].marks & (IS_APART | IN_ORDERS | IN_STRESS)) == 0) {
            any_tasks[n_any_tasks++] = &tasks[i];
        }
    }
}

static const char *const named[] = {
    "free_twice+free_twice", "export+import",       "free_twice+free_twice+free_twice",
    "export+import+trim",    "export+import+churn", "export+import+fork"};
enum { N_PROGRAMS_NAMED = sizeof named / sizeof *named };

static run_settings any_settings(rng *r) {
    static const char *const confs[] = {
        "",
        "record_stream:wait",
        "reuse:wait",
        "captures:unannounced",
        "reuse:never",
        "captures:announced",
        "sizes:8M",
        "check:2",
    };
    return (run_settings){(ductile_schedule)rng_below(r, 3),
                          confs[rng_below(r, sizeof confs / sizeof *confs)]};
}

static void set_pair(uint64_t number) {
    size_t first = 0;
    while (number >= n_any_tasks - first) {
        number -= n_any_tasks - first++;
    }
    now.n = 2;
    now.tasks[0] = any_tasks[first];
    now.tasks[1] = any_tasks[first + number];
}

static void set_program(uint64_t number, uint64_t seed) {
    const uint64_t n_pairs = n_any_tasks * (n_any_tasks + 1) / 2;
    rng r = rng_seeded(seed * 1000003 + number);
    now = (program){.how = any_settings(&r)};
    if (number < N_PROGRAMS_NAMED) {
        read_program(named[number]);
    } else if (number - N_PROGRAMS_NAMED < n_pairs) {
        set_pair(number - N_PROGRAMS_NAMED);
    } else {
        now.n = 3;
        for (unsigned i = 0; i < 3; i++) {
            now.tasks[i] = any_tasks[rng_below(&r, n_any_tasks)];
        }
    }
}

static void try_all(const effort *it) {
    for (uint64_t i = it->first; i < it->first + it->programs; i++) {
        set_program(i, it->seed);
        if (scheduler_chooses || (marks_of_program() & IS_SLOW) == 0) {
            try_program(it, it->seed + i);
        }
    }
}

/* ---- How long a hit waits ------------------------------------------------------------------ */

/* The first thread goes on to the step `stop`, and from then on only while the second one waits. */
typedef struct intrusion {
    size_t stop;
    size_t n_waits; /* steps of the first thread meanwhile */
    bool is_over;   /* the second one has ended            */
} intrusion;

static unsigned intrude(void *user, const step *at, size_t n) {
    intrusion *i = user;
    i->is_over |= at->before == 1 && strcmp(at->what, "has ended") == 0;
    bool is_late = n >= i->stop && !i->is_over;
    if (is_late && (at->enabled & 2) != 0) {
        return 1;
    }
    i->n_waits += is_late;
    if (is_late && at->before == 0 && strstr(at->what, "the driver") != NULL) {
        scheduler_found("wrong", "a hit waits for a driver call of another thread");
    }
    return (at->enabled & 1) != 0 ? 0 : 1;
}

/* Returns the most steps for which a hit waited. */
static size_t stop_everywhere(void) {
    size_t most = 0;
    size_t n_steps = 1;
    for (size_t stop = 0; stop < n_steps; stop++) {
        intrusion i = {.stop = stop};
        n_steps = run_once(intrude, &i);
        most = i.n_waits > most ? i.n_waits : most;
    }
    return most;
}

static void measure_delay(uint64_t seed) {
    size_t most = 0;
    rng r = rng_seeded(seed);
    for (size_t i = 0; i < n_any_tasks; i++) {
        if ((any_tasks[i]->marks & IS_SLOW) == 0) {
            now = (program){.tasks = {any_tasks[i], find_task("hit_apart", 9)},
                            .n = 2,
                            .how = any_settings(&r)};
            size_t waited = stop_everywhere();
            most = waited > most ? waited : most;
        }
    }
    command_figure("steps that a hit waited at most", most);
}

static void run_script(const char *order) {
    script s;
    script_begin(&s, order);
    (void)run_once(script_choose, &s);
}

int main(int argc, char **argv) {
    effort it = {.programs = IS_SANITIZED ? 150 : 760, /* what CTest runs */
                 .stops = 2,
                 .most = IS_SANITIZED ? 4 : 8,
                 .random = IS_SANITIZED ? 2 : 4,
                 .seed = 1};
    const char *text = NULL;
    const char *order = NULL;
    bool asks_for_delay = false;
    run_settings how = {.conf = ""};
    const command_option options[] = {
        {"--first", .number = &it.first},
        {"--programs", .number = &it.programs},
        {"--stops", .number = &it.stops},
        {"--most", .number = &it.most},
        {"--random", .number = &it.random},
        {"--seed", .number = &it.seed},
        {"--program", .text = &text, .placeholder = "TASK+TASK"},
        {"--schedule", .schedule = &how.schedule},
        {"--conf", .text = &how.conf, .placeholder = "OPTIONS"},
        {"--delay", .flag = &asks_for_delay},
        {"--order", .text = &order, .placeholder = "STEPS"},
    };
    command_read("orders-run", options, sizeof options / sizeof *options, argc, argv);
    scheduler_init(report);
    find_any_tasks();
    if (asks_for_delay) {
        measure_delay(it.seed);
    } else if (text == NULL) {
        try_all(&it);
    } else {
        read_program(text);
        now.how = how;
        if (order != NULL) {
            run_script(order);
        } else {
            try_program(&it, it.seed);
        }
    }
    command_figure("orders", n_orders);
    command_figure("steps", n_all_steps);
    command_figure("complete searches", n_complete);
    return COMMAND_PASSED;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a thread that makes handles ahead of their need take anything off another one that maps? The
 * driver has a lock, and is not fair with it. And do two that map at once starve one another, and
 * does a lock of our own around driver calls mend it?
 *
 *     driver_lock [--virtual | --device N] [--turns N] [--bursts N] [--seconds N]
 *
 * The caller does what a first tight pass does: bursts of eight requests, each of which creates
 * four handles of 2 MiB, or takes them from the stock, maps them, sets their access and launches
 * four pieces of work; then it works on the host for a while, in which it launches a piece each 20
 * us. Each case takes turns with all others, in an order that goes round. Figures are medians of
 * the turns, with the least and the most; those of a case of two allocators are of one of them.
 * "other" is what the second one had done by the time the first was done, in per cent; or how many
 * rounds the one that never pauses did in a ms, of 8 creates and 8 releases each.
 *
 * Prints a line for each case and turn as it goes, and then the table. Ends with 0 whatever the
 * figures are; 77 without a device; 1 when a call fails.
 */
#include "tests/support/cpu_time.h"
#include "tests/support/program_device.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

enum {
    HANDLE_MIB = 2,
    REQUEST_HANDLES = 4,
    BURST_REQUESTS = 8,
    MOST_BURSTS = 64,
    MOST_REQUESTS = MOST_BURSTS * BURST_REQUESTS,
    MOST_HANDLES = MOST_REQUESTS * REQUEST_HANDLES,
    MOST_TURNS = 16,
    LAUNCHES = 4, /* behind a request */
    LAUNCH_EVERY_NS = 20000,
    LOOK_NS = 100000,
    GREEDY_MIB = 64,
    GREEDY_HANDLES = 8,
    GIVEN_HANDLES = 512 /* idle ones, which the helper is to give back */
};

/* ---- A lock of our own --------------------------------------------------------------------- */

typedef enum lock_kind { LOCK_NONE, LOCK_PLAIN, LOCK_FAIR, LOCK_FAIR_LONG } lock_kind;

/* First come, first served. Who waits looks for a while before it sleeps: a call takes no longer
 * than it takes to wake a thread. */
typedef struct fair_lock {
    pthread_mutex_t mutex;
    pthread_cond_t turned;
    _Atomic uint64_t next, serving;
} fair_lock;

static fair_lock fair = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;

static void sleep_until(uint64_t ticket) {
    (void)pthread_mutex_lock(&fair.mutex);
    while (atomic_load(&fair.serving) != ticket) {
        (void)pthread_cond_wait(&fair.turned, &fair.mutex);
    }
    (void)pthread_mutex_unlock(&fair.mutex);
}

static void fair_acquire(void) {
    uint64_t ticket = atomic_fetch_add(&fair.next, 1);
    if (atomic_load(&fair.serving) == ticket) {
        return;
    }
    for (uint64_t begin = wall_ns(); wall_ns() - begin < LOOK_NS;) {
        if (atomic_load(&fair.serving) == ticket) {
            return;
        }
    }
    sleep_until(ticket);
}

static void fair_release(void) {
    (void)pthread_mutex_lock(&fair.mutex);
    (void)atomic_fetch_add(&fair.serving, 1);
    (void)pthread_cond_broadcast(&fair.turned);
    (void)pthread_mutex_unlock(&fair.mutex);
}

/* Round a call, or round a request: which of the two, the kind says. */
static void lock_round(lock_kind kind, bool is_request) {
    if (kind == LOCK_PLAIN && !is_request) {
        (void)pthread_mutex_lock(&plain);
    } else if (kind == (is_request ? LOCK_FAIR_LONG : LOCK_FAIR)) {
        fair_acquire();
    }
}

static void unlock_round(lock_kind kind, bool is_request) {
    if (kind == LOCK_PLAIN && !is_request) {
        (void)pthread_mutex_unlock(&plain);
    } else if (kind == (is_request ? LOCK_FAIR_LONG : LOCK_FAIR)) {
        fair_release();
    }
}

/* Returns from the caller when the call fails. */
#define LOCKED(kind, call)                                                                         \
    do {                                                                                           \
        lock_round(kind, false);                                                                   \
        ductile_status locked_status = (call);                                                     \
        unlock_round(kind, false);                                                                 \
        NEED(locked_status == DUCTILE_OK, "%s: %s", #call, ductile_status_name(locked_status));    \
    } while (0)

/* ---- The cases ----------------------------------------------------------------------------- */

typedef enum helper_kind { HELPER_NONE, HELPER_MAKES, HELPER_GIVES, HELPER_CHURNS } helper_kind;

typedef enum rival_kind { RIVAL_NONE, RIVAL_SAME, RIVAL_GREEDY } rival_kind;

typedef struct lock_case {
    const char *name;
    helper_kind helper;
    unsigned stock; /* the most handles that are ready            */
    bool is_polite; /* makes no call while the caller makes some  */
    rival_kind rival;
    lock_kind lock;
    unsigned gap_us;
} lock_case;

#define WITH_GAPS(...)                                                                             \
    {__VA_ARGS__, .gap_us = 0}, {__VA_ARGS__, .gap_us = 1000}, {                                   \
        __VA_ARGS__, .gap_us = 5000                                                                \
    }
#define WITH_LOCKS(words, ...)                                                                     \
    {words ", no lock", __VA_ARGS__, .lock = LOCK_NONE},                                           \
        {words ", a mutex round each call", __VA_ARGS__, .lock = LOCK_PLAIN},                      \
        {words ", a fair lock round each call", __VA_ARGS__, .lock = LOCK_FAIR}, {                 \
        words ", a fair lock round each request", __VA_ARGS__, .lock = LOCK_FAIR_LONG              \
    }

static const lock_case cases[] = {
    WITH_GAPS("alone"),
    WITH_GAPS("64 MiB ahead, politely", .helper = HELPER_MAKES, .stock = 32, .is_polite = true),
    WITH_GAPS("256 MiB ahead, politely", .helper = HELPER_MAKES, .stock = 128, .is_polite = true),
    WITH_GAPS("256 MiB ahead, heedless", .helper = HELPER_MAKES, .stock = 128),
    WITH_GAPS("1 GiB given back, politely", .helper = HELPER_GIVES, .is_polite = true),
    WITH_GAPS("creates and releases, heedless", .helper = HELPER_CHURNS),
    WITH_LOCKS("two that map", .rival = RIVAL_SAME, .gap_us = 0),
    WITH_LOCKS("two that map", .rival = RIVAL_SAME, .gap_us = 1000),
    WITH_LOCKS("beside 64 MiB without a pause", .rival = RIVAL_GREEDY, .gap_us = 1000),
};

enum { N_CASES = sizeof cases / sizeof *cases };

typedef struct figures {
    double calls_ms;                    /* all driver calls of the caller for memory        */
    double create_ms;                   /* of them, what it made itself, or took from stock */
    double median_us, p99_us, worst_us; /* of a request                   */
    double launch_us, worst_launch_us;  /* median and worst of a launch   */
    double stocked;                     /* per cent of the handles that were ready          */
    double other; /* per cent that the other had done when it was done; greedy: rounds a ms */
} figures;

/* ---- A stock, and who fills it ------------------------------------------------------------- */

typedef struct lane lane;

typedef struct helper {
    dvmm_driver *driver;
    const lock_case *what;
    pthread_mutex_t mutex; /* of the stock */
    dvmm_phys stock[GIVEN_HANDLES];
    unsigned n;
    _Atomic unsigned inside; /* callers that make driver calls */
    _Atomic bool ends;
    const char *why;
} helper;

static dvmm_phys take_stocked(helper *h) {
    (void)pthread_mutex_lock(&h->mutex);
    dvmm_phys phys = h->n > 0 ? h->stock[--h->n] : 0;
    (void)pthread_mutex_unlock(&h->mutex);
    return phys;
}

/* Only the helper adds, so what it saw as room is room. */
static void put_stocked(helper *h, dvmm_phys phys) {
    (void)pthread_mutex_lock(&h->mutex);
    h->stock[h->n++] = phys;
    (void)pthread_mutex_unlock(&h->mutex);
}

static bool has_room(helper *h) {
    (void)pthread_mutex_lock(&h->mutex);
    bool is_low = h->n < h->what->stock;
    (void)pthread_mutex_unlock(&h->mutex);
    return is_low;
}

static const char *create(dvmm_driver *d, uint64_t mib, dvmm_phys *out) {
    static const dvmm_phys_props props;
    NEED_OK(dvmm_phys_create(d, mib * MIB, &props, out));
    return NULL;
}

/* One call, if there is one to make. */
static const char *help_once(helper *h, bool *did) {
    dvmm_phys phys = 0;
    *did = true;
    if (h->what->helper == HELPER_MAKES && has_room(h)) {
        TRY(create(h->driver, HANDLE_MIB, &phys));
        put_stocked(h, phys);
        return NULL;
    }
    if (h->what->helper == HELPER_GIVES && (phys = take_stocked(h)) != 0) {
        NEED_OK(dvmm_phys_release(h->driver, phys));
        return NULL;
    }
    if (h->what->helper == HELPER_CHURNS) {
        TRY(create(h->driver, HANDLE_MIB, &phys));
        NEED_OK(dvmm_phys_release(h->driver, phys));
        return NULL;
    }
    *did = false;
    return NULL;
}

static void *help(void *user) {
    helper *h = user;
    while (h->why == NULL && !atomic_load(&h->ends)) {
        bool waits = h->what->is_polite && atomic_load(&h->inside) > 0;
        bool did = false;
        h->why = waits ? NULL : help_once(h, &did);
        if (!did) {
            (void)sched_yield();
        }
    }
    return NULL;
}

/* ---- One that maps ------------------------------------------------------------------------- */

struct lane {
    const lock_case *what;
    dvmm_driver *driver;
    helper *helper;
    ductile_stream stream;
    ductile_addr range, target;
    dvmm_phys handles[MOST_HANDLES];
    unsigned n_handles, n_bursts, n_stocked;
    _Atomic unsigned n_requests; /* done */
    lane *other;
    pthread_barrier_t *begin; /* of two that map; NULL: there is no other */
    double request_ns[MOST_REQUESTS];
    double *launch_ns; /* grows */
    size_t n_launches, room;
    uint64_t create_ns, calls_ns;
    double other_done;
    const char *why;
};

static const char *launch(lane *l) {
    if (l->n_launches == l->room) {
        l->room = l->room * 2 + 1024;
        l->launch_ns = realloc(l->launch_ns, l->room * sizeof *l->launch_ns);
        NEED(l->launch_ns != NULL, "no host memory");
    }
    uint64_t begin = wall_ns();
    NEED_OK(dvmm_fill(l->driver, l->target, 1, 4096, l->stream));
    l->launch_ns[l->n_launches++] = (double)(wall_ns() - begin);
    return NULL;
}

static const char *obtain(lane *l, dvmm_phys *out) {
    *out = l->helper != NULL && l->what->helper == HELPER_MAKES ? take_stocked(l->helper) : 0;
    if (*out != 0) {
        l->n_stocked++;
        return NULL;
    }
    static const dvmm_phys_props props;
    LOCKED(l->what->lock, dvmm_phys_create(l->driver, HANDLE_MIB * MIB, &props, out));
    return NULL;
}

static const char *map_request(lane *l) {
    ductile_addr first = l->range + l->n_handles * HANDLE_MIB * MIB;
    lock_kind lock = l->what->lock;
    for (unsigned i = 0; i < REQUEST_HANDLES; i++) {
        dvmm_phys *phys = &l->handles[l->n_handles];
        uint64_t begin = wall_ns();
        TRY(obtain(l, phys));
        l->create_ns += wall_ns() - begin;
        ductile_addr at = l->range + l->n_handles++ * HANDLE_MIB * MIB;
        LOCKED(lock, dvmm_map(l->driver, at, HANDLE_MIB * MIB, *phys));
    }
    LOCKED(lock,
           dvmm_set_access(l->driver, first, REQUEST_HANDLES * HANDLE_MIB * MIB, DVMM_ACCESS_RW));
    return NULL;
}

/* With what it says to the helper, and the lock. */
static const char *serve_request(lane *l) {
    uint64_t begin = wall_ns();
    if (l->helper != NULL) {
        (void)atomic_fetch_add(&l->helper->inside, 1);
    }
    lock_round(l->what->lock, true);
    const char *why = map_request(l);
    unlock_round(l->what->lock, true);
    if (l->helper != NULL) {
        (void)atomic_fetch_sub(&l->helper->inside, 1);
    }
    uint64_t ns = wall_ns() - begin;
    l->calls_ns += ns;
    l->request_ns[atomic_fetch_add(&l->n_requests, 1)] = (double)ns;
    return why;
}

static const char *work_on_host(lane *l) {
    uint64_t begin = wall_ns();
    while (wall_ns() - begin < l->what->gap_us * 1000ull) {
        TRY(launch(l));
        for (uint64_t at = wall_ns(); wall_ns() - at < LAUNCH_EVERY_NS;) {
        }
    }
    return NULL;
}

static const char *run_bursts(lane *l) {
    for (unsigned burst = 0; burst < l->n_bursts; burst++) {
        for (unsigned i = 0; i < BURST_REQUESTS; i++) {
            TRY(serve_request(l));
            for (unsigned k = 0; k < LAUNCHES; k++) {
                TRY(launch(l));
            }
        }
        TRY(work_on_host(l));
    }
    return NULL;
}

static void *run_lane(void *user) {
    lane *l = user;
    if (l->begin != NULL) {
        (void)pthread_barrier_wait(l->begin);
    }
    l->why = run_bursts(l);
    if (l->other != NULL) {
        l->other_done = 100.0 * atomic_load(&l->other->n_requests) /
                        (l->other->n_bursts * (double)BURST_REQUESTS);
    }
    return NULL;
}

static const char *empty_lane(lane *l) {
    NEED_OK(dvmm_stream_sync(l->driver, l->stream));
    if (l->n_handles > 0) {
        NEED_OK(dvmm_unmap(l->driver, l->range, l->n_handles * HANDLE_MIB * MIB));
    }
    while (l->n_handles > 0) {
        NEED_OK(dvmm_phys_release(l->driver, l->handles[--l->n_handles]));
    }
    return NULL;
}

/* ---- The greedy one ------------------------------------------------------------------------ */

typedef struct greedy {
    const lock_case *what;
    dvmm_driver *driver;
    _Atomic bool ends;
    uint64_t rounds;
    const char *why;
} greedy;

static const char *make_and_drop(greedy *g) {
    static const dvmm_phys_props props;
    dvmm_phys handles[GREEDY_HANDLES];
    lock_kind lock = g->what->lock;
    for (unsigned i = 0; i < GREEDY_HANDLES; i++) {
        LOCKED(lock, dvmm_phys_create(g->driver, GREEDY_MIB * MIB, &props, &handles[i]));
    }
    for (unsigned i = 0; i < GREEDY_HANDLES; i++) {
        LOCKED(lock, dvmm_phys_release(g->driver, handles[i]));
    }
    return NULL;
}

static void *be_greedy(void *user) {
    greedy *g = user;
    while (g->why == NULL && !atomic_load(&g->ends)) {
        lock_round(g->what->lock, true);
        g->why = make_and_drop(g);
        unlock_round(g->what->lock, true);
        g->rounds++;
    }
    return NULL;
}

/* ---- A case, once -------------------------------------------------------------------------- */

typedef struct bench {
    program_device on[2]; /* two allocators of one process open it twice, and share its context */
    uint64_t turns, bursts, seconds;
    lane lanes[2];
    helper helper;
    unsigned n_turns;
    figures found[N_CASES][MOST_TURNS];
} bench;

static void reset_lane(lane *l, const lock_case *what, unsigned n_bursts) {
    *l = (lane){.what = what,
                .driver = l->driver,
                .stream = l->stream,
                .range = l->range,
                .target = l->target,
                .launch_ns = l->launch_ns,
                .room = l->room,
                .n_bursts = n_bursts};
}

static const char *start(pthread_t *thread, void *(*body)(void *), void *user) {
    NEED(pthread_create(thread, NULL, body, user) == 0, "no thread");
    return NULL;
}

static const char *prepare_helper(bench *b, const lock_case *what) {
    helper *h = &b->helper;
    h->what = what;
    h->driver = b->on[0].driver;
    h->n = 0;
    h->why = NULL;
    atomic_store(&h->ends, false);
    for (unsigned i = 0; what->helper == HELPER_GIVES && i < GIVEN_HANDLES; i++) {
        dvmm_phys phys = 0;
        TRY(create(h->driver, HANDLE_MIB, &phys));
        put_stocked(h, phys);
    }
    return NULL;
}

static const char *run_helped(bench *b, const lock_case *what) {
    pthread_t thread;
    helper *h = &b->helper;
    lane *l = &b->lanes[0];
    TRY(prepare_helper(b, what));
    l->helper = what->helper != HELPER_NONE ? h : NULL;
    if (l->helper != NULL) {
        TRY(start(&thread, help, h));
    }
    (void)run_lane(l);
    if (l->helper != NULL) {
        atomic_store(&h->ends, true);
        (void)pthread_join(thread, NULL);
    }
    for (dvmm_phys phys; (phys = take_stocked(h)) != 0;) {
        NEED_OK(dvmm_phys_release(h->driver, phys));
    }
    TRY(h->why);
    return l->why;
}

static const char *run_two(bench *b) {
    pthread_t thread;
    pthread_barrier_t begin;
    (void)pthread_barrier_init(&begin, NULL, 2);
    b->lanes[0].other = &b->lanes[1];
    b->lanes[0].begin = b->lanes[1].begin = &begin;
    TRY(start(&thread, run_lane, &b->lanes[1]));
    (void)run_lane(&b->lanes[0]);
    (void)pthread_join(thread, NULL);
    (void)pthread_barrier_destroy(&begin);
    TRY(b->lanes[1].why);
    TRY(empty_lane(&b->lanes[1]));
    return b->lanes[0].why;
}

static const char *run_beside_greedy(bench *b, const lock_case *what) {
    pthread_t thread;
    greedy g = {.what = what, .driver = b->on[1].driver};
    TRY(start(&thread, be_greedy, &g));
    uint64_t begin = wall_ns();
    (void)run_lane(&b->lanes[0]);
    uint64_t ns = wall_ns() - begin;
    atomic_store(&g.ends, true);
    (void)pthread_join(thread, NULL);
    b->lanes[0].other_done = (double)g.rounds * 1e6 / (double)ns;
    TRY(g.why);
    return b->lanes[0].why;
}

/* ---- Figures ------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at_us(const double *sorted, size_t n, double share) {
    return n == 0 ? 0 : sorted[(size_t)((double)(n - 1) * share)] / 1e3;
}

static figures figures_of(lane *l) {
    size_t n = atomic_load(&l->n_requests);
    qsort(l->request_ns, n, sizeof *l->request_ns, by_size);
    qsort(l->launch_ns, l->n_launches, sizeof *l->launch_ns, by_size);
    return (figures){
        .calls_ms = (double)l->calls_ns / 1e6,
        .create_ms = (double)l->create_ns / 1e6,
        .median_us = at_us(l->request_ns, n, 0.5),
        .p99_us = at_us(l->request_ns, n, 0.99),
        .worst_us = at_us(l->request_ns, n, 1),
        .launch_us = at_us(l->launch_ns, l->n_launches, 0.5),
        .worst_launch_us = at_us(l->launch_ns, l->n_launches, 1),
        .stocked = 100.0 * l->n_stocked / (double)(n * REQUEST_HANDLES),
        .other = l->other_done,
    };
}

static const char *run_case(bench *b, size_t index, unsigned turn, unsigned n_bursts) {
    const lock_case *what = &cases[index];
    reset_lane(&b->lanes[0], what, n_bursts);
    reset_lane(&b->lanes[1], what, n_bursts);
    TRY(what->rival == RIVAL_SAME     ? run_two(b)
        : what->rival == RIVAL_GREEDY ? run_beside_greedy(b, what)
                                      : run_helped(b, what));
    TRY(empty_lane(&b->lanes[0]));
    figures f = figures_of(&b->lanes[0]);
    b->found[index][turn] = f;
    (void)printf(
        "# turn %u: %s, %u us: calls %.1f ms, of them creates %.1f; request %.0f, p99 %.0f, "
        "worst %.0f us; launch %.1f, worst %.0f us; ready %.0f %%; other %.1f\n",
        turn + 1, what->name, what->gap_us, f.calls_ms, f.create_ms, f.median_us, f.p99_us,
        f.worst_us, f.launch_us, f.worst_launch_us, f.stocked, f.other);
    (void)fflush(stdout);
    return NULL;
}

/* ---- The table ----------------------------------------------------------------------------- */

/* The figure at that offset: its median, least and most. */
static void print_cell(const figures *turns, unsigned n, size_t offset) {
    double all[MOST_TURNS];
    for (unsigned i = 0; i < n; i++) {
        memcpy(&all[i], (const char *)&turns[i] + offset, sizeof *all);
    }
    qsort(all, n, sizeof *all, by_size);
    int digits = all[n / 2] < 10 ? 1 : 0;
    (void)printf(" | %.*f", digits, all[n / 2]);
    if (n > 1) {
        (void)printf(" (%.*f-%.*f)", digits, all[0], digits, all[n - 1]);
    }
}

static void print_table(const bench *b) {
    static const struct {
        const char *name;
        size_t offset;
    } columns[] = {
        {"driver calls, ms", offsetof(figures, calls_ms)},
        {"creates, ms", offsetof(figures, create_ms)},
        {"request, us", offsetof(figures, median_us)},
        {"p99", offsetof(figures, p99_us)},
        {"worst", offsetof(figures, worst_us)},
        {"launch, us", offsetof(figures, launch_us)},
        {"worst launch", offsetof(figures, worst_launch_us)},
        {"ready, %", offsetof(figures, stocked)},
        {"other", offsetof(figures, other)},
    };
    enum { N = sizeof columns / sizeof *columns };
    (void)printf("\n%u turn%s: median (least-most)\n\n| case | gap, ms", b->n_turns,
                 b->n_turns == 1 ? "" : "s");
    for (size_t k = 0; k < N; k++) {
        (void)printf(" | %s", columns[k].name);
    }
    (void)printf(" |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < N_CASES; i++) {
        (void)printf("| %s | %u", cases[i].name, cases[i].gap_us / 1000);
        for (size_t k = 0; k < N; k++) {
            print_cell(b->found[i], b->n_turns, columns[k].offset);
        }
        (void)printf(" |\n");
    }
}

/* ---- The program --------------------------------------------------------------------------- */

static const char *open_lane(lane *l, dvmm_driver *driver) {
    l->driver = driver;
    NEED_OK(dvmm_stream_create(driver, &l->stream));
    NEED_OK(dvmm_address_reserve(driver, MOST_HANDLES * HANDLE_MIB * MIB, &l->range));
    return program_map(driver, HANDLE_MIB * MIB, &l->target);
}

static const char *open_bench(bench *b) {
    for (int i = 0; i < 2; i++) {
        TRY(program_open_driver(&b->on[i], NULL));
        b->on[1] = i == 0 ? b->on[0] : b->on[1];
        TRY(open_lane(&b->lanes[i], b->on[i].driver));
    }
    (void)pthread_mutex_init(&b->helper.mutex, NULL);
    program_print_head(&b->on[0], "%s", "");
    return NULL;
}

static const char *take_turns(bench *b) {
    uint64_t begin = wall_ns();
    uint64_t longest = 0;
    while (b->n_turns < b->turns && wall_ns() - begin + longest < b->seconds * 1000000000u) {
        uint64_t turn_begin = wall_ns();
        for (size_t i = 0; i < N_CASES; i++) {
            size_t index = (i + (size_t)b->n_turns * 7) % N_CASES;
            TRY(run_case(b, index, b->n_turns, (unsigned)b->bursts));
        }
        uint64_t took = wall_ns() - turn_begin;
        longest = took > longest ? took : longest;
        b->n_turns++;
    }
    return NULL;
}

static const char *run(bench *b) {
    TRY(open_bench(b));
    TRY(take_turns(b));
    print_table(b);
    return NULL;
}

int main(int argc, char **argv) {
    static bench b = {.turns = 5, .bursts = 32, .seconds = 75};
    const command_option options[] = {
        PROGRAM_OPTIONS(&b.on[0]),
        {"--turns", .number = &b.turns},
        {"--bursts", .number = &b.bursts},
        {"--seconds", .number = &b.seconds},
    };
    command_read("driver_lock", options, sizeof options / sizeof *options, argc, argv);
    if (b.turns == 0 || b.turns > MOST_TURNS || b.bursts == 0 || b.bursts > MOST_BURSTS) {
        command_refuse("it takes 1 to 16 turns of 1 to 64 bursts");
    }
    if (b.seconds == 0) {
        command_refuse("it takes at least a second");
    }
    command_end_after(b.seconds * 2 + 60);
    return command_end(run(&b));
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay/gates.h"

#include "bench/base/stopwatch.h"
#include "bench/driver/bench_calls.h"
#include "vmm/base/status.h"

#include <stdlib.h>
#include <time.h>

/* Words of different streams do not share what the device polls. */
enum { WORD_SPACING = 128 / sizeof(uint64_t) };

/* Growth of a pool takes less than the first between two positions of the replay. */
static const uint64_t standstill_ns = 250000000;
static const uint64_t tick_ns = 1000000;
static const uint64_t forcing_tick_ns = 50000;

/* Of this process. */
static _Atomic uint64_t n_standstills;

static bool has_gates(const trace *t) {
    for (size_t i = 0; i < t->n_streams; i++) {
        if (t->streams[i].n_gates > 0) {
            return true;
        }
    }
    return false;
}

/* ---- The watcher (CUDA) -------------------------------------------------------------------- */

/* What the watcher knows of the replay. */
typedef struct sight {
    uint64_t position;
    uint64_t since_ns; /* when it was first seen there */
    bool is_forced;    /* gates were opened since */
} sight;

static void sleep_ns(uint64_t ns) {
    struct timespec span = {.tv_nsec = (long)ns};
    (void)nanosleep(&span, NULL);
}

/* Both threads write words; a word only ever rises. */
static void raise_word(uint64_t *word, uint64_t value) {
    uint64_t now = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (now < value && !__atomic_compare_exchange_n(word, &now, value, false, __ATOMIC_RELEASE,
                                                       __ATOMIC_RELAXED)) {
    }
}

static bool force_next_gates(gates *g) {
    bool found = false;
    for (size_t i = 0; i < g->n_lines; i++) {
        gate_line *line = &g->lines[i];
        uint64_t opened = __atomic_load_n(line->word, __ATOMIC_RELAXED);
        if (opened < atomic_load(&line->n_closed)) {
            raise_word(line->word, opened + 1);
            atomic_fetch_add(&g->n_forced, 1);
            found = true;
        }
    }
    return found;
}

static void look(gates *g, sight *last) {
    uint64_t again_ns = g->patience.again_ns;
    uint64_t patience_ns = again_ns > 0 && n_standstills > 0 ? again_ns : standstill_ns;
    uint64_t now = host_now_ns();
    uint64_t position = atomic_load(&g->position);
    if (position != last->position) {
        if (last->is_forced) {
            atomic_fetch_add(&g->waited_ns, now - last->since_ns);
            n_standstills++;
        }
        *last = (sight){.position = position, .since_ns = now};
    } else if (now - last->since_ns >= patience_ns && force_next_gates(g)) {
        last->is_forced = true;
    }
}

static void *watch(void *self) {
    gates *g = self;
    sight last = {.since_ns = host_now_ns()};
    while (!atomic_load(&g->stop_watching)) {
        sleep_ns(last.is_forced ? forcing_tick_ns : tick_ns);
        look(g, &last);
    }
    return NULL;
}

static ductile_status start_watcher(gates *g) {
    if (pthread_create(&g->watcher, NULL, watch, g) != 0) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    g->is_watched = true;
    return DUCTILE_OK;
}

static void stop_watcher(gates *g) {
    if (g->is_watched) {
        atomic_store(&g->stop_watching, true);
        (void)pthread_join(g->watcher, NULL);
        g->is_watched = false;
    }
}

/* ---- Making and dropping ------------------------------------------------------------------- */

static ductile_status make_words(gates *g) {
    size_t size = g->n_lines * WORD_SPACING * sizeof(uint64_t);
    DTI_TRY(bench_host_alloc(g->on->driver, size, &g->words));
    uint64_t *words = g->words;
    for (size_t i = 0; i < g->n_lines; i++) {
        g->lines[i].word = &words[i * WORD_SPACING];
        *g->lines[i].word = 0;
    }
    return start_watcher(g);
}

static ductile_status make_events(gates *g, gate_line *line, uint64_t n) {
    line->events = calloc(n, sizeof *line->events);
    if (line->events == NULL && n > 0) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    while (line->capacity < n) {
        DTI_TRY(dvmm_event_create(g->on->driver, &line->events[line->capacity]));
        line->capacity++;
    }
    return DUCTILE_OK;
}

static ductile_status make_lines(gates *g, const trace *t) {
    for (size_t i = 0; i < g->n_lines; i++) {
        DTI_TRY(make_events(g, &g->lines[i], t->streams[i].max_closed_gates));
    }
    return g->on->gpu == NULL ? make_words(g) : DUCTILE_OK;
}

ductile_status gates_init(gates *g, const testbed *on, const trace *t, gates_patience patience) {
    *g = (gates){.on = on, .patience = patience};
    if (!has_gates(t)) {
        return DUCTILE_OK;
    }
    if (on->gpu == NULL && !bench_has_wait_value(on->driver)) {
        return DUCTILE_ERR_UNSUPPORTED;
    }
    g->lines = calloc(t->n_streams, sizeof *g->lines);
    if (g->lines == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    g->n_lines = t->n_streams;
    ductile_status status = make_lines(g, t);
    if (status != DUCTILE_OK) {
        gates_fini(g);
    }
    return status;
}

void gates_fini(gates *g) {
    (void)gates_end_pass(g);
    stop_watcher(g);
    for (size_t i = 0; i < g->n_lines; i++) {
        gate_line *line = &g->lines[i];
        while (line->capacity > 0) {
            (void)dvmm_event_destroy(g->on->driver, line->events[--line->capacity]);
        }
        free(line->events);
    }
    if (g->words != NULL) {
        (void)bench_host_free(g->on->driver, g->words);
    }
    free(g->lines);
    g->lines = NULL;
    g->words = NULL;
    g->n_lines = 0;
}

/* ---- Closing and opening ------------------------------------------------------------------- */

static dvmm_event event_of(const gate_line *line, uint64_t number) {
    return line->events[number % line->capacity];
}

ductile_status gates_close(gates *g, size_t stream, uint64_t number) {
    gate_line *line = &g->lines[stream];
    ductile_stream in = g->on->streams[stream];
    number += line->base;
    if (g->patience.most_forced > 0 && n_standstills >= g->patience.most_forced) {
        atomic_store(&line->n_closed, number);
        return DUCTILE_OK;
    }
    ductile_status status = g->on->gpu != NULL
                                ? testbed_launch_lazy(g->on, in, NULL)
                                : bench_stream_wait_value(g->on->driver, in, line->word, number);
    if (status == DUCTILE_OK) {
        atomic_store(&line->n_closed, number);
    }
    return status;
}

/* Behind what the contender recorded: once this event is done, the contender sees its own done. */
ductile_status gates_mark(gates *g, size_t stream, uint64_t number) {
    gate_line *line = &g->lines[stream];
    return dvmm_event_record(g->on->driver, event_of(line, line->base + number),
                             g->on->streams[stream]);
}

static ductile_status open_line(const gates *g, gate_line *line, uint64_t number) {
    if (number <= line->n_opened) {
        return DUCTILE_OK;
    }
    line->n_opened = number;
    if (line->word != NULL) {
        raise_word(line->word, number);
    }
    return dvmm_event_sync(g->on->driver, event_of(line, number));
}

ductile_status gates_open(gates *g, size_t stream, uint64_t n) {
    gate_line *line = &g->lines[stream];
    return n == 0 ? DUCTILE_OK : open_line(g, line, line->base + n);
}

ductile_status gates_end_pass(gates *g) {
    ductile_status first = DUCTILE_OK;
    for (size_t i = 0; i < g->n_lines; i++) {
        gate_line *line = &g->lines[i];
        uint64_t n_closed = atomic_load(&line->n_closed);
        ductile_status status = open_line(g, line, n_closed);
        first = first == DUCTILE_OK ? status : first;
        line->base = n_closed;
    }
    return first;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay/replay_engine.h"

#include "bench/base/progress_line.h"
#include "bench/base/stopwatch.h"
#include "bench/replay/testbed.h"
#include "bench/replay/timed_contender.h"
#include "vmm/base/status.h"

#include <ductile_virtual.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How often a terminal shows the progress of a pass. */
enum { PROGRESS_PARTS = 50 };

/* How many events of an array that lies in a file are in memory at a time. */
enum { EVENTS_AT_A_TIME = 1 << 16 };

/* How often the loop's own cost is measured before each pass; the least counts. */
enum { LOOP_TRIALS = 3 };

/* One replay under way. addresses[slot] is 0 unless the slot is live. */
typedef struct replay {
    const replay_spec *spec;
    const trace *trace; /* of the current pass */
    replay_result *result;
    testbed bed;
    gates gates;
    const contender_ops *ops; /* what the loop calls: the testbed's, or one that times each call */
    void *contender;
    contender_ops timed_ops; /* with times_calls */
    timed_contender timed;
    ductile_addr *addresses;
    bool *keeps;              /* by pool of the trace: whether the program keeps it */
    ductile_addr *kept;       /* by what the trace's pools held before */
    uint16_t pool;            /* that requests belong to */
    stopwatch watch;          /* runs while the contender works in the current pass */
    double *times;            /* of each pass, own ns per operation */
    uint64_t pass;            /* counted from 0 */
    uint64_t n_events_before; /* of the passes before it */
    size_t next_sample;
    uint64_t n_ops; /* of the current pass */
} replay;

/* ---- Failing ------------------------------------------------------------------------------- */

static const char *verb_of(const trace_event *event) {
    switch ((trace_kind)event->kind) {
    case TRACE_ALLOC:
        return "alloc";
    case TRACE_USE:
        return "record_stream";
    case TRACE_FREE:
    case TRACE_FREE_GATED:
        return "free";
    case TRACE_STREAM_END:
        return "the end of a stream";
    case TRACE_POOL_END:
        return "the end of a pool";
    case TRACE_OPEN:
    case TRACE_STEP:
        break;
    }
    return "completion";
}

static void note_stop(replay *r, size_t event, ductile_status status) {
    replay_result *result = r->result;
    result->stopped_at_event = event;
    result->stopped_in_pass = r->pass + 1;
    result->outcome = run_outcome_of(status);
    if (result->outcome == RUN_OUT_OF_MEMORY) {
        return;
    }
    const trace_event *at = &r->trace->events[event];
    (void)snprintf(result->message, sizeof result->message, "%s at event %zu of pass %llu: %s",
                   verb_of(at), event + 1, (unsigned long long)r->pass + 1,
                   ductile_status_string(status));
}

static bool fail(replay *r, const char *what, ductile_status status) {
    r->result->outcome = RUN_FAILED;
    (void)snprintf(r->result->message, sizeof r->result->message, "%s: %s", what,
                   ductile_status_string(status));
    return false;
}

/* ---- The loop ------------------------------------------------------------------------------ */

/* Only for --check: the owner writes its whole block, so that the device detects earlier work that
 * still uses the memory. */
static ductile_status write_block(replay *r, const trace_event *event) {
    const testbed *bed = &r->bed;
    const ductile_virtual_use use = {
        .address = r->addresses[event->slot], .size = event->size, .writes = 1};
    stopwatch_stop(&r->watch);
    ductile_virtual_block_begin(bed->gpu, use.address, use.size);
    ductile_status status = ductile_virtual_launch(bed->gpu, bed->streams[event->stream], &use, 1);
    stopwatch_start(&r->watch);
    return status;
}

/* Only for --check. */
static void end_block(replay *r, ductile_addr address) {
    stopwatch_stop(&r->watch);
    ductile_virtual_block_end(r->bed.gpu, address);
    stopwatch_start(&r->watch);
}

static const trace_gate *gates_of(const replay *r, const trace_event *event) {
    return &r->trace->gates[event->size];
}

typedef ductile_status (*gate_fn)(gates *g, size_t stream, uint64_t number);

/* The clock stands still meanwhile: gates are the bench's, not the contender's. */
static ductile_status for_each_gate(replay *r, const trace_event *event, gate_fn visit) {
    const trace_gate *gate = gates_of(r, event);
    ductile_status status = DUCTILE_OK;
    stopwatch_stop(&r->watch);
    for (size_t i = 0; status == DUCTILE_OK && i < event->stream; i++) {
        status = visit(&r->gates, gate[i].stream, gate[i].number);
    }
    stopwatch_start(&r->watch);
    return status;
}

static ductile_status record_uses(replay *r, const trace_event *event) {
    const trace_gate *gate = gates_of(r, event);
    ductile_status status = DUCTILE_OK;
    for (size_t i = 0; status == DUCTILE_OK && i < event->stream; i++) {
        if (gate[i].says_use) {
            status = r->ops->record_stream(r->contender, r->addresses[event->slot],
                                           r->bed.streams[gate[i].stream]);
        }
    }
    return status;
}

/* What record_stream and free cost belongs to the contender. */
static ductile_status free_gated(replay *r, const trace_event *event) {
    DTI_TRY(for_each_gate(r, event, gates_close));
    if (r->spec->checks) {
        end_block(r, r->addresses[event->slot]);
    }
    ductile_status status = record_uses(r, event);
    if (status == DUCTILE_OK) {
        status = r->ops->free(r->contender, r->addresses[event->slot]);
    }
    ductile_status marked = for_each_gate(r, event, gates_mark);
    r->addresses[event->slot] = 0;
    return status == DUCTILE_OK ? marked : status;
}

/* On the virtual GPU the stream reads the block, at the time that the run's pace sets: memory that
 * is taken away too early makes the device fail. */
static ductile_status use_block(replay *r, const trace_event *event) {
    const testbed *bed = &r->bed;
    ductile_stream stream = bed->streams[event->stream];
    ductile_addr address = r->addresses[event->slot];
    ductile_status status = DUCTILE_OK;
    if (bed->gpu != NULL) {
        const ductile_virtual_use use = {.address = address, .size = event->size};
        stopwatch_stop(&r->watch);
        status = ductile_virtual_launch(bed->gpu, stream, &use, 1);
        stopwatch_start(&r->watch);
    }
    return status == DUCTILE_OK ? r->ops->record_stream(r->contender, address, stream) : status;
}

/* Under a contender that knows no ends the stream goes on. */
static ductile_status end_stream(replay *r, const trace_event *event) {
    testbed *bed = &r->bed;
    if (r->ops->stream_done == NULL) {
        return DUCTILE_OK;
    }
    ductile_status status = event->size != 0
                                ? r->ops->stream_done(r->contender, bed->streams[event->stream])
                                : DUCTILE_OK;
    stopwatch_stop(&r->watch);
    ductile_status renewed = testbed_renew_stream(bed, event->stream);
    stopwatch_start(&r->watch);
    return status == DUCTILE_OK ? renewed : status;
}

/* Under a contender without pools every request belongs to none. The clock stands still meanwhile:
 * programs open a pool around many requests, and others may come between them. */
static ductile_status use_pool(replay *r, uint16_t pool) {
    const trace *t = r->trace;
    const ductile_pool_id none = {0};
    ductile_pool_id from = r->pool != 0 ? t->pools.ids[r->pool - 1] : none;
    ductile_pool_id to = pool != 0 ? t->pools.ids[pool - 1] : none;
    if (r->ops->use_pool != NULL) {
        stopwatch_stop(&r->watch);
        ductile_status status = r->ops->use_pool(r->contender, from, to);
        stopwatch_start(&r->watch);
        if (status != DUCTILE_OK) {
            return status;
        }
        r->keeps[pool] = pool != 0;
    }
    r->pool = pool;
    return DUCTILE_OK;
}

static ductile_status end_pool(replay *r, uint16_t pool) {
    DTI_TRY(r->pool == pool ? use_pool(r, 0) : DUCTILE_OK);
    if (!r->keeps[pool]) {
        return DUCTILE_OK;
    }
    r->keeps[pool] = false;
    return r->ops->end_pool(r->contender, r->trace->pools.ids[pool - 1]);
}

/* Plays events [first, end). What the loop itself costs is taken off its times, and all that can be
 * computed before is. */
static bool play(replay *r, size_t first, size_t end) {
    const trace_event *events = r->trace->events;
    const contender_ops *ops = r->ops;
    void *contender = r->contender;
    ductile_addr *addresses = r->addresses;
    const ductile_stream *streams = r->bed.streams;
    const bool checks = r->spec->checks;
    for (size_t i = first; i < end; i++) {
        const trace_event *event = &events[i];
        ductile_status status = DUCTILE_OK;
        gates_note_position(&r->gates, i);
        switch ((trace_kind)event->kind) {
        case TRACE_ALLOC:
            if (__builtin_expect(event->pool != r->pool, 0)) {
                status = use_pool(r, event->pool);
            }
            if (status == DUCTILE_OK) {
                status = ops->alloc(contender, event->size, streams[event->stream],
                                    &addresses[event->slot]);
            }
            if (checks && status == DUCTILE_OK) {
                status = write_block(r, event);
            }
            break;
        case TRACE_USE:
            status = use_block(r, event);
            break;
        case TRACE_FREE:
            if (checks) {
                end_block(r, addresses[event->slot]);
            }
            status = ops->free(contender, addresses[event->slot]);
            addresses[event->slot] = 0;
            break;
        case TRACE_FREE_GATED:
            status = free_gated(r, event);
            break;
        case TRACE_OPEN:
            status = for_each_gate(r, event, gates_open);
            break;
        case TRACE_STREAM_END:
            status = end_stream(r, event);
            break;
        case TRACE_POOL_END:
            status = end_pool(r, event->pool);
            break;
        case TRACE_STEP: /* never in a finished trace */
            break;
        }
        if (__builtin_expect(status != DUCTILE_OK, 0)) {
            if (event->kind == TRACE_ALLOC) {
                addresses[event->slot] = 0;
            }
            note_stop(r, i, status);
            return false;
        }
    }
    return true;
}

/* ---- What the loop costs ------------------------------------------------------------------- */

static ductile_status alloc_nothing(void *self, uint64_t size, ductile_stream stream,
                                    ductile_addr *out) {
    (void)self;
    (void)stream;
    *out = size;
    return DUCTILE_OK;
}

static ductile_status free_nothing(void *self, ductile_addr address) {
    (void)self;
    (void)address;
    return DUCTILE_OK;
}

static bool is_plain(const trace_event *event) {
    return event->kind == TRACE_ALLOC || event->kind == TRACE_FREE;
}

/* Plays the allocations and plain frees of events [0, end), and returns their number. */
static uint64_t play_plain(replay *r, size_t end) {
    const trace_event *events = r->trace->events;
    uint64_t n_played = 0;
    for (size_t at = 0; at < end;) {
        size_t first = at;
        while (at < end && is_plain(&events[at])) {
            at++;
        }
        (void)play(r, first, at);
        n_played += at - first;
        at += at < end;
    }
    return n_played;
}

/* With a contender that does nothing, on the first events of the trace. Least of a few trials: what
 * is taken off is rather too little. Right before the pass, since a busy neighbour slows both.
 * Leaves all slots empty. */
static double measure_loop(replay *r) {
    static const contender_ops nothing = {.alloc = alloc_nothing, .free = free_nothing};
    const contender_ops *ops = r->ops;
    const trace *t = r->trace;
    size_t end = t->n_events < EVENTS_AT_A_TIME ? t->n_events : EVENTS_AT_A_TIME;
    double least = 0;
    r->ops = &nothing;
    for (int i = 0; i < LOOP_TRIALS; i++) {
        r->watch = (stopwatch){0};
        stopwatch_start(&r->watch);
        uint64_t n = play_plain(r, end);
        stopwatch_stop(&r->watch);
        double ns = n > 0 ? (double)stopwatch_total_ns(&r->watch) / (double)n : 0;
        least = i == 0 || ns < least ? ns : least;
        memset(r->addresses, 0, t->n_slots * sizeof *r->addresses);
    }
    r->ops = ops;
    r->pool = 0;
    return least;
}

/* ---- Between stretches of the loop --------------------------------------------------------- */

static bool wants_sample(const replay *r) {
    const replay_watch *watch = r->spec->watch;
    return watch != NULL && watch->sample != NULL && r->next_sample < r->trace->n_samples;
}

/* Whether work completes as the replay goes on. */
static bool is_paced(const replay *r) {
    ductile_schedule schedule = r->spec->plan.pace.schedule;
    return r->bed.gpu != NULL &&
           (schedule == DUCTILE_SCHEDULE_LAGGING || schedule == DUCTILE_SCHEDULE_RANDOM);
}

/* Where the loop has to stop next. */
static size_t next_stop(const replay *r, size_t at) {
    const trace *t = r->trace;
    size_t stop = t->n_events;
    if (is_paced(r)) {
        return at + 1;
    }
    if (progress_is_shown() && t->n_events / PROGRESS_PARTS > 0) {
        size_t part = t->n_events / PROGRESS_PARTS;
        stop = (at / part + 1) * part;
    }
    if (t->events_file.bytes > 0 && (at / EVENTS_AT_A_TIME + 1) * EVENTS_AT_A_TIME < stop) {
        stop = (at / EVENTS_AT_A_TIME + 1) * EVENTS_AT_A_TIME;
    }
    if (wants_sample(r) && t->samples[r->next_sample].event + 1 < stop) {
        stop = t->samples[r->next_sample].event + 1;
    }
    return stop < t->n_events ? stop : t->n_events;
}

/* Of many passes, every n-th pair of samples: a run has about as many as one pass. */
static void move_to_next_sample(replay *r) {
    bool is_second = r->next_sample % 2 == 1;
    r->next_sample += is_second ? 2 * (size_t)r->spec->n_passes - 1 : 1;
}

static replay_moment look(const replay *r, size_t event, uint64_t live_bytes) {
    replay_moment now = {.event = r->n_events_before + event,
                         .live_bytes = live_bytes,
                         .contender = r->bed.contender,
                         .addresses = r->addresses,
                         .keeps = r->keeps,
                         .streams = r->bed.streams};
    r->bed.ops->stats(r->bed.contender, &now.stats);
    return now;
}

static void take_sample(replay *r) {
    const replay_watch *watch = r->spec->watch;
    const trace_sample *sample = &r->trace->samples[r->next_sample];
    replay_moment now = look(r, sample->event, sample->live_bytes);
    watch->sample(watch->user, r->spec, &now);
    move_to_next_sample(r);
}

static void show_stop(const replay *r) {
    const replay_watch *watch = r->spec->watch;
    if (watch != NULL && watch->stop != NULL && r->result->outcome == RUN_OUT_OF_MEMORY) {
        replay_moment now = look(r, (size_t)r->result->stopped_at_event, 0);
        watch->stop(watch->user, r->spec, &now);
    }
}

/* Events up to `at` have been played; the clock stands still. */
static void between(replay *r, size_t at) {
    const replay_spec *spec = r->spec;
    if (is_paced(r)) {
        ductile_virtual_advance(r->bed.gpu, 1);
    }
    if (at % EVENTS_AT_A_TIME == 0) {
        spill_rest(&r->trace->events_file);
        spill_rest(&r->trace->gates_file);
    }
    while (wants_sample(r) && r->trace->samples[r->next_sample].event < at) {
        take_sample(r);
    }
    progress_show(spec->trace->name, spec->plan.contender->name, r->pass + 1, spec->n_passes,
                  at * 100 / r->trace->n_events);
}

static uint64_t count_ops(const trace *t, size_t end) {
    uint64_t n = 0;
    for (size_t i = 0; i < end; i++) {
        uint16_t kind = t->events[i].kind;
        n += kind == TRACE_ALLOC || kind == TRACE_FREE || kind == TRACE_FREE_GATED;
        if (spill_is_time(i)) {
            spill_rest(&t->events_file);
        }
    }
    return n;
}

/* What pools held before is asked for as a whole, and is free before the first event. A refusal
 * counts as that of the first event. */
static bool hold_kept(replay *r) {
    const trace *t = r->trace;
    ductile_status status = DUCTILE_OK;
    size_t n = 0;
    while (status == DUCTILE_OK && n < t->n_kept && r->ops->use_pool != NULL) {
        const trace_kept *kept = &t->kept[n];
        status = use_pool(r, kept->pool);
        if (status == DUCTILE_OK) {
            status = r->bed.ops->alloc(r->bed.contender, kept->size, r->bed.streams[kept->stream],
                                       &r->kept[n]);
            n += status == DUCTILE_OK;
        }
    }
    while (n > 0) {
        ductile_status freed = r->bed.ops->free(r->bed.contender, r->kept[--n]);
        status = status == DUCTILE_OK ? freed : status;
    }
    if (status != DUCTILE_OK) {
        note_stop(r, 0, status);
    }
    return status == DUCTILE_OK;
}

static bool play_all(replay *r) {
    const trace *t = r->trace;
    bool ok = hold_kept(r);
    r->watch = (stopwatch){0};
    r->next_sample = 0;
    for (size_t at = 0; ok && at < t->n_events;) {
        size_t stop = next_stop(r, at);
        stopwatch_start(&r->watch);
        ok = play(r, at, stop);
        stopwatch_stop(&r->watch);
        at = stop;
        between(r, at);
    }
    if (!ok) {
        show_stop(r);
    }
    r->n_ops = ok ? t->n_ops : count_ops(t, (size_t)r->result->stopped_at_event);
    return ok;
}

/* ---- Passes -------------------------------------------------------------------------------- */

static ductile_status free_everything(replay *r) {
    ductile_status first = gates_end_pass(&r->gates);
    for (uint32_t slot = 0; slot < r->trace->n_slots; slot++) {
        if (r->addresses[slot] != 0) {
            if (r->spec->checks) {
                ductile_virtual_block_end(r->bed.gpu, r->addresses[slot]);
            }
            ductile_status status = r->bed.ops->free(r->bed.contender, r->addresses[slot]);
            first = first == DUCTILE_OK ? status : first;
            r->addresses[slot] = 0;
        }
    }
    return first;
}

/* The program is over, and with it its pools. */
static ductile_status end_pools(replay *r) {
    ductile_status first = use_pool(r, 0);
    for (size_t pool = 1; pool <= r->trace->pools.n; pool++) {
        ductile_status status = end_pool(r, (uint16_t)pool);
        first = first == DUCTILE_OK ? status : first;
    }
    return first;
}

/* What was counted since `before`; peaks and levels stay. */
static contender_stats since(const contender_stats *before, const contender_stats *now) {
    contender_stats delta = *now;
#define TAKE_OFF(name) delta.name -= before->name;
    CONTENDER_COUNTS_MAP(TAKE_OFF)
    TAKE_OFF(driver_time_ns)
    TAKE_OFF(driver_host_ns)
#undef TAKE_OFF
    return delta;
}

/* A host wait for another stream lasts as long as that stream's work, of which a replay has none;
 * what it waited for the watcher instead is no cost of the contender. */
static void take_off_waiting(replay_pass *pass, uint64_t waited_ns) {
    pass->waited_ns = waited_ns;
    pass->host_ns = ns_less(pass->host_ns, waited_ns);
    pass->stats.driver_time_ns = ns_less(pass->stats.driver_time_ns, waited_ns);
    pass->stats.driver_host_ns = ns_less(pass->stats.driver_host_ns, waited_ns);
}

static void add_pass(replay_pass *all, const replay_pass *pass) {
    const contender_stats *before = &all->stats;
    contender_stats stats = pass->stats; /* peaks and levels are the latest */
#define ADD(name) stats.name += before->name;
    CONTENDER_COUNTS_MAP(ADD)
    ADD(driver_time_ns)
    ADD(driver_host_ns)
#undef ADD
    *all = (replay_pass){.stats = stats,
                         .ops = all->ops + pass->ops,
                         .host_ns = all->host_ns + pass->host_ns,
                         .waited_ns = all->waited_ns + pass->waited_ns};
}

static double own_ns(const replay_pass *pass) {
    return (double)ns_less(pass->host_ns, pass->stats.driver_host_ns);
}

static double per_op(const replay_pass *pass, double ns) {
    return pass->ops > 0 ? ns / (double)pass->ops : 0;
}

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median ignores the few passes that a shared machine disturbs. */
static double median(double *times, uint64_t n) {
    qsort(times, (size_t)n, sizeof *times, compare_times);
    return (times[(n - 1) / 2] + times[n / 2]) / 2;
}

/* The first pass is cold; the others are warm, and summarized together at the end. */
static void end_cold_calls(replay *r) {
    if (r->pass == 0) {
        r->result->cold_calls = call_times_summarize(&r->timed.times);
        r->timed.times.n = 0;
    }
}

static bool run_pass(replay *r) {
    replay_result *result = r->result;
    contender_stats before = {0};
    uint64_t waited_before = atomic_load(&r->gates.waited_ns);
    result->loop_ns_per_op = r->spec->checks || r->spec->plan.is_untimed ? 0 : measure_loop(r);
    r->bed.ops->stats(r->bed.contender, &before);
    bool ok = play_all(r);
    r->bed.ops->stats(r->bed.contender, &result->total);
    uint64_t loop_ns = (uint64_t)(result->loop_ns_per_op * (double)r->n_ops);
    result->last = (replay_pass){.stats = since(&before, &result->total),
                                 .ops = r->n_ops,
                                 .host_ns = ns_less(stopwatch_total_ns(&r->watch), loop_ns)};
    take_off_waiting(&result->last, atomic_load(&r->gates.waited_ns) - waited_before);
    add_pass(&result->all, &result->last);
    end_cold_calls(r);
    if (r->pass == 0) {
        result->first = result->last;
    }
    ductile_status status = free_everything(r);
    ductile_status ended = end_pools(r);
    status = status == DUCTILE_OK ? ended : status;
    if (ok && status != DUCTILE_OK) {
        return fail(r, "the frees at the end of a pass", status);
    }
    return ok;
}

static bool has_time(const replay *r) {
    return r->pass < 2 || r->spec->until_ns == 0 || host_now_ns() < r->spec->until_ns;
}

static void run_passes(replay *r) {
    bool ok = true;
    r->result->outcome = RUN_COMPLETED;
    for (r->pass = 0; ok && r->pass < r->spec->n_passes && has_time(r); r->pass++) {
        ok = run_pass(r);
        r->times[r->pass] = per_op(&r->result->last, own_ns(&r->result->last));
        r->n_events_before += r->trace->n_events;
        r->trace = r->trace->next_pass != NULL ? r->trace->next_pass : r->trace;
    }
    uint64_t cold = r->pass > 1 ? 1 : 0;
    r->result->n_passes = r->pass;
    r->result->warm_calls = call_times_summarize(&r->timed.times);
    r->result->ns_per_op = median(r->times + cold, r->pass - cold);
    r->result->forced_gates = atomic_load(&r->gates.n_forced);
}

/* Room for one pass, or for all later ones together. */
static bool choose_ops(replay *r) {
    r->ops = r->bed.ops;
    r->contender = r->bed.contender;
    if (!r->spec->times_calls) {
        return true;
    }
    r->timed = (timed_contender){.inner = r->bed.ops,
                                 .contender = r->bed.contender,
                                 .is_virtual = r->bed.gpu != NULL,
                                 .waited_ns = &r->gates.waited_ns};
    r->timed_ops = timed_contender_ops(r->bed.ops);
    r->ops = &r->timed_ops;
    r->contender = &r->timed;
    size_t n_warm = (size_t)r->spec->n_passes - 1;
    return call_times_reserve(&r->timed.times, (size_t)r->trace->n_ops * (n_warm > 1 ? n_warm : 1));
}

static void run_on_testbed(replay *r) {
    const trace *t = r->trace; /* its bounds are those of all passes */
    ductile_status status = DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    r->addresses = calloc((size_t)t->n_slots + 1, sizeof *r->addresses);
    r->kept = calloc(t->n_kept + 1, sizeof *r->kept);
    r->keeps = calloc(t->pools.n + 1, sizeof *r->keeps);
    r->times = calloc((size_t)r->spec->n_passes, sizeof *r->times);
    if (r->addresses != NULL && r->kept != NULL && r->keeps != NULL && r->times != NULL &&
        choose_ops(r)) {
        status = gates_init(&r->gates, &r->bed, t, r->spec->patience);
    }
    if (status == DUCTILE_OK) {
        run_passes(r);
        gates_fini(&r->gates);
    } else {
        (void)fail(r, "the replay cannot start", status);
    }
    call_times_drop(&r->timed.times);
    free(r->times);
    free(r->kept);
    free(r->keeps);
    free(r->addresses);
}

void replay_run(const replay_spec *spec, replay_result *result) {
    replay r = {.spec = spec, .trace = spec->trace, .result = result};
    testbed_plan plan = spec->plan;
    plan.detects = spec->checks;
    plan.n_streams = spec->trace->n_streams;
    *result = (replay_result){0};
    ductile_status status = testbed_open(&r.bed, &plan, result->message, sizeof result->message);
    if (status == DUCTILE_OK) {
        run_on_testbed(&r);
        testbed_end_contender(&r.bed);
        result->violations =
            testbed_violations(&r.bed, result->last_violation, sizeof result->last_violation);
        testbed_close(&r.bed);
    } else {
        result->outcome = run_outcome_unopened(status);
    }
    progress_clear();
}

/* ---- Looking ------------------------------------------------------------------------------- */

uint16_t replay_pool_of(const replay_spec *spec, const replay_moment *now,
                        const contender_span *span) {
    uint16_t pool = trace_pools_find(&spec->trace->pools, span->pool);
    return now->keeps[pool] ? pool : 0;
}

/* ---- Figures ------------------------------------------------------------------------------- */

double replay_wall_ns(const replay_pass *pass, bool is_virtual) {
    const contender_stats *stats = &pass->stats;
    return own_ns(pass) + (double)(is_virtual ? stats->driver_time_ns : stats->driver_host_ns);
}

double replay_wall_ns_per_op(const replay_pass *pass, bool is_virtual) {
    return per_op(pass, replay_wall_ns(pass, is_virtual));
}

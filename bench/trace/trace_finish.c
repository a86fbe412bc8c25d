/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace_finish.h"

#include "bench/base/array.h"

#include <stdlib.h>
#include <string.h>

static const char no_memory[] = "the host has no memory left";

/* What is known of a gate until it opens. */
typedef struct gate_node {
    size_t next; /* of its stream */
    bool is_open;
} gate_node;

/* The gates of one stream that are not open yet, oldest first: a stream passes them in order. */
typedef struct gate_queue {
    size_t head, tail; /* indexes of gates; valid while n_closed > 0 */
    uint64_t n_closed, n_opened;
} gate_queue;

/* One pass over the gathered events that rewrites them in place: an event never moves up. */
typedef struct finisher {
    trace_builder *from;
    trace *to;
    uint8_t rank[TRACE_MAX_STREAMS]; /* from order of appearance to order of number */
    gate_queue queues[TRACE_MAX_STREAMS];
    size_t gates_capacity;
    gate_node *nodes; /* one for each gate of the trace */
    size_t nodes_capacity;
    spill nodes_file;
    uint32_t *free_slots;
    size_t n_free_slots;
    uint64_t live;
    size_t n_written;
    trace_sample low, high; /* of the current part of the trace */
    size_t next_refusal, next_change;
} finisher;

static void rank_streams(finisher *f) {
    trace *to = f->to;
    to->n_streams = f->from->n_streams;
    memcpy(to->streams, f->from->streams, sizeof to->streams);
    qsort(to->streams, to->n_streams, sizeof to->streams[0], array_by_number);
    for (size_t old = 0; old < to->n_streams; old++) {
        size_t rank = 0;
        while (to->streams[rank].number != f->from->streams[old].number) {
            rank++;
        }
        f->rank[old] = (uint8_t)rank;
    }
    for (size_t i = 0; i < f->from->n_kept; i++) {
        f->from->kept[i].stream = f->rank[f->from->kept[i].stream];
    }
}

/* Version 1 does not say who else uses a block: the stream with the next higher number, or the
 * lowest (number 0, where a trace has one) if no stream follows. */
static uint8_t other_stream(const finisher *f, uint8_t stream) {
    return (uint8_t)(stream + 1u < f->to->n_streams ? stream + 1u : 0);
}

static void write_event(finisher *f, trace_event event) {
    f->from->events[f->n_written++] = event;
    f->to->n_ops +=
        event.kind == TRACE_ALLOC || event.kind == TRACE_FREE || event.kind == TRACE_FREE_GATED;
}

static void write_block(finisher *f, trace_kind kind, const build_block *block, uint8_t stream) {
    write_event(f, (trace_event){.kind = (uint8_t)kind,
                                 .size = block->size,
                                 .slot = block->slot,
                                 .pool = kind == TRACE_ALLOC ? block->pool : 0,
                                 .stream = f->rank[stream]});
}

/* What the recording says of its own allocator before block number n is allocated at an event. */
static void place_recorded(finisher *f, size_t n, size_t event) {
    trace_builder *b = f->from;
    recorded_change *changes = b->recorded.changes;
    while (f->next_refusal < b->n_refusals && b->refusals[f->next_refusal].n_blocks <= n) {
        trace_refusal *refusal = &b->refusals[f->next_refusal++];
        refusal->event = event;
        refusal->live_bytes = f->live;
    }
    while (f->next_change < b->recorded.n_changes && changes[f->next_change].n_blocks <= n) {
        changes[f->next_change++].event = event;
    }
}

static const char *finish_alloc(finisher *f, uint32_t number) {
    build_block *block = &f->from->blocks[number];
    place_recorded(f, number, f->n_written);
    if (__builtin_add_overflow(f->live, block->size, &f->live)) {
        return "more live memory than 64 bits can count";
    }
    if (f->live > f->to->live_peak_bytes) {
        f->to->live_peak_bytes = f->live;
        f->to->peak_event = f->n_written;
    }
    block->slot = f->n_free_slots > 0 ? f->free_slots[--f->n_free_slots] : f->to->n_slots++;
    write_block(f, TRACE_ALLOC, block, block->stream);
    return NULL;
}

static const char *finish_plain_free(finisher *f, build_block *block) {
    f->live -= block->size;
    write_block(f, TRACE_FREE, block, block->stream);
    f->free_slots[f->n_free_slots++] = block->slot;
    return NULL;
}

/* ---- Gates --------------------------------------------------------------------------------- */

static bool has_room_for_gate(finisher *f) {
    trace *to = f->to;
    return spill_has_room(&to->gates_file, &to->gates, sizeof *to->gates, &f->gates_capacity,
                          to->n_gates) &&
           spill_has_room(&f->nodes_file, &f->nodes, sizeof *f->nodes, &f->nodes_capacity,
                          to->n_gates);
}

static bool add_gate(finisher *f, trace_gate gate) {
    if (!has_room_for_gate(f)) {
        return false;
    }
    f->nodes[f->to->n_gates] = (gate_node){0};
    f->to->gates[f->to->n_gates++] = gate;
    return true;
}

static void queue_gate(gate_queue *queue, gate_node *nodes, size_t gate) {
    if (queue->n_closed++ == 0) {
        queue->head = gate;
    } else {
        nodes[queue->tail].next = gate;
    }
    queue->tail = gate;
}

static bool close_gate(finisher *f, uint8_t rank, bool says_use) {
    trace_stream *stream = &f->to->streams[rank];
    gate_queue *queue = &f->queues[rank];
    trace_gate gate = {.number = stream->n_gates + 1, .stream = rank, .says_use = says_use};
    if (!add_gate(f, gate)) {
        return false;
    }
    queue_gate(queue, f->nodes, f->to->n_gates - 1);
    stream->n_gates++;
    if (queue->n_closed > stream->max_closed_gates) {
        stream->max_closed_gates = queue->n_closed;
    }
    return true;
}

/* A gate in each stream that the block was said to be used by,
 * or in the one that version 1 means. */
static bool close_gates(finisher *f, const build_block *block) {
    if (!f->from->names_uses) {
        return close_gate(f, other_stream(f, f->rank[block->stream]), true);
    }
    for (uint32_t i = block->uses; i != 0; i = f->from->uses[i - 1].next) {
        if (!close_gate(f, f->rank[f->from->uses[i - 1].stream], false)) {
            return false;
        }
    }
    return true;
}

static const char *finish_gated_free(finisher *f, build_block *block) {
    block->first_gate = f->to->n_gates;
    if (!close_gates(f, block)) {
        return no_memory;
    }
    block->n_gates = (uint8_t)(f->to->n_gates - block->first_gate);
    write_event(f, (trace_event){.kind = TRACE_FREE_GATED,
                                 .size = block->first_gate,
                                 .slot = block->slot,
                                 .stream = block->n_gates});
    f->free_slots[f->n_free_slots++] = block->slot;
    return NULL;
}

/* With one stream and no word of uses there is no other:
 * the free itself moves to the completion. */
static bool completes_alone(const finisher *f) {
    return !f->from->names_uses && f->to->n_streams == 1;
}

static const char *finish_free(finisher *f, build_block *block) {
    if (block->state == BUILD_FREED) {
        return finish_plain_free(f, block);
    }
    return completes_alone(f) ? NULL : finish_gated_free(f, block);
}

/* How many of a stream's gates are open once this one is. */
static uint64_t open_gate(finisher *f, size_t gate) {
    gate_queue *queue = &f->queues[f->to->gates[gate].stream];
    f->nodes[gate].is_open = true;
    while (queue->n_closed > 0 && f->nodes[queue->head].is_open) {
        queue->head = f->nodes[queue->head].next;
        queue->n_closed--;
        queue->n_opened++;
    }
    return queue->n_opened;
}

static const char *finish_complete(finisher *f, build_block *block) {
    if (completes_alone(f)) {
        return finish_plain_free(f, block);
    }
    size_t first = f->to->n_gates;
    f->live -= block->size;
    for (size_t i = block->first_gate; i < block->first_gate + block->n_gates; i++) {
        trace_gate gate = {.number = open_gate(f, i), .stream = f->to->gates[i].stream};
        if (!add_gate(f, gate)) {
            return no_memory;
        }
    }
    write_event(f, (trace_event){.kind = TRACE_OPEN, .size = first, .stream = block->n_gates});
    return NULL;
}

/* ---- The pass ------------------------------------------------------------------------------ */

static const char *finish_event(finisher *f, const trace_event *event) {
    build_block *blocks = f->from->blocks;
    switch ((trace_kind)event->kind) {
    case TRACE_ALLOC:
        return finish_alloc(f, event->slot);
    case TRACE_USE:
        write_block(f, TRACE_USE, &blocks[event->slot], event->stream);
        return NULL;
    case TRACE_FREE:
        return finish_free(f, &blocks[event->slot]);
    case TRACE_OPEN:
        return finish_complete(f, &blocks[event->slot]);
    case TRACE_STREAM_END:
        write_event(f, (trace_event){.kind = TRACE_STREAM_END,
                                     .size = event->size,
                                     .stream = f->rank[event->stream]});
        return NULL;
    case TRACE_POOL_END:
        write_event(f, *event);
        return NULL;
    case TRACE_STEP:
        f->to->step_ends[f->to->n_step_ends++] = f->n_written;
        return NULL;
    case TRACE_FREE_GATED: /* made here, never gathered */
        break;
    }
    return NULL;
}

static void add_sample(trace *t, trace_sample sample) {
    if (t->n_samples < sizeof t->samples / sizeof t->samples[0]) {
        t->samples[t->n_samples++] = sample;
    }
}

/* Ends a part of the trace: its lowest and highest point become samples, the earlier one first. */
static void flush_samples(finisher *f) {
    bool low_first = f->low.event < f->high.event;
    add_sample(f->to, low_first ? f->low : f->high);
    if (f->low.event != f->high.event) {
        add_sample(f->to, low_first ? f->high : f->low);
    }
}

/* Peaks that a contender reaches after the last turn of live memory must not be missed. */
static void sample_end(finisher *f) {
    trace *t = f->to;
    if (t->n_samples == 0 || t->samples[t->n_samples - 1].event + 1 < f->n_written) {
        add_sample(t, (trace_sample){.event = f->n_written - 1, .live_bytes = f->live});
    }
}

/* In the order of events; what is a sample already stays one. */
static void insert_sample(trace *t, trace_sample sample) {
    size_t at = t->n_samples;
    while (at > 0 && t->samples[at - 1].event >= sample.event) {
        at--;
    }
    bool is_there = at < t->n_samples && t->samples[at].event == sample.event;
    if (is_there || t->n_samples == sizeof t->samples / sizeof t->samples[0]) {
        return;
    }
    memmove(&t->samples[at + 1], &t->samples[at], (t->n_samples - at) * sizeof t->samples[0]);
    t->samples[at] = sample;
    t->n_samples++;
}

static void sample_refusal(trace *t) {
    const trace_refusal *worst = trace_worst_refusal(t);
    if (worst == NULL) {
        return;
    }
    insert_sample(t, (trace_sample){worst->event, worst->live_bytes + worst->size});
    if (worst->event > 0) {
        insert_sample(t, (trace_sample){worst->event - 1, worst->live_bytes});
    }
}

static void sample_live(finisher *f, size_t index) {
    enum { PARTS = TRACE_SAMPLES / 2 };
    size_t n = f->from->n_events;
    size_t per_part = n / PARTS + (n % PARTS != 0);
    trace_sample now = {.event = f->n_written > 0 ? f->n_written - 1 : 0, .live_bytes = f->live};
    bool is_first = index % per_part == 0;
    if (is_first || now.live_bytes < f->low.live_bytes) {
        f->low = now;
    }
    if (is_first || now.live_bytes > f->high.live_bytes) {
        f->high = now;
    }
    if ((index + 1) % per_part == 0 || index + 1 == n) {
        flush_samples(f);
    }
}

static void pass(const finisher *f, size_t i) {
    trace_build_pass(f->from, i);
    if (spill_is_time(i)) {
        spill_rest(&f->to->gates_file);
        spill_rest(&f->nodes_file);
    }
}

static const char *rewrite_events(finisher *f) {
    for (size_t i = 0; i < f->from->n_events; i++) {
        trace_event event = f->from->events[i];
        const char *reason = finish_event(f, &event);
        if (reason != NULL) {
            return reason;
        }
        sample_live(f, i);
        pass(f, i);
    }
    sample_end(f);
    place_recorded(f, SIZE_MAX, f->n_written > 0 ? f->n_written - 1 : 0);
    return NULL;
}

static const char *finish(finisher *f) {
    f->to->gates_file.is_wanted = f->from->spills;
    f->nodes_file.is_wanted = f->from->spills;
    f->free_slots = reallocarray(NULL, f->from->n_blocks + 1, sizeof *f->free_slots);
    f->to->step_ends = reallocarray(NULL, f->from->n_steps + 1, sizeof *f->to->step_ends);
    const char *reason = no_memory;
    if (f->free_slots != NULL && f->to->step_ends != NULL) {
        rank_streams(f);
        reason = rewrite_events(f);
    }
    free(f->free_slots);
    spill_free(&f->nodes_file, f->nodes);
    return reason;
}

const char *trace_finish(trace_builder *b, trace *out) {
    finisher *f = calloc(1, sizeof *f);
    const char *reason = f == NULL ? no_memory : NULL;
    if (reason == NULL) {
        f->from = b;
        f->to = out;
        reason = finish(f);
    }
    if (reason == NULL) {
        out->events = b->events;
        out->events_file = b->events_file;
        out->n_events = f->n_written;
        out->n_file_events =
            b->n_events - b->n_steps - b->n_stream_ends - b->n_pool_ends - b->n_refused;
        out->pools = b->pools;
        out->n_poolless = b->n_poolless;
        out->kept = b->kept;
        out->n_kept = b->n_kept;
        out->n_from_before = b->n_from_before;
        out->refusals = b->refusals;
        out->n_refusals = b->n_refusals;
        out->recorded = b->recorded;
        out->n_steps = b->n_steps;
        sample_refusal(out);
        out->is_snapshot = b->is_snapshot;
        out->gpu = b->gpu;
        b->events = NULL;
        b->events_file = (spill){0};
        b->refusals = NULL;
        b->recorded = (recorded_memory){0};
        b->pools = (trace_pools){0};
        b->kept = NULL;
    } else {
        trace_drop_events(out);
    }
    free(f);
    trace_build_drop(b);
    return reason;
}

/* ---- Traces with a name -------------------------------------------------------------------- */

static void cut_ending(char *name, const char *ending) {
    size_t n = strlen(name);
    size_t m = strlen(ending);
    if (n > m && strcmp(name + n - m, ending) == 0) {
        name[n - m] = '\0';
    }
}

static bool name_trace(trace *t, const char *path) {
    const char *slash = strrchr(path, '/');
    t->path = strdup(path);
    t->name = strdup(slash != NULL ? slash + 1 : path);
    if (t->path == NULL || t->name == NULL) {
        return false;
    }
    cut_ending(t->name, ".gz");
    cut_ending(t->name, ".trace");
    cut_ending(t->name, ".pickle");
    return true;
}

trace *trace_make(trace_builder *b, const char *path, const char **reason) {
    trace *t = calloc(1, sizeof *t);
    *reason = no_memory;
    if (t != NULL && name_trace(t, path)) {
        *reason = trace_finish(b, t);
    }
    if (*reason == NULL) {
        return t;
    }
    trace_build_drop(b);
    trace_free(t);
    return NULL;
}

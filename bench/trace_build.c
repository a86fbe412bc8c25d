/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace_build.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char no_memory[] = "the host has no memory left";

bool trace_refuse(trace_error *error, uint64_t line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error->reason, sizeof error->reason, format, arguments);
    va_end(arguments);
    error->line = line;
    return false;
}

/* ---- Gathering ----------------------------------------------------------------------------- */

/* Twice the room, or NULL with everything as it was. */
static void *grow(void *items, size_t *capacity, size_t item_size) {
    size_t wanted = *capacity == 0 ? 4096 : 2 * *capacity;
    void *grown = reallocarray(items, wanted, item_size);
    if (grown != NULL) {
        *capacity = wanted;
    }
    return grown;
}

static bool has_room_for_event(trace_builder *b) {
    if (b->n_events == b->events_capacity) {
        trace_event *grown = grow(b->events, &b->events_capacity, sizeof *b->events);
        b->events = grown != NULL ? grown : b->events;
    }
    return b->n_events < b->events_capacity;
}

static bool has_room_for_block(trace_builder *b) {
    if (b->n_blocks == b->blocks_capacity) {
        build_block *grown = grow(b->blocks, &b->blocks_capacity, sizeof *b->blocks);
        b->blocks = grown != NULL ? grown : b->blocks;
    }
    return b->n_blocks < b->blocks_capacity;
}

static const char *add_event(trace_builder *b, trace_kind kind, uint32_t block) {
    if (!has_room_for_event(b)) {
        return no_memory;
    }
    const build_block *of = &b->blocks[block];
    b->events[b->n_events++] = (trace_event){
        .size = of->size, .slot = block, .stream = of->stream, .kind = (uint16_t)kind};
    return NULL;
}

/* The index of a stream's number, new or known; TRACE_MAX_STREAMS when there are too many. */
static size_t stream_index(trace_builder *b, uint64_t number) {
    size_t i = 0;
    while (i < b->n_streams && b->streams[i].number != number) {
        i++;
    }
    if (i == b->n_streams && i < TRACE_MAX_STREAMS) {
        b->streams[b->n_streams++].number = number;
    }
    return i;
}

const char *trace_build_alloc(trace_builder *b, uint64_t size, uint64_t stream, uint32_t *block) {
    if (size == 0) {
        return "SIZE is 0";
    }
    if (size > TRACE_MAX_SIZE) {
        return "SIZE is more than any device can address (256 TiB)";
    }
    size_t index = stream_index(b, stream);
    if (index == TRACE_MAX_STREAMS) {
        return "more than 256 streams";
    }
    if (b->n_blocks == UINT32_MAX) {
        return "more than 4294967295 allocations";
    }
    if (!has_room_for_block(b)) {
        return no_memory;
    }
    *block = (uint32_t)b->n_blocks;
    b->blocks[b->n_blocks++] = (build_block){.size = size, .stream = (uint16_t)index};
    return add_event(b, TRACE_ALLOC, *block);
}

const char *trace_build_free(trace_builder *b, uint32_t block) {
    if (b->blocks[block].state != BUILD_LIVE) {
        return "is freed twice";
    }
    b->blocks[block].state = BUILD_FREED;
    return add_event(b, TRACE_FREE, block);
}

const char *trace_build_free_in_use(trace_builder *b, uint32_t block) {
    const char *reason = trace_build_free(b, block);
    if (reason == NULL) {
        b->blocks[block].state = BUILD_PENDING;
    }
    return reason;
}

const char *trace_build_complete(trace_builder *b, uint32_t block) {
    switch ((build_state)b->blocks[block].state) {
    case BUILD_LIVE:
        return "completes but was not freed";
    case BUILD_FREED:
    case BUILD_PENDING:
        b->blocks[block].state = BUILD_COMPLETED;
        return add_event(b, TRACE_OPEN, block);
    case BUILD_COMPLETED:
    case BUILD_OPENED:
        break;
    }
    return "completes twice";
}

void trace_build_drop(trace_builder *b) {
    free(b->events);
    free(b->blocks);
    *b = (trace_builder){0};
}

/* ---- Finishing ----------------------------------------------------------------------------- */

/* The gates of one stream that are not open yet, oldest first: a stream passes them in order. */
typedef struct gate_queue {
    uint32_t head, tail; /* blocks; valid while n_closed > 0 */
    uint64_t n_closed, n_opened;
} gate_queue;

/* One pass over the gathered events that rewrites them in place: an event never moves up. */
typedef struct finisher {
    trace_builder *from;
    trace *to;
    uint16_t rank[TRACE_MAX_STREAMS]; /* from order of appearance to order of number */
    gate_queue gates[TRACE_MAX_STREAMS];
    uint32_t *free_slots;
    size_t n_free_slots;
    uint64_t live;
    size_t n_written;
    trace_sample low, high; /* of the current part of the trace */
} finisher;

static int by_number(const void *a, const void *b) {
    uint64_t x = ((const trace_stream *)a)->number;
    uint64_t y = ((const trace_stream *)b)->number;
    return (x > y) - (x < y);
}

static void rank_streams(finisher *f) {
    trace *to = f->to;
    to->n_streams = f->from->n_streams;
    memcpy(to->streams, f->from->streams, sizeof to->streams);
    qsort(to->streams, to->n_streams, sizeof to->streams[0], by_number);
    for (size_t old = 0; old < to->n_streams; old++) {
        size_t rank = 0;
        while (to->streams[rank].number != f->from->streams[old].number) {
            rank++;
        }
        f->rank[old] = (uint16_t)rank;
    }
}

/* Version 1 does not say who else uses a block: the stream with the next higher number, or the
 * lowest (number 0, where a trace has one) if there is none. */
static uint16_t other_stream(const finisher *f, uint16_t stream) {
    return (uint16_t)(stream + 1u < f->to->n_streams ? stream + 1u : 0);
}

static void write_event(finisher *f, trace_kind kind, const build_block *block, uint16_t stream,
                        uint64_t size) {
    f->from->events[f->n_written++] =
        (trace_event){.size = size, .slot = block->slot, .stream = stream, .kind = (uint16_t)kind};
    f->to->n_ops += kind != TRACE_OPEN;
}

static const char *finish_alloc(finisher *f, build_block *block) {
    if (__builtin_add_overflow(f->live, block->size, &f->live)) {
        return "more live memory than 64 bits can count";
    }
    if (f->live > f->to->live_peak_bytes) {
        f->to->live_peak_bytes = f->live;
    }
    block->slot = f->n_free_slots > 0 ? f->free_slots[--f->n_free_slots] : f->to->n_slots++;
    write_event(f, TRACE_ALLOC, block, f->rank[block->stream], block->size);
    return NULL;
}

static void finish_plain_free(finisher *f, build_block *block) {
    f->live -= block->size;
    write_event(f, TRACE_FREE, block, f->rank[block->stream], block->size);
    f->free_slots[f->n_free_slots++] = block->slot;
}

static void queue_gate(finisher *f, gate_queue *queue, trace_stream *stream, uint32_t number) {
    if (queue->n_closed++ == 0) {
        queue->head = number;
    } else {
        f->from->blocks[queue->tail].next_gate = number;
    }
    queue->tail = number;
    if (queue->n_closed > stream->max_closed_gates) {
        stream->max_closed_gates = queue->n_closed;
    }
}

static void finish_free(finisher *f, uint32_t number) {
    build_block *block = &f->from->blocks[number];
    uint16_t own = f->rank[block->stream];
    uint16_t other = other_stream(f, own);
    if (block->state == BUILD_FREED) {
        finish_plain_free(f, block);
    } else if (other != own) {
        queue_gate(f, &f->gates[other], &f->to->streams[other], number);
        write_event(f, TRACE_FREE_GATED, block, other, ++f->to->streams[other].n_gates);
        f->free_slots[f->n_free_slots++] = block->slot;
    } /* else the only stream is its own other one: the free itself moves to the completion */
}

static void finish_complete(finisher *f, build_block *block) {
    uint16_t own = f->rank[block->stream];
    uint16_t other = other_stream(f, own);
    if (other == own) {
        finish_plain_free(f, block);
        return;
    }
    f->live -= block->size;
    block->state = BUILD_OPENED;
    gate_queue *queue = &f->gates[other];
    while (queue->n_closed > 0 && f->from->blocks[queue->head].state == BUILD_OPENED) {
        queue->head = f->from->blocks[queue->head].next_gate;
        queue->n_closed--;
        queue->n_opened++;
    }
    write_event(f, TRACE_OPEN, block, other, queue->n_opened);
}

static const char *finish_event(finisher *f, const trace_event *event) {
    switch ((trace_kind)event->kind) {
    case TRACE_ALLOC:
        return finish_alloc(f, &f->from->blocks[event->slot]);
    case TRACE_FREE:
        finish_free(f, event->slot);
        return NULL;
    case TRACE_OPEN:
        finish_complete(f, &f->from->blocks[event->slot]);
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

static const char *rewrite_events(finisher *f) {
    for (size_t i = 0; i < f->from->n_events; i++) {
        trace_event event = f->from->events[i];
        const char *reason = finish_event(f, &event);
        if (reason != NULL) {
            return reason;
        }
        sample_live(f, i);
    }
    sample_end(f);
    return NULL;
}

static const char *finish(finisher *f) {
    f->free_slots = reallocarray(NULL, f->from->n_blocks + 1, sizeof *f->free_slots);
    if (f->free_slots == NULL) {
        return no_memory;
    }
    rank_streams(f);
    const char *reason = rewrite_events(f);
    free(f->free_slots);
    return reason;
}

const char *trace_build_finish(trace_builder *b, trace *out) {
    finisher *f = calloc(1, sizeof *f);
    const char *reason = f == NULL ? no_memory : NULL;
    if (reason == NULL) {
        f->from = b;
        f->to = out;
        reason = finish(f);
    }
    if (reason == NULL) {
        out->events = b->events;
        out->n_events = f->n_written;
        out->n_file_events = b->n_events;
        out->n_steps = b->n_steps;
        b->events = NULL;
    }
    free(f);
    trace_build_drop(b);
    return reason;
}

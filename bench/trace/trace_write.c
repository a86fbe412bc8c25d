/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace_write.h"

#include "bench/trace/output.h"

#include <inttypes.h>
#include <stdlib.h>

/* In a builder without named uses, a completion means a use by the next stream by number. */
typedef struct writer {
    FILE *out;
    const trace_builder *from;
    size_t next_stream[TRACE_MAX_STREAMS]; /* by order of appearance */
    size_t next_refusal;
} writer;

static uint64_t number_of(const writer *w, size_t stream) {
    return w->from->streams[stream].number;
}

/* The stream with the next higher number; for the highest, the lowest. */
static size_t find_next_stream(const trace_builder *b, size_t stream) {
    size_t next = stream;
    size_t lowest = stream;
    uint64_t own = b->streams[stream].number;
    for (size_t i = 0; i < b->n_streams; i++) {
        uint64_t number = b->streams[i].number;
        if (number > own && (next == stream || number < b->streams[next].number)) {
            next = i;
        }
        lowest = number < b->streams[lowest].number ? i : lowest;
    }
    return next != stream ? next : lowest;
}

/* In a trace of one stream no other stream can have used the block: its free moves to the
 * completion. */
static bool completes_alone(const writer *w) {
    return !w->from->names_uses && w->from->n_streams == 1;
}

static void write_pool(const writer *w, uint16_t pool) {
    const ductile_pool_id *id = &w->from->pools.ids[pool - 1];
    (void)fprintf(w->out, " %" PRIu64 ":%" PRIu64, id->first, id->second);
}

/* Refusals come in the order of their blocks; one that is no block cannot be written. */
static const trace_refusal *refusal_of(writer *w, size_t block) {
    const trace_refusal *all = w->from->refusals;
    while (all[w->next_refusal].n_blocks < block || !all[w->next_refusal].is_replayed) {
        w->next_refusal++;
    }
    return &all[w->next_refusal];
}

static void write_alloc(writer *w, const trace_event *event) {
    bool is_refused = w->from->blocks[event->slot].is_refused;
    (void)fprintf(w->out, "%c %" PRIu32 " %" PRIu64 " %" PRIu64, is_refused ? 'r' : 'a',
                  event->slot, event->size, number_of(w, event->stream));
    if (is_refused) {
        const trace_refusal *refusal = refusal_of(w, event->slot);
        (void)fprintf(w->out, " %" PRIu64 " %" PRIu64, refusal->held_bytes,
                      refusal->device_free_bytes);
    }
    if (w->from->blocks[event->slot].pool != 0) {
        write_pool(w, w->from->blocks[event->slot].pool);
    }
    (void)putc('\n', w->out);
}

static void write_kept(const writer *w) {
    for (size_t i = 0; i < w->from->n_kept; i++) {
        const trace_kept *kept = &w->from->kept[i];
        (void)fprintf(w->out, "k %" PRIu64 " %" PRIu64, kept->size, number_of(w, kept->stream));
        write_pool(w, kept->pool);
        (void)putc('\n', w->out);
    }
}

static void write_pool_end(const writer *w, const trace_event *event) {
    (void)putc('p', w->out);
    write_pool(w, event->pool);
    (void)putc('\n', w->out);
}

static void write_free(const writer *w, const trace_event *event) {
    const build_block *block = &w->from->blocks[event->slot];
    if (block->is_refused) {
        return; /* its line says it */
    }
    bool is_late = block->state == BUILD_COMPLETED || block->state == BUILD_PENDING;
    if (is_late && completes_alone(w)) {
        return;
    }
    if (is_late && !w->from->names_uses) {
        (void)fprintf(w->out, "u %" PRIu32 " %" PRIu64 "\n", event->slot,
                      number_of(w, w->next_stream[block->stream]));
    }
    (void)fprintf(w->out, "f %" PRIu32 "\n", event->slot);
}

static int version_of(const trace_builder *b) {
    return b->uses_pools ? 5 : b->n_refused > 0 ? 4 : b->n_stream_ends > 0 ? 3 : 2;
}

static void write_event(writer *w, const trace_event *event) {
    switch ((trace_kind)event->kind) {
    case TRACE_ALLOC:
        write_alloc(w, event);
        break;
    case TRACE_USE:
        (void)fprintf(w->out, "u %" PRIu32 " %" PRIu64 "\n", event->slot,
                      number_of(w, event->stream));
        break;
    case TRACE_FREE:
        write_free(w, event);
        break;
    case TRACE_OPEN:
        (void)fprintf(w->out, completes_alone(w) ? "f %" PRIu32 "\n" : "c %" PRIu32 "\n",
                      event->slot);
        break;
    case TRACE_STEP:
        (void)fputs("s\n", w->out);
        break;
    case TRACE_STREAM_END:
        (void)fprintf(w->out, event->size != 0 ? "e %" PRIu64 "\n" : "d %" PRIu64 "\n",
                      number_of(w, event->stream));
        break;
    case TRACE_POOL_END:
        write_pool_end(w, event);
        break;
    case TRACE_FREE_GATED: /* never gathered */
        break;
    }
}

/* Uses that outlive the trace end with it. */
static void write_open_ends(const writer *w) {
    for (size_t i = 0; i < w->from->n_blocks; i++) {
        if (w->from->blocks[i].state == BUILD_PENDING && !completes_alone(w)) {
            (void)fprintf(w->out, "c %zu\n", i);
        }
    }
}

bool trace_write(const trace_builder *b, FILE *out) {
    writer w = {.out = out, .from = b};
    for (size_t i = 0; i < b->n_streams; i++) {
        w.next_stream[i] = find_next_stream(b, i);
    }
    (void)fprintf(out, "# version %d\n", version_of(b));
    write_kept(&w);
    for (size_t i = 0; i < b->n_events; i++) {
        write_event(&w, &b->events[i]);
        trace_build_pass(b, i);
    }
    write_open_ends(&w);
    return ferror(out) == 0;
}

bool trace_save(const trace_builder *b, const char *heading, const char *path, char *reason,
                size_t reason_size) {
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    bool ok = memory != NULL && fputs(heading, memory) >= 0 && trace_write(b, memory);
    ok = memory != NULL && fclose(memory) == 0 && ok;
    (void)snprintf(reason, reason_size, "the host has no memory left");
    ok = ok && output_write(path, text, size, reason, reason_size);
    free(text);
    return ok;
}

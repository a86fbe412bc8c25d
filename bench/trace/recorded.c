/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/recorded.h"

#include "bench/base/array.h"

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void count_span(recorded_memory *m, const recorded_span *span) {
    m->held += span->size;
    switch (span->state) {
    case RECORDED_LIVE:
        m->live += span->size;
        break;
    case RECORDED_PENDING:
        m->pending += span->size;
        break;
    case RECORDED_FREE:
        m->free += span->size;
        m->holes++;
        m->largest_hole = larger(m->largest_hole, span->size);
        break;
    }
}

bool recorded_add_span(recorded_memory *m, recorded_span span) {
    if (!array_has_room(&m->spans, sizeof *m->spans, &m->spans_capacity, m->n_spans)) {
        return false;
    }
    m->spans[m->n_spans++] = span;
    count_span(m, &span);
    return true;
}

bool recorded_note_held(recorded_memory *m, size_t n_blocks, uint64_t held_bytes) {
    m->held_peak = larger(m->held_peak, held_bytes);
    if (m->n_changes > 0 && m->changes[m->n_changes - 1].n_blocks == n_blocks) {
        m->changes[m->n_changes - 1].held_bytes = held_bytes;
        return true;
    }
    if (!array_has_room(&m->changes, sizeof *m->changes, &m->changes_capacity, m->n_changes)) {
        return false;
    }
    m->changes[m->n_changes++] = (recorded_change){.n_blocks = n_blocks, .held_bytes = held_bytes};
    return true;
}

void recorded_drop(recorded_memory *m) {
    free(m->spans);
    free(m->changes);
    *m = (recorded_memory){0};
}

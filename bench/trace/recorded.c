/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/recorded.h"

#include "bench/base/array.h"

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void count_span(recorded_layout *l, const recorded_span *span) {
    l->held += span->size;
    switch (span->state) {
    case RECORDED_LIVE:
        l->live += span->size;
        break;
    case RECORDED_PENDING:
        l->pending += span->size;
        break;
    case RECORDED_FREE:
        l->free += span->size;
        l->holes++;
        l->largest_hole = larger(l->largest_hole, span->size);
        break;
    }
}

bool recorded_add_span(recorded_layout *l, recorded_span span) {
    if (!array_has_room(&l->spans, sizeof *l->spans, &l->capacity, l->n_spans)) {
        return false;
    }
    l->spans[l->n_spans++] = span;
    count_span(l, &span);
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

void recorded_forget(recorded_layout *l) {
    free(l->spans);
    *l = (recorded_layout){0};
}

void recorded_drop(recorded_memory *m) {
    recorded_forget(&m->end);
    recorded_forget(&m->refused);
    free(m->changes);
    *m = (recorded_memory){0};
}

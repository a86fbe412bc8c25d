/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/recorded.h"

#include "bench/base/array.h"

#include "vmm/base/align.h"

#include <stdlib.h>

void recorded_count_span(recorded_layout *l, const recorded_span *span) {
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
        l->largest_hole = dti_max(l->largest_hole, span->size);
        break;
    }
}

bool recorded_add_span(recorded_layout *l, recorded_span span) {
    recorded_count_span(l, &span);
    return array_add(&l->spans, sizeof span, &l->capacity, &l->n_spans, &span);
}

bool recorded_note_held(recorded_memory *m, size_t n_blocks, uint64_t held_bytes) {
    m->held_peak = dti_max(m->held_peak, held_bytes);
    if (m->n_changes > 0 && m->changes[m->n_changes - 1].n_blocks == n_blocks) {
        m->changes[m->n_changes - 1].held_bytes = held_bytes;
        return true;
    }
    const recorded_change change = {.n_blocks = n_blocks, .held_bytes = held_bytes};
    return array_add(&m->changes, sizeof change, &m->changes_capacity, &m->n_changes, &change);
}

void recorded_forget(recorded_layout *l) {
    free(l->spans);
    *l = (recorded_layout){0};
}

void recorded_drop(recorded_memory *m) {
    recorded_forget(&m->end);
    recorded_forget(&m->refused);
    free(m->changes);
    free(m->gpus);
    *m = (recorded_memory){0};
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace.h"

#include <stdlib.h>

void trace_drop_events(trace *t) {
    spill_free(&t->events_file, t->events);
    spill_free(&t->gates_file, t->gates);
    free(t->step_ends);
    free(t->refusals);
    recorded_drop(&t->recorded);
    trace_pools_drop(&t->pools);
    free(t->kept);
    t->events = NULL;
    t->gates = NULL;
    t->step_ends = NULL;
    t->refusals = NULL;
    t->kept = NULL;
    t->n_kept = 0;
    t->n_refusals = 0;
}

void trace_free(trace *t) {
    while (t != NULL) {
        trace *next = t->next_pass;
        trace_drop_events(t);
        free(t->path);
        free(t->name);
        free(t);
        t = next;
    }
}

static uint64_t need_of(const trace_refusal *of) {
    return of->live_bytes + of->size;
}

const trace_refusal *trace_worst_refusal(const trace *t) {
    const trace_refusal *worst = NULL;
    for (size_t i = 0; i < t->n_refusals; i++) {
        const trace_refusal *of = &t->refusals[i];
        if (of->is_replayed && (worst == NULL || need_of(of) > need_of(worst))) {
            worst = of;
        }
    }
    return worst;
}

bool trace_blocks_init(trace_blocks *b, const trace *t) {
    *b = (trace_blocks){.at = calloc((size_t)t->n_slots + 1, sizeof *b->at)};
    return b->at != NULL;
}

void trace_blocks_follow(trace_blocks *b, const trace *t, uint64_t end) {
    for (; b->next_event < end; b->next_event++) {
        const trace_event *e = &t->events[b->next_event];
        if (e->kind == TRACE_ALLOC) {
            b->at[e->slot] = (trace_block){.born = b->next_event,
                                           .size = e->size,
                                           .number = ++b->n_allocated,
                                           .stream = e->stream};
        } else if (e->kind == TRACE_FREE || e->kind == TRACE_FREE_GATED) {
            b->at[e->slot].size = 0;
        }
        if (spill_is_time(b->next_event)) {
            spill_rest(&t->events_file);
        }
    }
}

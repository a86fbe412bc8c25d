/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace.h"

#include <stdlib.h>

void trace_drop_events(trace *t) {
    spill_free(&t->events_file, t->events);
    spill_free(&t->gates_file, t->gates);
    free(t->step_ends);
    free(t->refusals);
    recorded_drop(&t->recorded);
    t->events = NULL;
    t->gates = NULL;
    t->step_ends = NULL;
    t->refusals = NULL;
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

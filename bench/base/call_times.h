/* SPDX-License-Identifier: Apache-2.0 */
/* How long each of many calls took: the median, the 99th percentile, the worst. */
#ifndef DUCTILE_BENCH_BASE_CALL_TIMES_H
#define DUCTILE_BENCH_BASE_CALL_TIMES_H

#include "vmm/base/json.h"

/* All zero is empty. */
typedef struct call_times {
    uint64_t *ns;
    size_t n;
    size_t capacity;
} call_times;

typedef struct call_summary {
    uint64_t calls; /* 0: the others are 0, too */
    uint64_t median_ns;
    uint64_t p99_ns;
    uint64_t worst_ns;
} call_summary;

/* Room for n calls in all. False: the host has no memory left. */
bool call_times_reserve(call_times *t, size_t n);
void call_times_drop(call_times *t);

/* A call beyond the room is not noted. */
static inline void call_times_add(call_times *t, uint64_t ns) {
    if (t->n < t->capacity) {
        t->ns[t->n++] = ns;
    }
}

/* Sorts what was noted. Percentiles are times of calls: at least so many of all took no longer. */
call_summary call_times_summarize(call_times *t);

/* As an object. */
void call_summary_json(dti_json *j, const char *name, const call_summary *calls);

#endif

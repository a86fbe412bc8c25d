/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay/timed_contender.h"

#include "bench/base/stopwatch.h"

/* What is known before a call. */
typedef struct call_start {
    contender_stats stats; /* virtual GPU */
    uint64_t waited_ns;
    uint64_t ns;
} call_start;

static call_start begin_call(const timed_contender *t) {
    call_start start = {.waited_ns = atomic_load_explicit(t->waited_ns, memory_order_relaxed)};
    if (t->is_virtual) {
        t->inner->stats(t->contender, &start.stats);
    }
    start.ns = host_now_ns();
    return start;
}

static uint64_t modelled(const timed_contender *t, const call_start *start, uint64_t ns) {
    contender_stats now;
    t->inner->stats(t->contender, &now);
    ns = ns_less(ns, now.driver_host_ns - start->stats.driver_host_ns);
    return ns + now.driver_time_ns - start->stats.driver_time_ns;
}

static void end_call(timed_contender *t, const call_start *start) {
    uint64_t ns = ns_less(host_now_ns() - start->ns, stopwatch_cost_ns());
    if (t->is_virtual) {
        ns = modelled(t, start, ns);
    }
    uint64_t waited = atomic_load_explicit(t->waited_ns, memory_order_relaxed) - start->waited_ns;
    call_times_add(&t->times, ns_less(ns, waited));
}

static ductile_status timed_alloc(void *self, uint64_t size, ductile_stream stream,
                                  ductile_addr *out) {
    timed_contender *t = self;
    call_start start = begin_call(t);
    ductile_status status = t->inner->alloc(t->contender, size, stream, out);
    end_call(t, &start);
    return status;
}

static ductile_status timed_free(void *self, ductile_addr address) {
    timed_contender *t = self;
    call_start start = begin_call(t);
    ductile_status status = t->inner->free(t->contender, address);
    end_call(t, &start);
    return status;
}

static ductile_status record_stream(void *self, ductile_addr address, ductile_stream stream) {
    timed_contender *t = self;
    return t->inner->record_stream(t->contender, address, stream);
}

static ductile_status stream_done(void *self, ductile_stream stream) {
    timed_contender *t = self;
    return t->inner->stream_done(t->contender, stream);
}

static ductile_status use_pool(void *self, ductile_pool_id from, ductile_pool_id to) {
    timed_contender *t = self;
    return t->inner->use_pool(t->contender, from, to);
}

static ductile_status end_pool(void *self, ductile_pool_id pool) {
    timed_contender *t = self;
    return t->inner->end_pool(t->contender, pool);
}

contender_ops timed_contender_ops(const contender_ops *inner) {
    return (contender_ops){.name = inner->name,
                           .summary = inner->summary,
                           .alloc = timed_alloc,
                           .free = timed_free,
                           .record_stream = record_stream,
                           .stream_done = inner->stream_done != NULL ? stream_done : NULL,
                           .use_pool = inner->use_pool != NULL ? use_pool : NULL,
                           .end_pool = inner->end_pool != NULL ? end_pool : NULL};
}

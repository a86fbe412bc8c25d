/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays one trace through one contender, from a fresh device.
 *
 * Question answered: how much physical memory did it hold at most, did it ever run out, what did
 * each allocation and free cost the host?
 */
#ifndef DUCTILE_BENCH_REPLAY_REPLAY_ENGINE_H
#define DUCTILE_BENCH_REPLAY_REPLAY_ENGINE_H

#include "bench/base/call_times.h"
#include "bench/base/device.h"
#include "bench/contenders/contender.h"
#include "bench/replay/gates.h"
#include "bench/replay/testbed.h"
#include "bench/trace/trace.h"

#include <stdbool.h>

struct replay_spec;

/* A replay between two events. */
typedef struct replay_moment {
    uint64_t event;      /* the last one played, counted through all passes; of a stop, the one that
                            was refused */
    uint64_t live_bytes; /* the trace's; not known at a stop: 0 */
    contender_stats stats;
    void *contender;
    const ductile_addr *addresses; /* by the trace's slots; 0: the slot is empty */
    const bool *keeps;             /* by pool of the trace: what is free in it serves it alone */
    const ductile_stream *streams; /* by the trace's */
} replay_moment;

/* Sees the replay at every sample of the trace, in time order, and where it runs out of memory.
 * Either may be NULL. */
typedef struct replay_watch {
    void (*sample)(void *user, const struct replay_spec *spec, const replay_moment *now);
    void (*stop)(void *user, const struct replay_spec *spec, const replay_moment *now);
    void *user;
} replay_watch;

typedef struct replay_spec {
    const trace *trace;
    testbed_plan plan;         /* but for what the trace and `checks` say. Its pace advances once an
                                event; untimed: all times are 0 or rough */
    uint64_t n_passes;         /* at least 1, all through the same contender  */
    bool checks;               /* virtual GPU: every block is written, misuse is a violation */
    bool times_calls;          /* one by one, which falsifies the times of whole passes */
    const replay_watch *watch; /* NULL: no samples are taken */
    /* For allocators that are no contenders of ductile-bench: */
    uint64_t until_ns; /* on the host's clock: no third pass begins later; 0: any may */
    gates_patience patience;
} replay_spec;

/* What one pass cost. */
typedef struct replay_pass {
    contender_stats stats; /* counts and times of this pass; peaks since the first  */
    uint64_t ops;          /* allocations and frees                                 */
    uint64_t host_ns;      /* host time in the contender, driver included; without the loop's */
    uint64_t waited_ns;    /* CUDA: for uses that were ended early; not in the other times */
} replay_pass;

typedef struct replay_result {
    run_outcome outcome;
    char message[256];         /* of ABSENT and FAILED */
    uint64_t stopped_at_event; /* of OUT_OF_MEMORY and FAILED, counted from 0 in its pass */
    uint64_t stopped_in_pass;  /* counted from 1 */
    contender_stats total;     /* over all passes */
    replay_pass first;         /* from an empty cache */
    replay_pass last;          /* the same as first in a run of one pass */
    replay_pass all;           /* all passes together                      */
    uint64_t n_passes;         /* that began */
    double ns_per_op;          /* host time without the driver's: median of the passes after the
                                  first, of the first where there is no other; 0 without operations */
    double loop_ns_per_op;     /* what the loop itself costs, of the last pass: taken off all times;
                                  0 with checks */
    call_summary cold_calls;   /* with times_calls: allocations and frees of the first pass */
    call_summary warm_calls;   /* of all later ones; empty in a run of one pass */
    uint64_t forced_gates;     /* CUDA: uses ended early because the contender waited for them */
    uint64_t violations;       /* virtual GPU: mistakes that hardware lets pass */
    char last_violation[160];
} replay_result;

/* The pool of the trace that a span of the contender's serves alone at this moment; 0: none. */
uint16_t replay_pool_of(const replay_spec *spec, const replay_moment *now,
                        const contender_span *span);

void replay_run(const replay_spec *spec, replay_result *result);

/* Host time of a pass per operation, with the driver's part, which is the modelled time on the
 * virtual GPU. 0 if the pass had no operation. */
double replay_wall_ns_per_op(const replay_pass *pass, bool is_virtual);
/* The whole pass, with the driver's part. */
double replay_wall_ns(const replay_pass *pass, bool is_virtual);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What threads of the stress program share: a device with an allocator, and slots in which blocks
 * wait to change hands. The thread that takes a block out of its slot is its only owner.
 */
#ifndef TESTS_STRESS_PARTS_STRESS_STAGE_H
#define TESTS_STRESS_PARTS_STRESS_STAGE_H

#include "tests/support/claims.h"
#include "tests/support/ending.h"
#include "tests/support/rng.h"
#include "tests/support/shadow.h"
#include "tests/support/two_ends.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { N_SLOTS = 64, N_HANDED_ON = 4, MOST_STREAMS = 16 };

#define PAUSED_POOL ((ductile_pool_id){0, 7})

/* What goes on. */
typedef struct plan {
    bool pools;     /* a pool is paused and resumed, streams end, graphs are captured */
    bool crunch;    /* the threads together want more than the device has, and others change that */
    bool callbacks; /* a map callback keeps a table, and asks for memory inside */
    bool share;     /* memory is pinned and passed to another allocator, peers come and go */
    uint64_t seconds, ops, rounds, threads, streams, seed, capacity_mib, devices;
    ductile_schedule schedule;
    const char *conf;
} plan;

typedef struct held {
    ductile_addr address;
    uint64_t size; /* rounded */
    size_t stream;
    uint64_t life; /* of the pool's contents when it was written; 0: in no pool */
    uint8_t pattern;
} held;

typedef struct stage {
    two_ends t;
    plan plan;
    claims *claims;
    shadow listener;
    ductile_stream theirs; /* of the second device; NULL: there is none */
    size_t n_common;       /* streams that any thread uses; the one behind them is captured */
    _Atomic(held *) slots[N_SLOTS];
    _Atomic(held *) ending[N_HANDED_ON]; /* recorded on a stream that ends just now */
    ending the_end;
    _Atomic uint64_t n_ops, n_blocks, n_refused, n_lives, n_audits, n_pauses, n_refused_pauses,
        n_graphs, n_streams, n_asked, n_refused_inside, n_passed;
    pthread_rwlock_t use; /* of the pool's memory: it is not used while it is paused */
    uint64_t life;        /* contents that were not kept end it; under `use` */
    bool is_left_paused;  /* the play ended first: `use` is not given back */
} stage;

typedef struct actor {
    stage *s;
    const char *(*act)(struct actor *self);
    rng r;
    pthread_t thread;
} actor;

void rest_a_moment(void);
ductile_allocator *allocator_of(stage *s);

/* ---- stress_blocks.c
 * ------------------------------------------------------------------------------ */

uint64_t any_size(actor *self);
/* NULL in *out when there is no memory, or the pool is paused. */
const char *make(actor *self, bool in_pool, held **out);
const char *give(stage *s, held *h);
/* Leaves the block for others and frees what lay there. */
const char *hand_on(actor *self, held *h);
held *take_any(actor *self);
/* A user of the pool's memory keeps it from being paused. *used: false while it is. */
const char *with_memory(stage *s, held *h, const char *(*use)(stage *s, held *h), bool *used);
const char *fill_locked(stage *s, held *h);
const char *fill_on(stage *s, const held *h, ductile_stream stream);

/* ---- stress_acts.c and stress_pools.c: each once, or as long as the play lasts
 * ------------------------ */

const char *live_and_die(actor *self);
const char *audit(actor *self);
const char *disturb(actor *self);
const char *pass_one(actor *self);
const char *pause_and_resume(actor *self);
const char *capture(actor *self);
const char *begin_and_end_stream(actor *self);
uint64_t free_what_lies_about(void *user, ductile_allocator *a, uint64_t missing,
                              ductile_stream stream);
void ask_inside(void *user, ductile_allocator *a, const ductile_map_event *e);

#endif

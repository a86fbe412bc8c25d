/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a correct program does with an allocator: blocks on streams of two kinds. Those of the
 * device any thread may name; a per-thread default stream can only be meant by its thread. Slots 0
 * to N_OWN - 1 are the first, the others the second.
 */
#ifndef TESTS_BROKEN_PROGRAM_H
#define TESTS_BROKEN_PROGRAM_H

#include "tests/support/fixture_virtual.h"
#include "tests/support/rng.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

enum {
    N_OWN = 5,     /* streams of the device                       */
    N_THREADS = 2, /* with a per-thread default stream each        */
    N_SLOTS = N_OWN + N_THREADS,
    N_BLOCKS_MAX = 160,
    N_GRAPHS = 3,
    N_CAPTURED = 8, /* blocks of one capture at most */
    PHASE_STEPS = 250,
    BROKEN_CAPTURE = DUCTILE_VIOLATION_OVERLAP + 1, /* a kind of violation that no device reports */
    N_KINDS
};

#define PER_THREAD ((ductile_stream)2)
#define CAPACITY (96 * MIB)

typedef struct block {
    ductile_addr address;
    uint64_t size;
    unsigned slot;
    bool is_recorded; /* for some stream, which may have ended since then */
} block;

/* A captured graph, its pool, and the blocks that outlive the capture. */
typedef struct graph {
    ductile_virtual_graph *graph; /* NULL: none */
    ductile_pool_id pool;
    block blocks[N_CAPTURED];
    size_t n_blocks;
} graph;

/* A thread that does one job at a time, while the one that asked waits. */
typedef struct worker {
    pthread_t thread;
    sem_t begin, end;
    void (*job)(void *user); /* NULL: end */
    void *user;
} worker;

typedef struct play {
    fixture f;
    rng r;
    worker workers[N_THREADS];
    block blocks[N_BLOCKS_MAX];
    size_t n_blocks;
    uint64_t live_bytes;
    uint64_t target_bytes; /* of live memory, in this phase */
    uint64_t typical_size; /* of a request, in this phase   */
    unsigned busiest;      /* slot, in this phase           */
    graph graphs[N_GRAPHS];
    uint64_t n_captures;
    uint64_t n_broken_captures;
    ductile_schedule schedule;
    uint64_t lag;
    /* NULL, or what another thread does when a context marker was recorded: see come_between() */
    void (*at_mark)(struct play *p);
    block at_mark_block;
    bool is_interrupting;
    bool waits_for_join[N_SLOTS]; /* allocates nothing before a join: see share_and_join() */
    bool is_lost;                 /* the device */
    bool ends_at[N_KINDS];        /* the first violation of the kind */
} play;

typedef struct request {
    play *p;
    unsigned slot, other;
    ductile_addr address;
    uint64_t size;
    int writes;
    ductile_status status;
} request;

void start_worker(worker *w);
void stop_worker(worker *w);
bool is_threads(unsigned slot);
/* Runs the job where the slot's stream can be named. */
void run_for(play *p, unsigned slot, void (*job)(void *user), void *user);
ductile_stream stream_of(const play *p, unsigned slot);
unsigned any_slot(play *p);
unsigned any_threads_slot(play *p);
void do_done(void *user);
void launch_use(play *p, unsigned slot, const block *b, int writes);
/* False: no thread can name both. */
bool order_slots(play *p, unsigned first, unsigned then);
void sync_slot(play *p, unsigned slot);
/* Tells the allocator of the slot's stream; false when it refuses. */
bool record(play *p, block *b, unsigned user);
/* False when the allocator refuses. */
bool give_from(play *p, unsigned slot, const block *b);
uint64_t any_size(play *p);
/* False: there is no memory now. */
bool get_block(play *p, unsigned slot, uint64_t size, block *out);
void make_on(play *p, unsigned slot, uint64_t size);
void make_block(play *p);
size_t any_block(play *p);
/* Ends and frees the i-th block. */
void free_at(play *p, size_t i);
void share_with(play *p, block *b, unsigned user);
void share_block(play *p, size_t i);
void share_and_join(play *p, size_t i);
/* Ends the program: says what the device saw, or else what was not to be. */
_Noreturn void give_up(const play *p, const char *what);

#endif

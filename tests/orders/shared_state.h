/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What threads that run tasks share: an allocator on a virtual GPU with two streams, and a model of
 * the live blocks. In a small program (orders.c) each thread runs one task, with blocks of its own
 * from before it began, memory freed on both streams, and a stream of its own, on which everybody's
 * blocks were recorded. Under stress (tests/stress/many_threads.c) threads run tasks for as long as
 * there is time, with blocks that change hands.
 */
#ifndef TESTS_ORDERS_SHARED_STATE_H
#define TESTS_ORDERS_SHARED_STATE_H

#include "tests/orders/scheduler.h"
#include "tests/support/complain.h"
#include "tests/support/model.h"
#include "tests/support/rng.h"
#include "tests/support/shadow.h"
#include "tests/support/two_ends.h"

#include <stdbool.h>

#define PLAIN_POOL ((ductile_pool_id){0, 7}) /* held; has a block of each thread */

enum { N_COMMON = 2, SMALL = 4096, N_LEFT = 64 };

/* What a task may do to the others. */
enum {
    STARVES = 1,      /* they may be refused memory               */
    PLAIN_SLEEPS = 2, /* the plain pool's memory may be gone      */
    SHARES = 4,       /* blocks pass between two allocators       */
    HAS_PEER = 8,     /* the machine has a second GPU             */
    IS_SLOW = 16,     /* few orders are tried: a process is made  */
    IS_APART = 32,    /* it works on a stream of its own, which has memory   */
    IN_STRESS = 64,   /* only there: it has a thread that is no scheduler's */
    IN_ORDERS = 128,  /* only there: its partner has to be named            */
    CAPTURES = 256,
    DEFAULT_SLEEPS = 512 /* the default pool's memory may be gone, and PLAIN_SLEEPS */
};

typedef struct test_thread test_thread;

typedef struct task {
    const char *name;
    const char *(*run)(test_thread *self);
    unsigned marks;
} task;

extern task tasks[];
extern size_t n_tasks;

/* A live block; size 0: none. Only its thread touches it. */
typedef struct held {
    ductile_addr address;
    uint64_t size;
    ductile_stream stream;
    uint8_t pattern;
    bool is_in_plain; /* in the plain pool, whose memory may be gone      */
    unsigned life;    /* of that pool's contents, when it was written; 0: never */
} held;

typedef struct shared_state shared_state;

struct test_thread {
    shared_state *s;
    const task *task;
    unsigned number;
    ductile_stream own;         /* NULL: it has ended            */
    ductile_stream far;         /* under stress: the same, of the second GPU */
    held small, large, in_pool; /* given at the start; large: recorded on everybody's own stream */
    held kept[3];               /* made by the task, and not freed */
    size_t n_kept;
    uint64_t n_turns; /* under stress: before this one */
    bool is_removed;  /* its callback, or its filter, which must not be called any more */
    rng r;
};

/* How a program is run. */
typedef struct run_settings {
    ductile_schedule schedule;
    const char *conf;
} run_settings;

struct shared_state {
    two_ends t; /* the importer is NULL where nothing is shared */
    model live;
    test_thread threads[MOST_THREADS];
    unsigned n_threads, marks;
    bool is_asleep;                /* the plain pool, after a wake that was refused */
    bool drops;                    /* its contents, in that case                      */
    unsigned n_captures;           /* under way                            */
    bool announces;                /* captures, even with a pool that is open */
    held twice;                    /* freed by everybody: once with success */
    held apart;                    /* on the stream apart */
    struct ductile_elastic *range; /* of all threads */
    uint64_t n_committers;         /* that need its first unit */
    unsigned n_freed_twice;
    unsigned n_spillers, n_spilled; /* of them, served */
    char wrong[1024];               /* the first complaint of a thread, or empty */
    pthread_rwlock_t use; /* of contents; n_captures and the next two change under it      */
    unsigned n_dozing;    /* calls under which the plain pool may sleep: no thread touches it */
    unsigned life;        /* contents of the plain pool that were dropped end it           */

    /* Of many threads under stress: */
    bool is_stress;        /* sizes vary, and what callbacks free is left by others */
    shadow *listener;      /* a map callback that keeps a table; NULL: there is none */
    ductile_stream theirs; /* of the second GPU; NULL: there is none */
    held left[N_LEFT];     /* by threads, for others */
    bool is_passing;
    uint64_t n_refused, n_asked, n_refused_inside, n_slept;
};

/* Everything before the threads begin, for the tasks set in the threads. */
const char *shared_open(shared_state *s, const run_settings *m);
/* The same without blocks and streams of threads; `setup` has what is not said here. */
const char *shared_prepare(shared_state *s, const fixture_setup *setup);
/* For scheduler_run. */
void shared_run_task(void *shared, unsigned number);
/* What has to hold once all have ended; then everything ends, and nothing may be left. */
const char *shared_close(shared_state *s);

/* ---- For tasks ----------------------------------------------------------------------------- */

/* Allocates, enters the block in the model and writes to it. Refused where a thread starves the
 * others: *out is none. */
const char *make(test_thread *self, uint64_t size, ductile_stream stream, held *out);
/* In the plain pool; none while that sleeps. */
const char *make_in_plain(test_thread *self, uint64_t size, ductile_stream stream, held *out);
/* The same with a block that a call of the task has made. */
const char *take(test_thread *self, held *h);
/* Frees it: its contents have to be there; none is fine. */
const char *give(test_thread *self, held *h);
/* Its contents have to be there. */
const char *verify_held(shared_state *s, const held *h);
/* The program is done with the block; what remains is the call that frees it. */
const char *let_go(shared_state *s, const held *h);
const char *keep(test_thread *self, const held *h);
/* Not while what it uses sleeps. */
const char *launch(shared_state *s, ductile_virtual_graph *graph, ductile_stream stream);
/* Work of another stream, in order, before and behind that of the block's own. */
const char *use_on(shared_state *s, held *h, ductile_stream stream);
/* The same, and the stream is recorded. */
const char *record_on(shared_state *s, held *h, ductile_stream stream);
/* NULL: there is none. */
const char *end_stream_of(shared_state *s, ductile_stream *stream);
/* The end of a sleep of the plain pool, and maybe the default one; refused where a thread starves
 * the others, and then it goes on until wake_what_was_refused. */
const char *woken(shared_state *s, ductile_status status, bool drops);
const char *wake_what_was_refused(shared_state *s);
bool has_mark(const shared_state *s, unsigned mark);
/* Of n_dozing, life and n_captures: while no thread looks at contents or writes some. */
void change_use(shared_state *s, unsigned *what, int by);
void count(uint64_t *counter);
/* The block that lies at `place` goes to the thread, and the thread's, or none, lies there. */
void exchange(shared_state *s, size_t place, held *h);

#endif

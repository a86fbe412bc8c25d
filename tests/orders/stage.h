/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the threads of a small program share: an allocator on a virtual GPU with two streams, memory
 * freed on both, and a model of the live blocks. Each thread has blocks of its own from before it
 * began, and a stream of its own, on which everybody's blocks were recorded.
 */
#ifndef TESTS_ORDERS_STAGE_H
#define TESTS_ORDERS_STAGE_H

#include "tests/orders/scheduler.h"
#include "tests/support/complain.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/model.h"

#include <ductile_share.h>

#include <stdbool.h>

#define PLAIN_POOL ((ductile_pool_id){0, 7}) /* held; has a block of each thread */

enum { N_COMMON = 2, SMALL = 4096 };

/* What an act may do to the others. */
enum {
    STARVES = 1,  /* they may be refused memory               */
    PAUSES = 2,   /* the plain pool's memory may be gone      */
    SHARES = 4,   /* blocks pass between two allocators       */
    HAS_PEER = 8, /* the machine has a second GPU             */
    IS_SLOW = 16, /* few orders are tried: a process is made  */
    IS_APART = 32 /* it works on a stream of its own, which has memory */
};

typedef struct actor actor;

typedef struct act {
    const char *name;
    const char *(*play)(actor *self);
    unsigned marks;
} act;

extern const act acts[];
extern const size_t n_acts;

/* A live block; size 0: none. Only its actor's thread touches it. */
typedef struct held {
    ductile_addr address;
    uint64_t size;
    ductile_stream stream;
    uint8_t pattern;
} held;

typedef struct stage stage;

struct actor {
    stage *s;
    const act *act;
    unsigned number;
    ductile_stream own;         /* NULL: it has ended            */
    held small, large, in_pool; /* given at the start; large: recorded on everybody's own stream */
    held kept[3];               /* made by the act, and not freed */
    size_t n_kept;
    bool is_removed; /* its callback, or its filter, which must not be called any more */
};

/* How a program is played. */
typedef struct manner {
    ductile_schedule schedule;
    const char *conf;
} manner;

struct stage {
    fixture f;
    model live;
    actor actors[MOST_THREADS];
    unsigned n_actors, marks;
    bool is_paused;      /* the plain pool, after a resume that was refused */
    unsigned n_captures; /* under way                            */
    bool announces;      /* captures, even with a pool that is open */
    held twice;          /* freed by everybody: once with success */
    held apart;          /* on the stream apart */
    unsigned n_freed_twice;
    ductile_allocator *importer;
    int sockets[2];
    char wrong[1024]; /* the first complaint of an actor, or empty */
};

/* Everything before the threads begin, for the acts set in the actors. */
const char *stage_open(stage *s, const manner *m);
/* For scheduler_run. */
void stage_play(void *stage, unsigned number);
/* What has to hold once all have ended; then everything ends, and nothing may be left. */
const char *stage_close(stage *s);

/* ---- For acts ------------------------------------------------------------------------------ */

/* Allocates, enters the block in the model and writes to it. Refused where a thread starves the
 * others: *out is none. */
const char *make(actor *self, uint64_t size, ductile_stream stream, held *out);
/* The same with a block that a call of the act has made. */
const char *take(actor *self, held *h);
/* Frees it: its contents have to be there; none is fine. */
const char *give(actor *self, held *h);
/* The program is done with the block; what remains is the call that frees it. */
const char *let_go(stage *s, const held *h);
const char *keep(actor *self, const held *h);
/* Work of another stream, in order, before and behind that of the block's own. */
const char *use_on(stage *s, const held *h, ductile_stream stream);
/* The plain pool; refused where a thread starves the others. */
const char *resume_pool(stage *s);
bool has_mark(const stage *s, unsigned mark);

#endif

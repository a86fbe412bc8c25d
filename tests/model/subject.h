/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program under test that is read from bytes: an allocator on a virtual GPU, and beside it what
 * an independent model knows of it. The first record of the bytes chooses the device and the
 * options, every other record is one operation (operations.c). Whatever the bytes are, the program
 * they make keeps the contract; so whatever the model, the device or the allocator's own check
 * complains of is a bug.
 *
 * The model knows which blocks are live, of which stream and pool, and what they contain; which
 * pools are open, held and asleep; and how much memory there is. It knows nothing of how the
 * allocator finds memory.
 */
#ifndef TESTS_MODEL_SUBJECT_H
#define TESTS_MODEL_SUBJECT_H

#include "tests/support/complain.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/model.h"
#include "tests/support/shadow.h"
#include "tests/support/two_ends.h"

#include <pthread.h>
#include <stdbool.h>

enum {
    N_NAMED = 8,  /* slots that operands mean */
    OWN_SLOT = 5, /* of them: the default stream of the thread, of thread 1 if there are several */
    MOST_THREADS = 4,
    N_SLOTS = N_NAMED + MOST_THREADS - 1, /* the others: default streams of further threads */
    GONE = N_SLOTS,                       /* in place of a slot: the stream has ended */
    ANY_SLOT = N_SLOTS + 1,
    N_PLAIN_POOLS = 3,
    N_SETS = N_PLAIN_POOLS + 1, /* of pools that may sleep together: with 0, the default one */
    N_GRAPHS = 2,
    N_POOLS = N_PLAIN_POOLS + N_GRAPHS, /* numbers of pools count from 1 */
    ANY_POOL = N_POOLS + 2,
    MOST_ROUTES = 12,
    MOST_BLOCKS = 128,
    MOST_SMALL_BLOCKS = 1200, /* where they are small and many */
    MOST_PINS = 8,
    MOST_IMPORTS = 3,
    N_RANGES = 3,
    MOST_DEBTS = 32,
    NO_GRAPH = N_GRAPHS
};

/* One operation as the bytes say it: which, and its operands. */
typedef struct record {
    uint8_t op, a, b, c;
    uint32_t d;
} record;

/* What kinds of operations a run has at all: some rules hold only without some of them. */
typedef enum family {
    POOLS = 1,
    CAPTURES = 2,
    PINS = 4,
    PEERS = 8,
    SHARING = 16,
    FAULTS = 32,
    PRESSURE = 64,
    CALLBACKS = 128,
    FOREIGN = 256, /* streams of another context */
    ALL_FAMILIES = 511
} family;

typedef enum stream_kind {
    ORDINARY_STREAM,
    BLOCKING_STREAM,
    LEGACY_STREAM,
    THREAD_STREAM,
    FOREIGN_STREAM,
    PEER_STREAM
} stream_kind;

typedef struct slot_state {
    ductile_stream stream;
    stream_kind kind;
    bool is_recorded;     /* on some block, since it was made */
    uint64_t rests_until; /* no allocation on it before that step */
    bool is_gone;         /* it has ended, and there is no other one yet */
} slot_state;

typedef struct pool_state {
    ductile_pool_id id;
    unsigned n_refs, n_open;
    bool is_asleep;
    bool may_be_asleep;  /* it was when it was last held, and may be there still */
    bool keeps_contents; /* while asleep */
} pool_state;

/* Requests go to the newest route that accepts them. */
typedef struct route {
    unsigned pool;
    size_t only;   /* the slot it accepts; N_SLOTS: all of the opener's */
    size_t opener; /* the thread */
} route;

typedef struct graph_state {
    ductile_virtual_graph *graph; /* NULL: none, or its capture is under way */
    bool is_capturing;
    bool is_announced;
    bool is_bare;  /* captured outside of any pool */
    bool is_stale; /* not to be launched any more */
    size_t slot;   /* captured */
    size_t thread; /* that captures */
} graph_state;

/* A block was used elsewhere and is free: its stream has to wait for that use before it allocates
 * again, and before nothing else. */
typedef struct debt {
    size_t slot;       /* of the block */
    ductile_stream of; /* stands behind the use, as an event would; the allocator knows nothing of
                          it */
} debt;

typedef struct pin_state {
    ductile_addr address;
    uint64_t size;
    bool is_export;
} pin_state;

/* An elastic range. Its committed units are blocks. */
typedef struct range_state {
    struct ductile_elastic *range; /* NULL: none */
    size_t slot;                   /* GONE: its stream has ended */
    unsigned pool;
    ductile_pool_id pool_id; /* the pool of a later graph has another one */
    uint64_t unit, n_units;
} range_state;

/* What fails while a pool wakes, and must lose nothing. */
typedef struct hardship {
    bool is_planned;
    uint64_t lacks_memory_at; /* the request for host memory that fails; 0: none */
    bool waits_fail;          /* each of them, or the first */
} hardship;

struct subject;

/* What a thread does when it is its turn. NULL, or what is wrong. */
typedef const char *(*thread_act)(struct subject *s, void *argument);

typedef struct thread_state {
    struct subject *s;
    pthread_t id;
    thread_act act; /* NULL: it waits */
    void *argument;
    const char *why;
    bool ends;
} thread_state;

/* Threads count from 1. Thread 0 begins and ends the run; without others it does everything. */
typedef struct crew {
    thread_state all[MOST_THREADS + 1];
    size_t n;    /* of threads beside thread 0 */
    size_t here; /* whose turn it is */
    size_t next; /* who does the next operation */
    pthread_mutex_t lock;
    pthread_cond_t turn;
} crew;

/* Owner: one run. */
typedef struct subject {
    fixture f;
    fixture_setup setup;
    char conf[400];
    model m;
    shadow listener;
    unsigned families;
    unsigned audit_period;
    ductile_captures captures, captures_at_first;
    bool is_tight; /* handles of one granule */
    bool is_guarded;
    bool has_debts;  /* joins come late */
    bool is_crowded; /* live memory stays near the limit */
    bool is_teeming; /* with small blocks */
    bool is_sleepy;  /* pools go to sleep all the while */
    bool is_large;   /* the device, and what is asked for: by default handles get several sizes */
    bool spills;     /* memory of the host may serve */
    bool goes_home;  /* what memory needs to come back to old addresses: one owner, and one size
                        unless the device is large */
    bool has_context_events, is_short_of_addresses, caches, shares;
    uint64_t granule, max_handle_bytes;
    uint64_t unit_bytes; /* sizes and limits go by it: the granule, or a part of a large device */
    crew crew;
    size_t n_slots; /* that there are */
    slot_state slots[N_SLOTS];
    pool_state pools[N_POOLS + 1]; /* [0] is none */
    route routes[MOST_ROUTES];
    size_t n_routes;
    bool has_left_asleep; /* memory that the driver did not unmap, in a pool whose name is gone */
    unsigned moving_pool; /* one more than falls asleep or wakes; 0: none; ANY_POOL: a set is */
    unsigned bypass;      /* serves for the default pool while that sleeps; 0: none does */
    graph_state graphs[N_GRAPHS];
    uint64_t n_captures;
    debt debts[MOST_DEBTS];
    size_t n_debts;
    pin_state pins[MOST_PINS];
    size_t n_pins;
    two_ends ends; /* its importer is NULL while there is none */
    ductile_addr imports[MOST_IMPORTS];
    size_t n_imports;
    range_state ranges[N_RANGES];
    uint64_t oom_callback; /* 0: none */
    bool has_peer;
    bool is_listening;
    bool has_silent_memory;             /* a stream ended untold */
    bool may_hold_large;                /* handles that were of dedicated blocks serve others */
    uint64_t cap_bytes, external_bytes; /* 0: none */
    uint64_t spill_bytes;               /* of the host that may be locked, at most */
    uint64_t n_forbidden;               /* scopes in which nothing spills */
    uint64_t reserved_bytes;            /* at the latest audit */
    uint64_t live_bytes, target_bytes, typical_bytes;
    bool is_armed;       /* a fault is planned */
    bool is_faulty;      /* one was planned before */
    hardship hardship;   /* of the next wake */
    bool is_over;        /* the device is lost */
    bool is_misused;     /* by a scenario that asks what is found then */
    uint64_t n_foreseen; /* violations that were meant */
    bool is_scripted;    /* the caller looks at `status` */
    const char *wrong;   /* in a callback */
    uint8_t next_pattern;
    ductile_addr last_freed;
    uint64_t step;
    ductile_status status; /* of the latest call */
    int is_pending;        /* the latest block, as it was freed */
    char text[400];        /* of the latest operation */
} subject;

/* ---- subject.c ----------------------------------------------------------------------------- */

/* Reads the first record and opens everything. `text` of the subject says what was chosen. */
const char *subject_open(subject *s, const uint8_t *chosen);
/* The same in two parts, for those who choose families, setup and conf themselves, between them. */
void subject_init(subject *s);
const char *subject_begin(subject *s);
/* Ends everything in order and passes the leak gate. */
const char *subject_close(subject *s);
/* Ends everything and checks nothing. */
void subject_abandon(subject *s);
/* Destroys the allocator with its live blocks and makes another one on the same device. is_idle:
 * all work is waited for before; else only that of other contexts' streams, as it must be. */
const char *subject_make_anew(subject *s, bool is_idle);
const char *subject_audit(subject *s);
/* Has the device seen nothing wrong? */
const char *no_violation(const subject *s);

__attribute__((format(printf, 2, 3))) void say(subject *s, const char *format, ...);
/* The status of a call: is it one that it may have? After a fault more may come. */
const char *may_be(subject *s, const char *call, ductile_status status, bool is_admissible);
bool has(const subject *s, family f);
bool is_capturing(const subject *s);
bool is_captured(const subject *s, size_t slot);
/* Nothing but blocks on streams: then it is known when memory may be refused. */
bool is_simple(const subject *s);
/* The same where requests may spill. */
bool is_simple_but_spills(const subject *s);
void plan_no_fault(subject *s);
/* Waits for the work of all streams; not during a capture. */
const char *sync_all(subject *s);
/* Makes the slot's stream; the slot has none. */
const char *make_stream(subject *s, size_t slot, stream_kind kind);

/* ---- blocks.c ------------------------------------------------------------------------------ */

/* The slot the operand means: one that may allocate, or any that may use memory. */
size_t owner_slot(const subject *s, uint8_t operand);
size_t user_slot(const subject *s, uint8_t operand);
model_block *any_block(subject *s, uint32_t operand);
uint64_t any_size(const subject *s, const record *r);
/* Below `end`, also where that is more than the operand can say. */
uint64_t any_below(uint64_t end, uint32_t operand);
/* The number of the pool that serves the slot's requests; 0: none. */
unsigned pool_for(const subject *s, size_t slot);
/* how % 4 == 1: it asks whether the block is pending. */
const char *free_block(subject *s, size_t i, unsigned how);
/* By the slot's stream, which used it last. */
const char *free_block_on(subject *s, model_block *b, size_t slot);
const char *free_blocks_of_pool(subject *s, unsigned pool);
/* The program is done with the block of that index, about to free it. In a callback of the call
 * that frees it, it must not be found. */
model_block withdraw_block(subject *s, size_t i);
const char *verify_block(subject *s, const model_block *b);
const char *fill_block(subject *s, model_block *b, size_t slot);
/* Without contents; admit_block fills the block, too. */
const char *admit_blank(subject *s, model_block *b);
const char *admit_block(subject *s, model_block *b);
/* Does it lie in memory of the host, in part? No other call is running. */
bool is_spilled(const subject *s, const model_block *b);
uint64_t spilled_bytes(const subject *s, const model_block *b);
/* Granules of the device that no large request gets while memory of the host serves. */
uint64_t kept_for_small(const subject *s);
/* So much was asked for, so much of it is missing now, and was refused: was there none? */
const char *lacks_memory(subject *s, uint64_t asked, uint64_t missing);
/* What cannot be recorded is waited for. */
const char *record_use(subject *s, model_block *b, size_t slot);
/* May the slot's stream use it now, beside its own? */
bool may_use_block(const subject *s, const model_block *b, size_t slot);
/* The program's work with a block on another stream, in order. */
const char *use_elsewhere(subject *s, model_block *b, size_t slot);

/* ---- ranges.c ------------------------------------------------------------------------------ */

const char *end_range(subject *s, range_state *of);
/* Those of the slot's stream. */
const char *end_ranges(subject *s, size_t slot);
/* What is committed there by now is there for the model; what is decommitted is not any more. */
const char *admit_range(subject *s, range_state *of, uint64_t offset, uint64_t bytes,
                        bool is_blank);
const char *withdraw_range(subject *s, range_state *of, uint64_t offset, uint64_t bytes);
/* They went with their allocator. */
void forget_ranges(subject *s);
/* The slot's stream ends: its ranges cannot grow any more. */
void leave_ranges(subject *s, size_t slot);

/* ---- streams.c ----------------------------------------------------------------------------- */

const char *end_graphs(subject *s);

bool has_graph(const subject *s);
/* All other streams wait for the slot's. */
const char *join_all_with(subject *s, size_t slot);
const char *free_recorded(subject *s, size_t slot);
/* Blocks of the slot's stream go before it ends, or stay, and then its work is waited for. */
const char *leave_blocks(subject *s, size_t slot, bool they_stay);
/* The allocators learn that the slot's stream ends. */
const char *tell(subject *s, size_t slot);

/* ---- threads.c ----------------------------------------------------------------------------- */

const char *start_threads(subject *s);
void end_threads(subject *s);
const char *on_thread(subject *s, size_t thread, thread_act act, void *argument);
/* On a thread in which the slot's handle means its stream. */
const char *with_stream(subject *s, size_t slot, thread_act act, void *argument);
/* The default stream of the thread whose turn it is. */
size_t thread_slot(const subject *s);
/* The slot's stream waits for `first`; `then` waits for the slot's; one slot's for another's. */
const char *wait_for(subject *s, size_t slot, ductile_stream first);
const char *follow(subject *s, ductile_stream then, size_t slot);
const char *order_slots(subject *s, size_t first, size_t then);
const char *sync_slot(subject *s, size_t slot);

/* ---- debts.c ------------------------------------------------------------------------------- */

/* The slot's stream has to wait for what slot `user` has done so far. */
const char *owe(subject *s, size_t slot, size_t user);
bool is_in_debt(const subject *s, size_t slot);
/* The slot's stream waits for what it owes. */
const char *pay(subject *s, size_t slot);
/* Nothing is owed any more: by this slot's stream, which is gone;
 * by any, for the host has waited. */
const char *forgive(subject *s, size_t slot);
const char *forgive_all(subject *s);
bool rests(const subject *s, size_t slot);

/* ---- failed_wakes.c ------------------------------------------------------------------------ */

/* A wake that fails; then the pool sleeps on, or is given up. */
const char *fail_to_wake(subject *s, unsigned pool, const record *r);
/* Around the call that the planned hardship is for; without one nothing happens. */
const char *hardship_begin(subject *s);
void hardship_end(subject *s);

/* ---- pools.c ------------------------------------------------------------------------------- */

/* Those that programs and scenarios make; an allocator knows none of them yet. */
void name_pools(subject *s);
bool pool_exists(const subject *s, unsigned pool);
/* Waits for streams of other contexts, for which the allocator does not. */
const char *sync_foreign(subject *s);
size_t blocks_in(const subject *s, unsigned pool);
/* To be called after a block or a reference of the pool has gone. */
void note_if_gone(subject *s, unsigned pool);
const char *open_pool(subject *s, unsigned pool, size_t only);
const char *close_pool(subject *s, unsigned pool);
const char *hold_pool(subject *s, unsigned pool);
const char *release_pool(subject *s, unsigned pool);
const char *sleep_pool(subject *s, unsigned pool, ductile_contents contents);
const char *wake_pool(subject *s, unsigned pool);
/* In the handle cache, of a dedicated block. */
const char *leave_large_handle(subject *s, const record *r);
/* Does the handle cache hold what may serve several requests? */
bool caches_large(const subject *s);
const char *do_nap(subject *s, const record *r);
const char *do_sets(subject *s, const record *r);
ductile_pool_id pool_id_of(uint64_t pool);
ductile_pool_info pool_info_of(const subject *s, unsigned pool);
/* Calls sleep_set or wake_set for what is meant, and follows what it did. */
const char *change_set(subject *s, const ductile_sleep_request *r, const bool *is_meant,
                       bool sleeps, ductile_sleep_report *report, ductile_status *status);
/* Calls ductile_promote, and follows what it did: no block has another address or other contents,
 * and what stays in the host has no room. */
const char *promote(subject *s, ductile_sleep_report *report, ductile_status *status);
const char *do_promote(subject *s);
const char *end_pools(subject *s);
/* Before a set of pools falls asleep, for each of it: to the device its blocks are not live. */
void pool_may_sleep(subject *s, unsigned pool);
/* Whether it sleeps now; for pools of a set that was put to sleep or woken. */
const char *pool_sleeps(subject *s, unsigned pool, bool sleeps);

/* ---- memory.c ------------------------------------------------------------------------------ */

uint64_t limit_of(const subject *s);
/* Granules that nothing can give back or give to others before a block of the model is freed. */
uint64_t held_by_live(subject *s);

/* When all work is done and nothing is captured, a trim leaves nothing unused, and then
 * what fits is not refused. Waits for all work. */
const char *nothing_is_stuck(subject *s, size_t slot);

/* ---- sharing.c ----------------------------------------------------------------------------- */

/* A second allocator, and a socket to it; where there is none yet. */
const char *make_importer(subject *s);
/* The importer sees what the block holds, at that address of its own. */
const char *is_seen_at(subject *s, const model_block *b, ductile_addr at);
const char *end_sharing(subject *s);

/* ---- operations.c -------------------------------------------------------------------------- */

/* Out of 256 values of the first byte, how many mean which operation. Each is in the file of its
 * subject. */
#define OPERATIONS(X)                                                                              \
    X(do_balance, 48)                                                                              \
    X(do_elastic, 12)                                                                              \
    X(do_alloc, 8)                                                                                 \
    X(do_free, 8)                                                                                  \
    X(do_dedicated, 5)                                                                             \
    X(do_phase, 4)                                                                                 \
    X(do_use, 14)                                                                                  \
    X(do_free_on, 8)                                                                               \
    X(do_join, 12)                                                                                 \
    X(do_verify, 3)                                                                                \
    X(do_query, 4)                                                                                 \
    X(do_advance, 10)                                                                              \
    X(do_sync, 3)                                                                                  \
    X(do_order, 5)                                                                                 \
    X(do_replace_stream, 2)                                                                        \
    X(do_peer, 2)                                                                                  \
    X(do_capture_begin, 4)                                                                         \
    X(do_capture_end, 3)                                                                           \
    X(do_launch, 4)                                                                                \
    X(do_destroy_graph, 3)                                                                         \
    X(do_set_captures, 2)                                                                          \
    X(do_pool_open, 6)                                                                             \
    X(do_pool_close, 7)                                                                            \
    X(do_pool_hold, 5)                                                                             \
    X(do_pool_kind, 3)                                                                             \
    X(do_pool_view, 3)                                                                             \
    X(do_pool_trim, 3)                                                                             \
    X(do_sleep, 8)                                                                                 \
    X(do_alloc_at, 2)                                                                              \
    X(do_trim, 3)                                                                                  \
    X(do_empty, 3)                                                                                 \
    X(do_limit, 3)                                                                                 \
    X(do_soft_limit, 2)                                                                            \
    X(do_external, 4)                                                                              \
    X(do_fault, 2)                                                                                 \
    X(do_no_fault, 2)                                                                              \
    X(do_callback, 2)                                                                              \
    X(do_views, 3)                                                                                 \
    X(do_misuse, 4)                                                                                \
    X(do_pin, 7)                                                                                   \
    X(do_share, 2)                                                                                 \
    X(do_close_import, 2)                                                                          \
    X(do_anew, 1)                                                                                  \
    X(do_pay, 4)                                                                                   \
    X(do_rest, 2)                                                                                  \
    X(do_thread, 6)                                                                                \
    X(do_end_thread, 3)
#define OPERATION(run, weight) const char *run(subject *s, const record *r);
OPERATIONS(OPERATION)
#undef OPERATION

/* Does the operation leave the amount of memory, and the allocator, as they are? */
bool subject_is_steady(uint8_t op);
/* Does what the record says, and audits when it is time. */
const char *subject_step(subject *s, const record *r);
#endif

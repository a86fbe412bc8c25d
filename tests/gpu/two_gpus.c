/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a GPU that was enabled reach all memory of an allocator on another one, wherever that moves?
 * Blocks of all sizes get patterns by kernels of one GPU, which kernels of the other check, in
 * turns, while live memory rises and dips, so that handles are recycled and compacted between the
 * two, with work of both in flight. Beside that the memory is trimmed, put to sleep and woken,
 * copied in both directions, and the other GPU is shut out and let in again. Every granule of every
 * block is asked who may reach it.
 *
 *     two_gpus [--virtual] [--device N] [--peer N] [--seconds N] [--seed N]
 *
 * First, in a process of its own, the other GPU is shut out and tries all the same: its work has to
 * fail. Last, pools fall asleep and allocators end while it has yet to write. Prints one figure a
 * line. Ends with 1 when anything is wrong, also when no handle was recycled or compacted, because
 * then nothing was tested; 77 without two devices of which the second reaches the first; 3 when it
 * hangs.
 *
 * On the virtual GPU streams of the machine's second device do the other one's work.
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/in_child.h"
#include "tests/support/program_blocks.h"
#include "tests/support/rng.h"
#include "vmm/base/align.h"

#include <ductile_share.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    MOST_BLOCKS = 1024,
    STEPS_PER_CYCLE = 400,
    LEAST_CYCLES = 12, /* one of everything that a cycle may bring */
    COPY_BYTES = (5 << 20) + 512
};

static const ductile_pool_id pool = {7, 0};

/* ---- One GPU's work with memory that two of them reach ------------------------------------- */

typedef struct worker {
    program_device on; /* the peer's on the virtual GPU: the owner's, which it does not close */
    ductile_stream stream;
    dvmm_event event; /* recorded where the other one is to go on */
} worker;

enum { LATE_NS = 200000000 }; /* longer than a sleep that does not wait */

static const char *worker_open(worker *w) {
    program_device *on = &w->on;
    TRY(program_attach(on, on->gpu == NULL ? 1 : 0));
    if (on->gpu != NULL) {
        NEED_OK(
            ductile_virtual_stream_create_on(on->gpu, on->device, &on->streams[on->n_streams++]));
    }
    w->stream = on->streams[0];
    NEED_OK(dvmm_event_create(on->driver, &w->event));
    return NULL;
}

/* What `to` does from now on comes after what `from` has done. */
static const char *let_go_on(const worker *from, const worker *to) {
    NEED_OK(dvmm_event_record(from->on.driver, from->event, from->stream));
    NEED_OK(dvmm_stream_wait_event(to->on.driver, to->stream, from->event));
    return NULL;
}

/* ---- Work that is late --------------------------------------------------------------------- */

/* Of a stream of the second GPU, recorded on a block of the first one's memory that is to go. */
typedef struct late_work {
    worker *owner;
    worker *peer;
    uint64_t id;     /* of the next pattern                                       */
    uint64_t n_late; /* times that the work was not done when the memory was to go */
} late_work;

static const char *begin_late(late_work *l, ductile_allocator *a, pattern_block *c) {
    c->size = 10 * DTI_MIB + 512;
    c->id = l->id++;
    NEED_OK(ductile_alloc(a, c->size, l->owner->stream, &c->address));
    TRY(pattern_write(&l->owner->on.tester, c, l->owner->stream));
    TRY(let_go_on(l->owner, l->peer));
    TRY(pattern_keep_busy(&l->peer->on.tester, l->peer->stream, LATE_NS));
    c->id = l->id++;
    TRY(pattern_write(&l->peer->on.tester, c, l->peer->stream));
    NEED_OK(dvmm_event_record(l->peer->on.driver, l->peer->event, l->peer->stream));
    NEED_OK(ductile_record_stream(a, c->address, l->peer->stream));
    return NULL;
}

static bool is_over(const late_work *l) {
    return dvmm_event_query(l->peer->on.driver, l->peer->event) == DUCTILE_OK;
}

/* A pool is put to sleep while the peer has yet to write to a block of it. Afterwards that is done,
 * and what it wrote is there when the contents were kept. */
static const char *late_before_sleep(late_work *l, ductile_allocator *a,
                                     ductile_contents contents) {
    pattern_block c;
    const ductile_pool_id id = {9, l->id}; /* one that holds nothing yet */
    NEED_OK(ductile_pool_retain(a, id));
    NEED_OK(ductile_pool_set_kind(a, id, DUCTILE_POOL_PLAIN));
    NEED_OK(ductile_pool_begin(a, id, NULL, NULL));
    TRY(begin_late(l, a, &c));
    NEED_OK(ductile_pool_end(a, id));
    l->n_late += !is_over(l);
    NEED_OK(ductile_sleep(a, id, contents));
    NEED(is_over(l), "a sleep did not wait for the peer's stream");
    NEED_OK(ductile_wake(a, id));
    if (contents == DUCTILE_CONTENTS_KEEP) {
        TRY(pattern_check(&l->owner->on.tester, &c, l->owner->stream));
    }
    NEED_OK(ductile_free(a, c.address));
    NEED_OK(ductile_pool_release(a, id));
    NEED_OK(ductile_pool_release(a, id));
    return NULL;
}

/* The allocator is destroyed meanwhile; with `is_freed` the block was freed before. */
static const char *late_before_destroy(late_work *l, ductile_allocator *a, bool is_freed) {
    pattern_block c;
    NEED_OK(ductile_enable_peer(a, l->peer->on.device));
    TRY(begin_late(l, a, &c));
    if (is_freed) {
        NEED_OK(ductile_free(a, c.address));
    }
    l->n_late += !is_over(l);
    NEED_OK(ductile_destroy(a));
    NEED(is_over(l), "an allocator ended and did not wait for the peer's stream");
    return NULL;
}

/* ---- The pair ------------------------------------------------------------------------------ */

typedef struct pair {
    worker owner;
    worker peer;
    uint64_t seconds;
    uint64_t seed;
    ductile_addr far; /* COPY_BYTES of the peer's own memory; virtual: a block that it reaches */
    ductile_allocator *a;
    rng rng;
    uint64_t granule;
    uint64_t limit;
    live_blocks live;
    uint64_t next_id;
    uint64_t cycles, ops, granules_asked, enables, sleeps, copies;
} pair;

/* ---- Opening and closing ------------------------------------------------------------------- */

static const char *open_cuda_pair(pair *p) {
    bool can = false;
    TRY(program_open_driver(&p->owner.on, NULL));
    TRY(program_open_driver(&p->peer.on, NULL));
    NEED_OK(dvmm_can_access_peer(p->owner.on.driver, p->peer.on.device, &can));
    if (!can) {
        command_skip("the second device cannot reach memory of the first");
    }
    return NULL;
}

static const char *open_virtual_pair(pair *p) {
    ductile_virtual_options options =
        program_options(1024 * DTI_MIB, DUCTILE_SCHEDULE_LAGGING, 40, p->seed);
    options.n_devices = 2;
    options.detect = 1;
    p->owner.on.device = 0;
    TRY(program_open_driver(&p->owner.on, &options));
    p->peer.on = p->owner.on;
    p->peer.on.device = 1;
    return NULL;
}

static const char *open_all(pair *p) {
    bool is_virtual = p->owner.on.is_virtual;
    p->rng = rng_seeded(p->seed);
    p->next_id = 1;
    TRY(is_virtual ? open_virtual_pair(p) : open_cuda_pair(p));
    p->granule = dvmm_get_caps(p->owner.on.driver)->granule_bytes;
    p->limit = is_virtual ? 512 * DTI_MIB : 2048 * DTI_MIB;
    TRY(worker_open(&p->owner));
    TRY(worker_open(&p->peer));
    TRY(program_allocator(&p->owner.on, p->limit, &p->a));
    NEED_OK(is_virtual ? ductile_alloc(p->a, COPY_BYTES, p->owner.stream, &p->far)
                       : bench_mem_alloc(p->peer.on.driver, COPY_BYTES, &p->far));
    return NULL;
}

static const char *close_all(pair *p) {
    NEED_OK(p->owner.on.is_virtual ? ductile_free(p->a, p->far)
                                   : bench_mem_free(p->peer.on.driver, p->far));
    NEED_OK(ductile_destroy(p->a));
    NEED_OK(dvmm_event_destroy(p->peer.on.driver, p->peer.event));
    NEED_OK(dvmm_event_destroy(p->owner.on.driver, p->owner.event));
    TRY(p->owner.on.gpu != NULL ? program_detach(&p->peer.on) : program_close(&p->peer.on));
    return program_close(&p->owner.on);
}

/* ---- Who may reach what -------------------------------------------------------------------- */

static const char *expect_access(pair *p, ductile_addr addr, int device, dvmm_access expected) {
    dvmm_access access = DVMM_ACCESS_NONE;
    NEED_OK(bench_get_access_for(p->owner.on.driver, addr, device, &access));
    NEED(access == expected, "device %d has access %d to %#llx, not %d", device, (int)access,
         (unsigned long long)addr, (int)expected);
    return NULL;
}

static const char *ask_block(pair *p, const pattern_block *c, dvmm_access of_peer) {
    for (ductile_addr at = dti_round_down(c->address, p->granule); at < c->address + c->size;
         at += p->granule) {
        TRY(expect_access(p, at, p->owner.on.device, DVMM_ACCESS_RW));
        TRY(expect_access(p, at, p->peer.on.device, of_peer));
        p->granules_asked++;
    }
    return NULL;
}

static const char *ask_all_blocks(pair *p, dvmm_access of_peer) {
    for (size_t i = 0; i < p->live.n; i++) {
        TRY(ask_block(p, &p->live.all[i].block, of_peer));
    }
    return NULL;
}

/* ---- Work of two GPUs ---------------------------------------------------------------------- */

typedef const char *(*work_fn)(pattern_tester *p, const pattern_block *c, ductile_stream stream);

/* The peer works between two points of the owner's stream: so a free there is behind it. */
static const char *by_peer(pair *p, work_fn what, const pattern_block *c) {
    TRY(let_go_on(&p->owner, &p->peer));
    TRY(what(&p->peer.on.tester, c, p->peer.stream));
    return let_go_on(&p->peer, &p->owner);
}

static const char *by_owner(pair *p, work_fn what, const pattern_block *c) {
    return what(&p->owner.on.tester, c, p->owner.stream);
}

static const char *write_and_check(pair *p, const pattern_block *c) {
    if (rng_percent(&p->rng, 50)) {
        TRY(by_peer(p, pattern_write, c));
        return by_owner(p, pattern_check, c);
    }
    TRY(by_owner(p, pattern_write, c));
    return by_peer(p, pattern_check, c);
}

static const char *allocate(pair *p, uint64_t size, bool *got) {
    live_block b = {.block = {.size = dti_round_up(size, 512), .id = p->next_id++}};
    TRY(program_ask(p->a, &b.block, p->owner.stream));
    *got = b.block.address != 0;
    if (!*got) {
        return NULL;
    }
    live_blocks_add(&p->live, b);
    p->ops++;
    TRY(ask_block(p, &b.block, DVMM_ACCESS_RW));
    return write_and_check(p, &b.block);
}

/* The peer writes last, over the pattern: that is not to be found in memory that serves again. */
static const char *release(pair *p) {
    pattern_block c = live_blocks_remove(&p->live, (size_t)rng_below(&p->rng, p->live.n)).block;
    p->ops++;
    TRY(rng_percent(&p->rng, 50) ? by_peer(p, pattern_check, &c) : by_owner(p, pattern_check, &c));
    TRY(by_peer(p, pattern_overwrite, &c));
    NEED_OK(ductile_free(p->a, c.address));
    return NULL;
}

static const char *release_until(pair *p, uint64_t live_bytes) {
    while (p->live.n > 0 && p->live.live_bytes > live_bytes) {
        TRY(release(p));
    }
    return NULL;
}

static uint64_t random_size(pair *p) {
    uint64_t top = p->limit >> rng_between(&p->rng, 5, 14);
    return rng_between(&p->rng, top / 2, top) + 512;
}

static const char *churn_towards(pair *p, uint64_t level, int steps) {
    for (int i = 0; i < steps; i++) {
        bool got = true;
        if (p->live.n < MOST_BLOCKS && p->live.live_bytes < level) {
            TRY(allocate(p, random_size(p), &got));
        } else if (p->live.n > 0) {
            TRY(release(p));
        }
        if (!got) {
            TRY(release_until(p, p->live.live_bytes - p->live.live_bytes / 8));
        }
    }
    return NULL;
}

static const char *expect_no_mismatch(pair *p) {
    uint64_t of_owner = 0;
    uint64_t of_peer = 0;
    TRY(pattern_mismatches(&p->owner.on.tester, &of_owner));
    TRY(pattern_mismatches(&p->peer.on.tester, &of_peer));
    NEED(of_owner == 0 && of_peer == 0,
         "%llu words were not what the peer wrote, %llu not what the owner wrote",
         (unsigned long long)of_owner, (unsigned long long)of_peer);
    return NULL;
}

/* ---- What else may happen to the memory ---------------------------------------------------- */

/* All that the two have issued is done. */
static const char *wait_for_both(const pair *p) {
    NEED_OK(dvmm_stream_sync(p->peer.on.driver, p->peer.stream));
    NEED_OK(dvmm_stream_sync(p->owner.on.driver, p->owner.stream));
    return NULL;
}

/* Shut out, then in again: what is live, and what was mapped meanwhile. */
static const char *shut_out_and_let_in(pair *p) {
    TRY(wait_for_both(p));
    NEED_OK(ductile_disable_peer(p->a, p->peer.on.device));
    TRY(ask_all_blocks(p, DVMM_ACCESS_NONE));
    pattern_block unseen = {.size = 24 * DTI_MIB, .id = p->next_id++};
    NEED_OK(ductile_alloc(p->a, unseen.size, p->owner.stream, &unseen.address));
    TRY(by_owner(p, pattern_write, &unseen));
    TRY(ask_block(p, &unseen, DVMM_ACCESS_NONE));
    NEED_OK(ductile_enable_peer(p->a, p->peer.on.device));
    TRY(ask_block(p, &unseen, DVMM_ACCESS_RW));
    TRY(by_peer(p, pattern_check, &unseen));
    NEED_OK(ductile_free(p->a, unseen.address));
    p->enables++;
    return ask_all_blocks(p, DVMM_ACCESS_RW);
}

static const char *sleep_and_wake(pair *p) {
    pattern_block c = {.size = 10 * DTI_MIB + 512, .id = p->next_id++};
    NEED_OK(ductile_pool_begin(p->a, pool, NULL, NULL));
    NEED_OK(ductile_alloc(p->a, c.size, p->owner.stream, &c.address));
    NEED_OK(ductile_pool_end(p->a, pool));
    TRY(by_peer(p, pattern_write, &c));
    NEED_OK(ductile_sleep(p->a, pool, DUCTILE_CONTENTS_KEEP));
    NEED_OK(ductile_wake(p->a, pool));
    TRY(ask_block(p, &c, DVMM_ACCESS_RW));
    TRY(by_peer(p, pattern_check, &c));
    TRY(by_owner(p, pattern_check, &c));
    NEED_OK(ductile_free(p->a, c.address));
    NEED_OK(ductile_pool_release(p->a, pool));
    p->sleeps++;
    return NULL;
}

static const char *expect_bytes(const worker *w, ductile_addr addr, uint8_t value) {
    static uint8_t bytes[COPY_BYTES];
    memset(bytes, ~value, sizeof bytes);
    NEED_OK(bench_read_back(w->on.driver, bytes, addr, sizeof bytes, w->stream));
    NEED(bytes[0] == value && memcmp(bytes, bytes + 1, sizeof bytes - 1) == 0,
         "a copy arrived otherwise than it was sent");
    return NULL;
}

/* A memset by the peer, and copies by it from its own memory and into it. */
static const char *copy_both_ways(pair *p) {
    ductile_addr near = 0;
    const uint8_t value = (uint8_t)(p->next_id++ % 200 + 1);
    const worker *w = &p->peer;
    NEED_OK(ductile_alloc(p->a, COPY_BYTES, p->owner.stream, &near));
    TRY(let_go_on(&p->owner, w));
    NEED_OK(dvmm_fill(w->on.driver, p->far, value, COPY_BYTES, w->stream));
    NEED_OK(bench_copy(w->on.driver, near, p->far, COPY_BYTES, w->stream));
    TRY(let_go_on(w, &p->owner));
    TRY(expect_bytes(&p->owner, near, value));
    NEED_OK(dvmm_fill(w->on.driver, near, (uint8_t)~value, COPY_BYTES, w->stream));
    NEED_OK(bench_copy(w->on.driver, p->far, near, COPY_BYTES, w->stream));
    TRY(expect_bytes(w, p->far, (uint8_t)~value));
    TRY(let_go_on(w, &p->owner));
    TRY(expect_bytes(&p->owner, near, (uint8_t)~value));
    NEED_OK(ductile_free(p->a, near));
    p->copies++;
    return NULL;
}

/* A block is freed while the peer has yet to check it and to write over it, and its memory is
 * asked for at once: with its stream recorded no request may get it. */
static const char *free_under_the_peer(pair *p) {
    pattern_block c = {.size = 8 * DTI_MIB, .id = p->next_id++};
    pattern_block next[4];
    NEED_OK(ductile_alloc(p->a, c.size, p->owner.stream, &c.address));
    TRY(by_owner(p, pattern_write, &c));
    TRY(let_go_on(&p->owner, &p->peer));
    TRY(pattern_keep_busy(&p->peer.on.tester, p->peer.stream, 3000000));
    TRY(pattern_check(&p->peer.on.tester, &c, p->peer.stream));
    TRY(pattern_overwrite(&p->peer.on.tester, &c, p->peer.stream));
    NEED_OK(ductile_record_stream(p->a, c.address, p->peer.stream));
    NEED_OK(ductile_free(p->a, c.address));
    for (int i = 0; i < 4; i++) {
        next[i] = (pattern_block){.size = c.size, .id = p->next_id++};
        NEED_OK(ductile_alloc(p->a, c.size, p->owner.stream, &next[i].address));
        TRY(by_owner(p, pattern_write, &next[i]));
    }
    TRY(wait_for_both(p));
    for (int i = 0; i < 4; i++) {
        TRY(by_owner(p, pattern_check, &next[i]));
        NEED_OK(ductile_free(p->a, next[i].address));
    }
    return NULL;
}

static const char *free_under_the_peer_often(pair *p) {
    for (int i = 0; i < 50; i++) {
        TRY(free_under_the_peer(p));
    }
    TRY(wait_for_both(p));
    TRY(expect_no_mismatch(p));
    /* Looks at markers, and gives nothing back. */
    NEED_OK(ductile_trim(p->a, NULL, UINT64_MAX, NULL));
    ductile_stats s = fixture_stats(p->a);
    NEED(s.pending_blocks == 0, "%llu blocks wait for work that is done",
         (unsigned long long)s.pending_blocks);
    return NULL;
}

/* Memory goes, at a sleep or with its allocator, while the peer has yet to write to it. */
static const char *let_memory_go_under_the_peer(pair *p) {
    late_work l = {.owner = &p->owner, .peer = &p->peer, .id = p->next_id};
    ductile_allocator *other = NULL;
    for (unsigned i = 0; i < 6; i++) {
        TRY(late_before_sleep(&l, p->a,
                              i % 2 == 0 ? DUCTILE_CONTENTS_KEEP : DUCTILE_CONTENTS_DROP));
        TRY(program_allocator(&p->owner.on, p->limit, &other));
        TRY(late_before_destroy(&l, other, i % 2 == 0));
    }
    NEED(l.n_late > 0, "the peer was done each time: nothing was tested");
    command_figure("gone_under_the_peer", l.n_late);
    return expect_no_mismatch(p);
}

/* ---- Cycles -------------------------------------------------------------------------------- */

/* Up to most of the limit, some turnover there, and down to a dip, where compaction begins. */
static const char *run_cycle(pair *p) {
    TRY(churn_towards(p, p->limit / 100 * rng_between(&p->rng, 70, 97), STEPS_PER_CYCLE));
    TRY(release_until(p, p->limit / 100 * rng_between(&p->rng, 2, 22)));
    TRY(churn_towards(p, p->limit / 100 * 30, STEPS_PER_CYCLE / 4));
    TRY(ask_all_blocks(p, DVMM_ACCESS_RW));
    TRY(copy_both_ways(p));
    if (p->cycles % 3 == 0) {
        TRY(shut_out_and_let_in(p));
    }
    if (p->cycles % 3 == 1) {
        TRY(sleep_and_wake(p));
    }
    if (p->cycles % 4 == 3) {
        TRY(wait_for_both(p));
        NEED_OK(ductile_trim(p->a, NULL, p->limit / 4, NULL));
    }
    p->cycles++;
    TRY(expect_no_mismatch(p));
    return program_is_sound(p->a);
}

/* What was mapped before the peer was let in, and what comes. The pool is for sleeps alone. */
static const char *begin(pair *p) {
    bool got = false;
    NEED_OK(ductile_pool_retain(p->a, pool));
    NEED_OK(ductile_pool_set_kind(p->a, pool, DUCTILE_POOL_PLAIN));
    pattern_block first = {.size = 9 * DTI_MIB, .id = p->next_id++};
    NEED_OK(ductile_alloc(p->a, first.size, p->owner.stream, &first.address));
    TRY(by_owner(p, pattern_write, &first));
    TRY(ask_block(p, &first, DVMM_ACCESS_NONE));
    NEED_OK(ductile_enable_peer(p->a, p->peer.on.device));
    TRY(ask_block(p, &first, DVMM_ACCESS_RW));
    TRY(by_peer(p, pattern_check, &first));
    NEED_OK(ductile_free(p->a, first.address));
    TRY(allocate(p, 30 * DTI_MIB, &got));
    NEED(got, "the device has no memory");
    return expect_no_mismatch(p);
}

static const char *judge(const pair *p) {
    ductile_stats s = fixture_stats(p->a);
    command_figure("cycles", p->cycles);
    command_figure("ops", p->ops);
    command_figure("granules_asked", p->granules_asked);
    command_figure("let_in_again", p->enables);
    command_figure("sleeps", p->sleeps);
    command_figure("copies", p->copies);
    command_figure("recycled_handles", s.recycled_handles);
    command_figure("compacted_handles", s.compacted_handles);
    command_figure("creates", s.creates);
    NEED(s.recycled_handles > 0 && s.compacted_handles > 0,
         "no handle was recycled, or none compacted: nothing was tested");
    return NULL;
}

static const char *run(pair *p) {
    time_t end = time(NULL) + (time_t)p->seconds;
    TRY(begin(p));
    while (p->cycles < LEAST_CYCLES || time(NULL) < end) {
        const char *why = run_cycle(p);
        NEED(why == NULL, "cycle %llu: %s", (unsigned long long)p->cycles, why);
    }
    TRY(release_until(p, 0));
    NEED_OK(ductile_pool_release(p->a, pool));
    TRY(wait_for_both(p));
    TRY(expect_no_mismatch(p));
    TRY(judge(p));
    const char *why = free_under_the_peer_often(p);
    NEED(why == NULL, "with the peer's stream recorded: %s", why);
    command_figure("freed_under_the_peer", 50);
    return let_memory_go_under_the_peer(p);
}

/* ---- Shut out, and trying all the same ----------------------------------------------------- */

/* Its context, and perhaps this process's other one, is lost afterwards: nothing is given back. */
static const char *try_the_door(pair *p) {
    pattern_block c = {.size = 4 * DTI_MIB, .id = 1};
    NEED_OK(ductile_alloc(p->a, c.size, p->owner.stream, &c.address));
    NEED_OK(ductile_enable_peer(p->a, p->peer.on.device));
    TRY(by_peer(p, pattern_write, &c));
    TRY(by_owner(p, pattern_check, &c));
    TRY(expect_no_mismatch(p));
    NEED_OK(ductile_disable_peer(p->a, p->peer.on.device));
    const char *refused = pattern_write(&p->peer.on.tester, &c, p->peer.stream);
    int code = dvmm_last_code();
    ductile_status status = dvmm_stream_sync(p->peer.on.driver, p->peer.stream);
    code = status != DUCTILE_OK ? dvmm_last_code() : code;
    NEED(refused != NULL || status != DUCTILE_OK, "a kernel of the peer reached what is closed");
    (void)printf("shut_out %s (%d)\n", dvmm_code_name(code), code);
    return NULL;
}

static pair the_pair; /* large */

static int try_in_own_process(void) {
    const char *why = open_all(&the_pair);
    int code = command_end(why == NULL ? try_the_door(&the_pair) : why);
    (void)fflush(stdout);
    return code;
}

/* ---- The program --------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    pair *p = &the_pair;
    *p = (pair){.peer.on.device = 1, .seconds = 15, .seed = 1};
    const command_option options[] = {
        PROGRAM_OPTIONS(&p->owner.on),
        {"--peer", .device = &p->peer.on.device},
        {"--seconds", .number = &p->seconds},
        {"--seed", .number = &p->seed},
    };
    command_read("two_gpus", options, sizeof options / sizeof *options, argc, argv);
    if (p->owner.on.device == p->peer.on.device) {
        command_refuse("the two are the same device");
    }
    (void)setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    command_end_after(p->seconds * 2 + 120);
    int code = in_child(try_in_own_process);
    if (code != COMMAND_PASSED) {
        return code < 0 ? COMMAND_BROKEN : code;
    }
    const char *why = open_all(p);
    why = why == NULL ? run(p) : why;
    return program_end(why == NULL ? close_all(p) : why);
}

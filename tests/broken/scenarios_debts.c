/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block is freed while another stream, which was not recorded, uses it; the block's own stream is
 * ordered behind that stream later, before it allocates again (docs/contract.md, rule 3). Until
 * then no call of any other part of the program may take the memory away.
 */
#include "tests/broken/steps.h"

#define LARGE (40 * MIB) /* of CAPACITY */

static const ductile_pool_id owed_pool = {7, 0};

/* The user reads what the owner freed. */
static void owe(play *p, unsigned owner, uint64_t size) {
    block used = take(p, owner, size);
    need(p, order_slots(p, owner, USER), "order");
    use_long(p, USER, &used, 0);
    give(p, &used);
}

static void pay(play *p, unsigned owner) {
    need(p, order_slots(p, USER, owner), "order");
}

/* May be refused: nothing proves the rest of the memory. */
static void want_most(play *p, unsigned slot) {
    block b;
    if (get_block(p, slot, CAPACITY - LARGE + 8 * MIB, &b)) {
        give(p, &b);
    }
}

static void trim(const play *p) {
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
}

/* ---- Nothing is captured ------------------------------------------------------------------- */

static void debt_and_request(play *p) {
    owe(p, OWNER, LARGE);
    want_most(p, TAKER);
    pay(p, OWNER);
}

static void debt_and_trim(play *p) {
    owe(p, OWNER, LARGE);
    trim(p);
    pay(p, OWNER);
}

/* Nothing is proven by a wait for the device that failed. */
static void trim_that_cannot_wait(play *p) {
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "context_sync", .nth = 1, .code = 1, .persistent = 1};
    block used = take(p, OWNER, LARGE);
    use_long(p, OWNER, &used, 1);
    give(p, &used);
    need(p, ductile_virtual_inject(p->f.gpu, &fault) == DUCTILE_OK, "inject");
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
    need(p, ductile_virtual_faults_fired(p->f.gpu) > 0, "nobody waits");
    need(p, ductile_virtual_inject(p->f.gpu, NULL) == DUCTILE_OK, "inject");
}

/* The pool's memory has gone to the owner meanwhile. */
static void debt_and_resume(play *p) {
    ductile_allocator *a = p->f.allocator;
    need(p, ductile_pool_begin(a, owed_pool, NULL, NULL) == DUCTILE_OK, "begin");
    block paused = take(p, TAKER, CAPACITY - LARGE);
    need(p, ductile_pool_end(a, owed_pool) == DUCTILE_OK, "end");
    ductile_virtual_block_end(p->f.gpu, paused.address);
    need(p, ductile_pause(a, owed_pool, DUCTILE_CONTENTS_DROP) == DUCTILE_OK, "pause");
    owe(p, OWNER, LARGE + 8 * MIB);
    need(p, ductile_resume(a, owed_pool) == DUCTILE_OK, "resume");
    pay(p, OWNER);
    ductile_virtual_block_begin(p->f.gpu, paused.address, paused.size);
    give(p, &paused);
    need(p, ductile_pool_release(a, owed_pool) == DUCTILE_OK, "release");
}

/* A stream of another context uses nothing after the free; one of ours may. */
static void debt_on_memory_of_another_context(play *p) {
    ductile_stream *stream = &p->f.streams[OTHER_USER];
    be_eager(p);
    need(p, ductile_virtual_stream_destroy(p->f.gpu, *stream) == DUCTILE_OK, "destroy");
    need(p, ductile_virtual_stream_create_foreign(p->f.gpu, stream) == DUCTILE_OK, "create");
    owe(p, OTHER_USER, LARGE);
    ductile_capture_begin();
    trim(p);
    ductile_capture_end();
    pay(p, OTHER_USER);
}

/* ---- Beside a capture: no proof for the device can be had ----------------------------------- */

static void debt_and_request_beside_capture(play *p) {
    ductile_capture_begin();
    debt_and_request(p);
    ductile_capture_end();
}

static void debt_and_trim_beside_capture(play *p) {
    ductile_capture_begin();
    owe(p, OWNER, LARGE);
    trim(p);
    trim(p); /* nor does a second look join anything */
    ductile_capture_end();
    pay(p, OWNER);
}

/* A block at a given address joins nothing. */
static void debt_and_block_at(play *p) {
    ductile_allocator *a = p->f.allocator;
    block free = take(p, OWNER, 512); /* in a granule that stays */
    leave(p, OWNER, 512);
    give(p, &free);
    ductile_capture_begin();
    owe(p, OWNER, LARGE);
    trim(p);
    need(p, ductile_pool_alloc_at(a, (ductile_pool_id){0, 0}, free.address, 512) == DUCTILE_OK,
         "at");
    trim(p);
    ductile_capture_end();
    pay(p, OWNER);
}

/* An open pool may stand for a capture. */
static void debt_and_trim_beside_pool(play *p) {
    ductile_allocator *a = p->f.allocator;
    owe(p, OWNER, LARGE);
    need(p, ductile_pool_begin(a, owed_pool, NULL, NULL) == DUCTILE_OK, "begin");
    trim(p);
    need(p, ductile_pool_end(a, owed_pool) == DUCTILE_OK, "end");
    pay(p, OWNER);
    need(p, ductile_pool_release(a, owed_pool) == DUCTILE_OK, "release");
}

/* The owner will never be ordered behind the user: it allocates no more. */
static void debt_and_end_of_stream(play *p) {
    ductile_capture_begin();
    owe(p, OWNER, LARGE);
    renew_stream(p, OWNER);
    trim(p);
    ductile_capture_end();
}

/* A pool cannot pause, since streams that were not recorded may use its blocks. */
static void debt_and_pause(play *p) {
    ductile_allocator *a = p->f.allocator;
    need(p, ductile_pool_retain(a, POOL) == DUCTILE_OK, "retain");
    need(p, ductile_pool_set_kind(a, POOL, DUCTILE_POOL_PLAIN) == DUCTILE_OK, "kind");
    need(p, ductile_pool_begin(a, POOL, NULL, NULL) == DUCTILE_OK, "begin");
    block b = take(p, OWNER, 4 * FIXTURE_GRANULE);
    need(p, ductile_pool_end(a, POOL) == DUCTILE_OK, "end");
    need(p, order_slots(p, OWNER, USER), "order");
    use_long(p, USER, &b, 0);
    ductile_virtual_block_end(p->f.gpu, b.address);
    ductile_capture_begin();
    if (ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP) == DUCTILE_OK) {
        need(p, ductile_resume(a, POOL) == DUCTILE_OK, "resume");
    }
    ductile_capture_end();
    pay(p, OWNER);
    ductile_virtual_block_begin(p->f.gpu, b.address, b.size);
    give(p, &b);
    need(p, ductile_pool_release(a, POOL) == DUCTILE_OK, "release");
}

/* ---- All of them ----------------------------------------------------------------------------- */

const scenario *debt_scenario_at(size_t i) {
    static const char unannounced[] = "captures:unannounced";
    static const char apart[] = "reuse:stream";
    static const scenario all[] = {
        {"debt-and-request", apart, debt_and_request},
        {"debt-and-trim", unannounced, debt_and_trim},
        {"trim-that-cannot-wait", unannounced, trim_that_cannot_wait},
        {"debt-and-resume", unannounced, debt_and_resume},
        {"debt-on-memory-of-another-context", NULL, debt_on_memory_of_another_context},
        {"debt-and-request-beside-capture", apart, debt_and_request_beside_capture},
        {"debt-and-trim-beside-capture", NULL, debt_and_trim_beside_capture},
        {"debt-and-block-at", NULL, debt_and_block_at},
        {"debt-and-trim-beside-pool", unannounced, debt_and_trim_beside_pool},
        {"debt-and-end-of-stream", NULL, debt_and_end_of_stream},
        {"debt-and-pause", NULL, debt_and_pause},
    };
    return i < sizeof all / sizeof *all ? &all[i] : NULL;
}

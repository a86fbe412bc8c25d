/* SPDX-License-Identifier: Apache-2.0 */
/* Situations in which memory may not leave its stream yet, though it seems to be proven. */
#include "tests/broken/steps.h"

#include <ductile_share.h>

enum { MANY_MARKS = 80 }; /* more than may be under way */

#define SIZE (4 * FIXTURE_GRANULE)

/* ---- Work after the mark ------------------------------------------------------------------- */

/* Another stream wants the memory. */
static void want(play *p, uint64_t size) {
    block b = take(p, TAKER, size);
    give(p, &b);
}

/* A free right after a mark, which is done while the memory is in use. */
static block use_behind_proof(play *p, uint64_t size) {
    be_eager(p);
    leave(p, TAKER, 512);
    block used = take(p, OWNER, size);
    leave(p, OWNER, 512); /* a wall, and room for hits behind it */
    come_to_proof(p, OWNER);
    use_long(p, OWNER, &used, 1);
    return used;
}

static void free_behind_the_mark(play *p) {
    block used = use_behind_proof(p, SIZE);
    give(p, &used);
    want(p, SIZE);
}

/* The first attempt to give it back finds what is proven before any wait. */
static void trim_behind_the_mark(play *p) {
    block used = use_behind_proof(p, SIZE);
    give(p, &used);
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
}

/* Another thread's use and free, where one has recorded a mark. */
static void come_between(play *p) {
    p->at_mark = NULL;
    use_long(p, OWNER, &p->at_mark_block, 1);
    give(p, &p->at_mark_block);
}

static void free_while_a_mark_is_recorded(play *p) {
    be_eager(p);
    leave(p, TAKER, 512);
    p->at_mark_block = take(p, OWNER, SIZE);
    leave(p, OWNER, 512);
    p->at_mark = come_between;
    come_to_mark(p, OWNER);
    need(p, p->at_mark == NULL, "nobody comes between");
    want(p, SIZE);
}

/* A mark could not be recorded after the free; the one before is done. */
static void mark_that_fails(play *p) {
    block used = use_behind_proof(p, SIZE);
    give(p, &used);
    const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                         .call = "context_record",
                                         .nth = 1,
                                         .code = 1,
                                         .persistent = 1};
    need(p, ductile_virtual_inject(p->f.gpu, &fault) == DUCTILE_OK, "inject");
    want(p, SIZE);
    want(p, SIZE + FIXTURE_GRANULE);
    need(p, ductile_virtual_faults_fired(p->f.gpu) > 0, "nobody records");
    need(p, ductile_virtual_inject(p->f.gpu, NULL) == DUCTILE_OK, "inject");
}

/* ---- Many marks ---------------------------------------------------------------------------- */

/*
 * Nothing is proven until the user has done its work: then the first marks are, up to the one
 * before the free. So many have followed that some were left out.
 */
static void free_between_many_marks(play *p, int before) {
    block shown = take(p, USER, FIXTURE_GRANULE);
    block used = take(p, OWNER, SIZE);
    use_long(p, USER, &shown, 1);
    for (int i = 0; i < before; i++) {
        come_to_mark(p, OTHER_USER);
    }
    use_long(p, OWNER, &used, 1);
    give(p, &used);
    for (int i = before; i < MANY_MARKS; i++) {
        come_to_mark(p, OTHER_USER);
    }
    sync_slot(p, USER);
    want(p, SIZE);
    sync_slot(p, OWNER);
    come_to_proof(p, OTHER_USER);
    give(p, &shown);
}

/* Every other mark is left out: the free is before one of them, or behind. */
static void more_marks_than_are_kept(play *p) {
    be_eager(p);
    leave(p, TAKER, 512);
    free_between_many_marks(p, 3);
    free_between_many_marks(p, 4);
}

/* One of several marks is done, the later ones are not. */
static void first_of_two_marks(play *p) {
    be_eager(p);
    leave(p, TAKER, 512);
    free_between_many_marks(p, MANY_MARKS);
    block used = take(p, OWNER, SIZE);
    block shown = take(p, USER, FIXTURE_GRANULE);
    use_long(p, USER, &shown, 1);
    come_to_mark(p, OTHER_USER);
    use_long(p, OWNER, &used, 1);
    give(p, &used);
    come_to_mark(p, OTHER_USER);
    sync_slot(p, USER);
    want(p, SIZE);
    give(p, &shown);
}

/* Under the limit memory is taken behind a wait: for the marker after the free, not for the one
 * recorded before it. */
static void donor_between_two_marks(play *p) {
    be_eager(p);
    leave(p, TAKER, 512);
    block used = take(p, OWNER, SIZE);
    block small = take(p, OWNER, 512);
    use_long(p, OWNER, &small, 1);
    come_to_mark(p, OWNER);
    use_long(p, OWNER, &used, 1);
    give(p, &used);
    come_to_mark(p, OWNER);
    want(p, SIZE);
    give(p, &small);
}

/* ---- Ages ---------------------------------------------------------------------------------- */

/* Memory at work merges with memory that is proven, on either side. */
static void merge_with_memory_at_work(play *p) {
    be_eager(p);
    leave(p, TAKER, 512);
    block blocks[3];
    for (int i = 0; i < 3; i++) {
        blocks[i] = take(p, OWNER, SIZE);
    }
    leave(p, OWNER, 512);
    give(p, &blocks[0]);
    give(p, &blocks[2]);
    come_to_proof(p, OWNER);
    use_long(p, OWNER, &blocks[1], 1);
    give(p, &blocks[1]);
    want(p, SIZE);
    want(p, 2 * SIZE);
    want(p, 3 * SIZE);
}

/* A small block at work shares a granule with memory that is proven, and merges with it. */
static void small_free_in_a_proven_granule(play *p) {
    be_eager(p);
    leave(p, TAKER, 512);
    block small = take(p, OWNER, FIXTURE_GRANULE / 4);
    block large = take(p, OWNER, SIZE - FIXTURE_GRANULE / 4);
    leave(p, OWNER, 512);
    give(p, &large);
    come_to_proof(p, OWNER);
    use_long(p, OWNER, &small, 1);
    give(p, &small);
    want(p, SIZE);
}

/* Memory that is proven and memory at work move together; a later call unmaps what is proven. */
static void move_of_two_ages(play *p) {
    be_eager(p);
    leave(p, TAKER, 512);
    block done = take(p, OWNER, SIZE);
    block used = take(p, OWNER, SIZE);
    leave(p, OWNER, 512);
    give(p, &done);
    come_to_proof(p, OWNER);
    use_long(p, OWNER, &used, 1);
    give(p, &used);
    block moved = take(p, OWNER, 3 * SIZE);
    need(p, fixture_stats(p->f.allocator).recycled_handles >= 2 * SIZE / FIXTURE_GRANULE,
         "nothing moves");
    want(p, FIXTURE_GRANULE);
    give(p, &moved);
}

/*
 * Healing moves memory on which its stream is at work between two blocks that are proven done.
 *
 *     [done][gap][done][gap][at work] LIVE   ->   [done, at work, done][gap ...
 */
static void heal_with_memory_at_work(play *p) {
    be_eager(p);
    leave(p, TAKER, 512);
    block blocks[5];
    for (int i = 0; i < 5; i++) {
        blocks[i] = take(p, OWNER, 2 * FIXTURE_GRANULE);
    }
    leave(p, OWNER, FIXTURE_GRANULE);
    ductile_allocator *a = p->f.allocator;
    need(p, ductile_pin(a, blocks[0].address) == DUCTILE_OK, "pin"); /* the trim leaves these two */
    need(p, ductile_pin(a, blocks[2].address) == DUCTILE_OK, "pin");
    give_all(p, blocks, 4);
    need(p, ductile_trim(a, 0, NULL) == DUCTILE_OK, "trim");
    need(p, ductile_unpin(a, blocks[0].address) == DUCTILE_OK, "unpin");
    need(p, ductile_unpin(a, blocks[2].address) == DUCTILE_OK, "unpin");
    come_to_proof(p, TAKER);
    use_long(p, OWNER, &blocks[4], 1);
    give(p, &blocks[4]);
    leave(p, OWNER, 512);
    leave(p, OWNER, 512); /* the one that sees the turn, or the next, heals */
    need(p, fixture_stats(a).compacted_handles > 0, "nothing is healed");
    want(p, 5 * FIXTURE_GRANULE);
}

/* ---- Streams ------------------------------------------------------------------------------- */

/* One block is freed before its stream ends, the other after it. A capture that is announced
 * forbids to wait for the device. */
static void trim_after_the_owner_is_gone(play *p) {
    be_eager(p);
    block used = take(p, OWNER, SIZE);
    block kept = take(p, OWNER, SIZE);
    use_long(p, OWNER, &used, 1);
    use_long(p, OWNER, &kept, 1);
    give(p, &used);
    come_to_mark(p, OWNER); /* by then the stream is joined */
    renew_stream(p, OWNER);
    give(p, &kept);
    ductile_capture_begin();
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
    ductile_capture_end();
}

/* The new stream knows nothing of the work of the old one. */
static void request_of_a_new_stream(play *p) {
    block used = take(p, OWNER, SIZE);
    use_long(p, OWNER, &used, 1);
    give(p, &used);
    renew_stream(p, OWNER);
    block b = take(p, OWNER, SIZE);
    give(p, &b);
}

/* A mark says nothing about a stream of another context. */
static void leave_work_of_another_context(play *p, bool ends) {
    ductile_stream *stream = &p->f.streams[OTHER_USER];
    be_eager(p);
    need(p, ductile_virtual_stream_destroy(p->f.gpu, *stream) == DUCTILE_OK, "destroy");
    need(p, ductile_virtual_stream_create_foreign(p->f.gpu, stream) == DUCTILE_OK, "create");
    leave(p, TAKER, 512);
    block used = take(p, OTHER_USER, SIZE);
    leave(p, OTHER_USER, 512);
    use_long(p, OTHER_USER, &used, 1);
    if (ends) {
        need(p, ductile_stream_done(p->f.allocator, *stream) == DUCTILE_OK, "done");
    }
    give(p, &used);
    come_to_proof(p, OWNER);
}

static void owner_of_another_context(play *p) {
    leave_work_of_another_context(p, false);
    want(p, SIZE);
}

/* The block is freed after the stream's end, while its work is under way. */
static void owner_of_another_context_ends(play *p) {
    leave_work_of_another_context(p, true);
    want(p, SIZE);
}

static void trim_of_another_context(play *p) {
    leave_work_of_another_context(p, false);
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
}

/* A mark of this device says nothing about the other one's stream, which could not be marked. */
static void pending_elsewhere(play *p) {
    be_eager(p);
    leave(p, TAKER, 512);
    block used = take(p, OWNER, SIZE);
    leave(p, OWNER, 512);
    (void)use_elsewhere(p, &used);
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "event_record", .nth = 1, .code = 1, .persistent = 1};
    need(p, ductile_virtual_inject(p->f.gpu, &fault) == DUCTILE_OK, "inject");
    give(p, &used);
    come_to_proof(p, OWNER);
    come_to_proof(p, OWNER);
    block b = take(p, OWNER, SIZE);
    give(p, &b);
    need(p, ductile_virtual_faults_fired(p->f.gpu) > 0, "nobody records");
    need(p, ductile_virtual_inject(p->f.gpu, NULL) == DUCTILE_OK, "inject");
}

/* ---- Pins ---------------------------------------------------------------------------------- */

/* Freed, and proven, while whoever had pinned it goes on to use it, until the unpin. */
static void use_until_unpin(play *p) {
    be_eager(p);
    leave(p, TAKER, 512);
    block used = take(p, OWNER, SIZE);
    leave(p, OWNER, 512);
    need(p, ductile_pin(p->f.allocator, used.address) == DUCTILE_OK, "pin");
    need(p, give_from(p, OWNER, &used), "free");
    come_to_proof(p, OWNER);
    use_long(p, USER, &used, 1);
    ductile_virtual_block_end(p->f.gpu, used.address);
    need(p, ductile_unpin(p->f.allocator, used.address) == DUCTILE_OK, "unpin");
}

static void request_after_unpin(play *p) {
    use_until_unpin(p);
    want(p, SIZE);
}

static void trim_after_unpin(play *p) {
    use_until_unpin(p);
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
}

/* ---- Marks of one stream ------------------------------------------------------------------- */

/* Free memory on which another stream is at work, while a later marker of its own one is done.
 * A live block follows it. */
static block leave_span_behind_mark(play *p, uint64_t size) {
    be_eager(p);
    block used = take(p, OWNER, size);
    sync_slot(p, OWNER);
    block slow = take_dedicated(p, FIXTURE_GRANULE); /* reads the marks so far */
    give(p, &slow);
    share_long(p, &used, USER);
    leave(p, OWNER, 512);
    give(p, &used);
    come_to_mark(p, OWNER);
    sync_slot(p, OWNER);
    return used;
}

/* What is left of memory that its stream has waited for: only a mark behind the wait proves it. */
static void rest_of_settled_span(play *p) {
    leave(p, TAKER, 512);
    block used = leave_span_behind_mark(p, 2 * SIZE);
    leave(p, TAKER, FIXTURE_GRANULE); /* a slow call, which reads the mark */
    block part = take(p, OWNER, 2 * FIXTURE_GRANULE);
    need(p, part.address == used.address, "the block is not reused");
    ductile_virtual_block_end(p->f.gpu, part.address); /* it stays */
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
}

static void trim_beside_span(play *p) {
    leave(p, TAKER, 512);
    (void)leave_span_behind_mark(p, SIZE);
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
}

/* Freed with its stream at work on it; another request then takes the slow path. */
static void dedicated_with_work(play *p) {
    be_eager(p);
    leave(p, OWNER, 512);
    leave(p, TAKER, 512);
    come_to_proof(p, OWNER);
    block b = take_dedicated(p, SIZE);
    use_long(p, OWNER, &b, 1);
    give(p, &b);
    block next = take_dedicated(p, FIXTURE_GRANULE);
    give(p, &next);
}

/* ---- Graphs -------------------------------------------------------------------------------- */

static void begin_capture(play *p) {
    need(p, ductile_pool_begin(p->f.allocator, POOL, NULL, NULL) == DUCTILE_OK, "begin");
    need(p,
         ductile_virtual_capture_begin(p->f.gpu, stream_of(p, CAPTURER), DUCTILE_CAPTURE_RELAXED) ==
             DUCTILE_OK,
         "capture");
}

/* NULL when the capture was broken. */
static ductile_virtual_graph *end_capture(play *p) {
    ductile_virtual_graph *made = NULL;
    if (ductile_virtual_capture_end(p->f.gpu, stream_of(p, CAPTURER), &made) != DUCTILE_OK) {
        p->n_broken_captures++;
    }
    return made;
}

/* A graph that uses free memory of its pool, beside a block that stays live. */
static ductile_virtual_graph *capture_use(play *p, block *wall) {
    begin_capture(p);
    block used = take(p, CAPTURER, SIZE);
    *wall = take(p, CAPTURER, FIXTURE_GRANULE);
    give(p, &used);
    ductile_virtual_graph *made = end_capture(p);
    need(p, made != NULL, "the capture was broken");
    return made;
}

/* A slow call of a stream that is not captured, while another one is. */
static void request_beside_capture(play *p) {
    block before = take(p, OWNER, 512);
    begin_capture(p);
    give(p, &before);
    block b = take(p, OWNER, FIXTURE_GRANULE);
    give(p, &b);
    ductile_virtual_graph *made = end_capture(p);
    need(p, ductile_pool_end(p->f.allocator, POOL) == DUCTILE_OK, "end");
    if (made != NULL) {
        ductile_virtual_graph_destroy(made);
    }
    need(p, ductile_pool_release(p->f.allocator, POOL) == DUCTILE_OK, "release");
}

/* A request of the pool that the graph's memory would serve if it moved. */
static void request_beside_graph(play *p) {
    block wall;
    ductile_virtual_graph *made = capture_use(p, &wall);
    block all[] = {wall, take(p, CAPTURER, 6 * FIXTURE_GRANULE)};
    need(p, ductile_pool_end(p->f.allocator, POOL) == DUCTILE_OK, "end");
    need(p, ductile_virtual_graph_launch(made, stream_of(p, USER)) == DUCTILE_OK, "launch");
    ductile_virtual_graph_destroy(made);
    give_all(p, all, 2);
    need(p, ductile_pool_release(p->f.allocator, POOL) == DUCTILE_OK, "release");
}

/* Everything that its pool was ever used for before is done, and the allocator knows it. */
static ductile_virtual_graph *graph_of_pool(play *p, block *wall) {
    be_eager(p);
    ductile_virtual_graph *made = capture_use(p, wall);
    need(p, ductile_pool_end(p->f.allocator, POOL) == DUCTILE_OK, "end");
    come_to_proof(p, TAKER);
    return made;
}

/* The graph is still there. */
static void trim_beside_graph(play *p) {
    block wall;
    ductile_virtual_graph *made = graph_of_pool(p, &wall);
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
    need(p, ductile_virtual_graph_launch(made, stream_of(p, USER)) == DUCTILE_OK, "launch");
    ductile_virtual_graph_destroy(made);
    give(p, &wall);
    need(p, ductile_pool_release(p->f.allocator, POOL) == DUCTILE_OK, "release");
}

/* The graph is gone, and its last launch, on a stream that the pool does not know, at work. */
static void leave_launch(play *p, ductile_virtual_graph *made) {
    ductile_virtual_set_schedule(p->f.gpu, DUCTILE_SCHEDULE_LAZY, 0);
    need(p, ductile_virtual_graph_launch(made, stream_of(p, USER)) == DUCTILE_OK, "launch");
    ductile_virtual_set_schedule(p->f.gpu, p->schedule, p->lag);
    ductile_virtual_graph_destroy(made);
    need(p, ductile_pool_release(p->f.allocator, POOL) == DUCTILE_OK, "release");
}

static void request_after_graph(play *p) {
    block wall;
    leave_launch(p, graph_of_pool(p, &wall));
    block all[] = {wall, take(p, TAKER, SIZE)};
    give_all(p, all, 2);
}

/* A mark of the pool's stream alone is done, behind the release. */
static void trim_after_graph(play *p) {
    block wall;
    be_eager(p);
    ductile_virtual_graph *made = capture_use(p, &wall);
    need(p, ductile_pool_end(p->f.allocator, POOL) == DUCTILE_OK, "end");
    leave_launch(p, made);
    give(p, &wall);
    need(p, ductile_stream_done(p->f.allocator, stream_of(p, CAPTURER)) == DUCTILE_OK, "done");
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
}

/* ---- All of them --------------------------------------------------------------------------- */

const scenario *proof_scenario_at(size_t i) {
    static const char by_stream[] = "record_stream:wait,captures:unannounced";
    static const scenario all[] = {
        {"free-behind-the-mark", NULL, free_behind_the_mark},
        {"trim-behind-the-mark", NULL, trim_behind_the_mark},
        {"free-while-a-mark-is-recorded", NULL, free_while_a_mark_is_recorded},
        {"mark-that-fails", NULL, mark_that_fails},
        {"more-marks-than-are-kept", NULL, more_marks_than_are_kept},
        {"first-of-two-marks", NULL, first_of_two_marks},
        {"donor-between-two-marks", "reuse:wait,limit_bytes:12M", donor_between_two_marks},
        {"merge-with-memory-at-work", NULL, merge_with_memory_at_work},
        {"small-free-in-a-proven-granule", NULL, small_free_in_a_proven_granule},
        {"move-of-two-ages", NULL, move_of_two_ages},
        {"heal-with-memory-at-work", NULL, heal_with_memory_at_work},
        {"trim-after-the-owner-is-gone", "captures:unannounced", trim_after_the_owner_is_gone},
        {"request-of-a-new-stream", NULL, request_of_a_new_stream},
        {"owner-of-another-context", NULL, owner_of_another_context},
        {"owner-of-another-context-ends", NULL, owner_of_another_context_ends},
        {"trim-of-another-context", NULL, trim_of_another_context},
        {"pending-elsewhere", NULL, pending_elsewhere},
        {"request-after-unpin", NULL, request_after_unpin},
        {"trim-after-unpin", NULL, trim_after_unpin},
        {"rest-of-settled-span", by_stream, rest_of_settled_span},
        {"trim-beside-span", by_stream, trim_beside_span},
        {"dedicated-with-work", NULL, dedicated_with_work},
        {"request-beside-capture", NULL, request_beside_capture},
        {"request-beside-graph", NULL, request_beside_graph},
        {"trim-beside-graph", NULL, trim_beside_graph},
        {"request-after-graph", NULL, request_after_graph},
        {"trim-after-graph", "captures:unannounced", trim_after_graph},
    };
    size_t n = sizeof all / sizeof *all;
    return i < n ? &all[i] : debt_scenario_at(i - n);
}

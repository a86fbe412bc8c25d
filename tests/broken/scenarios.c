/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/broken/scenarios.h"

#include <ductile_share.h>

/* Slots, by what their streams do in a scenario. */
enum { OWNER, USER, OTHER_USER, TAKER, CAPTURER, FIRST_THREAD, SECOND_THREAD };

#define POOL ((ductile_pool_id){1, 0})
#define OTHER_POOL ((ductile_pool_id){2, 0})

/* ---- Steps --------------------------------------------------------------------------------- */

static void need(const play *p, bool is_so, const char *what) {
    if (!is_so) {
        give_up(p, what);
    }
}

/* A block that its stream writes. */
static block take(play *p, unsigned slot, uint64_t size) {
    block b;
    need(p, get_block(p, slot, size, &b), "no memory");
    return b;
}

static void give_on(play *p, unsigned thread, const block *b) {
    ductile_virtual_block_end(p->f.gpu, b->address);
    need(p, give_from(p, thread, b), "free");
}

static void give(play *p, const block *b) {
    give_on(p, OWNER, b);
}

static void give_all(play *p, const block *blocks, size_t n) {
    for (size_t i = 0; i < n; i++) {
        give(p, &blocks[i]);
    }
}

/* Work that does not come to an end until somebody waits for it. */
static void use_long(play *p, unsigned slot, const block *b, int writes) {
    ductile_virtual_set_schedule(p->f.gpu, DUCTILE_SCHEDULE_LAZY, 0);
    launch_use(p, slot, b, writes);
    ductile_virtual_set_schedule(p->f.gpu, p->schedule, p->lag);
}

/* Another stream reads the block, for long, after its own one wrote it. */
static void share_long(play *p, block *b, unsigned user) {
    need(p, order_slots(p, b->slot, user), "order");
    use_long(p, user, b, 0);
    need(p, record(p, b, user), "record");
}

/* The host knows what the stream has done until now, and nothing of what it does before the sync.
 */
static void begin_sync(play *p, unsigned slot) {
    need(p, order_slots(p, slot, CAPTURER), "order");
}

static void end_sync(play *p) {
    sync_slot(p, CAPTURER);
}

/* Hits until the stream has a new marker, which was recorded in the last of them. */
static void come_to_marker(play *p, unsigned slot) {
    uint64_t before = ductile_virtual_count(p->f.gpu, "event_record");
    for (int i = 0; i < 200 && ductile_virtual_count(p->f.gpu, "event_record") == before; i++) {
        block b = take(p, slot, 512);
        give(p, &b);
    }
    need(p, ductile_virtual_count(p->f.gpu, "event_record") > before, "no marker comes");
}

/* ---- Blocks -------------------------------------------------------------------------------- */

static void neighbours(play *p) {
    block first = take(p, OWNER, 4 * FIXTURE_GRANULE);
    give(p, &first);
    block both[] = {take(p, OWNER, FIXTURE_GRANULE), take(p, OWNER, FIXTURE_GRANULE)};
    give_all(p, both, 2);
}

/* ---- Recorded streams ---------------------------------------------------------------------- */

/* A slow call, which looks at what is done, and then a request that the memory would serve. */
static void look_and_take(play *p, uint64_t size) {
    block look = take(p, OWNER, FIXTURE_GRANULE);
    block served = take(p, OWNER, size);
    give(p, &look);
    give(p, &served);
}

/* One handle, two streams: the first has done its work, the second has not. */
static void two_default_streams(play *p) {
    block used = take(p, OWNER, 2 * FIXTURE_GRANULE);
    need(p, order_slots(p, OWNER, FIRST_THREAD) && record(p, &used, FIRST_THREAD), "record");
    launch_use(p, FIRST_THREAD, &used, 0);
    share_long(p, &used, SECOND_THREAD);
    give_on(p, FIRST_THREAD, &used);
    sync_slot(p, FIRST_THREAD);
    look_and_take(p, 2 * FIXTURE_GRANULE);
}

/* The stream recorded last has done its work, the other one has not. */
static void two_users(play *p) {
    block used = take(p, OWNER, 2 * FIXTURE_GRANULE);
    share_long(p, &used, USER);
    share_long(p, &used, OTHER_USER);
    give(p, &used);
    sync_slot(p, OTHER_USER);
    look_and_take(p, 2 * FIXTURE_GRANULE);
}

/* The driver refuses to say whether the work on pending memory is done. */
static void query_that_fails(play *p) {
    block used = take(p, OWNER, 2 * FIXTURE_GRANULE);
    share_long(p, &used, USER);
    give(p, &used);
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "event_query", .nth = 1, .code = 1, .persistent = 1};
    need(p, ductile_virtual_inject(p->f.gpu, &fault) == DUCTILE_OK, "inject");
    look_and_take(p, 2 * FIXTURE_GRANULE);
    need(p, ductile_virtual_faults_fired(p->f.gpu) > 0, "nobody asks");
    need(p, ductile_virtual_inject(p->f.gpu, NULL) == DUCTILE_OK, "inject");
}

/* The stream is gone, and a new one has got its handle. */
static void renew_stream(play *p, unsigned slot) {
    ductile_stream old = p->f.streams[slot];
    need(p, ductile_stream_done(p->f.allocator, old) == DUCTILE_OK, "done");
    need(p, ductile_virtual_stream_destroy(p->f.gpu, old) == DUCTILE_OK, "destroy");
    need(p, ductile_virtual_stream_create(p->f.gpu, &p->f.streams[slot]) == DUCTILE_OK, "create");
    need(p, p->f.streams[slot] == old, "the device has stopped to use handles again");
}

static void free_after_the_user_is_gone(play *p) {
    block used = take(p, OWNER, 2 * FIXTURE_GRANULE);
    share_long(p, &used, USER);
    renew_stream(p, USER);
    give(p, &used);
    sync_slot(p, USER);
    look_and_take(p, 2 * FIXTURE_GRANULE);
}

static void trim_after_the_owner_is_gone(play *p) {
    block used = take(p, OWNER, 4 * FIXTURE_GRANULE);
    use_long(p, OWNER, &used, 1);
    give(p, &used);
    renew_stream(p, OWNER);
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
}

/* The allocator gets back a marker that nobody needs any more, and uses it for the next. */
static void markers_used_again(play *p) {
    block blocks[3];
    for (int i = 0; i < 3; i++) {
        blocks[i] = take(p, OWNER, 2 * FIXTURE_GRANULE);
    }
    share_long(p, &blocks[0], USER);
    give(p, &blocks[0]);
    sync_slot(p, USER);
    block look = take(p, OWNER, FIXTURE_GRANULE);
    share_long(p, &blocks[1], USER);
    share_long(p, &blocks[2], OTHER_USER);
    give(p, &blocks[1]);
    give(p, &blocks[2]);
    sync_slot(p, OTHER_USER);
    block more = take(p, OWNER, 8 * FIXTURE_GRANULE);
    for (int i = 0; i < 3; i++) {
        blocks[i] = take(p, OWNER, 2 * FIXTURE_GRANULE);
    }
    give(p, &look);
    give(p, &more);
    give_all(p, blocks, 3);
}

/* The driver refuses to wait for the pending memory without which there is not enough. */
static void wait_that_fails(play *p) {
    block used = take(p, OWNER, CAPACITY / 4 * 3);
    share_long(p, &used, USER);
    give(p, &used);
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "event_sync", .nth = 1, .code = 1, .persistent = 1};
    need(p, ductile_virtual_inject(p->f.gpu, &fault) == DUCTILE_OK, "inject");
    block again = take(p, OWNER, CAPACITY / 4 * 3);
    need(p, ductile_virtual_faults_fired(p->f.gpu) > 0, "nobody waits");
    need(p, ductile_virtual_inject(p->f.gpu, NULL) == DUCTILE_OK, "inject");
    give(p, &again);
}

/* ---- Proof by epochs -----------------------------------------------------------------------
 */

/* A free right after the call that recorded a marker, which is done while the memory is in use.
 */
static void free_in_the_markers_epoch(play *p) {
    block seed = take(p, TAKER, 512);
    block used = take(p, OWNER, 4 * FIXTURE_GRANULE);
    block small = take(p, OWNER, 512);
    come_to_marker(p, OWNER);
    begin_sync(p, OWNER);
    use_long(p, OWNER, &used, 1);
    give(p, &used);
    end_sync(p);
    block all[] = {seed, small, take(p, TAKER, 4 * FIXTURE_GRANULE)};
    give_all(p, all, 3);
}

/* Another thread's use, free and allocation, where one has recorded a marker. */
static void come_between(play *p, ductile_stream stream) {
    if (stream != stream_of(p, OWNER)) {
        return;
    }
    p->at_mark = NULL;
    begin_sync(p, OWNER);
    use_long(p, OWNER, &p->at_mark_block, 1);
    give(p, &p->at_mark_block);
    block later = take(p, OWNER, 512);
    give(p, &later);
}

static void free_while_a_marker_is_recorded(play *p) {
    block seed = take(p, TAKER, 512);
    p->at_mark_block = take(p, OWNER, 4 * FIXTURE_GRANULE);
    block small = take(p, OWNER, 512);
    p->at_mark = come_between;
    come_to_marker(p, OWNER);
    need(p, p->at_mark == NULL, "nobody comes between");
    end_sync(p);
    block all[] = {seed, small, take(p, TAKER, 4 * FIXTURE_GRANULE)};
    give_all(p, all, 3);
}

/* Under the limit memory is taken behind a wait: for the marker after the free, not for the one
 * recorded before it in the same epoch. */
static void donor_between_two_markers(play *p) {
    block seed = take(p, TAKER, 512);
    block used = take(p, OWNER, 4 * FIXTURE_GRANULE);
    block small = take(p, OWNER, 512);
    use_long(p, OWNER, &small, 1);
    come_to_marker(p, OWNER);
    use_long(p, OWNER, &used, 1);
    give(p, &used);
    come_to_marker(p, OWNER);
    block all[] = {seed, small, take(p, TAKER, 4 * FIXTURE_GRANULE)};
    give_all(p, all, 3);
}

/*
 * Healing moves memory on which its stream is at work between two blocks that are proven done.
 *
 *     [done][gap][done][gap][at work] LIVE   ->   [done, at work, done][gap ...
 */
static void heal_with_memory_at_work(play *p) {
    block seed = take(p, TAKER, 512);
    block blocks[5];
    for (int i = 0; i < 5; i++) {
        blocks[i] = take(p, OWNER, 2 * FIXTURE_GRANULE);
    }
    block wall = take(p, OWNER, FIXTURE_GRANULE);
    ductile_allocator *a = p->f.allocator;
    need(p, ductile_pin(a, blocks[0].address) == DUCTILE_OK, "pin"); /* the trim leaves these two */
    need(p, ductile_pin(a, blocks[2].address) == DUCTILE_OK, "pin");
    give_all(p, blocks, 4);
    need(p, ductile_trim(a, 0, NULL) == DUCTILE_OK, "trim");
    need(p, ductile_unpin(a, blocks[0].address) == DUCTILE_OK, "unpin");
    need(p, ductile_unpin(a, blocks[2].address) == DUCTILE_OK, "unpin");
    use_long(p, OWNER, &blocks[4], 1);
    give(p, &blocks[4]);
    block rise = take(p, OWNER, 512);
    block after = take(p, OWNER, 512); /* the one that sees the turn, or the next, heals */
    need(p, fixture_stats(a).compacted_handles > 0, "nothing is healed");
    block all[] = {seed, wall, rise, after, take(p, TAKER, 5 * FIXTURE_GRANULE)};
    give_all(p, all, 5);
}

/* ---- Waits on the GPU ----------------------------------------------------------------------
 */

/* A block made of the memory of two, each used by a stream of its own. */
static void spans_of_two_streams(play *p) {
    block first = take(p, OWNER, 2 * FIXTURE_GRANULE);
    block second = take(p, OWNER, 2 * FIXTURE_GRANULE);
    share_long(p, &first, USER);
    share_long(p, &second, OTHER_USER);
    give(p, &first);
    give(p, &second);
    block both = take(p, OWNER, 4 * FIXTURE_GRANULE);
    need(p, both.address == first.address, "the blocks are apart");
    give(p, &both);
}

/* A block that two streams use. */
static void span_of_two_streams(play *p) {
    block used = take(p, OWNER, 2 * FIXTURE_GRANULE);
    share_long(p, &used, USER);
    share_long(p, &used, OTHER_USER);
    give(p, &used);
    block again = take(p, OWNER, 2 * FIXTURE_GRANULE);
    need(p, again.address == used.address, "the block is not reused");
    give(p, &again);
}

/* Free memory on which another stream is at work, while a later marker of its own one is done.
 * A live block follows it. */
static block leave_span_behind_marker(play *p, uint64_t size, block *wall) {
    block used = take(p, OWNER, size);
    share_long(p, &used, USER);
    *wall = take(p, OWNER, 512);
    give(p, &used);
    come_to_marker(p, OWNER);
    sync_slot(p, OWNER);
    return used;
}

/* What is left of memory that its stream has waited for: only a marker behind the wait proves
 * it.
 */
static void rest_of_settled_span(play *p) {
    block seed = take(p, TAKER, 512);
    block wall;
    block used = leave_span_behind_marker(p, 8 * FIXTURE_GRANULE, &wall);
    block look = take(p, TAKER, FIXTURE_GRANULE); /* a slow call, which reads the marker */
    block part = take(p, OWNER, 2 * FIXTURE_GRANULE);
    need(p, part.address == used.address, "the block is not reused");
    block all[] = {seed, wall, look, part, take(p, TAKER, 6 * FIXTURE_GRANULE)};
    give_all(p, all, 5);
}

static void trim_beside_span(play *p) {
    block all[] = {take(p, TAKER, 512), {0}};
    (void)leave_span_behind_marker(p, 4 * FIXTURE_GRANULE, &all[1]);
    need(p, ductile_trim(p->f.allocator, 0, NULL) == DUCTILE_OK, "trim");
    give_all(p, all, 2);
}

/* ---- Graphs --------------------------------------------------------------------------------
 */

/* A graph that uses free memory of its pool, beside a block that stays live. */
static ductile_virtual_graph *capture_use(play *p, block *wall) {
    ductile_stream stream = stream_of(p, CAPTURER);
    ductile_virtual_graph *made = NULL;
    need(p, ductile_virtual_capture_begin(p->f.gpu, stream, DUCTILE_CAPTURE_RELAXED) == DUCTILE_OK,
         "capture");
    block used = take(p, CAPTURER, 4 * FIXTURE_GRANULE);
    *wall = take(p, CAPTURER, FIXTURE_GRANULE);
    give(p, &used);
    need(p, ductile_virtual_capture_end(p->f.gpu, stream, &made) == DUCTILE_OK,
         "the capture was broken");
    return made;
}

/* A request of the pool that the graph's memory would serve if it moved. */
static void request_beside_graph(play *p) {
    block wall;
    need(p, ductile_pool_begin(p->f.allocator, POOL, NULL, NULL) == DUCTILE_OK, "begin");
    ductile_virtual_graph *made = capture_use(p, &wall);
    block all[] = {wall, take(p, CAPTURER, 6 * FIXTURE_GRANULE)};
    need(p, ductile_pool_end(p->f.allocator, POOL) == DUCTILE_OK, "end");
    need(p, ductile_virtual_graph_launch(made, stream_of(p, USER)) == DUCTILE_OK, "launch");
    ductile_virtual_graph_destroy(made);
    give_all(p, all, 2);
    need(p, ductile_pool_release(p->f.allocator, POOL) == DUCTILE_OK, "release");
}

/* A pool that a graph needs no more goes back, which takes a wait for all work of the device;
 * the trim needs no other memory. */
static void wait_for_device(play *p) {
    ductile_allocator *a = p->f.allocator;
    need(p, ductile_pool_begin(a, OTHER_POOL, NULL, NULL) == DUCTILE_OK, "begin");
    block b = take(p, CAPTURER, 2 * FIXTURE_GRANULE);
    give(p, &b);
    need(p, ductile_pool_end(a, OTHER_POOL) == DUCTILE_OK, "end");
    need(p, ductile_pool_release(a, OTHER_POOL) == DUCTILE_OK, "release");
    uint64_t held = fixture_stats(a).reserved_bytes;
    uint64_t before = ductile_virtual_count(p->f.gpu, "context_sync");
    need(p, ductile_trim(a, held - 2 * FIXTURE_GRANULE, NULL) == DUCTILE_OK, "trim");
    need(p, ductile_virtual_count(p->f.gpu, "context_sync") > before, "no wait for the device");
}

static ductile_virtual_graph *graph_of_pool(play *p, block *wall) {
    need(p, ductile_pool_begin(p->f.allocator, POOL, NULL, NULL) == DUCTILE_OK, "begin");
    ductile_virtual_graph *made = capture_use(p, wall);
    need(p, ductile_pool_end(p->f.allocator, POOL) == DUCTILE_OK, "end");
    wait_for_device(p);
    return made;
}

/* The graph is still there; everything its pool was ever used for before is done. */
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
static void request_after_graph(play *p) {
    block wall;
    ductile_virtual_graph *made = graph_of_pool(p, &wall);
    ductile_virtual_set_schedule(p->f.gpu, DUCTILE_SCHEDULE_LAZY, 0);
    need(p, ductile_virtual_graph_launch(made, stream_of(p, USER)) == DUCTILE_OK, "launch");
    ductile_virtual_set_schedule(p->f.gpu, p->schedule, p->lag);
    ductile_virtual_graph_destroy(made);
    need(p, ductile_pool_release(p->f.allocator, POOL) == DUCTILE_OK, "release");
    block all[] = {wall, take(p, TAKER, 4 * FIXTURE_GRANULE)};
    give_all(p, all, 2);
}

/* ---- Pauses --------------------------------------------------------------------------------
 */

/* The memory of a live block goes while its stream is at work. */
static void pause_with_work(play *p) {
    ductile_allocator *a = p->f.allocator;
    need(p, ductile_pool_retain(a, POOL) == DUCTILE_OK, "retain");
    need(p, ductile_pool_set_kind(a, POOL, DUCTILE_POOL_PLAIN) == DUCTILE_OK, "kind");
    need(p, ductile_pool_begin(a, POOL, NULL, NULL) == DUCTILE_OK, "begin");
    block b = take(p, OWNER, 4 * FIXTURE_GRANULE);
    need(p, ductile_pool_end(a, POOL) == DUCTILE_OK, "end");
    use_long(p, OWNER, &b, 1);
    ductile_virtual_block_end(p->f.gpu, b.address); /* while it is paused it is nobody's to use */
    need(p, ductile_pause(a, POOL, DUCTILE_PAUSE_KEEP_CONTENTS) == DUCTILE_OK, "pause");
    need(p, ductile_resume(a, POOL) == DUCTILE_OK, "resume");
    ductile_virtual_block_begin(p->f.gpu, b.address, b.size);
    launch_use(p, OWNER, &b, 1);
    give(p, &b);
    need(p, ductile_pool_release(a, POOL) == DUCTILE_OK, "release");
}

/* A block that another GPU's stream writes, for long, and a stream of it. */
static ductile_stream use_elsewhere(play *p, const block *b) {
    const ductile_virtual_use use = {b->address, b->size, 1};
    ductile_stream theirs = NULL;
    fixture *f = &p->f;
    need(p, ductile_enable_peer(f->allocator, 1) == DUCTILE_OK, "peer");
    need(p, ductile_virtual_stream_create_on(f->gpu, 1, &theirs) == DUCTILE_OK, "stream");
    need(p, ductile_virtual_stream_wait(f->gpu, theirs, stream_of(p, b->slot)) == DUCTILE_OK,
         "order");
    ductile_virtual_set_schedule(f->gpu, DUCTILE_SCHEDULE_LAZY, 0);
    need(p, ductile_virtual_launch(f->gpu, theirs, &use, 1) == DUCTILE_OK, "launch");
    ductile_virtual_set_schedule(f->gpu, p->schedule, p->lag);
    need(p, ductile_record_stream(f->allocator, b->address, theirs) == DUCTILE_OK, "record");
    return theirs;
}

static void pause_with_work_elsewhere(play *p) {
    ductile_allocator *a = p->f.allocator;
    need(p, ductile_pool_begin(a, POOL, NULL, NULL) == DUCTILE_OK, "begin");
    block b = take(p, OWNER, 4 * FIXTURE_GRANULE);
    need(p, ductile_pool_end(a, POOL) == DUCTILE_OK, "end");
    ductile_stream theirs = use_elsewhere(p, &b);
    ductile_virtual_block_end(p->f.gpu, b.address);
    need(p, ductile_pause(a, POOL, 0) == DUCTILE_OK, "pause");
    need(p, ductile_resume(a, POOL) == DUCTILE_OK, "resume");
    ductile_virtual_block_begin(p->f.gpu, b.address, b.size);
    give(p, &b);
    need(p, ductile_pool_release(a, POOL) == DUCTILE_OK, "release");
    need(p, ductile_stream_done(a, theirs) == DUCTILE_OK, "done");
    need(p, ductile_virtual_stream_destroy(p->f.gpu, theirs) == DUCTILE_OK, "destroy");
}

/* Live when the allocator ends, which the scenario does not see. */
static void end_with_work_elsewhere(play *p) {
    block b = take(p, OWNER, 4 * FIXTURE_GRANULE);
    (void)use_elsewhere(p, &b);
    ductile_virtual_block_end(p->f.gpu, b.address);
}

static block take_dedicated(play *p, uint64_t size) {
    block b = {.size = size, .slot = OWNER};
    ductile_stream stream = p->f.streams[OWNER];
    need(p, ductile_alloc_dedicated(p->f.allocator, size, stream, &b.address) == DUCTILE_OK,
         "no dedicated memory");
    ductile_virtual_block_begin(p->f.gpu, b.address, size);
    return b;
}

/* Freed with its stream at work on it; another request then takes the slow path. */
static void dedicated_with_work(play *p) {
    block seed = take(p, OWNER, 512);
    block other = take(p, TAKER, 512);
    come_to_marker(p, OWNER);
    sync_slot(p, OWNER);
    block b = take_dedicated(p, 4 * FIXTURE_GRANULE);
    use_long(p, OWNER, &b, 1);
    give(p, &b);
    block next = take_dedicated(p, FIXTURE_GRANULE);
    block all[] = {seed, other, next};
    give_all(p, all, 3);
}

/* ---- All of them ---------------------------------------------------------------------------
 */

const scenario *scenario_at(size_t i) {
    static const char wait[] = "record_stream:wait";
    static const scenario all[] = {
        {"neighbours", NULL, neighbours},
        {"two-users", NULL, two_users},
        {"query-that-fails", NULL, query_that_fails},
        {"free-after-the-user-is-gone", NULL, free_after_the_user_is_gone},
        {"trim-after-the-owner-is-gone", NULL, trim_after_the_owner_is_gone},
        {"two-default-streams", NULL, two_default_streams},
        {"markers-used-again", NULL, markers_used_again},
        {"wait-that-fails", NULL, wait_that_fails},
        {"free-in-the-markers-epoch", NULL, free_in_the_markers_epoch},
        {"free-while-a-marker-is-recorded", NULL, free_while_a_marker_is_recorded},
        {"donor-between-two-markers", "cross_stream_reuse:wait,limit_bytes:12M",
         donor_between_two_markers},
        {"heal-with-memory-at-work", NULL, heal_with_memory_at_work},
        {"spans-of-two-streams", wait, spans_of_two_streams},
        {"span-of-two-streams", wait, span_of_two_streams},
        {"rest-of-settled-span", wait, rest_of_settled_span},
        {"trim-beside-span", wait, trim_beside_span},
        {"request-beside-graph", NULL, request_beside_graph},
        {"trim-beside-graph", NULL, trim_beside_graph},
        {"request-after-graph", NULL, request_after_graph},
        {"pause-with-work", NULL, pause_with_work},
        {"pause-with-work-elsewhere", NULL, pause_with_work_elsewhere},
        {"end-with-work-elsewhere", NULL, end_with_work_elsewhere},
        {"dedicated-with-work", NULL, dedicated_with_work},
    };
    return i < sizeof all / sizeof *all ? &all[i] : NULL;
}

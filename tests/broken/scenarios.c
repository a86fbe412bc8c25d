/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/broken/steps.h"

#include <ductile_share.h>

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

static void free_after_the_user_is_gone(play *p) {
    block used = take(p, OWNER, 2 * FIXTURE_GRANULE);
    share_long(p, &used, USER);
    renew_stream(p, USER);
    give(p, &used);
    sync_slot(p, USER);
    look_and_take(p, 2 * FIXTURE_GRANULE);
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
        .struct_size = sizeof fault, .call = "event_sync", .nth = 1, .code = 1};
    need(p, ductile_virtual_inject(p->f.gpu, &fault) == DUCTILE_OK, "inject");
    block again = take(p, OWNER, CAPACITY / 4 * 3);
    need(p, ductile_virtual_faults_fired(p->f.gpu) > 0, "nobody waits");
    need(p, ductile_virtual_inject(p->f.gpu, NULL) == DUCTILE_OK, "inject");
    give(p, &again);
}

/* ---- Waits on the GPU ------------------------------------------------------------------------ */

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

/* ---- Pauses ---------------------------------------------------------------------------------- */

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
    need(p, ductile_pause(a, POOL, DUCTILE_CONTENTS_KEEP) == DUCTILE_OK, "pause");
    need(p, ductile_resume(a, POOL) == DUCTILE_OK, "resume");
    ductile_virtual_block_begin(p->f.gpu, b.address, b.size);
    launch_use(p, OWNER, &b, 1);
    give(p, &b);
    need(p, ductile_pool_release(a, POOL) == DUCTILE_OK, "release");
}

static void pause_with_work_elsewhere(play *p) {
    ductile_allocator *a = p->f.allocator;
    need(p, ductile_pool_begin(a, POOL, NULL, NULL) == DUCTILE_OK, "begin");
    block b = take(p, OWNER, 4 * FIXTURE_GRANULE);
    need(p, ductile_pool_end(a, POOL) == DUCTILE_OK, "end");
    ductile_stream theirs = use_elsewhere(p, &b);
    ductile_virtual_block_end(p->f.gpu, b.address);
    need(p, ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP) == DUCTILE_OK, "pause");
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

/* ---- All of them ----------------------------------------------------------------------------- */

const scenario *scenario_at(size_t i) {
    static const char wait[] = "record_stream:wait";
    static const scenario all[] = {
        {"neighbours", NULL, neighbours},
        {"two-users", NULL, two_users},
        {"query-that-fails", NULL, query_that_fails},
        {"free-after-the-user-is-gone", NULL, free_after_the_user_is_gone},
        {"two-default-streams", NULL, two_default_streams},
        {"markers-used-again", NULL, markers_used_again},
        {"wait-that-fails", NULL, wait_that_fails},
        {"spans-of-two-streams", wait, spans_of_two_streams},
        {"span-of-two-streams", wait, span_of_two_streams},
        {"pause-with-work", NULL, pause_with_work},
        {"pause-with-work-elsewhere", NULL, pause_with_work_elsewhere},
        {"end-with-work-elsewhere", NULL, end_with_work_elsewhere},
    };
    const size_t n = sizeof all / sizeof *all;
    return i < n ? &all[i] : proof_scenario_at(i - n);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that nobody will free anything beside again: of streams that have fallen silent, of
 * streams that are gone, of pools that were released. It serves others once the GPU is done with
 * what had used it, without a wait of the host, and not before.
 */
#include "tests/support/inside.h"

enum { LAG = 1000 };

#define SIZE (32 * FIXTURE_GRANULE)

static const ductile_pool_id GRAPH = {1, 0};

static uint64_t held_before;

/* Work takes so long that nothing gets done by itself between two calls. */
static void open_lagging_with(const char *conf) {
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAGGING,
                                  .lag = LAG,
                                  .capacity_bytes = GIB,
                                  .n_streams = 3,
                                  .conf = conf});
}

static void open_lagging(void) {
    open_lagging_with(NULL);
}

TestSuite(silent, .init = open_lagging);

/* ---- What a stream leaves ------------------------------------------------------------------ */

static void leave(size_t stream) {
    ductile_addr block = take(SIZE, stream);
    fill(block, 0xEE, SIZE, stream);
    give(block);
    held_before = reserved();
}

static void destroy_last_stream(void) {
    assert_ok(ductile_virtual_stream_destroy(f.gpu, f.streams[--f.n_streams]));
}

/* ---- What another one gets ----------------------------------------------------------------- */

static void takes_new_memory(void) {
    ductile_addr block = take(SIZE, 0);
    assert_u64(reserved(), held_before + SIZE);
    fill(block, 0x11, SIZE, 0);
}

static void takes_what_was_left(void) {
    ductile_addr block = take(SIZE, 0);
    assert_u64(reserved(), held_before + SIZE);
    fill(block, 0x22, SIZE, 0);
    ductile_virtual_advance(f.gpu, 4 * LAG);
    assert_u64(byte_at(block, 0), 0x22);
    assert_u64(byte_at(block + SIZE - 1, 0), 0x22);
}

static uint64_t host_waits(void) {
    return count("event_sync") + count("stream_sync") + count("context_sync");
}

/* The first request records the marker, the second finds it done. */
static void serves_once_done(void) {
    takes_new_memory();
    ductile_virtual_advance(f.gpu, 2 * LAG);
    takes_what_was_left();
    assert_u64(host_waits(), 0);
    assert_u64(fixture_stats(f.allocator).event_waits, 0);
    close_audited();
}

static void serves_nobody(void) {
    takes_new_memory();
    ductile_virtual_advance(f.gpu, 2 * LAG);
    (void)take(SIZE, 0);
    assert_u64(reserved(), held_before + 2 * SIZE);
    close_audited();
}

/* ---- Streams ------------------------------------------------------------------------------- */

Test(silent, memory_of_a_stream_that_lives_on) {
    leave(1);
    serves_once_done();
}

Test(silent, memory_of_a_stream_that_is_named_done_and_destroyed) {
    leave(2);
    assert_ok(ductile_stream_done(f.allocator, f.streams[2]));
    destroy_last_stream();
    serves_once_done();
}

Test(silent, memory_of_a_stream_that_is_destroyed_unnamed) {
    leave(2);
    destroy_last_stream();
    serves_once_done();
}

/* The owner knew of the other stream's work at its free; nobody told the allocator of it. */
Test(silent, memory_that_a_stream_nobody_named_still_uses) {
    ductile_addr block = take(SIZE, 1);
    fill(block, 0xAA, SIZE, 1);
    assert_ok(ductile_virtual_stream_wait(f.gpu, f.streams[2], f.streams[1]));
    fill(block, 0xEE, SIZE, 2);
    give(block);
    held_before = reserved();
    serves_once_done();
}

/* The first mark is recorded between the two frees, and proves the first alone. */
Test(silent, memory_that_is_freed_behind_the_mark_waits_for_the_next) {
    leave(1);
    (void)take(SIZE, 0);
    leave(2);
    ductile_virtual_advance(f.gpu, LAG / 2);
    (void)take(FIXTURE_GRANULE, 0); /* records the second */
    ductile_virtual_advance(f.gpu, LAG * 6 / 10);
    held_before = reserved() - SIZE;
    takes_what_was_left(); /* that of stream 1 */
    assert_u64(host_waits(), 0);
    close_audited();
}

Test(silent_unannounced, memory_of_a_stream_that_lives_on_stays_there) {
    open_lagging_with("captures:unannounced");
    leave(1);
    serves_nobody();
}

Test(silent_unannounced, under_pressure_the_host_waits_for_it) {
    open_lagging_with("captures:unannounced,limit_bytes:96M");
    leave(1);
    (void)take(SIZE, 0);
    assert_u64(reserved(), held_before);
    cr_assert_gt(host_waits(), 0);
    close_audited();
}

/* Many at a time, each with its own work under way: every other one is gone. */
Test(silent, memory_of_many_streams_at_once) {
    enum { N = 8 };
    ductile_stream streams[N];
    for (int i = 0; i < N; i++) {
        ductile_addr block = 0;
        assert_ok(ductile_virtual_stream_create(f.gpu, &streams[i]));
        assert_ok(ductile_alloc(f.allocator, 2 * FIXTURE_GRANULE, streams[i], &block));
        assert_ok(ductile_virtual_fill(f.gpu, block, 0xEE, 2 * FIXTURE_GRANULE, streams[i]));
        assert_ok(ductile_free(f.allocator, block));
        if (i % 2 == 0) {
            assert_ok(ductile_stream_done(f.allocator, streams[i]));
            assert_ok(ductile_virtual_stream_destroy(f.gpu, streams[i]));
        }
    }
    (void)take(FIXTURE_GRANULE, 0); /* records the last mark */
    ductile_virtual_advance(f.gpu, 2 * LAG);
    uint64_t held = reserved();
    ductile_addr block = take(2 * FIXTURE_GRANULE, 0);
    assert_u64(reserved(), held);
    fill(block, 0x22, 2 * FIXTURE_GRANULE, 0);
    assert_u64(host_waits(), 0);
    for (int i = 1; i < N; i += 2) {
        assert_ok(ductile_virtual_stream_destroy(f.gpu, streams[i]));
    }
    close_audited();
}

/* ---- Pools --------------------------------------------------------------------------------- */

/* A graph that writes memory that was freed in its pool, and its launches. */
static ductile_virtual_graph *capture_graph(void) {
    ductile_virtual_graph *graph = NULL;
    assert_ok(ductile_pool_begin(f.allocator, GRAPH, NULL, NULL));
    assert_ok(ductile_virtual_capture_begin(f.gpu, f.streams[1], DUCTILE_CAPTURE_RELAXED));
    ductile_addr block = take(SIZE, 1);
    fill(block, 0xEE, SIZE, 1);
    give(block);
    assert_ok(ductile_virtual_capture_end(f.gpu, f.streams[1], &graph));
    assert_ok(ductile_pool_end(f.allocator, GRAPH));
    held_before = reserved();
    return graph;
}

/* On a stream that the allocator does not know. */
static void launch_and_release(ductile_virtual_graph *graph) {
    assert_ok(ductile_virtual_graph_launch(graph, f.streams[2]));
    ductile_virtual_graph_destroy(graph);
    assert_ok(ductile_pool_release(f.allocator, GRAPH));
}

Test(silent, memory_of_a_released_capture_pool) {
    launch_and_release(capture_graph());
    serves_once_done();
}

/* A mark from before the release is done, and proves nothing of what graphs did since. */
Test(silent, memory_of_a_capture_pool_is_not_proven_by_marks_from_before_its_release) {
    ductile_virtual_graph *graph = capture_graph();
    give(take(FIXTURE_GRANULE, 0));
    (void)take(2 * FIXTURE_GRANULE, 0); /* records a mark */
    ductile_virtual_advance(f.gpu, 2 * LAG);
    (void)take(2 * FIXTURE_GRANULE, 0); /* finds it done */
    index_lock();
    cr_assert_gt(f.allocator->proven.age, 0);
    index_unlock();
    launch_and_release(graph);
    held_before = reserved();
    serves_once_done();
}

Test(silent, memory_of_a_capture_pool_stays_while_a_reference_is_held) {
    ductile_virtual_graph_destroy(capture_graph());
    serves_nobody();
}

/* ---- How little it may be ------------------------------------------------------------------- */

Test(silent, the_last_granule_of_a_stream_that_is_gone_goes_too) {
    give(take_granules(1, 2));
    assert_ok(ductile_stream_done(f.allocator, f.streams[2]));
    destroy_last_stream();
    (void)take(SIZE, 0); /* records the marker */
    assert_u64(fixture_stats(f.allocator).arenas, 2);
    ductile_virtual_advance(f.gpu, 4 * LAG);
    (void)take(SIZE, 0);
    assert_u64(fixture_stats(f.allocator).arenas, 1);
    close_audited();
}

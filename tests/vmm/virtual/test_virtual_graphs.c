/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs and the legacy default stream on the virtual GPU: what they do, and which order of memory
 * they make. */
#include "tests/support/detection.h"

/* ---- Graphs -------------------------------------------------------------------------------- */

static void begin_capture(ductile_stream stream) {
    assert_ok(ductile_virtual_capture_begin(r.gpu, stream, DUCTILE_CAPTURE_RELAXED));
}

static ductile_virtual_graph *end_capture(ductile_stream stream) {
    ductile_virtual_graph *graph = NULL;
    assert_ok(ductile_virtual_capture_end(r.gpu, stream, &graph));
    return graph;
}

static ductile_virtual_graph *graph_that_writes(ductile_addr address, uint64_t size) {
    begin_capture(s1);
    writes(s1, address, size);
    return end_capture(s1);
}

static void launch(ductile_virtual_graph *graph, ductile_stream stream) {
    assert_ok(ductile_virtual_graph_launch(graph, stream));
}

CLAIM(graph, a_launch_does_the_captured_work_each_time) {
    uint8_t byte = 0;
    begin_capture(s1);
    assert_ok(ductile_virtual_fill(r.gpu, at, 7, 512, s1));
    assert_ok(dvmm_copy(r.d, at + 512, at, 512, s1));
    ductile_virtual_graph *graph = end_capture(s1);
    assert_ok(ductile_virtual_read_back(r.gpu, &byte, at, 1, s1));
    cr_assert_eq(byte, 0, "captured work was done");
    for (int i = 0; i < 2; i++) {
        launch(graph, s2);
        assert_ok(ductile_virtual_read_back(r.gpu, &byte, at + 1023, 1, s2));
        cr_assert_eq(byte, 7);
        assert_ok(ductile_virtual_fill(r.gpu, at, 0, 1024, s2));
    }
    ductile_virtual_graph_destroy(graph);
    saw_nothing();
}

CLAIM(graph, work_of_a_stream_that_joined_is_captured_too) {
    uint8_t byte = 0;
    begin_capture(s1);
    order(s1, s2);
    assert_ok(ductile_virtual_fill(r.gpu, at, 9, 512, s2));
    order(s2, s1);
    ductile_virtual_graph *graph = end_capture(s1);
    launch(graph, s3);
    assert_ok(ductile_virtual_read_back(r.gpu, &byte, at, 1, s3));
    cr_assert_eq(byte, 9);
    ductile_virtual_graph_destroy(graph);
}

CLAIM(graph, its_memory_stays_mapped) {
    ductile_virtual_graph *graph = graph_that_writes(at, BLOCK);
    unmap(at + r.granule);
    saw_nothing();
    unmap(at);
    saw_one(DUCTILE_VIOLATION_GRAPH_MEMORY);
    ductile_virtual_graph_destroy(graph);
}

CLAIM(graph, memory_of_a_capture_under_way_stays_mapped) {
    begin_capture(s1);
    writes(s1, at, BLOCK);
    unmap(at);
    saw_one(DUCTILE_VIOLATION_GRAPH_MEMORY);
    ductile_virtual_graph_destroy(end_capture(s1));
}

CLAIM(graph, its_memory_does_not_move) {
    dvmm_phys phys = rig_create(&r, 1);
    ductile_addr pair = rig_reserve(&r, 2);
    assert_ok(dvmm_map(r.d, pair, r.granule, phys));
    assert_ok(dvmm_set_access(r.d, pair, r.granule, DVMM_ACCESS_RW));
    ductile_virtual_graph *graph = graph_that_writes(pair, BLOCK);
    assert_ok(dvmm_map(r.d, pair + r.granule, r.granule, phys));
    saw_one(DUCTILE_VIOLATION_GRAPH_MEMORY);
    ductile_virtual_graph_destroy(graph);
}

CLAIM(graph, memory_is_free_once_it_is_destroyed) {
    ductile_virtual_graph *graph = graph_that_writes(at, BLOCK);
    launch(graph, s2);
    ductile_virtual_graph_destroy(graph);
    sync(s2);
    unmap(at);
    saw_nothing();
}

CLAIM(graph, a_launch_under_way_is_work_like_any_other) {
    ductile_virtual_graph *graph = graph_that_writes(at, BLOCK);
    launch(graph, s2);
    ductile_virtual_graph_destroy(graph);
    unmap(at);
    saw_one(DUCTILE_VIOLATION_EARLY_UNMAP);
}

CLAIM(graph, memory_may_go_while_it_rests) {
    ductile_virtual_graph *graph = graph_that_writes(at, BLOCK);
    ductile_virtual_graph_rest(graph, 1);
    unmap(at);
    assert_ok(dvmm_map(r.d, at, r.granule, rig_create(&r, 1)));
    assert_ok(dvmm_set_access(r.d, at, r.granule, DVMM_ACCESS_RW));
    ductile_virtual_graph_rest(graph, 0);
    launch(graph, s2);
    sync(s2);
    saw_nothing();
    unmap(at);
    saw_one(DUCTILE_VIOLATION_GRAPH_MEMORY);
    ductile_virtual_graph_destroy(graph);
}

CLAIM(graph, is_not_launched_while_it_rests) {
    ductile_virtual_graph *graph = graph_that_writes(at, BLOCK);
    ductile_virtual_graph_rest(graph, 1);
    launch(graph, s2);
    saw_one(DUCTILE_VIOLATION_MISUSE);
    ductile_virtual_graph_destroy(graph);
}

/* The block of the capture is gone; its bytes belong to another block now. */
CLAIM(graph, memory_with_another_owner_is_reused) {
    begin(at, BLOCK);
    ductile_virtual_graph *graph = graph_that_writes(at, BLOCK);
    hand_over(at, BLOCK);
    writes(s2, at, BLOCK);
    launch(graph, s3);
    saw_one(DUCTILE_VIOLATION_REUSE);
    ductile_virtual_graph_destroy(graph);
}

CLAIM(graph, memory_whose_block_was_freed_may_be_used_by_the_launch) {
    begin(at, BLOCK);
    ductile_virtual_graph *graph = graph_that_writes(at, BLOCK);
    end(at);
    launch(graph, s3);
    saw_nothing();
    ductile_virtual_graph_destroy(graph);
}

CLAIM(graph, launches_of_one_graph_come_one_after_the_other) {
    ductile_virtual_graph *graph = graph_that_writes(at, BLOCK);
    launch(graph, s2);
    launch(graph, s3);
    saw_nothing();
    ductile_virtual_graph_destroy(graph);
}

CLAIM(graph, a_broken_capture_gives_none) {
    ductile_virtual_graph *graph = NULL;
    begin_capture(s1);
    writes(s1, at, BLOCK);
    cr_assert_neq(ductile_virtual_stream_sync(r.gpu, s1), DUCTILE_OK);
    cr_assert_neq(ductile_virtual_capture_end(r.gpu, s1, &graph), DUCTILE_OK);
    cr_assert_null(graph);
    unmap(at);
    saw_nothing();
}

/* ---- The legacy default stream ------------------------------------------------------------- */

#define LEGACY ((ductile_stream)NULL)
#define PER_THREAD ((ductile_stream)2)

static ductile_stream blocking_stream(void) {
    ductile_stream stream = NULL;
    assert_ok(ductile_virtual_stream_create_blocking(r.gpu, &stream));
    return stream;
}

CLAIM(legacy_stream, comes_after_blocking_streams_and_before_their_later_work) {
    ductile_stream blocking = blocking_stream();
    writes(blocking, at, BLOCK);
    writes(PER_THREAD, at + BLOCK, BLOCK);
    writes(LEGACY, at, 2 * BLOCK);
    writes(PER_THREAD, at, 2 * BLOCK);
    saw_nothing();
    writes(blocking, at, BLOCK); /* two blocking streams do not wait for each other */
    saw_one(DUCTILE_VIOLATION_RACE);
}

CLAIM(legacy_stream, does_not_wait_for_other_streams) {
    writes(s1, at, BLOCK);
    writes(LEGACY, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_RACE);
}

CLAIM(legacy_stream, work_really_waits) {
    uint8_t byte = 0;
    ductile_stream blocking = blocking_stream();
    assert_ok(ductile_virtual_fill(r.gpu, at, 1, 512, blocking));
    assert_ok(ductile_virtual_fill(r.gpu, at, 2, 512, LEGACY));
    assert_ok(ductile_virtual_fill(r.gpu, at, 3, 512, PER_THREAD));
    assert_ok(ductile_virtual_read_back(r.gpu, &byte, at, 1, PER_THREAD));
    cr_assert_eq(byte, 3);
    saw_nothing();
}

CLAIM(legacy_stream, a_host_wait_for_it_covers_blocking_streams) {
    writes(blocking_stream(), at, BLOCK);
    sync(LEGACY);
    unmap(at);
    saw_nothing();
}

CLAIM(legacy_stream, waits_for_a_blocking_stream_that_is_gone) {
    ductile_stream blocking = blocking_stream();
    writes(blocking, at, BLOCK);
    assert_ok(ductile_virtual_stream_destroy(r.gpu, blocking));
    writes(LEGACY, at, BLOCK);
    saw_nothing();
}

CLAIM(legacy_stream, is_refused_while_a_blocking_stream_is_captured) {
    ductile_stream blocking = blocking_stream();
    begin_capture(blocking);
    assert_code(RAW(&r, fill, at, 1, 512, LEGACY), DVMM_CAPTURE_IMPLICIT);
    cr_assert_neq(ductile_virtual_capture_end(r.gpu, blocking, NULL), DUCTILE_OK);
}

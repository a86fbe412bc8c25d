/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch snapshots become the trace that the recorded program would have made: which GPU, what
 * was there before the history began, and when a free takes effect.
 */
#include "tests/bench/pickle_maker.h"
#include "tests/bench/reading.h"

static reading now;
static pickle_maker p;

static void drop_now(void) {
    drop_reading(&now);
}

TestSuite(snapshot, .fini = drop_now);

static void entry(const char *action, uint64_t address, uint64_t size, uint64_t stream) {
    make_bytes(&p, "}(", 2);
    make_string_member(&p, "action", action);
    make_int_member(&p, "addr", address);
    make_int_member(&p, "size", size);
    make_int_member(&p, "stream", stream);
    make_op(&p, 'u');
}

static void block(uint64_t address, uint64_t size, uint64_t requested, const char *state) {
    make_bytes(&p, "}(", 2);
    make_int_member(&p, "address", address);
    make_int_member(&p, "size", size);
    make_int_member(&p, "requested_size", requested);
    make_string_member(&p, "state", state);
    make_op(&p, 'u');
}

/* {"device_traces": [[ ... */
static void begin_traces(void) {
    make_start(&p);
    make_bytes(&p, "}(", 2);
    make_string(&p, "device_traces");
    make_bytes(&p, "](](", 4);
}

static void next_gpu(void) {
    make_bytes(&p, "e](", 3);
}

/* ... ]], "segments": [ */
static void begin_segments(void) {
    make_bytes(&p, "ee", 2);
    make_string(&p, "segments");
    make_bytes(&p, "](", 2);
}

static void begin_segment(uint64_t gpu, uint64_t address, uint64_t stream) {
    make_bytes(&p, "}(", 2);
    make_int_member(&p, "device", gpu);
    make_int_member(&p, "address", address);
    make_int_member(&p, "stream", stream);
    make_string(&p, "blocks");
    make_bytes(&p, "](", 2);
}

static void end_segment(void) {
    make_bytes(&p, "eu", 2);
}

static void end_snapshot(void) {
    make_bytes(&p, "eu.", 3);
}

/* For tests without segments. */
static void end_traces(void) {
    begin_segments();
    end_snapshot();
}

static const trace *read_good(int gpu) {
    cr_assert(read_bytes_as_trace(p.bytes, p.size, gpu, &now), "%s", now.error.reason);
    return &now.t;
}

static void assert_refused(int gpu, const char *reason) {
    cr_assert_not(read_bytes_as_trace(p.bytes, p.size, gpu, &now));
    cr_assert_not_null(strstr(now.error.reason, reason), "'%s'", now.error.reason);
}

static void assert_event(size_t index, trace_kind kind, uint64_t size, uint16_t stream) {
    cr_expect_eq(now.t.events[index].kind, kind, "event %zu", index);
    cr_expect_eq(now.t.events[index].size, size, "event %zu", index);
    cr_expect_eq(now.t.events[index].stream, stream, "event %zu", index);
}

/* An event of one gate. */
static void assert_gate(size_t index, trace_kind kind, uint64_t number, uint16_t stream) {
    const trace_event *e = &now.t.events[index];
    cr_assert_eq(e->kind, kind, "event %zu", index);
    cr_assert_eq(e->stream, 1, "event %zu has %u gates", index, e->stream);
    cr_expect_eq(now.t.gates[e->size].number, number, "event %zu", index);
    cr_expect_eq(now.t.gates[e->size].stream, stream, "event %zu", index);
}

/* ---- Events -------------------------------------------------------------------------------- */

Test(snapshot, a_completion_right_behind_its_free_is_no_event) {
    begin_traces();
    entry("segment_alloc", 0x1000, 4096, 0);
    entry("alloc", 0x1000, 100, 0);
    entry("free_requested", 0x1000, 100, 0);
    entry("free_completed", 0x1000, 100, 0);
    entry("alloc", 0x1000, 70, 0);
    end_traces();
    const trace *t = read_good(TRACE_BUSIEST_GPU);
    cr_assert_eq(t->n_events, 3);
    cr_assert_eq(t->live_peak_bytes, 100);
    assert_event(1, TRACE_FREE, 100, 0);
}

Test(snapshot, a_later_completion_is_a_use_by_another_stream) {
    begin_traces();
    entry("alloc", 0x1000, 100, 0);
    entry("alloc", 0x2000, 50, 0x7f0012340000);
    entry("free_requested", 0x1000, 100, 0);
    entry("alloc", 0x3000, 60, 0);
    entry("free_completed", 0x1000, 100, 0);
    end_traces();
    const trace *t = read_good(TRACE_BUSIEST_GPU);
    cr_assert_eq(t->n_streams, 2);
    cr_assert_eq(t->streams[1].number, 1);
    cr_assert_eq(t->live_peak_bytes, 210);
    assert_gate(2, TRACE_FREE_GATED, 1, 1);
    assert_gate(4, TRACE_OPEN, 1, 1);
}

Test(snapshot, an_address_serves_many_blocks) {
    begin_traces();
    for (uint64_t i = 1; i <= 5; i++) {
        entry("alloc", 0x1000, i * 10, 0);
        entry("free_requested", 0x1000, i * 10, 0);
        entry("free_completed", 0x1000, i * 10, 0);
    }
    end_traces();
    const trace *t = read_good(TRACE_BUSIEST_GPU);
    cr_assert_eq(t->n_ops, 10);
    cr_assert_eq(t->n_slots, 1);
    cr_assert_eq(t->live_peak_bytes, 50);
}

Test(snapshot, a_use_may_outlast_the_history) {
    begin_traces();
    entry("alloc", 0x1000, 100, 0);
    entry("alloc", 0x2000, 50, 0x7f0012340000);
    entry("free_requested", 0x1000, 100, 0);
    entry("alloc", 0x3000, 60, 0);
    end_traces();
    cr_assert_eq(read_good(TRACE_BUSIEST_GPU)->live_peak_bytes, 210);
    cr_assert_eq(now.t.n_events, 4);
    assert_gate(2, TRACE_FREE_GATED, 1, 1);
}

/* ---- Before the history -------------------------------------------------------------------- */

Test(snapshot, what_is_freed_but_never_allocated_was_there_before) {
    begin_traces();
    entry("alloc", 0x1000, 10, 0);
    entry("free_requested", 0x9000, 500, 0);
    entry("free_completed", 0x9000, 500, 0);
    end_traces();
    const trace *t = read_good(TRACE_BUSIEST_GPU);
    cr_assert_eq(t->n_events, 3);
    cr_assert_eq(t->live_peak_bytes, 510);
    assert_event(0, TRACE_ALLOC, 500, 0);
    assert_event(1, TRACE_ALLOC, 10, 0);
    assert_event(2, TRACE_FREE, 500, 0);
}

Test(snapshot, a_completion_whose_free_was_lost_frees) {
    begin_traces();
    entry("free_completed", 0x9000, 500, 0);
    entry("alloc", 0x1000, 10, 0);
    end_traces();
    cr_assert_eq(read_good(TRACE_BUSIEST_GPU)->n_events, 3);
    assert_event(0, TRACE_ALLOC, 500, 0);
    assert_event(1, TRACE_FREE, 500, 0);
}

Test(snapshot, what_is_in_use_at_the_end_but_never_named_was_there_first) {
    begin_traces();
    entry("alloc", 0x1000, 10, 0);
    entry("free_requested", 0x9000, 500, 0);
    entry("free_completed", 0x9000, 500, 0);
    begin_segments();
    begin_segment(0, 0x1000, 0);
    block(0x1000, 512, 10, "active_allocated"); /* in the history */
    block(0x1200, 1024, 1000, "active_allocated");
    block(0x1600, 512, 0, "inactive");
    end_segment();
    begin_segment(0, 0x9000, 0);
    block(0x9000, 512, 0, "inactive");
    block(0x9200, 512, 300, "active_pending_free");
    end_segment();
    begin_segment(1, 0x1000, 0); /* another GPU's */
    block(0x5000, 512, 500, "active_allocated");
    end_segment();
    end_snapshot();
    cr_assert_eq(read_good(TRACE_BUSIEST_GPU)->n_events, 5);
    assert_event(0, TRACE_ALLOC, 1000, 0);
    assert_event(1, TRACE_ALLOC, 300, 0);
    assert_event(2, TRACE_ALLOC, 500, 0);
    assert_event(3, TRACE_ALLOC, 10, 0);
    assert_event(4, TRACE_FREE, 500, 0);
}

Test(snapshot, blocks_without_address_follow_each_other) {
    begin_traces();
    entry("alloc", 0x1200, 10, 0);
    begin_segments();
    begin_segment(0, 0x1000, 0);
    for (int i = 0; i < 2; i++) {
        make_bytes(&p, "}(", 2);
        make_int_member(&p, "size", 512);
        make_string_member(&p, "state", "active_allocated");
        make_op(&p, 'u');
    }
    end_segment();
    end_snapshot();
    cr_assert_eq(read_good(TRACE_BUSIEST_GPU)->n_events, 2);
    assert_event(0, TRACE_ALLOC, 512, 0);
    assert_event(1, TRACE_ALLOC, 10, 0);
}

/* ---- What PyTorch's own allocator held and refused ------------------------------------------ */

static void refusal(uint64_t size, uint64_t device_free) {
    make_bytes(&p, "}(", 2);
    make_string_member(&p, "action", "oom");
    make_int_member(&p, "size", size);
    make_int_member(&p, "device_free", device_free);
    make_op(&p, 'u');
}

Test(snapshot, what_was_refused_is_asked_for_and_freed_at_once) {
    begin_traces();
    entry("alloc", 0x1000, 100, 0);
    refusal(700, 64);
    entry("alloc", 0x2000, 50, 0);
    refusal(0, 64); /* nothing */
    refusal((UINT64_C(1) << 48) + 1, 64);
    end_traces();
    const trace *t = read_good(TRACE_BUSIEST_GPU);
    cr_assert_eq(t->n_events, 4);
    assert_event(1, TRACE_ALLOC, 700, 0);
    assert_event(2, TRACE_FREE, 700, 0);
    cr_expect_eq(t->live_peak_bytes, 800);
    cr_assert_eq(t->n_refusals, 2);
    cr_expect_eq(t->refusals[0].live_bytes, 100);
    cr_expect_eq(t->refusals[0].device_free_bytes, 64);
    cr_expect(t->refusals[0].is_replayed);
    cr_expect_not(t->refusals[1].is_replayed);
    cr_expect_eq(t->refusals[1].event, 3);
}

/* 1024 bytes held, of which a block that the history does not name has 512. */
static void make_segment(void) {
    begin_segment(0, 0x1000, 0);
    block(0x1000, 512, 100, "active_allocated");
    block(0x1200, 512, 0, "inactive");
    make_op(&p, 'e');
    make_int_member(&p, "total_size", 1024);
    make_op(&p, 'u');
}

static void end_with_a_segment(void) {
    begin_segments();
    make_segment();
    end_snapshot();
}

Test(snapshot, what_was_held_is_told_from_the_end_backwards) {
    begin_traces();
    entry("segment_alloc", 0x9000, 4096, 0);
    entry("alloc", 0x9000, 4000, 0);
    refusal(700, 64);
    entry("free_requested", 0x9000, 4000, 0);
    entry("free_completed", 0x9000, 4000, 0);
    entry("segment_free", 0x9000, 4096, 0);
    end_with_a_segment();
    const recorded_memory *m = &read_good(TRACE_BUSIEST_GPU)->recorded;
    cr_assert(m->end.is_known);
    cr_expect_eq(m->end.held, 1024);
    cr_expect_eq(m->end.live, 512);
    cr_expect_eq(m->end.holes, 1);
    cr_expect_eq(m->end.largest_hole, 512);
    cr_expect_eq(m->held_peak, 5120);
    cr_expect_eq(now.t.n_from_before, 1);
    cr_expect_eq(now.t.refusals[0].held_bytes, 5120);
    cr_assert_eq(m->n_changes, 2);
    cr_expect_eq(m->changes[0].held_bytes, 5120); /* before the block in it */
    cr_expect_eq(m->changes[0].event, 1);
}

static void assert_layout(const recorded_layout *l, uint64_t live, uint64_t pending, uint64_t free,
                          uint64_t holes, uint64_t largest) {
    cr_assert(l->is_known);
    cr_expect_eq(l->live, live);
    cr_expect_eq(l->pending, pending);
    cr_expect_eq(l->free, free);
    cr_expect_eq(l->held, live + pending + free);
    cr_expect_eq(l->holes, holes);
    cr_expect_eq(l->largest_hole, largest);
}

Test(snapshot, what_was_held_at_a_refusal_is_told_from_the_addresses_since) {
    begin_traces();
    entry("segment_alloc", 0x9000, 4096, 0);
    entry("alloc", 0x9000, 1000, 0); /* as 1024 */
    entry("alloc", 0x9800, 600, 0);  /* as 1024 */
    entry("free_requested", 0x9800, 600, 0);
    refusal(700, 64); /* before it: 1024 live, 1024 free, 1024 pending, 1024 free */
    entry("free_completed", 0x9800, 600, 0);
    entry("free_requested", 0x9000, 1000, 0);
    entry("free_completed", 0x9000, 1000, 0);
    entry("segment_free", 0x9000, 4096, 0);
    entry("segment_alloc", 0x9000, 8192, 0); /* another one in its place */
    entry("alloc", 0x9000, 8192, 0);
    entry("free_requested", 0x9000, 8192, 0);
    entry("free_completed", 0x9000, 8192, 0);
    entry("segment_free", 0x9000, 8192, 0);
    end_with_a_segment();
    const recorded_memory *m = &read_good(TRACE_BUSIEST_GPU)->recorded;
    assert_layout(&m->refused, 1024 + 512, 1024, 2 * 1024 + 512, 3, 1024);
    assert_layout(&m->end, 512, 0, 512, 1, 512);
}

Test(snapshot, the_refusal_that_needed_most_is_the_one_gone_back_to) {
    begin_traces();
    entry("segment_alloc", 0x9000, 4096, 0);
    refusal(700, 64);
    entry("alloc", 0x9000, 4096, 0);
    refusal(700, 64);
    entry("free_requested", 0x9000, 4096, 0);
    entry("free_completed", 0x9000, 4096, 0);
    refusal(1400, 64);
    entry("segment_free", 0x9000, 4096, 0);
    end_with_a_segment();
    const recorded_memory *m = &read_good(TRACE_BUSIEST_GPU)->recorded;
    cr_expect_eq(m->refusal, 1);
    assert_layout(&m->refused, 4096 + 512, 0, 512, 1, 512);
}

Test(snapshot, a_large_block_keeps_what_is_too_little_to_be_split_off) {
    enum { MIB = 1 << 20 };
    begin_traces();
    entry("segment_alloc", 0x10000000, 20 * MIB, 0);
    entry("segment_map", 0x20000000, 20 * MIB, 0);
    entry("alloc", 0x10000000, 19 * MIB, 0);
    entry("alloc", 0x20000000, 19 * MIB, 0);
    refusal(700, 64);
    for (uint64_t at = 0x10000000; at <= 0x20000000; at += 0x10000000) {
        entry("free_requested", at, 19 * MIB, 0);
        entry("free_completed", at, 19 * MIB, 0);
    }
    entry("segment_free", 0x10000000, 20 * MIB, 0);
    entry("segment_unmap", 0x20000000, 20 * MIB, 0);
    end_with_a_segment();
    const recorded_memory *m = &read_good(TRACE_BUSIEST_GPU)->recorded;
    assert_layout(&m->refused, 39 * MIB + 512, 0, MIB + 512, 2, MIB);
}

Test(snapshot, a_history_that_contradicts_its_addresses_tells_nothing_of_a_refusal) {
    begin_traces();
    entry("alloc", 0x9000, 100, 0); /* in no segment */
    refusal(700, 64);
    entry("free_requested", 0x9000, 100, 0);
    entry("free_completed", 0x9000, 100, 0);
    end_with_a_segment();
    const recorded_memory *m = &read_good(TRACE_BUSIEST_GPU)->recorded;
    cr_expect(m->end.is_known);
    cr_expect_not(m->refused.is_known);
}

/* {"device": gpu, "number": number, "segments": [ one segment ]} beside the others. */
static void end_with_a_kept_refusal(uint64_t gpu, uint64_t number) {
    begin_segments();
    make_segment();
    make_op(&p, 'e');
    make_string(&p, "refusals");
    make_bytes(&p, "](}(", 4);
    make_int_member(&p, "device", gpu);
    make_int_member(&p, "number", number);
    make_string(&p, "segments");
    make_bytes(&p, "](", 2);
    begin_segment(gpu, 0x5000, 0);
    block(0x5000, 2048, 2000, "active_allocated");
    block(0x5800, 1024, 0, "inactive");
    end_segment();
    make_bytes(&p, "eueu.", 5);
}

static const recorded_layout *read_with_a_kept_refusal(uint64_t gpu, uint64_t number) {
    begin_traces();
    entry("alloc", 0x1000, 100, 0);
    refusal(500, 64);
    refusal(700, 64);
    end_with_a_kept_refusal(gpu, number);
    return &read_good(TRACE_BUSIEST_GPU)->recorded.refused;
}

Test(snapshot, what_the_recorder_kept_of_a_refusal_is_taken_as_it_is) {
    assert_layout(read_with_a_kept_refusal(0, 2), 2048, 0, 1024, 1, 1024);
}

Test(snapshot, what_was_kept_of_another_refusal_is_not_of_this_one) {
    assert_layout(read_with_a_kept_refusal(0, 1), 512, 0, 512, 1, 512);
    drop_now();
    assert_layout(read_with_a_kept_refusal(1, 2), 512, 0, 512, 1, 512);
}

Test(snapshot, without_history_what_was_held_is_taken_by_those_who_ask) {
    begin_traces();
    end_with_a_segment();
    assert_refused(TRACE_BUSIEST_GPU, "_record_memory_history");
    drop_now();
    cr_assert(read_held_as_trace(p.bytes, p.size, &now), "%s", now.error.reason);
    cr_assert_eq(now.t.n_events, 1);
    cr_expect_eq(now.t.n_from_before, 1);
    assert_event(0, TRACE_ALLOC, 100, 0);
}

/* ---- Which GPU ----------------------------------------------------------------------------- */

static void make_two_gpus(void) {
    begin_traces();
    entry("alloc", 0x1000, 10, 0);
    next_gpu();
    entry("alloc", 0x1000, 20, 0);
    entry("alloc", 0x2000, 20, 0);
    end_traces();
}

Test(snapshot, the_busiest_gpu_is_read_unless_one_is_named) {
    make_two_gpus();
    cr_assert_eq(read_good(TRACE_BUSIEST_GPU)->live_peak_bytes, 40);
    cr_assert_eq(now.t.gpu, 1);
    drop_now();
    cr_assert_eq(read_good(0)->live_peak_bytes, 10);
    drop_now();
    assert_refused(2, "no GPU 2 in the snapshot, which has 2");
}

Test(snapshot, a_gpu_that_refused_memory_is_read_before_a_busier_one) {
    begin_traces();
    entry("alloc", 0x1000, 10, 0);
    refusal(700, 64);
    next_gpu();
    entry("alloc", 0x1000, 20, 0);
    entry("alloc", 0x2000, 20, 0);
    end_traces();
    cr_assert_eq(read_good(TRACE_BUSIEST_GPU)->live_peak_bytes, 710);
    cr_assert_eq(now.t.gpu, 0);
}

/* ---- Bad snapshots ------------------------------------------------------------------------- */

Test(snapshot, without_history_the_remedy_is_named) {
    begin_traces();
    end_traces();
    assert_refused(TRACE_BUSIEST_GPU, "_record_memory_history");
}

Test(snapshot, other_plain_data_is_no_snapshot) {
    make_start(&p);
    make_bytes(&p, "].", 2);
    assert_refused(TRACE_BUSIEST_GPU, "not a PyTorch snapshot");
}

Test(snapshot, an_entry_without_action_or_number_is_named) {
    begin_traces();
    entry("alloc", 0x1000, 10, 0);
    make_op(&p, '}');
    end_traces();
    assert_refused(TRACE_BUSIEST_GPU, "entry 1 has no action");
    begin_traces();
    make_bytes(&p, "}(", 2);
    make_string_member(&p, "action", "alloc");
    make_string_member(&p, "addr", "0x1000");
    make_op(&p, 'u');
    end_traces();
    assert_refused(TRACE_BUSIEST_GPU, "entry 0 lacks addr");
}

Test(snapshot, a_gap_in_the_history_is_refused) {
    begin_traces();
    entry("alloc", 0x1000, 10, 0);
    entry("alloc", 0x1000, 10, 0);
    end_traces();
    assert_refused(TRACE_BUSIEST_GPU, "gap");
    begin_traces();
    entry("alloc", 0x1000, 10, 0);
    entry("free_requested", 0x1000, 10, 0);
    entry("free_requested", 0x1000, 10, 0);
    end_traces();
    assert_refused(TRACE_BUSIEST_GPU, "gap");
}

/* 2 bytes name a whole list again: the work must not multiply. */
Test(snapshot, the_same_history_many_times_over_is_refused) {
    make_start(&p);
    make_bytes(&p, "}(", 2);
    make_string(&p, "device_traces");
    make_bytes(&p, "](](", 4);
    for (int i = 0; i < 20; i++) {
        entry("alloc", 0x1000 + 0x1000 * (uint64_t)i, 10, 0);
    }
    make_bytes(&p, "e\x94", 2);
    for (int i = 0; i < 900; i++) {
        make_bytes(&p, "h\x00", 2);
    }
    make_bytes(&p, "eu.", 3);
    assert_refused(TRACE_BUSIEST_GPU, "more history entries than the file can hold");
}

/* ---- Steps --------------------------------------------------------------------------------- */

static void timed_entry(const char *action, uint64_t address, uint64_t size, uint64_t time_us) {
    make_bytes(&p, "}(", 2);
    make_string_member(&p, "action", action);
    make_int_member(&p, "addr", address);
    make_int_member(&p, "size", size);
    make_int_member(&p, "stream", 0);
    make_int_member(&p, "time_us", time_us);
    make_op(&p, 'u');
}

/* Three blocks, at the times 10, 20 and 30, and then the annotations. */
static void begin_annotations(void) {
    begin_traces();
    timed_entry("alloc", 0x1000, 100, 10);
    timed_entry("alloc", 0x2000, 100, 20);
    timed_entry("alloc", 0x3000, 100, 30);
    begin_segments();
    make_op(&p, 'e');
    make_string(&p, "external_annotations");
    make_bytes(&p, "](", 2);
}

static void annotation(const char *stage, const char *name, uint64_t gpu, uint64_t time_us) {
    make_bytes(&p, "}(", 2);
    make_string_member(&p, "stage", stage);
    make_string_member(&p, "name", name);
    make_int_member(&p, "device", gpu);
    make_int_member(&p, "time_us", time_us);
    make_op(&p, 'u');
}

typedef struct noted {
    const char *stage, *name;
    uint64_t gpu, time_us;
} noted;

static void expect_steps(const noted *all, size_t n, uint64_t steps) {
    begin_annotations();
    for (size_t i = 0; i < n; i++) {
        annotation(all[i].stage, all[i].name, all[i].gpu, all[i].time_us);
    }
    end_snapshot();
    cr_expect_eq(read_good(TRACE_BUSIEST_GPU)->n_steps, steps);
    cr_expect_eq(now.t.n_events, 3);
}

#define STEPS_OF(name, steps, ...)                                                                 \
    Test(snapshot, name) {                                                                         \
        const noted all[] = {__VA_ARGS__};                                                         \
        expect_steps(all, sizeof all / sizeof *all, steps);                                        \
    }
#define SGD "Optimizer.step#SGD.step"
#define ADAM "Optimizer.step#Adam.step"

STEPS_OF(the_end_of_an_optimizers_step_ends_a_step, 2, {"START", SGD, 0, 11}, {"END", SGD, 0, 15},
         {"END", SGD, 0, 40})
STEPS_OF(other_annotations_end_no_step, 0, {"END", "Optimizer.zero_grad#SGD.zero_grad", 0, 15},
         {"START", SGD, 0, 16}, {"END", SGD, 1, 17}, {"END", "Optimizer", 0, 18})
STEPS_OF(steps_of_two_optimizers_without_an_event_between_them_are_one, 1, {"END", ADAM, 0, 15},
         {"END", SGD, 0, 16}, {"END", ADAM, 0, 20})
STEPS_OF(a_step_that_ends_before_the_history_begins_is_none, 1, {"END", ADAM, 0, 5},
         {"END", ADAM, 0, 25})

Test(snapshot, a_history_without_times_has_no_steps_but_the_last) {
    begin_traces();
    entry("alloc", 0x1000, 100, 0);
    entry("alloc", 0x2000, 100, 0);
    begin_segments();
    make_op(&p, 'e');
    make_string(&p, "external_annotations");
    make_bytes(&p, "](", 2);
    annotation("END", ADAM, 0, 5);
    end_snapshot();
    cr_expect_eq(read_good(TRACE_BUSIEST_GPU)->n_steps, 1);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream of another context of the device. Context markers do not cover its work, so memory that
 * it freed serves other streams only behind a marker of its own, and its old addresses are unmapped
 * only then. The detector sees a move or an unmap that came too early under every schedule.
 */
#include "pool/blocks/arena.h"
#include "tests/support/one_fixture.h"

enum { OURS = 0, OTHER = 1, FOREIGN = 2, N_SCHEDULES = 4 };

/* The last stream is of another context. What is freed does not fit beside what is asked for. */
static void open_with(int schedule, const char *conf) {
    fixture_setup setup = {
        .schedule = (ductile_schedule)schedule, .lag = 3, .seed = 11, .n_streams = 3, .conf = conf};
    open_fixture(&setup);
    assert_ok(ductile_virtual_stream_destroy(f.gpu, f.streams[FOREIGN]));
    assert_ok(ductile_virtual_stream_create_foreign(f.gpu, &f.streams[FOREIGN]));
}

static void open_foreign(int schedule) {
    open_with(schedule, "limit_bytes:128M");
}

#define CLAIM(name)                                                                                \
    static void name(void);                                                                        \
    Test(foreign, name) {                                                                          \
        for (int schedule = 0; schedule < N_SCHEDULES; schedule++) {                               \
            open_foreign(schedule);                                                                \
            name();                                                                                \
            close_audited();                                                                       \
        }                                                                                          \
    }                                                                                              \
    static void name(void)

static dpool_arena *arena_of(size_t stream) {
    dti_lock_acquire(&f.allocator->index_lock);
    dpool_arena *arena = dpool_arena_any_locked(f.allocator, f.streams[stream]);
    dti_lock_release(&f.allocator->index_lock);
    cr_assert_not_null(arena);
    return arena;
}

static uint64_t syncs(void) {
    return fixture_stats(f.allocator).stream_syncs;
}

static uint64_t retiring(void) {
    return fixture_stats(f.allocator).retiring_bytes;
}

static uint64_t recycled(void) {
    return fixture_stats(f.allocator).recycled_handles;
}

static uint64_t freed_at; /* the age of what was freed */

/* A kernel of the stream writes the memory, which is freed at once. */
static void write_and_free(ductile_addr address, uint64_t size, size_t stream) {
    launch(address, size, stream);
    give(address);
    freed_at = f.allocator->age;
}

static void free_at_work(uint64_t size, size_t stream) {
    write_and_free(take(size, stream), size, stream);
}

/* A request that no free memory of the stream serves: records what is due, and polls. */
static void miss(size_t stream) {
    static uint64_t size;
    size += 2 * MIB;
    (void)take(size, stream);
}

/* So many hits record a marker, when enough was freed. */
static void mark_by_hits(size_t stream) {
    for (int i = 0; i < 200; i++) {
        (void)take(512, stream);
    }
}

static void finish(size_t stream) {
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[stream]));
}

/* ---- Asking -------------------------------------------------------------------------------- */

Test(foreign, each_arena_asks_once) {
    open_foreign(DUCTILE_SCHEDULE_EAGER);
    for (int i = 0; i < 3; i++) {
        give(take(4 * MIB, FOREIGN));
        give(take(4 * MIB, OURS));
    }
    assert_u64(count("stream_is_ours"), 2);
    cr_assert(arena_of(FOREIGN)->is_foreign);
    cr_assert(!arena_of(OURS)->is_foreign);
    close_audited();
}

Test(foreign, a_stream_is_foreign_when_asking_fails) {
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "stream_is_ours", .nth = 1, .code = 1};
    open_foreign(DUCTILE_SCHEDULE_LAZY);
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    give(take(4 * MIB, OURS));
    cr_assert(arena_of(OURS)->is_foreign);
    give(take(4 * MIB, OTHER));
    cr_assert(!arena_of(OTHER)->is_foreign);
    close_audited();
}

Test(foreign, the_default_streams_are_not) {
    open_foreign(DUCTILE_SCHEDULE_EAGER);
    for (uintptr_t stream = 0; stream <= 2; stream++) {
        ductile_addr address = 0;
        assert_ok(ductile_alloc(f.allocator, 512, (ductile_stream)stream, &address));
        give(address);
    }
    assert_u64(count("stream_is_ours"), 0);
    close_audited();
}

/* Of the marks of one stream alone, one at a time is under way. */
static void read_its_mark(void) {
    finish(FOREIGN);
    miss(OURS);
    cr_assert_null(arena_of(FOREIGN)->own_mark.marker);
}

/* ---- What a context marker does not prove -------------------------------------------------- */

/* The context marker is done although the foreign stream is at work: nothing runs by itself. */
static void prove_by_the_context(void) {
    miss(OURS);
    assert_ok(dvmm_context_sync(f.allocator->driver));
    miss(OURS);
    cr_assert_gt(f.allocator->proven.age, freed_at, "no context marker is done");
}

Test(foreign, memory_serves_no_other_stream_behind_a_context_marker) {
    open_foreign(DUCTILE_SCHEDULE_LAZY);
    free_at_work(80 * MIB, FOREIGN);
    prove_by_the_context();
    uint64_t moved = recycled();
    uint64_t waits = syncs();
    (void)take(40 * MIB, OTHER);
    assert_u64(recycled(), moved);
    assert_u64(syncs(), waits);
    close_audited();
}

Test(foreign, memory_of_ours_does) {
    open_foreign(DUCTILE_SCHEDULE_LAZY);
    free_at_work(80 * MIB, OTHER);
    prove_by_the_context();
    uint64_t moved = recycled();
    (void)take(40 * MIB, FOREIGN);
    assert_u64(recycled(), moved + 20);
    close_audited();
}

Test(foreign, memory_serves_another_stream_once_its_own_marker_is_done) {
    open_foreign(DUCTILE_SCHEDULE_LAZY);
    ductile_addr address = take(80 * MIB, FOREIGN);
    read_its_mark();
    write_and_free(address, 80 * MIB, FOREIGN);
    mark_by_hits(FOREIGN);
    finish(FOREIGN);
    uint64_t moved = recycled();
    (void)take(40 * MIB, OTHER);
    assert_u64(recycled(), moved + 20);
    assert_u64(syncs(), 0);
    close_audited();
}

/* Its own memory moves at once, in the order of the stream; the old addresses stay mapped. */
Test(foreign, old_addresses_are_unmapped_once_its_own_marker_is_done) {
    open_foreign(DUCTILE_SCHEDULE_LAZY);
    ductile_addr low = take(20 * MIB, FOREIGN);
    (void)take(2 * MIB, FOREIGN);
    read_its_mark();
    write_and_free(low, 20 * MIB, FOREIGN);
    ductile_addr high = take(30 * MIB, FOREIGN);
    assert_u64(retiring(), 20 * MIB);
    prove_by_the_context();
    assert_u64(retiring(), 20 * MIB);
    launch(high, 30 * MIB, FOREIGN);
    read_its_mark();
    assert_u64(retiring(), 0);
    close_audited();
}

/* ---- What the host waits for --------------------------------------------------------------- */

/* No more can be created: the foreign stream itself is waited for. */
CLAIM(memory_serves_another_stream_behind_a_wait_for_it) {
    free_at_work(100 * MIB, FOREIGN);
    launch(take(110 * MIB, OTHER), 110 * MIB, OTHER);
}

/* Memory of a pool that is gone waits for its stream like memory in no pool. */
CLAIM(memory_of_a_released_pool_serves_another_stream_behind_a_wait_for_it) {
    const ductile_pool_id plain = {5, 2};
    assert_ok(ductile_pool_retain(f.allocator, plain));
    assert_ok(ductile_pool_set_kind(f.allocator, plain, DUCTILE_POOL_PLAIN));
    assert_ok(ductile_pool_begin(f.allocator, plain, NULL, NULL));
    free_at_work(100 * MIB, FOREIGN);
    assert_ok(ductile_pool_end(f.allocator, plain));
    assert_ok(ductile_pool_release(f.allocator, plain));
    launch(take(110 * MIB, OTHER), 110 * MIB, OTHER);
}

CLAIM(memory_goes_back_behind_a_wait_for_it) {
    free_at_work(100 * MIB, FOREIGN);
    uint64_t released = 0;
    assert_ok(ductile_trim(f.allocator, 0, &released));
    assert_u64(reserved(), 0);
}

/* Recorded for a block whose own stream may reuse it at once: others have to wait for it. */
Test(foreign, recorded_work_is_waited_for_before_a_request_is_refused) {
    for (int schedule = 0; schedule < N_SCHEDULES; schedule++) {
        open_with(schedule, "limit_bytes:128M,record_stream:wait,captures:unannounced");
        ductile_addr address = take(100 * MIB, OURS);
        assert_ok(ductile_virtual_stream_wait(f.gpu, f.streams[FOREIGN], f.streams[OURS]));
        launch(address, 100 * MIB, FOREIGN);
        ductile_virtual_block_end(f.gpu, address);
        assert_ok(ductile_free_on(f.allocator, address, f.streams[FOREIGN]));
        launch(take(110 * MIB, OTHER), 110 * MIB, OTHER);
        close_audited();
    }
}

/* A pool that is gone has the trim wait for the device, which does not cover the stream. */
CLAIM(memory_goes_back_beside_that_of_a_pool_that_is_gone) {
    const ductile_pool_id graphs = {5, 1};
    assert_ok(ductile_set_captures(f.allocator, DUCTILE_CAPTURES_UNANNOUNCED));
    free_at_work(40 * MIB, FOREIGN);
    assert_ok(ductile_pool_begin(f.allocator, graphs, NULL, NULL));
    free_at_work(40 * MIB, OTHER);
    assert_ok(ductile_pool_end(f.allocator, graphs));
    assert_ok(ductile_pool_release(f.allocator, graphs));
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(reserved(), 0);
}

CLAIM(destroying_waits_for_what_it_does_with_live_memory) {
    launch(take(10 * MIB, FOREIGN), 10 * MIB, FOREIGN);
}

/* ---- A foreign stream that ends ------------------------------------------------------------ */

static void end_foreign(void) {
    assert_ok(ductile_stream_done(f.allocator, f.streams[FOREIGN]));
    assert_ok(ductile_virtual_stream_destroy(f.gpu, f.streams[FOREIGN]));
    f.n_streams = FOREIGN;
}

CLAIM(memory_of_one_that_is_gone_serves_others_behind_its_last_marker) {
    miss(FOREIGN); /* its marker is under way */
    free_at_work(80 * MIB, FOREIGN);
    end_foreign();
    launch(take(100 * MIB, OTHER), 100 * MIB, OTHER);
}

/* What the stream left is not proven, and stays its own until a wait succeeds. */
Test(foreign, memory_of_one_that_is_gone_stays_while_its_last_marker_cannot_be_waited_for) {
    open_foreign(DUCTILE_SCHEDULE_LAZY);
    miss(FOREIGN);
    free_at_work(80 * MIB, FOREIGN);
    end_foreign();
    assert_fine(fixture_fail_for_good(&f, "event_sync", 1));
    ductile_addr none = 1;
    assert_status(ductile_alloc(f.allocator, 100 * MIB, f.streams[OTHER], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(none, 0);
    cr_assert_gt(ductile_virtual_faults_fired(f.gpu), 0);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    launch(take(100 * MIB, OTHER), 100 * MIB, OTHER);
    close_audited();
}

CLAIM(destroying_waits_for_one_that_is_gone) {
    ductile_addr address = take(10 * MIB, FOREIGN);
    miss(FOREIGN);
    launch(address, 10 * MIB, FOREIGN);
    end_foreign();
}

static void set_captures(ductile_captures captures) {
    assert_ok(ductile_set_captures(f.allocator, captures));
}

static void give_after_its_end(uint64_t size) {
    ductile_addr address = take(size, FOREIGN);
    launch(address, size, FOREIGN);
    end_foreign();
    give(address);
}

CLAIM(a_block_freed_after_its_end_goes_back) {
    give_after_its_end(80 * MIB);
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(reserved(), 0);
}

CLAIM(a_block_freed_after_its_end_goes_back_without_context_markers) {
    set_captures(DUCTILE_CAPTURES_UNANNOUNCED);
    give_after_its_end(80 * MIB);
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(reserved(), 0);
}

CLAIM(a_block_freed_after_its_end_serves_others_behind_a_wait) {
    give_after_its_end(80 * MIB);
    launch(take(100 * MIB, OTHER), 100 * MIB, OTHER);
}

Test(foreign, a_dedicated_block_freed_after_its_end_serves_others) {
    open_with(DUCTILE_SCHEDULE_LAZY, "limit_bytes:128M,record_stream:wait");
    ductile_addr address = 0;
    assert_ok(ductile_alloc_dedicated(f.allocator, 2 * MIB, f.streams[FOREIGN], &address));
    end_foreign();
    give(address);
    launch(take(128 * MIB, OTHER), 128 * MIB, OTHER);
    close_audited();
}

/* Its last mark fails, and there is no memory to resume with. */
Test(foreign, a_paused_pool_is_not_resumed_halfway_after_its_end) {
    const ductile_pool_id id = {0, 9};
    open_foreign(DUCTILE_SCHEDULE_LAZY);
    assert_ok(ductile_pool_begin(f.allocator, id, NULL, NULL));
    ductile_addr ours = take(50 * MIB, OURS);
    ductile_addr address = take(10 * MIB, FOREIGN);
    assert_ok(ductile_pool_end(f.allocator, id));
    assert_ok(ductile_pause(f.allocator, id, DUCTILE_CONTENTS_DROP));
    ductile_addr other = take(100 * MIB, OTHER);
    assert_fine(fixture_fail_for_good(&f, "capture_status", 999));
    cr_assert_neq(ductile_stream_done(f.allocator, f.streams[FOREIGN]), DUCTILE_OK);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    assert_status(ductile_resume(f.allocator, id), DUCTILE_ERR_OUT_OF_MEMORY);
    give(other);
    assert_ok(ductile_resume(f.allocator, id));
    give(address);
    give(ours);
    /* nothing tells when the work of the stream is done: its memory is left to the process's end */
    assert_status(ductile_destroy(f.allocator), DUCTILE_ERR_DRIVER);
    fixture_abandon(&f);
}

/* The same of a stream of our own context, where no context marker may be recorded. */
CLAIM(a_block_of_ours_freed_after_its_end_goes_back) {
    set_captures(DUCTILE_CAPTURES_UNANNOUNCED);
    ductile_addr address = take(80 * MIB, OTHER);
    launch(address, 80 * MIB, OTHER);
    assert_ok(ductile_stream_done(f.allocator, f.streams[OTHER]));
    give(address);
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(reserved(), 0);
}

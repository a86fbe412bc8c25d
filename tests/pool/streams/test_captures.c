/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures that the allocator was told of, in each of the three modes: what goes on inside, and
 * what other threads do meanwhile, leaves them whole; what they put off is made up for; and those
 * that nobody announced are refused where they are seen.
 */
#include "pool/pools/pools.h"
#include "tests/support/one_fixture.h"
#include "vmm/driver/driver.h"
#include "vmm/driver/open_virtual.h"

#include <criterion/parameterized.h>
#include <pthread.h>

static const ductile_pool_id GRAPH = {1, 0};

static ductile_allocator *a;
static dvmm_driver *driver; /* a second way to the same device */

static void open_with(const char *conf) {
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB,
                                  .schedule = DUCTILE_SCHEDULE_LAZY,
                                  .n_streams = 4,
                                  .conf = conf});
    a = f.allocator;
    assert_ok(dvmm_open_virtual(f.gpu, &driver, NULL, 0));
}

static void open_lazy(void) {
    open_with(NULL);
}

static void open_filling(void) {
    open_with("find:stale_writes");
}

static void close_lazy(void) {
    dvmm_close(driver);
    close_audited();
}

TestSuite(captures, .init = open_lazy, .fini = close_lazy);

static int is_that_stream(void *user, ductile_stream stream) {
    return stream == *(const ductile_stream *)user;
}

/* Stream 1 is captured, its requests go to the pool. */
static void begin_capture(dvmm_capture_mode mode) {
    assert_ok(ductile_pool_begin(a, GRAPH, is_that_stream, &f.streams[1]));
    assert_ok(dvmm_capture_begin(driver, f.streams[1], mode));
}

static void assert_unharmed(void) {
    dvmm_capture_status status = DVMM_CAPTURE_BROKEN;
    assert_ok(dvmm_capture_status_of(driver, f.streams[1], &status));
    cr_assert_eq(status, DVMM_CAPTURE_ACTIVE);
}

static void end_capture(void) {
    assert_unharmed();
    assert_ok(dvmm_capture_end(driver, f.streams[1]));
    assert_ok(ductile_pool_end(a, GRAPH));
}

/* What the capture kept from being marked is marked when the stream is named done: its handle may
 * name another stream when the pool is ended. */
Test(captures, stream_named_done_before_its_pool_ends_is_not_named_again) {
    ductile_addr used = take(2 * MIB, 0);
    begin_capture(DVMM_CAPTURE_RELAXED);
    assert_ok(ductile_free_on(a, used, f.streams[1]));
    assert_ok(dvmm_capture_end(driver, f.streams[1]));
    assert_ok(ductile_virtual_fill(f.gpu, used, 1, 512, f.streams[1]));
    assert_ok(ductile_stream_done(a, f.streams[1]));
    uint64_t records = ductile_virtual_count(f.gpu, "event_record");
    assert_ok(ductile_pool_end(a, GRAPH));
    assert_u64(ductile_virtual_count(f.gpu, "event_record"), records);
    assert_u64(fixture_stats(a).pending_blocks, 1);
    assert_ok(ductile_empty_cache(a));
    assert_u64(fixture_stats(a).reserved_bytes, 0);
}

/* ---- Captures that begin at the worst time ------------------------------------------------- */

static ductile_stream about_to_begin;

/* Another thread begins its capture after the allocator has asked about the stream. */
static void begin_after_question(void *user, dvmm_call call, int code, uint64_t address,
                                 uint64_t size) {
    (void)user, (void)code, (void)size;
    if (call == DVMM_CALL_capture_status && about_to_begin != NULL &&
        address == (uint64_t)(uintptr_t)about_to_begin) {
        ductile_stream stream = about_to_begin;
        about_to_begin = NULL;
        assert_ok(dvmm_capture_begin(driver, stream, DVMM_CAPTURE_RELAXED));
    }
}

static void expect_begin_on(ductile_stream stream) {
    assert_ok(ductile_pool_begin(a, GRAPH, is_that_stream, &f.streams[1]));
    about_to_begin = stream;
    dvmm_set_trace(a->driver, begin_after_question, NULL, true);
}

static void expect_begun_and_end(ductile_stream stream) {
    dvmm_set_trace(a->driver, NULL, NULL, false);
    cr_assert_null(about_to_begin, "nobody asked about the stream");
    assert_ok(dvmm_capture_end(driver, stream));
    assert_ok(ductile_pool_end(a, GRAPH));
}

Test(captures, begun_while_a_free_records_its_stream_is_not_broken) {
    ductile_addr used = take(2 * MIB, 0);
    expect_begin_on(f.streams[1]);
    assert_ok(ductile_free_on(a, used, f.streams[1]));
    assert_ok(ductile_empty_cache(a));
    expect_begun_and_end(f.streams[1]);
    assert_ok(ductile_empty_cache(a));
    assert_u64(fixture_stats(a).reserved_bytes, 0);
}

Test(captures, begun_while_a_trim_waits_for_its_stream_is_not_broken) {
    ductile_addr mine = take(2 * MIB, 2);
    assert_ok(ductile_virtual_fill(f.gpu, mine, 1, 512, f.streams[2]));
    assert_ok(ductile_free(a, mine));
    expect_begin_on(f.streams[2]);
    assert_ok(ductile_empty_cache(a));
    expect_begun_and_end(f.streams[2]);
    assert_ok(ductile_empty_cache(a));
    assert_u64(fixture_stats(a).reserved_bytes, 0);
}

/* The fill would be a part of the graph, and each launch write what others have got by then. */
Test(captures_of_filled, begun_while_a_free_fills_take_no_fill, .init = open_filling,
     .fini = close_lazy) {
    ductile_addr mine = take(2 * MIB, 2);
    expect_begin_on(f.streams[2]);
    assert_ok(ductile_free(a, mine));
    dvmm_set_trace(a->driver, NULL, NULL, false);
    assert_u64(fixture_stats(a).fill_total_bytes, 0);
    if (about_to_begin == NULL) {
        assert_ok(dvmm_capture_end(driver, f.streams[2]));
    }
    assert_ok(ductile_pool_end(a, GRAPH));
    give(take(2 * MIB, 2));
    assert_u64(fixture_stats(a).fill_total_bytes, 2 * MIB);
}

/* ---- What others do meanwhile -------------------------------------------------------------- */

/* Everything that may query, record or wait: growth, recorded streams, recycling, healing, trims,
 * pressure that ends in a refusal. Criterion's assertions are for its own thread only. */
typedef struct others {
    ductile_status worst;
    ductile_status refused;
    uint64_t released;
} others;

static void note(others *o, ductile_status status) {
    o->worst = o->worst == DUCTILE_OK ? status : o->worst;
}

static void churn(others *o) {
    ductile_addr blocks[24] = {0};
    for (size_t i = 0; i < 24; i++) {
        note(o, ductile_alloc(a, MIB / 2 + i * 70000, f.streams[i % 2 * 2], &blocks[i]));
    }
    for (size_t i = 0; i < 24; i += 2) {
        note(o,
             i % 4 == 0 ? ductile_free_on(a, blocks[i], f.streams[2]) : ductile_free(a, blocks[i]));
    }
    ductile_addr large = 0;
    note(o, ductile_alloc(a, 9 * MIB, f.streams[0], &large));
    note(o, ductile_free(a, large));
    for (size_t i = 1; i < 24; i += 2) {
        note(o, ductile_free(a, blocks[i]));
    }
    for (size_t i = 0; i < 128; i++) { /* by which all that was freed before is joined */
        note(o, ductile_alloc(a, 512, f.streams[0], &large));
        note(o, ductile_free(a, large));
    }
}

static void *live_on(void *user) {
    others *o = user;
    ductile_addr none = 0;
    for (int i = 0; i < 3; i++) {
        churn(o);
        note(o, ductile_trim(a, 0, i == 1 ? &o->released : NULL));
    }
    churn(o);
    o->refused = ductile_alloc(a, 64 * MIB, f.streams[0], &none);
    note(o, ductile_empty_cache(a));
    return NULL;
}

static void others_live_on(void) {
    others o = {DUCTILE_OK, DUCTILE_OK, 0};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, live_on, &o), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_ok(o.worst);
    assert_status(o.refused, DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_gt(o.released, 0, "the capture stopped a trim of other memory");
}

ParameterizedTestParameters(captures, survives_what_others_do) {
    static int modes[] = {DVMM_CAPTURE_GLOBAL, DVMM_CAPTURE_THREAD_LOCAL, DVMM_CAPTURE_RELAXED};
    return cr_make_param_array(int, modes, 3);
}

ParameterizedTest(int *mode, captures, survives_what_others_do) {
    begin_capture((dvmm_capture_mode)*mode);
    ductile_addr kept = take(3 * MIB, 1);
    others_live_on();
    ductile_addr freed = take(5 * MIB, 1);
    assert_ok(ductile_free(a, freed));
    others_live_on();
    assert_u64(take(5 * MIB, 1), freed); /* within the graph memory serves again */
    end_capture();
    assert_ok(ductile_free(a, kept));
    assert_ok(ductile_pool_release(a, GRAPH));
}

/* The refused request would have waited for the whole device, and no stream that the allocator
 * knows is captured. */
Test(captures, no_wait_for_the_device_while_a_pool_is_open) {
    assert_ok(ductile_pool_begin(a, GRAPH, is_that_stream, &f.streams[3]));
    assert_ok(dvmm_capture_begin(driver, f.streams[1], DVMM_CAPTURE_RELAXED));
    others_live_on();
    end_capture();
    assert_ok(ductile_pool_release(a, GRAPH));
}

/* ---- Another allocator of the process ------------------------------------------------------ */

static ductile_allocator *add_other(void) {
    ductile_allocator *other = NULL;
    assert_fine(fixture_add_allocator(&f, NULL, &other));
    return other;
}

/* Free memory of two streams, with work behind it that only a wait for the device could prove. */
static void use_and_free(ductile_allocator *other) {
    ductile_addr addresses[2];
    for (size_t i = 0; i < 2; i++) {
        assert_ok(ductile_alloc(other, 24 * MIB, f.streams[2 * i], &addresses[i]));
        assert_ok(ductile_virtual_fill(f.gpu, addresses[i], 1, 512, f.streams[2 * i]));
        assert_ok(ductile_free(other, addresses[i]));
    }
}

Test(captures, another_allocator_that_lacks_memory_leaves_them_whole) {
    ductile_addr none = 0;
    ductile_allocator *other = add_other();
    begin_capture(DVMM_CAPTURE_RELAXED);
    use_and_free(other);
    assert_status(ductile_alloc(other, 40 * MIB, f.streams[3], &none), DUCTILE_ERR_OUT_OF_MEMORY);
    end_capture();
    assert_ok(ductile_pool_release(a, GRAPH));
    assert_ok(ductile_alloc(other, 40 * MIB, f.streams[3], &none));
    assert_ok(ductile_destroy(other));
}

Test(captures, another_allocator_that_is_destroyed_leaves_them_whole) {
    ductile_addr live = 0;
    ductile_allocator *other = add_other();
    use_and_free(other);
    assert_ok(ductile_alloc(other, MIB, f.streams[3], &live));
    assert_ok(ductile_free_on(other, live, f.streams[2]));
    begin_capture(DVMM_CAPTURE_RELAXED);
    assert_ok(ductile_destroy(other));
    end_capture();
    assert_ok(ductile_pool_release(a, GRAPH));
}

/* Page-locked memory of the host is freed, which a capture in global mode forbids. */
Test(captures, another_allocator_with_a_paused_pool_that_is_destroyed_leaves_them_whole) {
    const ductile_pool_id pool = {0, 9};
    ductile_allocator *other = add_other();
    ductile_addr block = 0;
    assert_ok(ductile_pool_begin(other, pool, NULL, NULL));
    assert_ok(ductile_alloc(other, 2 * MIB, f.streams[0], &block));
    assert_ok(ductile_pool_end(other, pool));
    assert_ok(ductile_pause(other, pool, DUCTILE_CONTENTS_KEEP));
    begin_capture(DVMM_CAPTURE_GLOBAL);
    assert_ok(ductile_destroy(other));
    end_capture();
    assert_ok(ductile_pool_release(a, GRAPH));
}

/* What a stream that was recorded on a live block does, no wait for the block's own stream proves.
 */
Test(captures, memory_that_only_a_wait_for_the_device_proves_is_left) {
    ductile_addr live = 0;
    ductile_allocator *other = add_other();
    assert_ok(ductile_alloc(other, MIB, f.streams[0], &live));
    assert_ok(ductile_record_stream(other, live, f.streams[2]));
    begin_capture(DVMM_CAPTURE_RELAXED);
    assert_status(ductile_destroy(other), DUCTILE_ERR_DRIVER);
    end_capture();
    assert_ok(ductile_pool_release(a, GRAPH));
    assert_ok(ductile_destroy(a));
    f.allocator = NULL;
    dvmm_close(driver);
    fixture_abandon(&f);
    open_lazy();
}

/* A pool that was left open stands for no capture any more. */
Test(captures, a_pool_left_open_does_not_keep_memory_from_going_back) {
    ductile_allocator *other = add_other();
    ductile_addr address = 0;
    assert_ok(ductile_pool_begin(other, GRAPH, NULL, NULL));
    assert_ok(ductile_alloc(other, MIB, f.streams[0], &address));
    assert_ok(ductile_destroy(other));
}

/* ---- Who waits for whom --------------------------------------------------------------------- */

static void *wait_a_moment(void *user) {
    const struct timespec moment = {.tv_nsec = 20000000};
    (void)nanosleep(&moment, NULL);
    _Atomic bool *is_over = user;
    atomic_store(is_over, true);
    dpool_context_wait_end(a);
    return NULL;
}

Test(captures, a_capture_pool_opens_after_a_wait_for_the_device) {
    static _Atomic bool is_over;
    pthread_t thread;
    cr_assert(dpool_context_wait_begin(a));
    cr_assert_eq(pthread_create(&thread, NULL, wait_a_moment, (void *)&is_over), 0);
    assert_ok(ductile_pool_begin(a, GRAPH, NULL, NULL));
    cr_assert(atomic_load(&is_over));
    cr_assert_not(dpool_context_wait_begin(a));
    assert_ok(ductile_pool_end(a, GRAPH));
    cr_assert(dpool_context_wait_begin(a));
    dpool_context_wait_end(a);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_ok(ductile_pool_release(a, GRAPH));
}

/* ---- What is made up for ------------------------------------------------------------------- */

/* A block used on a stream that is captured when it is freed: no event can say when that use ends
 * before the capture has ended. */
static void free_in_capture(ductile_addr address) {
    assert_ok(ductile_record_stream(a, address, f.streams[1]));
    assert_ok(ductile_free(a, address));
    assert_u64(fixture_stats(a).pending_blocks, 1);
}

Test(captures, what_was_freed_inside_is_marked_at_the_end) {
    ductile_addr address = take(3 * MIB, 0);
    assert_ok(ductile_virtual_fill(f.gpu, address, 1, MIB, f.streams[1]));
    begin_capture(DVMM_CAPTURE_GLOBAL);
    free_in_capture(address);
    uint64_t records = fixture_stats(a).event_records;
    end_capture();
    assert_u64(fixture_stats(a).event_records, records + 1);
    (void)take(MIB, 0); /* a slow call: the use is still under way */
    assert_u64(fixture_stats(a).pending_blocks, 1);
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[1]));
    (void)take(9 * MIB, 0);
    assert_u64(fixture_stats(a).pending_blocks, 0);
    assert_ok(ductile_pool_release(a, GRAPH));
}

/* Nobody told of this capture; the stream is named again by the request. */
Test(captures, or_when_its_stream_is_named_again) {
    ductile_addr address = take(3 * MIB, 0);
    assert_ok(dvmm_capture_begin(driver, f.streams[1], DVMM_CAPTURE_GLOBAL));
    free_in_capture(address);
    assert_unharmed();
    assert_ok(dvmm_capture_end(driver, f.streams[1]));
    (void)take(9 * MIB, 0);
    assert_u64(fixture_stats(a).pending_blocks, 1);
    (void)take(MIB, 1);
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[1]));
    (void)take(5 * MIB, 1);
    assert_u64(fixture_stats(a).pending_blocks, 0);
}

/* ---- What nobody announced ----------------------------------------------------------------- */

Test(captures, an_unannounced_one_is_refused_where_it_is_seen) {
    ductile_addr address = 1;
    assert_ok(dvmm_capture_begin(driver, f.streams[1], DVMM_CAPTURE_GLOBAL));
    assert_status(ductile_alloc(a, MIB, f.streams[1], &address), DUCTILE_ERR_CAPTURING);
    assert_u64(address, 0);
    assert_unharmed();
    assert_ok(dvmm_capture_end(driver, f.streams[1]));
    (void)take(MIB, 1);
}

Test(captures, a_plain_pool_in_a_capture_becomes_a_capture_pool) {
    ductile_pool_info info = {.struct_size = sizeof info};
    assert_ok(ductile_pool_retain(a, GRAPH));
    assert_ok(ductile_pool_set_kind(a, GRAPH, DUCTILE_POOL_PLAIN));
    begin_capture(DVMM_CAPTURE_GLOBAL);
    assert_ok(ductile_pool_query(a, GRAPH, &info));
    cr_assert_eq(info.kind, DUCTILE_POOL_PLAIN);
    ductile_addr address = take(3 * MIB, 1);
    assert_ok(ductile_free(a, address));
    assert_ok(ductile_pool_query(a, GRAPH, &info));
    cr_assert_eq(info.kind, DUCTILE_POOL_CAPTURE);
    end_capture();
    uint64_t released = 1;
    assert_ok(ductile_pool_trim(a, GRAPH, &released));
    assert_u64(released, 0);
    assert_ok(ductile_pool_release(a, GRAPH));
    assert_ok(ductile_pool_release(a, GRAPH));
}

/* ---- The end, beside captures ---------------------------------------------------------------- */

TestSuite(destroyed_beside_a_capture);

/* Its memory is left to the process: work may go on on it. */
Test(destroyed_beside_a_capture, an_allocator_whose_stream_cannot_be_waited_for_says_so) {
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY});
    launch(take(MIB, 0), MIB, 0);
    assert_fine(fixture_fail_for_good(&f, "stream_sync", 1));
    ductile_capture_begin();
    ductile_status status = ductile_destroy(f.allocator);
    ductile_capture_end();
    cr_assert(status != DUCTILE_OK, "it was destroyed under work");
    cr_assert_gt(fixture_state(&f).mappings, 0);
    cr_assert_eq(fixture_state(&f).violations, 0);
    fixture_abandon(&f);
}

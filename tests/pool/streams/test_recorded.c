/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: memory that goes while blocks in it are live, at a pause or at the end, is waited for
 * wherever it is used, also by streams of another GPU, for which a wait for this device is none.
 * The device sees an unmap that the host did not know to be safe whatever the schedule; what the
 * other GPU writes late shows whether it was waited for too early.
 */
#include "pool/pools/pools.h"
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/cpu_time.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"
#include "vmm/capture_mode.h"
#include "vmm/driver/driver.h"
#include "vmm/driver/open_virtual.h"

#include <stdlib.h>

#define G FIXTURE_GRANULE
#define PEER 1
#define N_THEIRS 150 /* more than are waited for at a time */
#define N_SPANS 40000

static const ductile_pool_id POOL = {0, 7};

static fixture f;
static ductile_allocator *a;
static ductile_stream own;
static ductile_stream theirs; /* of the peer */

static void open_with(const char *conf) {
    fixture_setup setup = {.capacity_bytes = 64 * MIB,
                           .schedule = DUCTILE_SCHEDULE_LAZY,
                           .n_devices = 2,
                           .conf = conf};
    assert_fine(fixture_open(&f, &setup));
    a = f.allocator;
    own = f.streams[0];
    assert_ok(ductile_virtual_stream_create_on(f.gpu, PEER, &theirs));
    assert_ok(ductile_enable_peer(a, PEER));
}

static void open_all(void) {
    open_with(NULL);
}

/* A freed block is free at once, and a span with the markers stays behind it. */
static void open_waiting(void) {
    open_with("record_stream:wait");
}

/* The peer's streams end with the device; the leak gate looks at what the allocator left. */
static void close_all(void) {
    assert_ok(ductile_virtual_stream_destroy(f.gpu, theirs));
    assert_fine(fixture_close(&f));
}

TestSuite(recorded, .init = open_all);
TestSuite(recorded_wait, .init = open_waiting);

static ductile_addr take(uint64_t size) {
    ductile_addr addr = 0;
    assert_ok(ductile_pool_begin(a, POOL, NULL, NULL));
    assert_ok(ductile_alloc(a, size, own, &addr));
    assert_ok(ductile_pool_end(a, POOL));
    return addr;
}

/* Work that does not come to an end until somebody waits for it. */
static void write_late(ductile_addr addr, uint64_t size, uint8_t value, ductile_stream stream) {
    assert_ok(ductile_virtual_stream_wait(f.gpu, stream, own));
    assert_ok(ductile_virtual_fill(f.gpu, addr, value, size, stream));
    assert_ok(ductile_record_stream(a, addr, stream));
}

static ductile_addr take_and_write_late(uint64_t size, uint8_t value) {
    ductile_addr addr = take(size);
    assert_ok(ductile_virtual_fill(f.gpu, addr, 1, size, own));
    write_late(addr, size, value, theirs);
    return addr;
}

/* Read by the own stream, which nothing orders after the peer's. */
static void assert_byte(ductile_addr addr, uint8_t value) {
    uint8_t byte = 0;
    assert_ok(ductile_virtual_read_back(f.gpu, &byte, addr, 1, own));
    assert_u64(byte, value);
}

static bool is_paused(void) {
    ductile_pool_info info = {.struct_size = sizeof info};
    assert_ok(ductile_pool_query(a, POOL, &info));
    return info.paused != 0;
}

static void assert_no_violation(void) {
    char text[256] = "";
    ductile_virtual_last_violation(f.gpu, text, sizeof text);
    assert_u64(fixture_state(&f).violations, 0);
    cr_assert_eq(text[0], 0, "%s", text);
}

static void give_all_back(const ductile_addr *blocks, size_t n) {
    for (size_t i = 0; i < n; i++) {
        assert_ok(ductile_free(a, blocks[i]));
    }
    assert_ok(ductile_pool_release(a, POOL));
    assert_fine(audit_allocator(a, NULL));
}

static void fail(const char *call) {
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = call, .nth = 1, .code = DVMM_UNKNOWN};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
}

/* ---- Pauses -------------------------------------------------------------------------------- */

Test(recorded, a_pause_keeps_what_another_gpu_writes_late) {
    ductile_addr block = take_and_write_late(3 * G, 9);
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_KEEP));
    assert_no_violation();
    assert_u64(fixture_state(&f).used_bytes, 0);
    assert_ok(ductile_resume(a, POOL));
    assert_byte(block, 9);
    assert_byte(block + 3 * G - 1, 9);
    give_all_back(&block, 1);
    close_all();
}

Test(recorded, a_pause_without_contents_waits_for_another_gpu) {
    ductile_addr block = take_and_write_late(3 * G, 9);
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP));
    assert_no_violation();
    assert_ok(ductile_resume(a, POOL));
    give_all_back(&block, 1);
    close_all();
}

Test(recorded, a_pause_waits_for_however_many_streams) {
    ductile_stream all[N_THEIRS];
    ductile_addr blocks[N_THEIRS];
    for (size_t i = 0; i < N_THEIRS; i++) {
        assert_ok(ductile_virtual_stream_create_on(f.gpu, PEER, &all[i]));
        blocks[i] = take(100000);
        assert_ok(ductile_virtual_fill(f.gpu, blocks[i], 1, 100000, own));
        write_late(blocks[i], 100000, (uint8_t)(i + 2), all[i]);
        if (i % 3 == 0) { /* on several blocks */
            assert_ok(ductile_record_stream(a, blocks[i / 2], all[i]));
        }
    }
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_KEEP));
    assert_no_violation();
    assert_ok(ductile_resume(a, POOL));
    for (size_t i = 0; i < N_THEIRS; i++) {
        assert_byte(blocks[i], (uint8_t)(i + 2));
    }
    give_all_back(blocks, N_THEIRS);
    for (size_t i = 0; i < N_THEIRS; i++) {
        assert_ok(ductile_stream_done(a, all[i]));
        assert_ok(ductile_virtual_stream_destroy(f.gpu, all[i]));
    }
    close_all();
}

/* Beside a live block that the stream still uses. */
Test(recorded, a_pause_waits_for_pending_blocks_of_another_gpu) {
    ductile_addr live = take_and_write_late(G, 9);
    ductile_addr freed = take_and_write_late(2 * G, 8);
    assert_ok(ductile_free(a, freed));
    write_late(live, G, 7, theirs);
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_KEEP));
    assert_no_violation();
    assert_u64(fixture_stats(a).pending_blocks, 0);
    assert_ok(ductile_resume(a, POOL));
    assert_byte(live, 7);
    give_all_back(&live, 1);
    close_all();
}

/* The marker of the context knows nothing of the other GPU's stream. */
Test(recorded, a_pause_waits_for_nobody_else) {
    ductile_addr elsewhere = 0;
    ductile_addr block = take(G);
    assert_ok(ductile_alloc(a, G, own, &elsewhere));
    write_late(elsewhere, G, 5, theirs);
    uint64_t records = ductile_virtual_count(f.gpu, "event_record");
    uint64_t context_records = ductile_virtual_count(f.gpu, "context_record");
    uint64_t waits = ductile_virtual_count(f.gpu, "event_sync");
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP));
    assert_u64(ductile_virtual_count(f.gpu, "event_record"), records);
    assert_u64(ductile_virtual_count(f.gpu, "context_record"), context_records + 1);
    assert_u64(ductile_virtual_count(f.gpu, "event_sync"), waits + 1);
    assert_ok(ductile_resume(a, POOL));
    assert_ok(ductile_free(a, elsewhere));
    give_all_back(&block, 1);
    close_all();
}

Test(recorded, without_peers_a_wait_for_the_device_is_enough) {
    ductile_stream second;
    assert_ok(ductile_virtual_stream_create(f.gpu, &second));
    assert_ok(ductile_disable_peer(a, PEER));
    ductile_addr block = take(G);
    write_late(block, G, 5, second);
    uint64_t records = ductile_virtual_count(f.gpu, "event_record");
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_KEEP));
    assert_u64(ductile_virtual_count(f.gpu, "event_record"), records);
    assert_ok(ductile_resume(a, POOL));
    assert_byte(block, 5);
    give_all_back(&block, 1);
    assert_ok(ductile_virtual_stream_destroy(f.gpu, second));
    close_all();
}

/* With record_stream:wait the freed block is free, and its own stream would wait. */
Test(recorded_wait, a_pause_waits_behind_spans_of_another_gpu) {
    ductile_addr freed = take_and_write_late(2 * G, 8);
    ductile_addr live = take(512);
    assert_ok(ductile_free(a, freed));
    assert_u64(fixture_stats(a).pending_blocks, 0);
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP));
    assert_no_violation();
    assert_ok(ductile_resume(a, POOL));
    give_all_back(&live, 1);
    close_all();
}

static double seconds_to_pause_behind(size_t n_spans) {
    ductile_addr live = take(512);
    ductile_addr *freed = calloc(n_spans, sizeof *freed);
    assert_ok(ductile_pool_begin(a, POOL, NULL, NULL));
    for (size_t i = 0; i < n_spans; i++) {
        assert_ok(ductile_alloc(a, 512, own, &freed[i]));
    }
    assert_ok(ductile_pool_end(a, POOL));
    for (size_t i = 0; i < n_spans; i++) {
        assert_ok(ductile_free_on(a, freed[i], theirs));
    }
    free(freed);
    double start = cpu_seconds();
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP));
    double seconds = cpu_seconds() - start;
    assert_no_violation();
    assert_ok(ductile_resume(a, POOL));
    give_all_back(&live, 1);
    return seconds;
}

/* Each is asked for by its own marker, and those that are done are not passed again for the next.
 */
Test(recorded_wait, a_pause_waits_behind_however_many_spans) {
    double few = seconds_to_pause_behind(N_SPANS / 4);
    double many = seconds_to_pause_behind(N_SPANS);
    cr_assert(many < linear_cost(few), "%f s for four times as many as took %f s", many, few);
    close_all();
}

Test(recorded_wait, a_pause_that_cannot_wait_behind_a_span_changes_nothing) {
    ductile_addr freed = take_and_write_late(2 * G, 8);
    ductile_addr live = take(512);
    assert_ok(ductile_free(a, freed));
    fail("event_sync");
    assert_status(ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP), DUCTILE_ERR_DRIVER);
    assert_u64(ductile_virtual_faults_fired(f.gpu), 1);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    cr_assert_not(is_paused());
    assert_fine(audit_allocator(a, NULL));
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP));
    assert_ok(ductile_resume(a, POOL));
    give_all_back(&live, 1);
    close_all();
}

/* ---- Streams that end ---------------------------------------------------------------------- */

Test(recorded, a_stream_that_is_gone_is_waited_for_and_not_named) {
    ductile_stream second;
    assert_ok(ductile_virtual_stream_create_on(f.gpu, PEER, &second));
    ductile_addr block = take(2 * G);
    write_late(block, 2 * G, 6, second);
    assert_ok(ductile_stream_done(a, second));
    assert_ok(ductile_virtual_stream_destroy(f.gpu, second));
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_KEEP));
    assert_no_violation();
    assert_ok(ductile_resume(a, POOL));
    assert_byte(block, 6);
    give_all_back(&block, 1);
    close_all();
}

/* ---- What cannot be marked ----------------------------------------------------------------- */

Test(recorded, a_pause_is_refused_while_another_gpus_stream_is_captured) {
    dvmm_driver *d = NULL;
    ductile_addr block = take_and_write_late(2 * G, 9);
    assert_ok(dvmm_open_virtual(f.gpu, &d, NULL, 0));
    assert_ok(dvmm_capture_begin(d, theirs, DVMM_CAPTURE_GLOBAL));
    assert_status(ductile_pause(a, POOL, DUCTILE_CONTENTS_KEEP), DUCTILE_ERR_CAPTURING);
    cr_assert_not(is_paused());
    dvmm_capture_status capture = DVMM_CAPTURE_BROKEN;
    assert_ok(dvmm_capture_status_of(d, theirs, &capture));
    cr_assert_eq(capture, DVMM_CAPTURE_ACTIVE);
    assert_fine(audit_allocator(a, NULL));
    assert_ok(dvmm_capture_end(d, theirs));
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_resume(a, POOL));
    assert_byte(block, 9);
    give_all_back(&block, 1);
    dvmm_close(d);
    close_all();
}

Test(recorded, a_block_freed_under_a_capture_is_marked_by_the_pause_after_it) {
    dvmm_driver *d = NULL;
    ductile_addr block = take(512);
    ductile_addr freed = take_and_write_late(2 * G, 9);
    assert_ok(dvmm_open_virtual(f.gpu, &d, NULL, 0));
    assert_ok(dvmm_capture_begin(d, theirs, DVMM_CAPTURE_GLOBAL));
    assert_ok(ductile_free(a, freed));
    assert_status(ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP), DUCTILE_ERR_CAPTURING);
    assert_ok(dvmm_capture_end(d, theirs));
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP));
    assert_no_violation();
    assert_ok(ductile_resume(a, POOL));
    give_all_back(&block, 1);
    dvmm_close(d);
    close_all();
}

Test(recorded, a_pause_that_cannot_mark_or_wait_changes_nothing) {
    static const char *const calls[] = {"event_create", "event_record", "event_sync"};
    ductile_addr block = take_and_write_late(2 * G, 9);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        fail(calls[i]);
        assert_status(ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP), DUCTILE_ERR_DRIVER);
        assert_u64(ductile_virtual_faults_fired(f.gpu), 1);
        assert_ok(ductile_virtual_inject(f.gpu, NULL));
        cr_assert_not(is_paused());
        assert_fine(audit_allocator(a, NULL));
    }
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_resume(a, POOL));
    assert_byte(block, 9);
    give_all_back(&block, 1);
    close_all();
}

/* However many streams are left, those behind it are not asked. */
Test(recorded, a_pause_marks_no_stream_behind_one_that_cannot_be_marked) {
    ductile_stream all[N_THEIRS];
    ductile_addr block = take_and_write_late(2 * G, 9);
    for (size_t i = 0; i < N_THEIRS; i++) {
        assert_ok(ductile_virtual_stream_create_on(f.gpu, PEER, &all[i]));
        assert_ok(ductile_record_stream(a, block, all[i]));
    }
    uint64_t records = ductile_virtual_count(f.gpu, "event_record");
    fail("event_record");
    assert_status(ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP), DUCTILE_ERR_DRIVER);
    assert_u64(ductile_virtual_count(f.gpu, "event_record"), records + 1);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    cr_assert_not(is_paused());
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_resume(a, POOL));
    assert_byte(block, 9);
    give_all_back(&block, 1);
    for (size_t i = 0; i < N_THEIRS; i++) {
        assert_ok(ductile_stream_done(a, all[i]));
        assert_ok(ductile_virtual_stream_destroy(f.gpu, all[i]));
    }
    close_all();
}

/* ---- The end ------------------------------------------------------------------------------- */

/* Live, pending, and in a paused pool where a pin keeps the memory. */
Test(recorded, destroying_waits_for_another_gpu) {
    ductile_addr pinned = take(G);
    assert_ok(ductile_pin(a, pinned));
    assert_ok(ductile_pause(a, POOL, DUCTILE_CONTENTS_DROP));
    write_late(pinned, G, 3, theirs);
    ductile_addr all[2];
    for (size_t i = 0; i < 2; i++) {
        assert_ok(ductile_alloc(a, 2 * G, own, &all[i]));
        write_late(all[i], 2 * G, 4, theirs);
    }
    assert_ok(ductile_free(a, all[1]));
    assert_ok(ductile_destroy(a));
    f.allocator = NULL;
    assert_no_violation();
    close_all();
}

Test(recorded_wait, destroying_waits_behind_spans_of_another_gpu) {
    ductile_addr block = 0;
    assert_ok(ductile_alloc(a, 2 * G, own, &block));
    write_late(block, 2 * G, 4, theirs);
    assert_ok(ductile_free(a, block));
    assert_ok(ductile_destroy(a));
    f.allocator = NULL;
    assert_no_violation();
    close_all();
}

/* It cannot be proven done: its memory stays, for the end of the process. */
Test(recorded, destroying_unmaps_nothing_under_a_stream_that_cannot_be_marked) {
    ductile_addr block = 0;
    dvmm_driver *d = NULL;
    assert_ok(dvmm_open_virtual(f.gpu, &d, NULL, 0));
    assert_ok(ductile_alloc(a, 2 * G, own, &block));
    write_late(block, 2 * G, 4, theirs);
    assert_ok(dvmm_capture_begin(d, theirs, DVMM_CAPTURE_GLOBAL));
    assert_status(ductile_destroy(a), DUCTILE_ERR_DRIVER);
    f.allocator = NULL;
    assert_no_violation();
    assert_u64(fixture_state(&f).mappings, 2);
    assert_ok(dvmm_capture_end(d, theirs));
    assert_ok(ductile_virtual_stream_sync(f.gpu, theirs));
    dvmm_close(d);
    fixture_abandon(&f);
}

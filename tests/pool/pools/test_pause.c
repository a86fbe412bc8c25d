/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pause and resume: the memory goes, addresses stay, contents come back; whatever fails, the pool
 * is either as it was or paused, and what others do meanwhile does not meet it.
 */
#include "pool/pools/pools.h"
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"
#include "vmm/capture_mode.h"
#include "vmm/driver/driver.h"
#include "vmm/driver/open_virtual.h"

#include <ductile_share.h>
#include <string.h>

#define G FIXTURE_GRANULE
#define N_BLOCKS 12

static const ductile_pool_id WEIGHTS = {0, 7};

static fixture f;
static ductile_allocator *a;

/* Sizes below, at and above a granule, so that blocks share granules with others and with gaps. */
static ductile_addr blocks[N_BLOCKS];
static const uint64_t sizes[N_BLOCKS] = {512,         G - 512, G,     3 * G + 4096, 100000, 1,
                                         5 * G - 512, 70000,   G / 2, 2 * G,        4096,   G / 2};

static void open_pool_with(ductile_pool_kind kind, bool with_holes, const char *conf) {
    fixture_setup setup = {.capacity_bytes = 64 * MIB,
                           .schedule = DUCTILE_SCHEDULE_LAZY,
                           .n_streams = 3,
                           .conf = conf};
    assert_fine(fixture_open(&f, &setup));
    a = f.allocator;
    assert_ok(ductile_pool_retain(a, WEIGHTS));
    assert_ok(ductile_pool_set_kind(a, WEIGHTS, kind));
    assert_ok(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        ductile_stream stream = f.streams[i % 5 == 4];
        assert_ok(ductile_alloc(a, sizes[i], stream, &blocks[i]));
        assert_ok(ductile_virtual_fill(f.gpu, blocks[i], (uint8_t)(i + 1), sizes[i], stream));
    }
    assert_ok(ductile_pool_end(a, WEIGHTS));
    for (size_t i = 0; with_holes && i < N_BLOCKS; i += 3) {
        assert_ok(ductile_free(a, blocks[i]));
        blocks[i] = 0;
    }
}

static void open_pool(ductile_pool_kind kind, bool with_holes) {
    open_pool_with(kind, with_holes, NULL);
}

static void assert_contents(void) {
    uint8_t bytes[64];
    assert_fine(fixture_sync_all(&f));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        uint64_t n = sizes[i] < sizeof bytes ? sizes[i] : sizeof bytes;
        for (uint64_t at = 0; blocks[i] != 0 && at + n <= sizes[i]; at += G / 2 + 512) {
            assert_ok(ductile_virtual_read_back(f.gpu, bytes, blocks[i] + at, n, f.streams[0]));
            for (size_t k = 0; k < n; k++) {
                cr_assert_eq(bytes[k], i + 1, "block %zu holds %d at %llu", i, bytes[k],
                             (unsigned long long)(at + k));
            }
        }
    }
}

static void close_pool(void) {
    assert_fine(audit_allocator(a, NULL));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        assert_ok(ductile_free(a, blocks[i]));
    }
    assert_ok(ductile_pool_release(a, WEIGHTS));
    assert_ok(ductile_pool_release(a, WEIGHTS));
    assert_fine(fixture_sync_all(&f));
    assert_ok(ductile_empty_cache(a));
    assert_u64(fixture_stats(a).reserved_bytes, 0);
    ductile_pool_info info = {.struct_size = sizeof info};
    assert_status(ductile_pool_query(a, WEIGHTS, &info), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_fine(fixture_close(&f));
}

static ductile_pool_info info_now(void) {
    ductile_pool_info info = {.struct_size = sizeof info};
    assert_ok(ductile_pool_query(a, WEIGHTS, &info));
    return info;
}

/* Nothing of the pool is held, every address is known and reserved. */
static void assert_paused(void) {
    ductile_block_info info = {.struct_size = sizeof info};
    assert_fine(audit_allocator(a, NULL));
    cr_assert_eq(info_now().paused, 1);
    assert_u64(fixture_stats(a).reserved_bytes, 0);
    assert_u64(fixture_stats(a).allocated_bytes, 0);
    assert_u64(fixture_state(&f).used_bytes, 0);
    for (size_t i = 0; i < N_BLOCKS; i++) {
        if (blocks[i] != 0) {
            assert_ok(ductile_query_block(a, blocks[i], &info));
            cr_assert_eq(info.state, DUCTILE_BLOCK_PAUSED);
            assert_u64(info.requested_size, sizes[i]);
        }
    }
}

TestSuite(pause);

/* ---- There and back ------------------------------------------------------------------------ */

static void there_and_back(ductile_pool_kind kind, bool with_holes) {
    open_pool(kind, with_holes);
    ductile_stats before = fixture_stats(a);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    assert_paused();
    assert_u64(fixture_stats(a).paused_bytes, before.allocated_bytes);
    assert_u64(fixture_stats(a).paused_blocks, before.live_blocks);
    assert_ok(ductile_resume(a, WEIGHTS));
    ductile_stats after = fixture_stats(a);
    assert_u64(after.allocated_bytes, before.allocated_bytes);
    assert_u64(after.requested_bytes, before.requested_bytes);
    assert_u64(after.live_blocks, before.live_blocks);
    assert_u64(after.frees, before.frees);
    assert_u64(after.paused_blocks, 0);
    cr_assert_eq(info_now().paused, 0);
    assert_contents();
    close_pool();
}

/* A paused block is not live: neither peak counts it, nor what peaks are set back to. */
Test(pause, peaks_count_no_paused_blocks) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    ductile_addr others[3];
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    ductile_reset_peaks(a);
    assert_u64(fixture_stats(a).live_peak_blocks, 0);
    for (size_t i = 0; i < 3; i++) {
        assert_ok(ductile_alloc(a, 512, f.streams[0], &others[i]));
    }
    assert_u64(fixture_stats(a).live_peak_blocks, 3);
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_u64(fixture_stats(a).live_peak_blocks, N_BLOCKS + 3);
    for (size_t i = 0; i < 3; i++) {
        assert_ok(ductile_free(a, others[i]));
    }
    close_pool();
}

Test(pause, contents_come_back_at_their_addresses) {
    there_and_back(DUCTILE_POOL_PLAIN, false);
}

Test(pause, holes_need_no_memory) {
    there_and_back(DUCTILE_POOL_PLAIN, true);
}

Test(pause, memory_of_graphs_comes_back_whole) {
    there_and_back(DUCTILE_POOL_CAPTURE, true);
}

Test(pause, free_memory_of_graphs_has_memory_again) {
    open_pool(DUCTILE_POOL_CAPTURE, true);
    ductile_addr hole = blocks[4] == 0 ? 0 : blocks[2] + G; /* of a block of three granules */
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_ok(ductile_virtual_fill(f.gpu, hole, 9, 3 * G, f.streams[0]));
    assert_fine(fixture_sync_all(&f));
    close_pool();
}

Test(pause, it_can_be_done_over_and_over) {
    open_pool(DUCTILE_POOL_PLAIN, true);
    for (int i = 0; i < 5; i++) {
        assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
        assert_paused();
        assert_ok(ductile_resume(a, WEIGHTS));
        assert_contents();
        assert_fine(audit_allocator(a, NULL));
    }
    close_pool();
}

/* To page-lock memory costs more than all copies: what a pause made serves the next. */
Test(pause, host_memory_is_made_once_and_goes_on_request) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    uint64_t held = 0;
    uint64_t released = 0;
    for (int i = 0; i < 3; i++) {
        assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
        assert_ok(ductile_sleep_release(a, 0, &released));
        assert_u64(released, 0); /* it holds contents */
        assert_ok(ductile_resume(a, WEIGHTS));
    }
    assert_u64(ductile_virtual_count(f.gpu, "host_register"), 1);
    assert_ok(ductile_sleep_reserve(a, 0, &held));
    cr_assert_gt(held, 0);
    assert_ok(ductile_sleep_release(a, 0, &released));
    assert_u64(released, held);
    assert_u64(ductile_virtual_count(f.gpu, "host_unregister"), 1);
    assert_contents();
    close_pool();
}

Test(pause, host_memory_made_ahead_is_what_the_pause_takes) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    uint64_t held = 0;
    assert_ok(ductile_sleep_reserve(a, 40 * MIB, &held));
    assert_u64(held, 40 * MIB);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_u64(ductile_virtual_count(f.gpu, "host_register"), 1);
    assert_status(ductile_sleep_reserve(a, UINT64_MAX / 2, &held), DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    assert_u64(held, 40 * MIB);
    assert_contents();
    close_pool();
}

Test(pause, without_contents_nothing_is_copied) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    uint64_t copies = ductile_virtual_count(f.gpu, "download");
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_u64(ductile_virtual_count(f.gpu, "download"), copies);
    assert_u64(ductile_virtual_count(f.gpu, "host_register"), 0);
    close_pool();
}

/* ---- What may be done meanwhile ------------------------------------------------------------ */

Test(pause, wrong_calls_are_refused) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    const ductile_pool_id unknown = {5, 5};
    assert_status(ductile_pause(a, unknown, DUCTILE_CONTENTS_DROP), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pause(a, WEIGHTS, (ductile_contents)5), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_resume(a, WEIGHTS), DUCTILE_ERR_AWAKE);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    assert_status(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP), DUCTILE_ERR_ASLEEP);
    assert_status(ductile_pool_alloc_at(a, WEIGHTS, blocks[3], 512), DUCTILE_ERR_ASLEEP);
    ductile_addr address = 1;
    assert_ok(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    assert_status(ductile_alloc(a, 512, f.streams[0], &address), DUCTILE_ERR_ASLEEP);
    assert_u64(address, 0);
    assert_ok(ductile_pool_end(a, WEIGHTS));
    assert_status(ductile_free(a, blocks[3] + 512), DUCTILE_ERR_INTERIOR_POINTER);
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_ok(ductile_pool_release(a, WEIGHTS));
    close_pool();
}

Test(pause, paused_blocks_can_be_freed) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    for (size_t i = 1; i < N_BLOCKS; i += 2) {
        assert_ok(ductile_free(a, blocks[i]));
        assert_status(ductile_free(a, blocks[i]), DUCTILE_ERR_NOT_LIVE);
        blocks[i] = 0;
        assert_paused();
    }
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_contents();
    close_pool();
}

Test(pause, a_pool_may_go_while_it_is_paused) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    close_pool();
}

Test(pause, an_allocator_may_go_with_a_paused_pool) {
    open_pool(DUCTILE_POOL_PLAIN, true);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    assert_fine(fixture_close(&f));
}

Test(pause, others_use_the_memory_and_give_it_back) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    ductile_addr all = 0;
    assert_status(ductile_alloc(a, 60 * MIB, f.streams[0], &all), DUCTILE_ERR_OUT_OF_MEMORY);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_alloc(a, 60 * MIB, f.streams[0], &all));
    assert_ok(ductile_virtual_fill(f.gpu, all, 77, 60 * MIB, f.streams[0]));
    assert_status(ductile_resume(a, WEIGHTS), DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_eq(info_now().paused, 1);
    assert_fine(audit_allocator(a, NULL));
    assert_ok(ductile_free(a, all)); /* free, but held: resume takes it */
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_contents();
    close_pool();
}

Test(pause, waits_for_recorded_streams) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    assert_ok(ductile_virtual_stream_wait(f.gpu, f.streams[1], f.streams[0]));
    assert_ok(ductile_record_stream(a, blocks[3], f.streams[1]));
    assert_ok(ductile_virtual_fill(f.gpu, blocks[3], 4, sizes[3], f.streams[1]));
    assert_ok(ductile_record_stream(a, blocks[6], f.streams[1]));
    assert_ok(ductile_free(a, blocks[6])); /* pending */
    blocks[6] = 0;
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    assert_paused();
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_contents();
    close_pool();
}

/* A wait for the whole device would break the capture, and the pool's streams alone prove nothing:
 * others may use its blocks and be joined later. */
Test(pause, leaves_a_capture_whole) {
    const ductile_pool_id graph = {1, 0};
    dvmm_driver *d = NULL;
    open_pool(DUCTILE_POOL_PLAIN, false);
    assert_ok(dvmm_open_virtual(f.gpu, &d, NULL, 0));
    ductile_stream captured = NULL;
    assert_ok(dvmm_stream_create(d, &captured));
    assert_ok(ductile_pool_begin(a, graph, NULL, NULL));
    assert_ok(dvmm_capture_begin(d, captured, DVMM_CAPTURE_GLOBAL));
    assert_status(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP), DUCTILE_ERR_CAPTURING);
    cr_assert_eq(info_now().paused, 0);
    dvmm_capture_status status = DVMM_CAPTURE_BROKEN;
    assert_ok(dvmm_capture_status_of(d, captured, &status));
    cr_assert_eq(status, DVMM_CAPTURE_ACTIVE);
    assert_ok(dvmm_capture_end(d, captured));
    assert_ok(ductile_pool_end(a, graph));
    assert_ok(ductile_pool_release(a, graph));
    assert_contents();
    assert_ok(ductile_stream_done(a, captured));
    assert_ok(dvmm_stream_destroy(d, captured));
    dvmm_close(d);
    close_pool();
}

/* ---- Beside others ------------------------------------------------------------------------- */

/* Whoever takes the grow lock calls this first. The linker sends calls of X to __wrap_X. */
dvmm_capture_mode __real_dvmm_capture_relax(dvmm_driver *d);
dvmm_capture_mode __wrap_dvmm_capture_relax(dvmm_driver *d);

static uint64_t unmaps_seen, most_unmaps;

dvmm_capture_mode __wrap_dvmm_capture_relax(dvmm_driver *d) {
    uint64_t unmaps = f.gpu != NULL ? ductile_virtual_count(f.gpu, "unmap") : 0;
    most_unmaps = unmaps - unmaps_seen > most_unmaps ? unmaps - unmaps_seen : most_unmaps;
    unmaps_seen = unmaps;
    return __real_dvmm_capture_relax(d);
}

/* Other threads' slow requests get through between two holds of the grow lock. */
Test(pause, a_large_pool_is_unmapped_in_parts) {
    fixture_setup setup = {.capacity_bytes = 8 * GIB, .conf = "sizes:tight"};
    assert_fine(fixture_open(&f, &setup));
    a = f.allocator;
    assert_ok(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    for (int i = 0; i < 3; i++) {
        assert_ok(ductile_alloc(a, GIB, f.streams[0], &blocks[i]));
    }
    assert_ok(ductile_pool_end(a, WEIGHTS));
    most_unmaps = 0;
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    (void)__wrap_dvmm_capture_relax(a->driver); /* the last part */
    assert_u64(unmaps_seen, 3 * GIB / G);
    assert_u64(most_unmaps, 512);
    assert_ok(ductile_resume(a, WEIGHTS));
    for (int i = 0; i < 3; i++) {
        assert_ok(ductile_free(a, blocks[i]));
    }
    assert_ok(ductile_pool_release(a, WEIGHTS));
    assert_fine(audit_allocator(a, NULL));
    assert_fine(fixture_close(&f));
}

/* ---- Pinned memory ------------------------------------------------------------------------- */

/* A peer that registered the block writes to it while the pool is paused. */
Test(pause, pinned_memory_keeps_what_was_written_meanwhile) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    assert_ok(ductile_pin(a, blocks[3]));
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_virtual_fill(f.gpu, blocks[3], 0x77, sizes[3], f.streams[1]));
    assert_fine(fixture_sync_all(&f));
    assert_ok(ductile_resume(a, WEIGHTS));
    uint8_t byte = 0;
    assert_ok(ductile_virtual_read_back(f.gpu, &byte, blocks[3] + sizes[3] - 1, 1, f.streams[0]));
    assert_u64(byte, 0x77);
    assert_ok(ductile_virtual_fill(f.gpu, blocks[3], 4, sizes[3], f.streams[0]));
    assert_contents(); /* also of those that share a granule with it */
    assert_ok(ductile_unpin(a, blocks[3]));
    close_pool();
}

/* Unpinned meanwhile, it stays all the same, also when a resume fails: peers may have written to
 * it. */
Test(pause, memory_that_is_unpinned_meanwhile_stays) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    assert_ok(ductile_pin(a, blocks[3]));
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    uint64_t left = fixture_state(&f).used_bytes;
    assert_ok(ductile_unpin(a, blocks[3]));
    assert_ok(ductile_virtual_set_external_bytes(f.gpu, 64 * MIB - left - 2 * G));
    assert_status(ductile_resume(a, WEIGHTS), DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_eq(info_now().paused, 1);
    assert_u64(fixture_state(&f).used_bytes, left);
    assert_ok(ductile_virtual_set_external_bytes(f.gpu, 0));
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_contents();
    close_pool();
}

/* ---- Failures ------------------------------------------------------------------------------ */

/* Every call of the way there and back fails in turn, once, before or after it was done: the pool
 * is as it was or paused, and the next try succeeds. */
static bool fail_nth(uint64_t nth, int effect, bool in_resume) {
    open_pool(DUCTILE_POOL_PLAIN, true);
    if (in_resume) {
        assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    }
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .nth = nth, .code = DVMM_UNKNOWN, .effect = effect};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    ductile_status status =
        in_resume ? ductile_resume(a, WEIGHTS) : ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP);
    bool fired = ductile_virtual_faults_fired(f.gpu) > 0;
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    assert_fine(audit_allocator(a, NULL));
    bool is_paused = info_now().paused != 0;
    cr_assert_eq(is_paused, in_resume == (status != DUCTILE_OK), "%s, and paused: %d",
                 ductile_status_name(status), is_paused);
    if (is_paused) {
        assert_ok(ductile_resume(a, WEIGHTS));
    }
    assert_contents();
    assert_fine(audit_allocator(a, NULL));
    assert_ok(ductile_destroy(a));
    fixture_abandon(&f);
    return fired;
}

static void fail_each(int effect, bool in_resume) {
    uint64_t nth = 1;
    while (fail_nth(nth, effect, in_resume)) {
        nth++;
    }
    cr_assert_gt(nth, 10);
}

Test(pause, each_call_of_the_way_there_may_fail) {
    fail_each(0, false);
}

Test(pause, each_call_of_the_way_back_may_fail) {
    fail_each(0, true);
}

/* One kind of call fails from then on, until it works again. */
static void fail_all(const char *call, int effect) {
    open_pool(DUCTILE_POOL_PLAIN, true);
    ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                   .call = call,
                                   .nth = 2,
                                   .code = DVMM_UNKNOWN,
                                   .persistent = 1,
                                   .effect = effect};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    ductile_status status = ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP);
    assert_fine(audit_allocator(a, NULL));
    if (status == DUCTILE_OK) {
        status = ductile_resume(a, WEIGHTS);
        assert_fine(audit_allocator(a, NULL));
    }
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    if (info_now().paused != 0) {
        assert_ok(ductile_resume(a, WEIGHTS));
    }
    assert_contents();
    assert_fine(audit_allocator(a, NULL));
    (void)ductile_destroy(a);
    fixture_abandon(&f);
}

Test(pause, each_kind_of_call_may_fail_for_a_while) {
    static const char *const calls[] = {
        "unmap",         "phys_create",   "phys_release", "map",         "set_access",
        "host_register", "download",      "upload",       "stream_sync", "get_access",
        "context_sync",  "stream_create", "event_sync",   "event_record"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        fail_all(calls[i], 0);
    }
    fail_all("unmap", 1); /* done, and then an error */
}

/* ---- What stays behind blocks that are freed meanwhile --------------------------------------- */

static void free_all_blocks(void) {
    for (size_t i = 0; i < N_BLOCKS; i++) {
        if (blocks[i] != 0) {
            assert_ok(ductile_free(a, blocks[i]));
            blocks[i] = 0;
        }
    }
}

/* It is free memory, in the walk as in the statistics: no block of the pool is left to hide it. */
static void assert_shown_as_free(uint64_t bytes) {
    ductile_stats s = fixture_stats(a);
    assert_u64(s.paused_blocks, 0);
    assert_u64(s.free_bytes, bytes);
    cr_assert_gt(s.free_blocks, 0);
    assert_fine(audit_allocator(a, NULL));
    s.struct_size = sizeof s;
    assert_ok(ductile_pool_get_stats(a, WEIGHTS, &s));
    assert_u64(s.free_bytes, bytes);
    cr_assert_gt(s.free_blocks, 0);
}

Test(pause, memory_that_the_driver_does_not_unmap_is_shown_as_free_once_its_blocks_are_freed) {
    open_pool(DUCTILE_POOL_PLAIN, true);
    assert_fine(fixture_fail_for_good(&f, "unmap", 1));
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    uint64_t left = fixture_state(&f).used_bytes;
    cr_assert_gt(left, 0);
    free_all_blocks();
    assert_shown_as_free(left);
    assert_ok(ductile_resume(a, WEIGHTS)); /* from then on it serves others, or goes back */
    assert_ok(ductile_empty_cache(a));
    close_pool();
}

Test(pause, memory_that_was_pinned_is_shown_as_free_once_its_blocks_are_freed) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    ductile_addr pinned = blocks[3];
    assert_ok(ductile_pin(a, pinned));
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    uint64_t left = fixture_state(&f).used_bytes;
    free_all_blocks();
    assert_shown_as_free(left);
    assert_ok(ductile_unpin(a, pinned));
    assert_ok(ductile_resume(a, WEIGHTS));
    close_pool();
}

/* ---- What others take ---------------------------------------------------------------------- */

static void open_waiting(void) {
    fixture_setup setup = {.capacity_bytes = 64 * MIB,
                           .schedule = DUCTILE_SCHEDULE_LAZY,
                           .n_streams = 3,
                           .conf = "reuse:wait"};
    assert_fine(fixture_open(&f, &setup));
    a = f.allocator;
}

/* Nobody holds the pool any more, all work is done, and the requester would wait for more: but
 * there is no memory behind what is free in it. */
Test(pause, paused_pool_gives_nothing_to_streams_that_can_wait) {
    open_waiting();
    ductile_addr hole = 0;
    ductile_addr other = 0;
    ductile_addr large = 0;
    assert_ok(ductile_alloc(a, 40 * MIB, f.streams[1], &other));
    assert_ok(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    assert_ok(ductile_alloc(a, 8 * MIB, f.streams[0], &hole));
    assert_ok(ductile_alloc(a, 512, f.streams[0], &blocks[0]));
    assert_ok(ductile_pool_end(a, WEIGHTS));
    assert_ok(ductile_free(a, hole));
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    assert_ok(ductile_pool_release(a, WEIGHTS));
    assert_ok(ductile_free(a, other));
    assert_ok(ductile_alloc(a, 60 * MIB, f.streams[2], &large));
    assert_fine(audit_allocator(a, NULL));
    assert_ok(ductile_free(a, large));
    assert_ok(ductile_free(a, blocks[0]));
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_fine(fixture_sync_all(&f));
    assert_ok(ductile_empty_cache(a));
    assert_u64(fixture_stats(a).reserved_bytes, 0);
    assert_fine(fixture_close(&f));
}

/* ---- Who looks meanwhile ------------------------------------------------------------------- */

static uint64_t n_looks;

static int look_at_flags(void *user, const ductile_block_info *info) {
    (void)user;
    n_looks += (info->flags & DUCTILE_BLOCK_PINNED) != 0;
    return 0;
}

/* Another thread may look at any time between two driver calls: no more locks are held then. */
static void look(void *user, dvmm_call call, int code, uint64_t address, uint64_t size) {
    (void)call, (void)code, (void)address, (void)size;
    assert_ok(ductile_walk(user, look_at_flags, NULL));
}

Test(pause, blocks_can_be_looked_at_on_the_way_there_and_back) {
    open_pool(DUCTILE_POOL_CAPTURE, true);
    ductile_addr pinned = 0;
    assert_ok(ductile_alloc(a, 1, f.streams[0], &pinned));
    assert_ok(ductile_pin(a, pinned));
    n_looks = 0;
    dvmm_set_trace(a->driver, look, a, true);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    assert_ok(ductile_resume(a, WEIGHTS));
    dvmm_set_trace(a->driver, NULL, NULL, false);
    cr_assert_gt(n_looks, 10, "the pinned block was seen each time");
    assert_ok(ductile_unpin(a, pinned));
    assert_ok(ductile_free(a, pinned));
    close_pool();
}

static void hear(void *user, ductile_allocator *allocator, const ductile_map_event *event) {
    (void)user;
    (void)allocator;
    (void)event;
}

/* Only what was pinned when its pool was paused stays: the mark goes with the resume. */
Test(pause, memory_that_stayed_once_leaves_the_next_time) {
    uint64_t id = 0;
    open_pool(DUCTILE_POOL_PLAIN, false);
    assert_ok(ductile_add_map_callback(a, hear, NULL, 0, &id)); /* who is told what stays */
    assert_ok(ductile_pin(a, blocks[3]));
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    cr_assert_gt(fixture_state(&f).used_bytes, 0, "pinned memory left");
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_ok(ductile_unpin(a, blocks[3]));
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    assert_paused();
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_contents();
    close_pool();
}

/* Also of dedicated blocks: a pool that is paused while it is open serves nobody. */
Test(pause, paused_pool_gives_no_dedicated_memory) {
    open_waiting();
    ductile_addr none = 1;
    assert_ok(ductile_pool_retain(a, WEIGHTS));
    assert_ok(ductile_pool_set_kind(a, WEIGHTS, DUCTILE_POOL_PLAIN));
    assert_ok(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    assert_ok(ductile_alloc(a, 512, f.streams[0], &blocks[0]));
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    assert_status(ductile_alloc_dedicated(a, 4 * MIB, f.streams[0], &none), DUCTILE_ERR_ASLEEP);
    assert_u64(none, 0);
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_ok(ductile_pool_end(a, WEIGHTS));
    assert_ok(ductile_free(a, blocks[0]));
    assert_ok(ductile_pool_release(a, WEIGHTS));
    assert_ok(ductile_pool_release(a, WEIGHTS));
    assert_fine(fixture_close(&f));
}

/* Its memory is cached elsewhere, and cannot be taken back: the pool stays paused, and comes back
 * once the driver unmaps again. */
Test(pause, a_resume_that_cannot_make_room_leaves_the_pool_paused) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    ductile_addr other = 0;
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_alloc(a, 60 * MIB, f.streams[0], &other));
    assert_ok(ductile_free(a, other));
    assert_fine(fixture_fail_for_good(&f, "unmap", DVMM_OUT_OF_MEMORY));
    ductile_status status = ductile_resume(a, WEIGHTS);
    cr_assert(status != DUCTILE_OK, "there was room");
    cr_assert_eq(info_now().paused, 1);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    assert_fine(audit_allocator(a, NULL));
    (void)ductile_destroy(a);
    fixture_abandon(&f);
}

Test(pause, a_resume_gives_free_memory_back_where_another_process_has_the_rest) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    ductile_addr block = 0;
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    assert_ok(ductile_alloc(a, 30 * MIB, f.streams[0], &block));
    assert_ok(ductile_free(a, block));
    assert_ok(ductile_virtual_set_external_bytes(f.gpu, 32 * MIB));
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_ok(ductile_virtual_set_external_bytes(f.gpu, 0));
    close_pool();
}

/* What waits is one wait for everything: other streams cost nothing each. */
Test(pause, its_driver_calls_do_not_grow_with_other_streams) {
    uint64_t calls[2];
    for (size_t i = 0; i < 2; i++) {
        size_t n_streams = i == 0 ? 2 : 8;
        const fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = n_streams};
        ductile_addr others[8];
        assert_fine(fixture_open(&f, &setup));
        a = f.allocator;
        assert_ok(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
        assert_ok(ductile_alloc(a, 3 * G, f.streams[0], &blocks[0]));
        assert_ok(ductile_pool_end(a, WEIGHTS));
        for (size_t s = 1; s < n_streams; s++) {
            assert_ok(ductile_alloc(a, G, f.streams[s], &others[s]));
            assert_ok(ductile_virtual_fill(f.gpu, others[s], 1, G, f.streams[s]));
        }
        calls[i] = fixture_state(&f).calls;
        assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
        calls[i] = fixture_state(&f).calls - calls[i];
        assert_ok(ductile_resume(a, WEIGHTS));
        for (size_t s = 1; s < n_streams; s++) {
            assert_ok(ductile_free(a, others[s]));
        }
        assert_ok(ductile_free(a, blocks[0]));
        assert_ok(ductile_pool_release(a, WEIGHTS));
        assert_fine(fixture_close(&f));
    }
    assert_u64(calls[1], calls[0]);
}

/* It stays behind its address, known and counted, though its block is gone. */
Test(pause, pinned_memory_of_a_block_that_is_freed_meanwhile_is_not_forgotten) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    assert_ok(ductile_pin(a, blocks[3]));
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    uint64_t left = fixture_state(&f).used_bytes;
    cr_assert_gt(left, 0);
    ductile_addr freed = blocks[3];
    assert_ok(ductile_free(a, freed));
    blocks[3] = 0;
    assert_fine(audit_allocator(a, NULL));
    assert_u64(fixture_state(&f).used_bytes, left);
    assert_ok(ductile_unpin(a, freed));
    assert_fine(audit_allocator(a, NULL));
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_contents();
    close_pool();
}

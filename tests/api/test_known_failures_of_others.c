/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What users of today's allocators suffer from, as public bugs describe it, and what this one does
 * instead. Numbers without a project are those of pytorch/pytorch. docs/testing.md has the table
 * of what is tested elsewhere.
 */
#include "tests/support/one_fixture.h"
#include "tests/support/rng.h"
#include "tests/support/world.h"
#include "vmm/driver/driver.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

/* ---- Failing driver calls ------------------------------------------------------------------- */

/* #188008: a map that failed half-way left slots "created but unmapped"; every later allocation
 * asserted until restart. Setting access can run out of memory, too. */
Test(known_failures, a_half_failed_map_breaks_nothing_that_comes_later) {
    static const char *const calls[] = {"map", "set_access", "phys_create"};
    for (size_t call = 0; call < 3; call++) {
        for (uint64_t nth = 1; nth <= 6; nth++) {
            open_fixture(NULL);
            ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                           .call = calls[call],
                                           .nth = nth,
                                           .code = DVMM_OUT_OF_MEMORY,
                                           .persistent = 1};
            assert_ok(ductile_virtual_inject(f.gpu, &fault));
            ductile_addr none = 0;
            ductile_status status = ductile_alloc(f.allocator, 20 * MIB, f.streams[0], &none);
            bool fired = ductile_virtual_faults_fired(f.gpu) > 0;
            cr_assert(!fired || (status == DUCTILE_ERR_OUT_OF_MEMORY && none == 0), "%s %llu: %s",
                      calls[call], (unsigned long long)nth, ductile_status_name(status));
            assert_ok(ductile_virtual_inject(f.gpu, NULL));
            for (size_t i = 0; i < 5; i++) {
                (void)take(20 * MIB, 0);
            }
            assert_u64(fixture_stats(f.allocator).quarantined_bytes, 0);
            close_audited();
        }
    }
}

/* #185240: asking for the device's use failed, and hid the out of memory it was to describe. */
Test(known_failures, a_refusal_is_told_when_nobody_says_what_the_device_has) {
    open_fixture(NULL);
    assert_fine(fixture_fail_for_good(&f, "mem_info", DVMM_NOT_SUPPORTED));
    (void)take(200 * MIB, 0);
    ductile_addr none = 0;
    assert_status(ductile_alloc(f.allocator, 100 * MIB, f.streams[0], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    ductile_oom_report r = {.struct_size = sizeof r};
    assert_ok(ductile_get_oom_report(f.allocator, &r));
    assert_u64(r.held_bytes, 200 * MIB);
    assert_u64(r.device_bytes, 256 * MIB);
    assert_u64(r.device_free_bytes, 0);
    close_audited();
}

/* ---- Memory in use ----------------------------------------------------------------------------
 */

/* #196258, #197159: emptying the cache waited for the wrong stream, and unmapped under a kernel.
 * The virtual GPU is poisoned by a kernel whose memory is gone when it runs. */
Test(known_failures, emptying_the_cache_waits_for_the_streams_that_used_it) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 4};
    open_fixture(&setup);
    for (size_t i = 0; i < 4; i++) {
        ductile_addr address = take(20 * MIB, i);
        launch(address, 20 * MIB, i);
        give(address);
    }
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(reserved(), 0);
    assert_fine(fixture_sync_all(&f));
    cr_assert_eq(fixture_state(&f).poisoned, 0);
    close_audited();
}

/* ---- Refused too early --------------------------------------------------------------------------
 */

/* #189504, #191302: after waiting for events the cache was not searched again; a retry worked. */
Test(known_failures, memory_that_a_wait_gave_back_serves_at_once) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    open_fixture(&setup);
    ductile_addr address = take(200 * MIB, 0);
    launch(address, 200 * MIB, 1);
    assert_ok(ductile_free_on(f.allocator, address, f.streams[1]));
    (void)take(200 * MIB, 0);
    assert_u64(fixture_stats(f.allocator).out_of_memory, 0);
    close_audited();
}

static sem_t is_open;
static sem_t may_close;
static ductile_status pool_status;

/* Holds a private pool open, and takes from it what others have left free. */
static void *keep_a_pool_open(void *user) {
    ductile_pool_id id = {0, 1};
    ductile_addr *out = user;
    pool_status = ductile_pool_retain(f.allocator, id);
    if (pool_status == DUCTILE_OK) {
        pool_status = ductile_pool_set_kind(f.allocator, id, DUCTILE_POOL_PLAIN);
    }
    if (pool_status == DUCTILE_OK) {
        pool_status = ductile_pool_begin(f.allocator, id, NULL, NULL);
    }
    (void)sem_post(&is_open);
    (void)sem_wait(&may_close);
    if (pool_status == DUCTILE_OK) {
        pool_status = ductile_alloc(f.allocator, 200 * MIB, f.streams[1], out);
    }
    if (pool_status == DUCTILE_OK) {
        pool_status = ductile_pool_end(f.allocator, id);
    }
    return NULL;
}

/* #159674; vllm #43951, #49151, #34877: while any thread was inside use_mem_pool nothing was
 * reclaimed on the whole device, and tens of GiB stranded. */
Test(known_failures, an_open_pool_stops_nobody_from_reclaiming) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    open_fixture(&setup);
    cr_assert_eq(sem_init(&is_open, 0, 0), 0);
    cr_assert_eq(sem_init(&may_close, 0, 0), 0);
    pthread_t thread;
    ductile_addr theirs = 0;
    cr_assert_eq(pthread_create(&thread, NULL, keep_a_pool_open, &theirs), 0);
    cr_assert_eq(sem_wait(&is_open), 0);
    ductile_addr address = take(200 * MIB, 0);
    launch(address, 200 * MIB, 1);
    assert_ok(ductile_free_on(f.allocator, address, f.streams[1]));
    address = take(220 * MIB, 0); /* waits, and moves, with the pool open */
    launch(address, 220 * MIB, 0);
    give(address);
    (void)sem_post(&may_close); /* and the pool gets what is free outside */
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_ok(pool_status);
    give(theirs);
    close_audited();
}

/* ---- Growth without end
 * -------------------------------------------------------------------------- */

/* #123548, #193400: with an upper size for splitting, merged blocks were too large to be used
 * again: 220 MiB became 14 GiB while 266 MiB were live. */
Test(known_failures, large_blocks_that_merge_do_not_make_memory_grow) {
    fixture_setup setup = {.capacity_bytes = 16 * GIB};
    open_fixture(&setup);
    uint64_t peak = 0;
    for (size_t step = 0; step < 60; step++) {
        ductile_addr blocks[6];
        for (size_t i = 0; i < 6; i++) {
            blocks[i] = take((1 + (step * 5 + i * 3) % 11) * 8 * MIB, 0);
        }
        for (size_t i = 0; i < 6; i++) {
            give(blocks[i * 5 % 6]);
        }
        peak = fixture_stats(f.allocator).allocated_peak_bytes;
    }
    cr_assert_leq(reserved(), peak + 12 * FIXTURE_GRANULE, "%llu held for a peak of %llu",
                  (unsigned long long)reserved(), (unsigned long long)peak);
    close_audited();
}

/* #119452, #134338: with these options an allocator near its limit asserted. */
Test(known_failures, options_that_bound_the_cache_go_together_near_the_limit) {
    const fixture_setup setup = {.capacity_bytes = 48 * MIB,
                                 .schedule = DUCTILE_SCHEDULE_RANDOM,
                                 .seed = 9,
                                 .n_streams = 3,
                                 .conf = "soft_limit_bytes:60%,limit_bytes:100%,"
                                         "roundup_power2_divisions:4"};
    world w;
    rng r = rng_seeded(4711);
    uint64_t n_refused = 0;
    assert_fine(world_open(&w, &setup, true));
    w.may_refuse = true; /* rounding up is not the model's */
    for (int i = 0; i < 1500; i++) {
        if (w.m.n > 0 && rng_percent(&r, 45)) {
            assert_fine(world_free(&w, rng_below(&r, w.m.n)));
        } else {
            assert_fine(world_alloc(&w, rng_between(&r, 1, 8 * MIB), rng_below(&r, 3)));
            n_refused += w.status != DUCTILE_OK;
        }
        assert_fine(world_audit(&w));
    }
    cr_assert(n_refused > 20, "only %llu refusals", (unsigned long long)n_refused);
    assert_fine(world_close(&w));
}

/* vllm #52951: the cache belonged to the stream, and each call came with another stream object: 2
 * GiB more a step, up to 32 GiB, then out of memory. Streams nobody says are done keep their memory
 * while there is other, and give it when there is none. */
Test(known_failures, one_stream_after_the_other_is_served_on_a_full_device) {
    fixture_setup setup = {.capacity_bytes = GIB, .n_streams = 32};
    open_fixture(&setup);
    for (size_t step = 0; step < 96; step++) {
        ductile_addr address = take(200 * MIB, step % 32);
        launch(address, 200 * MIB, step % 32);
        give(address);
    }
    close_audited();
}

/* Megatron-LM #6885: 20 GiB for one side stream used once. One that is named done keeps nothing. */
Test(known_failures, a_side_stream_used_once_leaves_its_memory_to_others) {
    fixture_setup setup = {.capacity_bytes = GIB, .n_streams = 2};
    open_fixture(&setup);
    ductile_addr address = take(500 * MIB, 1);
    launch(address, 500 * MIB, 1);
    give(address);
    assert_ok(ductile_stream_done(f.allocator, f.streams[1]));
    (void)take(500 * MIB, 0);
    assert_u64(reserved(), 500 * MIB);
    close_audited();
}

/* #192269, #186213: 9/8 of the device for every stream and pool filled the address space. */
Test(known_failures, hundreds_of_streams_fit_into_the_address_space) {
    fixture_setup setup = {.capacity_bytes = 139 * GIB};
    open_fixture(&setup);
    for (size_t i = 0; i < 1500; i++) {
        ductile_stream stream = NULL;
        ductile_addr address = 0;
        assert_ok(ductile_virtual_stream_create(f.gpu, &stream));
        assert_ok(ductile_alloc(f.allocator, 3 * MIB, stream, &address));
        assert_ok(ductile_free(f.allocator, address));
        assert_ok(ductile_virtual_stream_sync(f.gpu, stream));
        assert_ok(ductile_virtual_stream_destroy(f.gpu, stream));
    }
    cr_assert_leq(fixture_stats(f.allocator).address_bytes, (uint64_t)64 << 40);
    assert_fine(fixture_close(&f));
}

/* ---- Fragmentation
 * -------------------------------------------------------------------------------- */

/* torchrec #4584: what lies free between live blocks could not be used for anything larger. */
Test(known_failures, free_memory_between_live_blocks_serves_larger_requests) {
    fixture_setup setup = {.capacity_bytes = GIB};
    open_fixture(&setup);
    ductile_addr blocks[40];
    for (size_t i = 0; i < 40; i++) {
        blocks[i] = take(20 * MIB, 0);
    }
    for (size_t i = 0; i < 40; i += 2) {
        give(blocks[i]);
    }
    uint64_t creates = count("phys_create");
    (void)take(400 * MIB, 0);
    assert_u64(count("phys_create"), creates);
    assert_u64(reserved(), 800 * MIB);
    close_audited();
}

/* #159564: with expandable segments nothing told how fragmented memory was. */
Test(known_failures, what_cannot_be_moved_is_told) {
    open_fixture(NULL);
    ductile_addr blocks[64];
    for (size_t i = 0; i < 64; i++) {
        blocks[i] = take(3 * MIB, 0);
    }
    for (size_t i = 0; i < 64; i += 2) {
        give(blocks[i]);
    }
    ductile_addr none = 0;
    assert_status(ductile_alloc(f.allocator, 250 * MIB, f.streams[0], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    ductile_oom_report r = {.struct_size = sizeof r};
    assert_ok(ductile_get_oom_report(f.allocator, &r));
    assert_u64(r.free_bytes, 96 * MIB);
    assert_u64(r.pinned_bytes, 32 * MIB); /* 3 MiB blocks: of each one granule is whole */
    assert_u64(r.largest_free_bytes, 3 * MIB);
    close_audited();
}

/* ---- Stalls
 * ---------------------------------------------------------------------------------------- */

/* torchtitan #1558, fms-fsdp #63, #65078, #50925: near the limit each miss flushed everything and
 * waited for it, and freeing synchronised the device. Steps of changing sizes at 97 % of it. */
Test(known_failures, near_the_limit_a_steady_state_waits_for_nothing_and_frees_nothing) {
    fixture_setup setup = {.capacity_bytes = GIB, .conf = "limit_bytes:800M"};
    open_fixture(&setup);
    uint64_t calls[3] = {0, 0, 0};
    static const char *const names[] = {"phys_release", "stream_sync", "context_sync"};
    for (size_t step = 0; step < 40; step++) {
        ductile_addr blocks[12];
        uint64_t left = 776 * MIB;
        for (size_t i = 0; i < 12; i++) {
            uint64_t size = i == 11 ? left : (20 + (step * 7 + i * 13) % 60) * MIB;
            blocks[i] = take(size, 0);
            launch(blocks[i], size, 0);
            left -= size;
        }
        for (size_t i = 0; i < 12; i++) {
            give(blocks[(i * 7 + step) % 12]);
        }
        for (size_t i = 0; i < 3 && step == 9; i++) {
            calls[i] = count(names[i]);
        }
    }
    for (size_t i = 0; i < 3; i++) {
        assert_u64(count(names[i]), calls[i]);
    }
    close_audited();
}

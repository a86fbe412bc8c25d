/* SPDX-License-Identifier: Apache-2.0 */
/* Spilling: memory of the host for a request that would be refused. */
#include "pool/pressure/host_memory.h"
#include "tests/support/spilling.h"

#include <ductile_handover.h>
#include <ductile_pressure.h>
#include <ductile_share.h>
#include <ductile_sleep.h>

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- What it gives -------------------------------------------------------------------------- */

Test(spill, without_the_option_a_request_is_refused) {
    open_spilling(NULL);
    ductile_addr a = take(200 * MIB, 0);
    assert_refused(100 * MIB, 0);
    give(a);
    close_and_look();
}

Test(spill, gives_what_is_missing_from_the_host_and_takes_it_back) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr b = take(100 * MIB, 0);
    assert_spilled(76); /* 24 of the device's */
    fill(b, 7, 100 * MIB, 0);
    cr_assert_eq(byte_at(b, 0), 7);
    cr_assert_eq(byte_at(b + 100 * MIB - 1, 0), 7);
    assert_u64(fixture_state(&f).host_bytes, now().spill_locked_bytes);
    assert_u64(now().spills, 1);
    assert_sound();
    give(b);
    give(a);
    a = take(220 * MIB, 0); /* there is room on the device again */
    b = take(2 * MIB, 0);
    assert_spilled(0);
    assert_u64(now().spill_locked_bytes / MIB, 76);
    give(b);
    give(a);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_u64(fixture_state(&f).host_bytes, 0);
    close_and_look();
}

static uint64_t spilled_of(ductile_addr address) {
    ductile_block_info info = {.struct_size = sizeof info};
    assert_ok(ductile_query_block(f.allocator, address, &info));
    return info.spilled_bytes;
}

static int add_free(void *user, const ductile_block_info *block) {
    uint64_t *sum = user;
    *sum += block->state == DUCTILE_BLOCK_FREE ? block->spilled_bytes : 0;
    return 0;
}

static uint64_t free_and_spilled(void) {
    uint64_t sum = 0;
    assert_ok(ductile_walk(f.allocator, NULL, add_free, &sum));
    return sum;
}

Test(spill, a_description_says_how_much_of_a_block_lies_there) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr b = take(100 * MIB, 0);
    assert_u64(spilled_of(a), 0);
    assert_u64(spilled_of(b), 76 * MIB);
    give(b);
    assert_u64(free_and_spilled(), 76 * MIB);
    give(a);
    close_and_look();
}

Test(spill, locks_nothing_more_once_it_has_what_a_step_needs) {
    open_spilling("spill_bytes:1G");
    for (int i = 0; i < 20; i++) {
        ductile_addr a = take(200 * MIB, 0);
        ductile_addr b = take(100 * MIB, 0);
        fill(b, 3, 100 * MIB, 0);
        give(b);
        give(a);
        assert_u64(now().spill_locked_bytes / MIB, 76);
    }
    assert_u64(now().spills, 20);
    close_and_look();
}

Test(spill, serves_a_request_larger_than_the_device) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(600 * MIB, 0);
    fill(a, 9, 600 * MIB, 0);
    cr_assert_eq(byte_at(a + 600 * MIB - 1, 0), 9);
    assert_spilled(600 - MOST);
    assert_refused(2000 * MIB, 0);
    give(a);
    close_and_look();
}

Test(spill, uses_free_memory_of_the_device_first) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(100 * MIB, 0);
    ductile_addr b = take(50 * MIB, 1);
    ductile_addr c = take(100 * MIB, 0);
    give(b); /* 50 lie free, of another stream */
    ductile_addr d = take(80 * MIB, 0);
    assert_spilled(80 - (MOST - 200));
    give(a);
    give(c);
    give(d);
    close_and_look();
}

/* Another allocator has taken what the device seems to have. */
Test(spill, gives_also_what_the_device_refuses_to_give) {
    open_spilling("spill_bytes:1G");
    ductile_allocator *other = NULL;
    ductile_addr taken = 0;
    assert_fine(fixture_add_allocator(&f, &(fixture_setup){.n_streams = 1}, &other));
    assert_ok(ductile_alloc(other, 100 * MIB, f.streams[0], &taken));
    const ductile_virtual_fault silent = {
        .struct_size = sizeof silent, .call = "mem_info", .nth = 1, .code = 999, .persistent = 1};
    assert_ok(ductile_virtual_inject(f.gpu, &silent));
    ductile_addr a = take(100 * MIB, 0);
    ductile_addr b = take(100 * MIB, 0);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    cr_assert_geq(now().spilled_bytes, 44 * MIB);
    give(b);
    give(a);
    assert_ok(ductile_free(other, taken));
    assert_ok(ductile_destroy(other));
    close_and_look();
}

Test(spill, may_be_a_share_of_the_hosts_memory) {
    const fixture_setup setup = {
        .conf = "spill_bytes:25%", .host_bytes = 400 * MIB, .n_streams = 1};
    open_fixture(&setup);
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr b = take(100 * MIB, 0);
    assert_refused(100 * MIB, 0);
    give(a);
    give(b);
    close_and_look();
}

Test(spill, is_refused_at_once_where_handles_cannot_lie_in_the_host) {
    const fixture_setup setup = {.no_host_handles = 1, .n_streams = 1};
    assert_fine(fixture_open_device(&f, &setup));
    ductile_options o;
    ductile_options_init(&o);
    o.driver = DUCTILE_DRIVER_VIRTUAL;
    o.virtual_gpu = f.gpu;
    o.spill_bytes = GIB;
    ductile_allocator *none = NULL;
    assert_status(ductile_create(&none, &o), DUCTILE_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(ductile_create_error(), "spill_bytes"));
    fixture_abandon(&f);
}

/* ---- Limits --------------------------------------------------------------------------------- */

Test(spill, ends_at_its_limit_and_leaves_nothing_locked) {
    open_spilling("spill_bytes:64M");
    ductile_addr a = take(200 * MIB, 0);
    assert_refused(100 * MIB, 0);
    assert_u64(now().spill_locked_bytes, 0);
    ductile_addr b = take(80 * MIB, 0);
    assert_spilled(56);
    give(b);
    give(a);
    close_and_look();
}

Test(spill, ends_where_the_host_has_no_more) {
    const fixture_setup setup = {.conf = "spill_bytes:1G", .host_bytes = 48 * MIB, .n_streams = 1};
    open_fixture(&setup);
    ductile_addr a = take(200 * MIB, 0);
    assert_refused(100 * MIB, 0);
    assert_u64(fixture_state(&f).host_bytes, 0);
    give(a);
    close_and_look();
}

Test(spill, locks_nothing_for_what_exceeds_its_limit) {
    open_spilling("spill_bytes:128M");
    cr_assert_not(dpool_make_host_memory(f.allocator, 160 * MIB));
    assert_u64(now().spill_locked_bytes, 0);
    close_and_look();
}

Test(spill, locks_what_the_host_has_but_once) {
    const fixture_setup setup = {.conf = "spill_bytes:1G", .host_bytes = 128 * MIB, .n_streams = 1};
    open_fixture(&setup);
    uint64_t before = count("phys_create");
    cr_assert_not(dpool_make_host_memory(f.allocator, 160 * MIB));
    assert_u64(count("phys_create") - before, 4 + 1); /* pieces of 32 MiB, and the refusal */
    close_and_look();
}

Test(spill, asks_the_host_but_once_where_nothing_can_make_room) {
    const fixture_setup setup = {.conf = "spill_bytes:1G", .host_bytes = 16 * MIB, .n_streams = 1};
    open_fixture(&setup);
    uint64_t before = count("phys_create");
    cr_assert_not(dpool_make_host_memory(f.allocator, 32 * MIB));
    assert_u64(count("phys_create") - before, 1);
    close_and_look();
}

Test(spill, small_requests_never_spill_and_have_a_part_of_the_room) {
    open_spilling("spill_bytes:1G");
    ductile_addr large[4];
    for (size_t i = 0; i < 4; i++) {
        large[i] = take(100 * MIB, 0);
    }
    ductile_addr small[FOR_SMALL];
    for (size_t i = 0; i < FOR_SMALL; i++) {
        small[i] = take(MIB, 0);
    }
    assert_spilled(400 - MOST);
    uint64_t n = 0;
    ductile_addr last = 0;
    while (ductile_alloc(f.allocator, MIB, f.streams[0], &last) == DUCTILE_OK && n < 8) {
        n++;
    }
    cr_assert_lt(n, 8, "a small request was served by the host");
    for (size_t i = 0; i < 4; i++) {
        give(large[i]);
    }
    for (size_t i = 0; i < FOR_SMALL; i++) {
        give(small[i]);
    }
    assert_u64(n, 0);
    close_and_look();
}

Test(spill, what_never_spills_has_that_part_of_the_room_too) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr b = take(100 * MIB, 0);
    ductile_addr alone = 0;
    assert_ok(ductile_alloc_dedicated(f.allocator, 8 * MIB, f.streams[0], &alone));
    const ductile_pool_id id = {7, 1};
    assert_ok(ductile_pool_begin(f.allocator, id, NULL, NULL));
    ductile_addr captured = take(8 * MIB, 0);
    assert_ok(ductile_pool_end(f.allocator, id));
    assert_spilled(76);
    give(captured);
    assert_ok(ductile_pool_release(f.allocator, id));
    give(alone);
    give(a);
    give(b);
    close_and_look();
}

Test(spill, is_not_for_what_exceeds_the_soft_limit_alone) {
    open_spilling("spill_bytes:1G,soft_limit_bytes:100M");
    ductile_addr a = take(90 * MIB, 0);
    ductile_addr b = take(90 * MIB, 0);
    assert_spilled(0);
    give(a);
    give(b);
    close_and_look();
}

/* ---- Who never spills ----------------------------------------------------------------------- */

Test(spill, is_not_for_requests_while_it_is_forbidden) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(200 * MIB, 0);
    assert_ok(ductile_spill_forbid(f.allocator));
    assert_ok(ductile_spill_forbid(f.allocator));
    assert_refused(100 * MIB, 0);
    assert_ok(ductile_spill_allow(f.allocator));
    assert_refused(100 * MIB, 0);
    assert_ok(ductile_spill_allow(f.allocator));
    assert_status(ductile_spill_allow(f.allocator), DUCTILE_ERR_INVALID_ARGUMENT);
    ductile_addr b = take(100 * MIB, 0);
    assert_spilled(76);
    give(a);
    give(b);
    close_and_look();
}

Test(spill, is_not_for_captures_and_dedicated_memory) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(200 * MIB, 0);
    const ductile_pool_id id = {7, 1};
    assert_ok(ductile_pool_begin(f.allocator, id, NULL, NULL));
    assert_refused(100 * MIB, 0);
    assert_ok(ductile_pool_end(f.allocator, id));
    assert_ok(ductile_pool_release(f.allocator, id));
    ductile_addr none = 0;
    assert_status(ductile_alloc_dedicated(f.allocator, 100 * MIB, f.streams[0], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    give(a);
    close_and_look();
}

Test(spill, is_not_for_memory_that_another_gpu_may_reach) {
    const fixture_setup setup = {.conf = "spill_bytes:1G", .n_streams = 1, .n_devices = 2};
    open_fixture(&setup);
    assert_ok(ductile_enable_peer(f.allocator, 1));
    ductile_addr a = take(200 * MIB, 0);
    assert_refused(100 * MIB, 0);
    give(a);
    close_and_look();
}

Test(spill, its_blocks_are_not_pinned) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr b = take(100 * MIB, 0);
    assert_status(ductile_pin(f.allocator, b), DUCTILE_ERR_UNSUPPORTED);
    assert_ok(ductile_pin(f.allocator, a));
    assert_ok(ductile_unpin(f.allocator, a));
    give(a);
    give(b);
    close_and_look();
}

Test(spill, a_tag_with_such_a_block_is_not_exported) {
    open_spilling("spill_bytes:1G,shareable:fd");
    const ductile_pool_id id = {3, 1};
    make_plain_pool(id);
    assert_ok(ductile_pool_set_tag(f.allocator, id, "weights", DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_pool_begin(f.allocator, id, NULL, NULL));
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr b = take(100 * MIB, 0);
    assert_ok(ductile_pool_end(f.allocator, id));
    int ends[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    uint64_t number = 0;
    assert_status(ductile_export_tag(f.allocator, "weights", NULL, 0, ends[0], &number, NULL),
                  DUCTILE_ERR_UNSUPPORTED);
    (void)close(ends[0]);
    (void)close(ends[1]);
    assert_u64(now().pinned_bytes, 0);
    give(a);
    give(b);
    release_plain_pool(id);
    close_and_look();
}

/* ---- What a climb found useless -------------------------------------------------------------- */

static unsigned n_asked;

static uint64_t give_nothing(void *user, ductile_allocator *a, uint64_t missing,
                             ductile_stream stream) {
    (void)user, (void)a, (void)missing, (void)stream;
    n_asked++;
    return 0;
}

Test(spill, does_not_climb_again_before_as_much_was_freed_as_was_missing) {
    open_spilling("spill_bytes:1G");
    uint64_t id = 0;
    assert_ok(ductile_add_oom_callback(f.allocator, give_nothing, NULL, 0, &id));
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr b[4];
    b[0] = take(100 * MIB, 0);
    unsigned first = n_asked;
    cr_assert_gt(first, 0);
    for (size_t i = 1; i < 4; i++) {
        b[i] = take(60 * MIB, 0);
    }
    cr_assert_eq(n_asked, first, "a callback was asked again");
    give(b[1]);
    give(b[2]);
    b[1] = take(130 * MIB, 0);
    cr_assert_gt(n_asked, first, "120 MiB were freed, and no callback was asked");
    give(b[0]);
    give(b[1]);
    give(b[3]);
    give(a);
    close_and_look();
}

/* One that was refused, of 1.2 GiB, says nothing about one that misses what was freed since. */
Test(spill, waits_for_what_is_enough_though_a_larger_climb_found_nothing) {
    const fixture_setup setup = {
        .conf = "spill_bytes:1G", .n_streams = 2, .schedule = DUCTILE_SCHEDULE_LAZY};
    open_fixture(&setup);
    ductile_addr a = take(100 * MIB, 0);
    ductile_addr b = take(120 * MIB, 1);
    assert_refused(1240 * MIB, 1);
    launch(a, 100 * MIB, 0);
    give(a);
    a = take(100 * MIB, 1);
    assert_spilled(0);
    give(a);
    give(b);
    close_and_look();
}

/* ---- Sleep ---------------------------------------------------------------------------------- */

static const ductile_pool_id whole = {0, 0};

static void nap(ductile_contents contents) {
    assert_ok(ductile_sleep(f.allocator, whole, contents));
    assert_sound();
    assert_ok(ductile_wake(f.allocator, whole));
    assert_sound();
}

Test(spill, memory_of_the_host_stays_asleep_and_is_the_copy) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr mixed = take(100 * MIB, 0);
    ductile_addr pure = take(50 * MIB, 0);
    fill(a, 1, 200 * MIB, 0);
    fill(mixed, 2, 100 * MIB, 0);
    fill(pure, 3, 50 * MIB, 0);
    assert_spilled(126);
    assert_ok(ductile_sleep(f.allocator, whole, DUCTILE_CONTENTS_KEEP));
    assert_u64(reserved(), 0);
    assert_spilled(126);
    assert_ok(ductile_wake(f.allocator, whole));
    assert_sound();
    cr_assert_eq(byte_at(a, 0), 1);
    cr_assert_eq(byte_at(mixed, 0), 2);
    cr_assert_eq(byte_at(mixed + 100 * MIB - 1, 0), 2);
    cr_assert_eq(byte_at(pure, 0), 3);
    assert_spilled(126);
    nap(DUCTILE_CONTENTS_ZERO);
    cr_assert_eq(byte_at(mixed, 0), 0);
    cr_assert_eq(byte_at(mixed + 100 * MIB - 1, 0), 0);
    cr_assert_eq(byte_at(pure, 0), 0);
    nap(DUCTILE_CONTENTS_DROP);
    give(a);
    give(mixed);
    give(pure);
    close_and_look();
}

Test(spill, what_is_freed_asleep_goes) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr mixed = take(100 * MIB, 0);
    ductile_addr pure = take(50 * MIB, 0);
    assert_ok(ductile_sleep(f.allocator, whole, DUCTILE_CONTENTS_KEEP));
    give(mixed);
    assert_sound();
    give(pure);
    assert_sound();
    assert_ok(ductile_wake(f.allocator, whole));
    assert_sound();
    give(a);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_u64(fixture_state(&f).host_bytes, 0);
    close_and_look();
}

/* The pool wakes while a thread is told that memory of it leaves. */
typedef struct waking {
    ductile_sleep_report report;
    ductile_status status;
    bool has_woken;
} waking;

static void *wake_all(void *user) {
    waking *w = user;
    const ductile_sleep_request all = {.struct_size = sizeof all, .all = 1};
    w->report.struct_size = sizeof w->report;
    w->status = ductile_wake_set(f.allocator, &all, &w->report);
    return NULL;
}

static void wake_meanwhile(void *user, ductile_allocator *a, const ductile_map_event *e) {
    waking *w = user;
    pthread_t thread;
    (void)a;
    if (e->change == DUCTILE_MAP_LEAVING && !w->has_woken) {
        w->has_woken = true;
        cr_assert_eq(pthread_create(&thread, NULL, wake_all, w), 0);
        cr_assert_eq(pthread_join(thread, NULL), 0);
    }
}

Test(spill, a_wake_beside_memory_that_leaves_maps_none_of_it) {
    open_spilling("spill_bytes:1G");
    waking w = {.has_woken = false};
    uint64_t id;
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr b = take(100 * MIB, 0);
    assert_ok(ductile_sleep(f.allocator, whole, DUCTILE_CONTENTS_DROP));
    give(b);
    assert_spilled(76);
    assert_ok(ductile_add_map_callback(f.allocator, wake_meanwhile, &w, 0, &id));
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_ok(ductile_remove_map_callback(f.allocator, id));
    cr_assert(w.has_woken, "nothing has left");
    assert_ok(w.status);
    assert_u64(w.report.bytes, 200 * MIB);
    assert_u64(fixture_state(&f).host_bytes, 0);
    assert_sound();
    give(a);
    close_and_look();
}

Test(spill, what_is_left_of_a_pool_that_is_given_up_asleep_goes) {
    open_spilling("spill_bytes:1G");
    const ductile_pool_id id = {3, 1};
    make_plain_pool(id);
    assert_ok(ductile_pool_begin(f.allocator, id, NULL, NULL));
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr mixed = take(100 * MIB, 0);
    ductile_addr pure = take(50 * MIB, 0);
    assert_ok(ductile_pool_end(f.allocator, id));
    assert_spilled(126);
    assert_ok(ductile_sleep(f.allocator, id, DUCTILE_CONTENTS_KEEP));
    give(a);
    give(mixed);
    release_plain_pool(id);
    give(pure);
    assert_sound();
    give(take(MIB, 0));
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_sound();
    assert_u64(fixture_state(&f).host_bytes, 0);
    close_and_look();
}

Test(spill, one_trim_takes_what_is_left_of_a_pool_whose_wake_has_failed) {
    open_spilling("spill_bytes:1G");
    const ductile_pool_id id = {3, 1};
    make_plain_pool(id);
    assert_ok(ductile_pool_begin(f.allocator, id, NULL, NULL));
    ductile_addr a = take(200 * MIB, 0);
    ductile_addr b = take(100 * MIB, 0);
    assert_ok(ductile_pool_end(f.allocator, id));
    assert_ok(ductile_sleep(f.allocator, id, DUCTILE_CONTENTS_KEEP));
    const ductile_virtual_fault no_wait = {.struct_size = sizeof no_wait,
                                           .call = "stream_sync",
                                           .nth = 1,
                                           .code = 999,
                                           .persistent = 1};
    assert_ok(ductile_virtual_inject(f.gpu, &no_wait));
    assert_status(ductile_wake(f.allocator, id), DUCTILE_ERR_DRIVER);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    give(a);
    give(b);
    release_plain_pool(id);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_u64(reserved(), 0);
    assert_u64(fixture_state(&f).host_bytes, 0);
    close_and_look();
}

Test(spill, a_sleep_and_a_trim_return_what_the_cache_has_locked) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(200 * MIB, 0);
    give(take(100 * MIB, 0));
    give(take(MIB, 0));
    assert_u64(now().spill_locked_bytes / MIB, 76);
    nap(DUCTILE_CONTENTS_KEEP);
    assert_u64(now().spill_locked_bytes, 0);
    give(a);
    close_and_look();
}

Test(spill, a_trim_waits_for_memory_of_the_host_alone) {
    const fixture_setup setup = {
        .conf = "spill_bytes:1G", .n_streams = 2, .schedule = DUCTILE_SCHEDULE_LAZY};
    open_fixture(&setup);
    ductile_addr a = take(MOST * MIB, 0);
    ductile_addr b = take(50 * MIB, 1);
    give(a);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_u64(reserved(), 0);
    launch(b, 50 * MIB, 1);
    give(b);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_u64(now().spill_locked_bytes, 0);
    a = take(MOST * MIB, 0);
    b = take(50 * MIB, 1);
    give(a);
    assert_ok(ductile_record_stream(f.allocator, b, f.streams[0]));
    launch(b, 50 * MIB, 0);
    give(b);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_u64(now().spill_locked_bytes, 0);
    close_and_look();
}

/* ---- The end -------------------------------------------------------------------------------- */

Test(spill, a_destroy_tells_that_memory_of_the_host_did_not_go) {
    open_spilling("spill_bytes:1G");
    (void)take(200 * MIB, 0);
    (void)take(100 * MIB, 0);
    const ductile_virtual_fault last = {.struct_size = sizeof last,
                                        .call = "phys_release",
                                        .nth = now().handles, /* the host's go last */
                                        .code = 999};
    assert_ok(ductile_virtual_inject(f.gpu, &last));
    assert_status(ductile_destroy(f.allocator), DUCTILE_ERR_DRIVER);
    assert_u64(ductile_virtual_faults_fired(f.gpu), 1);
    f.allocator = NULL;
    fixture_abandon(&f);
}

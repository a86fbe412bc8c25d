/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the allocator tells about itself: statistics that obey their identities, a block and the
 * free bytes beside it, a walk that tiles each range, a snapshot that is JSON.
 */
#include "pool/base/allocator.h"
#include "tests/support/json_check.h"
#include "tests/support/one_fixture.h"

#include <ductile_share.h>
#include <stdlib.h>
#include <string.h>

static void open_two_streams(void) {
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2});
}

/* Live blocks on both streams; the first of each is of an even place. */
enum { N_MADE = 16 };
static ductile_addr made[N_MADE];

static uint64_t size_of(size_t i) {
    return 100000 + i * 300000;
}

/* Live, free and pending blocks on both streams, and a gap where trimming bit. */
static void make_variety(void) {
    for (size_t i = 0; i < N_MADE; i++) {
        made[i] = take(size_of(i), i % 2);
    }
    launch(made[3], size_of(3), 0);
    assert_ok(ductile_record_stream(f.allocator, made[3], f.streams[0]));
    for (size_t i = N_MADE - 1; i > 1; i -= 2) {
        give(made[i]);
    }
    assert_ok(ductile_trim(f.allocator, NULL, 24 * MIB, NULL));
}

/* ---- Statistics ---------------------------------------------------------------------------- */

TestSuite(stats, .init = open_two_streams, .fini = close_audited);

Test(stats, identities_hold_in_a_varied_state) {
    make_variety();
    assert_fine(audit_fixture(&f, NULL));
}

Test(stats, looking_makes_no_driver_call) {
    make_variety();
    uint64_t calls = fixture_state(&f).calls;
    ductile_block_info info = {.struct_size = sizeof info};
    assert_ok(ductile_query_block(f.allocator, made[0], &info));
    (void)fixture_stats(f.allocator);
    assert_u64(fixture_state(&f).calls, calls);
}

Test(stats, driver_calls_are_those_the_device_saw) {
    make_variety();
    ductile_stats before = fixture_stats(f.allocator);
    uint64_t seen = fixture_state(&f).calls;
    ductile_addr address = 0;
    assert_ok(ductile_alloc(f.allocator, 50 * MIB, f.streams[0], &address));
    assert_ok(ductile_free(f.allocator, address));
    ductile_stats after = fixture_stats(f.allocator);
    cr_assert_gt(after.driver_calls, before.driver_calls);
    assert_u64(after.driver_calls - before.driver_calls, fixture_state(&f).calls - seen);
    assert_u64(after.driver_time_ns + after.driver_host_ns, 0);
}

Test(stats, driver_calls_are_timed_from_the_call_that_asks) {
    ductile_options options;
    ductile_allocator *timed = NULL;
    ductile_addr address = 0;
    ductile_stats s = {.struct_size = sizeof s};
    ductile_options_init(&options);
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    assert_ok(ductile_create(&timed, &options));
    ductile_time_driver_calls(NULL);
    ductile_time_driver_calls(timed);
    assert_ok(ductile_alloc(timed, 50 * MIB, NULL, &address));
    assert_ok(ductile_get_stats(timed, NULL, &s));
    cr_assert_gt(s.driver_time_ns, 0);
    cr_assert_gt(s.driver_host_ns, 0);
    assert_ok(ductile_destroy(timed));
}

/* ---- Blocks -------------------------------------------------------------------------------- */

TestSuite(inspection, .init = open_two_streams, .fini = close_audited);

/* Free bytes on both sides of a live block, by walking. */
typedef struct beside {
    ductile_addr address;
    uint64_t before, after, last_free;
    int is_next;
} beside;

static int look_beside(void *user, const ductile_block_info *b) {
    beside *s = user;
    uint64_t free_bytes = b->state == DUCTILE_BLOCK_FREE ? b->size : 0;
    if (s->is_next) {
        s->after = free_bytes;
        return 1;
    }
    if (b->address == s->address) {
        s->before = s->last_free;
        s->is_next = 1;
    }
    s->last_free = free_bytes;
    return 0;
}

static void query_agrees_with_walk(size_t i) {
    ductile_block_info info = {.struct_size = sizeof info};
    beside s = {.address = made[i]};
    assert_ok(ductile_query_block(f.allocator, made[i], &info));
    assert_ok(ductile_walk(f.allocator, NULL, look_beside, &s));
    assert_u64(info.requested_size, size_of(i));
    assert_u64(info.size, model_rounded(size_of(i)));
    assert_u64(info.free_before_bytes, s.before);
    assert_u64(info.free_after_bytes, s.after);
    cr_assert_eq(info.stream, f.streams[i % 2]);
    cr_assert_eq(info.state, DUCTILE_BLOCK_LIVE);
}

Test(inspection, the_query_agrees_with_the_walk) {
    make_variety();
    for (size_t i = 0; i < N_MADE; i += 2) {
        query_agrees_with_walk(i);
    }
    query_agrees_with_walk(1);
}

static int count_visits(void *user, const ductile_block_info *b) {
    (void)b;
    return ++*(int *)user == 2;
}

Test(inspection, a_walk_ends_when_its_callback_says_so) {
    make_variety();
    int visits = 0;
    assert_ok(ductile_walk(f.allocator, NULL, count_visits, &visits));
    cr_assert_eq(visits, 2);
}

static int find_pending(void *user, const ductile_block_info *b) {
    if (b->state == DUCTILE_BLOCK_PENDING) {
        *(ductile_block_info *)user = *b;
    }
    return 0;
}

Test(inspection, a_pending_block_still_says_what_was_asked_for) {
    ductile_block_info found = {.struct_size = sizeof found};
    ductile_addr block = take(1000, 0);
    launch(block, 1000, 1);
    assert_ok(ductile_free_ex(f.allocator, block, &f.streams[1], 1, NULL));
    assert_ok(ductile_walk(f.allocator, NULL, find_pending, &found));
    assert_u64(found.address, block);
    assert_u64(found.requested_size, 1000);
}

typedef struct seen {
    ductile_addr address;
    ductile_block_state state;
    uint32_t flags;
} seen;

static int see(void *user, const ductile_block_info *b) {
    seen *s = user;
    if (b->address <= s->address && s->address < b->address + b->size) {
        s->state = b->state;
        s->flags = b->flags;
    }
    return 0;
}

static void assert_seen(ductile_addr address, ductile_block_state state, uint32_t flags) {
    seen s = {.address = address};
    assert_ok(ductile_walk(f.allocator, NULL, see, &s));
    assert_u64(s.state, state);
    assert_u64(s.flags & DUCTILE_BLOCK_PINNED, flags);
}

/* The pin is of the memory, not of the block: it shows as long as memory is there. */
Test(inspection, a_walk_shows_a_pin_on_memory_that_was_freed) {
    ductile_addr pinned = take_granules(2, 0);
    assert_ok(ductile_pin(f.allocator, pinned));
    assert_seen(pinned, DUCTILE_BLOCK_LIVE, DUCTILE_BLOCK_PINNED);
    launch(pinned, FIXTURE_GRANULE, 1);
    assert_ok(ductile_free_ex(f.allocator, pinned, &f.streams[1], 1, NULL));
    assert_seen(pinned, DUCTILE_BLOCK_PENDING, DUCTILE_BLOCK_PINNED);
    assert_fine(fixture_sync_all(&f));
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_seen(pinned, DUCTILE_BLOCK_FREE, DUCTILE_BLOCK_PINNED);
    assert_ok(ductile_unpin(f.allocator, pinned));
    assert_seen(pinned, DUCTILE_BLOCK_FREE, 0);
}

/* ---- Snapshot ------------------------------------------------------------------------------ */

static char *snapshot(void) {
    text_sink sink = {.text = NULL};
    assert_ok(ductile_snapshot_json(f.allocator, text_sink_write, &sink));
    cr_assert_not_null(sink.text);
    return sink.text;
}

Test(inspection, the_snapshot_is_json_and_has_every_statistic) {
    make_variety();
    char *text = snapshot();
    assert_fine(json_check(text));
    static const char *const keys[] = {"\"version\"", "\"options\"", "\"segments\"", "\"blocks\"",
#define STATS_KEY(name, meaning) "\"" #name "\"",
                                       DUCTILE_STATS_MAP(STATS_KEY)
#undef STATS_KEY
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        cr_assert_not_null(strstr(text, keys[i]), "no %s in the snapshot", keys[i]);
    }
    free(text);
}

static int refuse_text(void *user, const char *text, size_t length) {
    (void)text;
    (void)length;
    ++*(int *)user;
    return 1;
}

Test(inspection, a_snapshot_ends_when_its_reader_says_so) {
    make_variety();
    int pieces = 0;
    (void)!ductile_snapshot_json(f.allocator, refuse_text, &pieces);
    cr_assert_eq(pieces, 1);
    assert_fine(audit_fixture(&f, NULL));
}

/* The callback runs without any lock: it may use the allocator. */
static int allocate_meanwhile(void *user, const char *text, size_t length) {
    (void)text;
    (void)length;
    const fixture *its = user;
    ductile_addr address = 0;
    if (ductile_alloc(its->allocator, 100000, its->streams[0], &address) != DUCTILE_OK) {
        return 1;
    }
    return ductile_free(its->allocator, address) != DUCTILE_OK;
}

Test(inspection, a_snapshot_lets_its_reader_allocate) {
    make_variety();
    assert_ok(ductile_snapshot_json(f.allocator, allocate_meanwhile, &f));
    assert_fine(audit_fixture(&f, NULL));
}

/* The checker is no rubber stamp. */
Test(json_check, refuses_what_is_not_json) {
    static const char *const wrong[] = {"",        "{",        "{\"a\":1,}", "[1 2]", "{a:1}",
                                        "\"\\x\"", "01",       "1.",         "nul",   "{} {}",
                                        "\"\n\"",  "[1,2,,3]", "-",          "\"abc"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_assert_not_null(json_check(wrong[i]), "took %s", wrong[i]);
    }
    static const char *const right[] = {"{}", " [1, -2.5e+3, \"a\\u00e9\\n\", null, true] ", "0"};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        assert_fine(json_check(right[i]));
    }
}

/* ---- Host memory --------------------------------------------------------------------------- */

/* Of blocks and of the table that finds them, both counted from what is there. */
static uint64_t bookkeeping(const ductile_allocator *a) {
    return a->nodes.host_bytes + (a->map.slots != NULL ? (a->map.mask + 1) * sizeof(uint64_t) : 0);
}

Test(host_memory, it_grows_by_what_the_blocks_need) {
    open_two_streams();
    (void)take(512, 0); /* range and arena are there */
    ductile_stats before = fixture_stats(f.allocator);
    uint64_t known = bookkeeping(f.allocator);
    for (int i = 0; i < 3000; i++) {
        ductile_addr block = 0;
        assert_ok(ductile_alloc(f.allocator, 512, f.streams[0], &block));
    }
    ductile_stats after = fixture_stats(f.allocator);
    assert_u64(after.segments, before.segments);
    assert_u64(after.host_bytes - before.host_bytes, bookkeeping(f.allocator) - known);
    cr_assert_gt(after.host_bytes - before.host_bytes, 3000 * 64);
    (void)ductile_destroy(f.allocator);
    fixture_abandon(&f);
}

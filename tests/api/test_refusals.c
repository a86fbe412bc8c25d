/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a call must not be made at all, each call of the interface says so: in a child of fork,
 * while the process exits, without an allocator, and when the device is lost. One table has all
 * calls, so that none is forgotten; a call is made with arguments that are right, so that nothing
 * else refuses it. A second table has arguments that no call takes.
 */
#include "tests/support/in_child.h"
#include "tests/support/limits.h"
#include "tests/support/one_fixture.h"
#include "vmm/driver/driver.h"

#include <ductile_elastic.h>
#include <ductile_handover.h>
#include <ductile_pools.h>
#include <ductile_pressure.h>
#include <ductile_share.h>
#include <ductile_sleep.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static ductile_addr block;
static uint64_t oom_callback;
static uint64_t map_callback;
static ductile_elastic *range;
static const ductile_pool_id pool = {4, 2};

static int skip_block(void *user, const ductile_block_info *info) {
    (void)user;
    (void)info;
    return 0;
}

static int skip_text(void *user, const char *text, size_t length) {
    (void)user;
    (void)text;
    (void)length;
    return 0;
}

static uint64_t free_nothing(void *user, ductile_allocator *a, uint64_t missing,
                             ductile_stream stream) {
    (void)user;
    (void)a;
    (void)missing;
    (void)stream;
    return 0;
}

static void hear_nothing(void *user, ductile_allocator *a, const ductile_map_event *event) {
    (void)user;
    (void)a;
    (void)event;
}

/* ---- Every call ---------------------------------------------------------------------------- */

/* What a call needs: the driver, so that it is refused at exit and on a lost device; or only that
 * the process is the one that made the allocator. */
typedef enum need { NEEDS_DRIVER, NEEDS_PROCESS } need;

#define CALLS(X)                                                                                   \
    X(NEEDS_DRIVER, ductile_alloc(a, 512, f.streams[0], &address))                                 \
    X(NEEDS_DRIVER, ductile_alloc_dedicated(a, 512, f.streams[0], &address))                       \
    X(NEEDS_DRIVER, ductile_record_stream(a, block, f.streams[1]))                                 \
    X(NEEDS_DRIVER, ductile_trim(a, NULL, 0, &bytes))                                              \
    X(NEEDS_DRIVER, ductile_trim(a, NULL, 0, NULL))                                                \
    X(NEEDS_DRIVER, ductile_stream_done(a, f.streams[1]))                                          \
    X(NEEDS_DRIVER, ductile_pool_retain(a, pool))                                                  \
    X(NEEDS_DRIVER, ductile_pool_begin(a, pool, NULL, NULL))                                       \
    X(NEEDS_DRIVER, ductile_pool_end(a, pool))                                                     \
    X(NEEDS_DRIVER, ductile_pool_release(a, pool))                                                 \
    X(NEEDS_DRIVER, ductile_pool_set_kind(a, pool, DUCTILE_POOL_PLAIN))                            \
    X(NEEDS_DRIVER, ductile_trim(a, &pool, 0, &bytes))                                             \
    X(NEEDS_DRIVER, ductile_pool_alloc_at(a, pool, block, 512))                                    \
    X(NEEDS_DRIVER, ductile_sleep(a, pool, DUCTILE_CONTENTS_DROP))                                 \
    X(NEEDS_DRIVER, ductile_wake(a, pool))                                                         \
    X(NEEDS_DRIVER, ductile_sleep_set(a, &all, NULL))                                              \
    X(NEEDS_DRIVER, ductile_wake_set(a, &all, NULL))                                               \
    X(NEEDS_DRIVER, ductile_pin(a, block))                                                         \
    X(NEEDS_DRIVER, ductile_export(a, block, 0))                                                   \
    X(NEEDS_DRIVER, ductile_import(a, 0, NULL, &address, &bytes))                                  \
    X(NEEDS_DRIVER, ductile_enable_peer(a, 1))                                                     \
    X(NEEDS_DRIVER, ductile_disable_peer(a, 1))                                                    \
    X(NEEDS_DRIVER, ductile_elastic_open(a, MIB, f.streams[0], NULL, &other))                      \
    X(NEEDS_DRIVER, ductile_elastic_commit(a != NULL ? range : NULL, 0, 2 * MIB))                  \
    X(NEEDS_DRIVER, ductile_elastic_decommit(a != NULL ? range : NULL, 0, 2 * MIB, NULL, 0))       \
    X(NEEDS_PROCESS, ductile_free(a, block))                                                       \
    X(NEEDS_PROCESS, ductile_free_ex(a, block, NULL, 0, &is_pending))                              \
    X(NEEDS_PROCESS, ductile_free_ex(a, block, &f.streams[1], 1, NULL))                            \
    X(NEEDS_PROCESS, ductile_unpin(a, block))                                                      \
    X(NEEDS_PROCESS, ductile_unexport(a, block))                                                   \
    X(NEEDS_PROCESS, ductile_import_close(a, block))                                               \
    X(NEEDS_PROCESS, ductile_set_captures(a, DUCTILE_CAPTURES_UNANNOUNCED))                        \
    X(NEEDS_PROCESS, set_limit(a, 64 * MIB))                                                       \
    X(NEEDS_PROCESS, set_soft_limit(a, 64 * MIB))                                                  \
    X(NEEDS_PROCESS, set_limit(a, DUCTILE_SHARE(0.5)))                                             \
    X(NEEDS_PROCESS, ductile_get_limits(a, &limits))                                               \
    X(NEEDS_PROCESS, ductile_get_stats(a, NULL, &stats))                                           \
    X(NEEDS_PROCESS, ductile_get_oom_report(a, &report))                                           \
    X(NEEDS_PROCESS, ductile_query_block(a, block, &info))                                         \
    X(NEEDS_PROCESS, ductile_walk(a, NULL, skip_block, NULL))                                      \
    X(NEEDS_PROCESS, ductile_snapshot_json(a, skip_text, NULL))                                    \
    X(NEEDS_PROCESS, ductile_check(a, text, sizeof text))                                          \
    X(NEEDS_PROCESS, ductile_get_stats(a, &pool, &stats))                                          \
    X(NEEDS_PROCESS, ductile_list_pools(a, &pool, &pool_info, 1, NULL))                            \
    X(NEEDS_PROCESS, ductile_walk(a, &pool, skip_block, NULL))                                     \
    X(NEEDS_PROCESS, ductile_add_oom_callback(a, free_nothing, NULL, 0, &bytes))                   \
    X(NEEDS_PROCESS, ductile_add_map_callback(a, hear_nothing, NULL, 0, &bytes))                   \
    X(NEEDS_PROCESS, ductile_remove_oom_callback(a, oom_callback))                                 \
    X(NEEDS_PROCESS, ductile_remove_map_callback(a, map_callback))

typedef struct answer {
    need need;
    const char *call;
    ductile_status status;
} answer;

enum { MOST_CALLS = 64 };

/* Makes every call once, and returns how many there are. */
static size_t ask_all(ductile_allocator *a, answer *answers) {
    ductile_addr address = 0;
    uint64_t bytes = 0;
    int is_pending = 0;
    ductile_elastic *other = NULL;
    char text[256];
    ductile_stats stats = {.struct_size = sizeof stats};
    ductile_limits limits = {.struct_size = sizeof limits};
    ductile_oom_report report = {.struct_size = sizeof report};
    ductile_block_info info = {.struct_size = sizeof info};
    ductile_pool_info pool_info = {.struct_size = sizeof pool_info};
    const ductile_sleep_request all = {.struct_size = sizeof all, .all = 1};
    size_t n = 0;
#define ASK(need, call) answers[n++] = (answer){need, #call, call};
    CALLS(ASK)
#undef ASK
    ductile_reset_peaks(a);
    ductile_options options = {.struct_size = sizeof options};
    if (a != NULL) {
        ductile_get_options(a, &options);
    }
    return n;
}

/* How many answered something else; each is printed. */
static int differing(ductile_allocator *a, ductile_status expected, bool of_all) {
    answer answers[MOST_CALLS];
    size_t n = ask_all(a, answers);
    int n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        bool counts = of_all || answers[i].need == NEEDS_DRIVER;
        if (counts && answers[i].status != expected) {
            (void)fprintf(stderr, "%s: %s, not %s\n", answers[i].call,
                          ductile_status_name(answers[i].status), ductile_status_name(expected));
            n_wrong++;
        }
    }
    return n_wrong;
}

/* An allocator with a block, a pool, and callbacks. */
static void open_everything(void) {
    const fixture_setup setup = {.n_streams = 2, .n_devices = 2};
    open_fixture(&setup);
    block = take(3 * MIB, 0);
    assert_ok(ductile_pool_retain(f.allocator, pool));
    assert_ok(ductile_elastic_open(f.allocator, 8 * MIB, f.streams[0], NULL, &range));
    assert_ok(ductile_add_oom_callback(f.allocator, free_nothing, NULL, 0, &oom_callback));
    assert_ok(ductile_add_map_callback(f.allocator, hear_nothing, NULL, 0, &map_callback));
}

static void close_everything(void) {
    give(block);
    assert_ok(ductile_elastic_close(range));
    assert_ok(ductile_pool_release(f.allocator, pool));
    close_audited();
}

/* ---- Claims -------------------------------------------------------------------------------- */

static uint64_t calls_before;

static int ask_in_child(void) {
    int n_wrong = differing(f.allocator, DUCTILE_ERR_FORKED, true) +
                  (ductile_destroy(f.allocator) != DUCTILE_ERR_FORKED);
    bool is_silent = fixture_state(&f).calls == calls_before;
    return is_silent ? n_wrong : 100 + n_wrong;
}

Test(refusals, every_call_in_a_forked_child_is_told_so) {
    open_everything();
    calls_before = fixture_state(&f).calls;
    cr_assert_eq(in_child(ask_in_child), 0);
    close_everything();
}

/* Registered before the library saw the process, so it runs when the library has seen its end. */
static void ask_at_exit(void) {
    int n_wrong = differing(f.allocator, DUCTILE_ERR_EXITING, false) +
                  (ductile_free(f.allocator, block) != DUCTILE_ERR_EXITING) +
                  (ductile_destroy(f.allocator) != DUCTILE_ERR_EXITING);
    _exit(fixture_state(&f).calls == calls_before ? 42 + n_wrong : 1);
}

static int exit_with_everything(void) {
    if (atexit(ask_at_exit) != 0) {
        return 2;
    }
    open_everything();
    calls_before = fixture_state(&f).calls;
    exit(3); /* the handler has the last word */
}

Test(refusals, every_call_that_needs_the_driver_is_told_of_the_exit) {
    cr_assert_eq(in_child(exit_with_everything), 42);
}

Test(refusals, every_call_without_an_allocator_is_an_invalid_argument) {
    open_everything();
    cr_assert_eq(differing(NULL, DUCTILE_ERR_INVALID_ARGUMENT, true), 0);
    close_everything();
}

Test(refusals, every_call_that_needs_the_driver_is_told_that_the_device_is_lost) {
    open_everything();
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .nth = 1, .code = DVMM_ILLEGAL_ADDRESS};
    ductile_addr none = 0;
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    assert_status(ductile_alloc(f.allocator, 64 * MIB, f.streams[0], &none),
                  DUCTILE_ERR_DEVICE_LOST);
    cr_assert_eq(differing(f.allocator, DUCTILE_ERR_DEVICE_LOST, false), 0);
    assert_status(ductile_destroy(f.allocator), DUCTILE_ERR_DEVICE_LOST);
    fixture_abandon(&f);
}

/* ---- Arguments that no call takes ---------------------------------------------------------- */

static const ductile_pool_id unknown = {5, 5};
static const ductile_pool_id none = {0, 0};

static ductile_sleep_request tagged(const ductile_sleep_tag *tag) {
    return (ductile_sleep_request){
        .struct_size = sizeof(ductile_sleep_request), .tags = tag, .n_tags = 1};
}

static const ductile_sleep_tag bad_tags[] = {
    {NULL, 0}, {"", 0}, {"weights", (ductile_contents)9}, {"nothing", DUCTILE_CONTENTS_POLICY}};

#define SET(...)                                                                                   \
    &(ductile_sleep_request) {                                                                     \
        .struct_size = sizeof(ductile_sleep_request), __VA_ARGS__                                  \
    }

#define WRONG(X)                                                                                   \
    X(INVALID_ARGUMENT, ductile_alloc(a, 1, own, NULL))                                            \
    X(INVALID_ARGUMENT, ductile_alloc_dedicated(a, 1, own, NULL))                                  \
    X(INVALID_ARGUMENT, ductile_elastic_open(a, MIB, own, NULL, NULL))                             \
    X(INVALID_ARGUMENT, ductile_elastic_open(a, 0, own, NULL, &other))                             \
    X(INVALID_ARGUMENT, ductile_elastic_open(a, UINT64_MAX, own, NULL, &other))                    \
    X(INVALID_ARGUMENT, ductile_elastic_open(a, MIB, own, &odd_unit, &other))                      \
    X(INVALID_ARGUMENT, ductile_elastic_open(a, MIB, own, &newer_units, &other))                   \
    X(INVALID_ARGUMENT, ductile_elastic_open(a, MIB, own, &no_units, &other))                      \
    X(INVALID_ARGUMENT, ductile_elastic_commit(range, 512, 2 * MIB))                               \
    X(INVALID_ARGUMENT, ductile_elastic_commit(range, 0, 512))                                     \
    X(INVALID_ARGUMENT, ductile_elastic_commit(range, 8 * MIB, 2 * MIB))                           \
    X(INVALID_ARGUMENT, ductile_elastic_commit(range, 2 * MIB, UINT64_MAX - 2 * MIB + 1))          \
    X(INVALID_ARGUMENT, ductile_elastic_decommit(range, 6 * MIB, 4 * MIB, NULL, 0))                \
    X(INVALID_ARGUMENT, ductile_elastic_decommit(range, 0, 2 * MIB, NULL, 1))                      \
    X(FOREIGN_POINTER, ductile_free_ex(a, 512, NULL, 0, &is_pending))                              \
    X(INVALID_ARGUMENT, ductile_free_ex(a, block, NULL, 1, NULL))                                  \
    X(INVALID_ARGUMENT, ductile_get_stats(a, NULL, NULL))                                          \
    X(INVALID_ARGUMENT, ductile_get_stats(a, NULL, &no_stats))                                     \
    X(INVALID_ARGUMENT, ductile_get_oom_report(a, &newer_report))                                  \
    X(INVALID_ARGUMENT, ductile_query_block(a, 1, NULL))                                           \
    X(INVALID_ARGUMENT, ductile_walk(a, NULL, NULL, NULL))                                         \
    X(INVALID_ARGUMENT, ductile_snapshot_json(a, NULL, NULL))                                      \
    X(INVALID_ARGUMENT, ductile_set_captures(a, (ductile_captures)3))                              \
    X(INVALID_ARGUMENT, set_limit(a, DUCTILE_SHARE(1.5)))                                          \
    X(INVALID_ARGUMENT, set_limit(a, DUCTILE_SHARE_FLAG))                                          \
    X(INVALID_ARGUMENT, ductile_set_limits(a, NULL))                                               \
    X(INVALID_ARGUMENT, ductile_add_oom_callback(a, NULL, NULL, 0, &id))                           \
    X(INVALID_ARGUMENT, ductile_add_oom_callback(a, free_nothing, NULL, 0, NULL))                  \
    X(INVALID_ARGUMENT, ductile_add_map_callback(a, NULL, NULL, 0, &id))                           \
    X(INVALID_ARGUMENT, ductile_add_map_callback(a, hear_nothing, NULL, 0, NULL))                  \
    X(INVALID_ARGUMENT, ductile_remove_map_callback(a, map_callback + 100))                        \
    X(INVALID_ARGUMENT, ductile_pool_retain(a, none))                                              \
    X(INVALID_ARGUMENT, ductile_pool_begin(a, none, NULL, NULL))                                   \
    X(INVALID_ARGUMENT, ductile_pool_set_kind(a, pool, (ductile_pool_kind)2))                      \
    X(INVALID_ARGUMENT, ductile_sleep(a, unknown, DUCTILE_CONTENTS_DROP))                          \
    X(INVALID_ARGUMENT, ductile_sleep(a, pool, (ductile_contents)5))                               \
    X(INVALID_ARGUMENT, ductile_sleep_set(a, NULL, NULL))                                          \
    X(INVALID_ARGUMENT, ductile_sleep_set(a, SET(.all = 1), &small))                               \
    X(INVALID_ARGUMENT, ductile_sleep_set(a, SET(.all = 1, .contents = (ductile_contents)77), 0))  \
    X(INVALID_ARGUMENT, ductile_sleep_set(a, SET(.all = 1, .n_pools = 1), NULL))                   \
    X(INVALID_ARGUMENT, ductile_sleep_set(a, SET(.pools = &unknown, .n_pools = 1), &report))       \
    X(INVALID_ARGUMENT, ductile_sleep_set(a, &large, NULL))                                        \
    X(INVALID_ARGUMENT, ductile_sleep_set(a, &tags[0], NULL))                                      \
    X(INVALID_ARGUMENT, ductile_sleep_set(a, &tags[1], NULL))                                      \
    X(INVALID_ARGUMENT, ductile_sleep_set(a, &tags[2], NULL))                                      \
    X(INVALID_ARGUMENT, ductile_sleep_set(a, &tags[3], NULL))                                      \
    X(INVALID_ARGUMENT, ductile_kept_contents(a, block, NULL, &id))                                \
    X(INTERIOR_POINTER, ductile_export(a, block + 512, 0))                                         \
    X(INVALID_ARGUMENT, ductile_export(a, block, -1))                                              \
    X(INVALID_ARGUMENT, ductile_export(a, block, 1000))                                            \
    X(INVALID_ARGUMENT, ductile_import(a, -1, NULL, &address, NULL))                               \
    X(INVALID_ARGUMENT, ductile_import(a, 0, (ductile_stream)(uintptr_t)2, &address, NULL))        \
    X(INVALID_ARGUMENT, ductile_import_tag(a, 0, NULL, (ductile_import_access)0, 0, &tag))         \
    X(INVALID_ARGUMENT, ductile_import_tag(a, 0, NULL, DUCTILE_IMPORT_READ, 0, NULL))              \
    X(INVALID_ARGUMENT, ductile_hold_tag(0, 0, NULL))                                              \
    X(INVALID_ARGUMENT, ductile_pass_held_tag(NULL, 0))                                            \
    X(INVALID_ARGUMENT, ductile_enable_peer(a, 0))                                                 \
    X(INVALID_ARGUMENT, ductile_enable_peer(a, -1))                                                \
    X(NO_DEVICE, ductile_enable_peer(a, 2))

/* Where an answer would be there are zeroes. */
Test(refusals, arguments_that_no_call_takes_are_refused_and_change_nothing) {
    const fixture_setup setup = {.n_streams = 2, .n_devices = 2, .conf = "shareable:fd"};
    open_fixture(&setup);
    ductile_allocator *a = f.allocator;
    const ductile_stream own = f.streams[0];
    ductile_sleep_request tags[4], large = *SET(.all = 1);
    ductile_sleep_report small = {.struct_size = 1}, report = {.struct_size = sizeof report};
    ductile_stats no_stats = {.struct_size = 0};
    ductile_oom_report newer_report = {.struct_size = sizeof newer_report + 1};
    ductile_imported_tag *tag = NULL;
    const ductile_elastic_options odd_unit = {sizeof odd_unit, 3 * MIB},
                                  newer_units = {sizeof newer_units + 8, 0}, no_units = {1, 0};
    ductile_elastic *other = NULL;
    ductile_addr address = 1;
    uint64_t id = 1;
    int is_pending = 7;
    block = take(3 * MIB, 0);
    assert_ok(ductile_elastic_open(a, 8 * MIB, own, NULL, &range));
    assert_ok(ductile_pool_retain(a, pool));
    large.struct_size++;
    for (size_t i = 0; i < 4; i++) {
        tags[i] = tagged(&bad_tags[i]);
    }
    ductile_stats before = fixture_stats(a);
#define REFUSED(status, call) assert_status(call, DUCTILE_ERR_##status);
    WRONG(REFUSED)
#undef REFUSED
    ductile_stats after = fixture_stats(a);
    after.driver_calls = before.driver_calls; /* what a device can do is asked of the driver */
#define SAME(name, meaning) assert_u64(after.name, before.name);
    DUCTILE_STATS_MAP(SAME)
#undef SAME
    assert_u64(id + address, 0);
    cr_assert(is_pending == 0 && tag == NULL && other == NULL);
    assert_ok(ductile_elastic_close(range));
    assert_ok(ductile_elastic_close(NULL));
    assert_u64(report.pool.first, unknown.first);
    assert_ok(ductile_import_release(a, NULL));
    ductile_drop_held_tag(NULL);
    assert_ok(ductile_pool_release(a, pool));
    close_audited();
}

/* ---- Callers built against an older header -------------------------------------------------- */

/* The struct ends before this field: something is written before it, and nothing from there on. */
#define assert_kept_short(type, field, call)                                                       \
    do {                                                                                           \
        type s;                                                                                    \
        memset(&s, 0xEE, sizeof s);                                                                \
        s.struct_size = offsetof(type, field);                                                     \
        call;                                                                                      \
        size_t n_same = 0;                                                                         \
        for (size_t i = sizeof s.struct_size; i < sizeof s; i++) {                                 \
            bool is_same = ((unsigned char *)&s)[i] == 0xEE;                                       \
            n_same += is_same && i < offsetof(type, field);                                        \
            cr_assert(is_same || i < offsetof(type, field), "%s, byte %zu", #type, i);             \
        }                                                                                          \
        cr_assert_eq(n_same, 0, "%s: %zu bytes were not written", #type, n_same);                  \
    } while (0)

Test(refusals, a_shorter_struct_gets_the_fields_that_fit) {
    open_fixture(NULL);
    ductile_allocator *a = f.allocator;
    block = take(1000, 0);
    assert_kept_short(ductile_stats, allocated_peak_bytes,
                      assert_ok(ductile_get_stats(a, NULL, &s)));
    assert_kept_short(ductile_options, zero, ductile_get_options(a, &s));
    assert_kept_short(ductile_oom_report, device, assert_ok(ductile_get_oom_report(a, &s)));
    close_audited();
}

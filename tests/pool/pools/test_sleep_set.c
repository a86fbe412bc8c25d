/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of pools that sleep and wake together: what a refusal says, kept contents on the host, and
 * what map callbacks are told. Which pools are in one and what becomes of them is
 * tests/scenarios/sleep.txt.
 */
#include "pool/base/allocator.h"
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"
#include "vmm/driver/driver.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#define G FIXTURE_GRANULE
#define N_PARTS 4
#define assert_text(got, expected) cr_assert_str_eq(got, expected, "%s", got)

static const ductile_pool_id DEFAULT = {0, 0};
static const ductile_pool_id BYPASS = {99, 0};

static fixture f;
static ductile_allocator *a;

/* One block in each pool: the default one, two of "weights" with different policies, "cache". */
typedef struct part {
    ductile_pool_id id;
    const char *tag;
    ductile_contents policy;
    ductile_addr block;
} part;

static part parts[N_PARTS];
static const part fresh_parts[N_PARTS] = {
    {{0, 0}, "", DUCTILE_CONTENTS_POLICY, 0},
    {{1, 0}, "weights", DUCTILE_CONTENTS_KEEP, 0},
    {{2, 0}, "weights", DUCTILE_CONTENTS_ZERO, 0},
    {{3, 0}, "cache", DUCTILE_CONTENTS_DROP, 0},
};

enum { BLOCK_BYTES = 3 * 1024 * 1024 };

static uint8_t byte_of(size_t i) {
    return (uint8_t)(0x11 * (i + 1));
}

static void fill(size_t i) {
    assert_ok(ductile_virtual_fill(f.gpu, parts[i].block, byte_of(i), BLOCK_BYTES, f.streams[0]));
}

static void make_part(size_t i) {
    part *p = &parts[i];
    if (p->id.first != 0) {
        assert_ok(ductile_pool_begin(a, p->id, NULL, NULL));
    }
    assert_ok(ductile_alloc(a, BLOCK_BYTES, f.streams[0], &p->block));
    if (p->id.first != 0) {
        assert_ok(ductile_pool_end(a, p->id));
        assert_ok(ductile_pool_set_tag(a, p->id, p->tag, p->policy));
    }
    fill(i);
}

static void open_all(void) {
    const fixture_setup setup = {
        .capacity_bytes = 64 * MIB, .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    memcpy(parts, fresh_parts, sizeof parts);
    assert_fine(fixture_open(&f, &setup));
    a = f.allocator;
    for (size_t i = 0; i < N_PARTS; i++) {
        make_part(i);
    }
}

static void close_all(void) {
    assert_fine(audit_allocator(a, NULL));
    for (size_t i = 0; i < N_PARTS; i++) {
        assert_ok(ductile_free(a, parts[i].block));
        if (parts[i].id.first != 0) {
            assert_ok(ductile_pool_release(a, parts[i].id));
        }
    }
    assert_fine(fixture_close(&f));
}

TestSuite(sleep_set, .init = open_all, .fini = close_all);

static ductile_pool_info info_of(ductile_pool_id id) {
    ductile_pool_info info = {.struct_size = sizeof info};
    assert_ok(ductile_list_pools(a, &id, &info, 1, NULL));
    return info;
}

/* Which of the four sleep, as four bits. */
static unsigned asleep(void) {
    unsigned bits = 0;
    for (size_t i = 0; i < N_PARTS; i++) {
        bits |= (unsigned)(info_of(parts[i].id).state == DUCTILE_POOL_ASLEEP) << i;
    }
    return bits;
}

static void assert_holds(size_t i, uint8_t value) {
    static uint8_t bytes[BLOCK_BYTES];
    assert_ok(ductile_virtual_read_back(f.gpu, bytes, parts[i].block, sizeof bytes, f.streams[0]));
    bool is_one_value = memcmp(bytes, bytes + 1, sizeof bytes - 1) == 0;
    cr_assert(is_one_value && bytes[0] == value, "part %zu begins with %02x and not %02x%s", i,
              bytes[0], value, is_one_value ? "" : ", and goes on otherwise");
}

static ductile_sleep_request all_pools(void) {
    return (ductile_sleep_request){.struct_size = sizeof(ductile_sleep_request), .all = 1};
}

static ductile_sleep_request tagged(const ductile_sleep_tag *tag) {
    return (ductile_sleep_request){
        .struct_size = sizeof(ductile_sleep_request), .tags = tag, .n_tags = 1};
}

static const ductile_sleep_tag WEIGHTS = {"weights", DUCTILE_CONTENTS_POLICY};
static const ductile_sleep_tag CACHE = {"cache", DUCTILE_CONTENTS_POLICY};

static ductile_status pause(const ductile_sleep_request *r, ductile_sleep_report *report) {
    *report = (ductile_sleep_report){.struct_size = sizeof *report};
    return ductile_pause_set(a, r, report);
}

static ductile_status resume(const ductile_sleep_request *r, ductile_sleep_report *report) {
    *report = (ductile_sleep_report){.struct_size = sizeof *report};
    return ductile_resume_set(a, r, report);
}

/* ---- Repeats and mistakes ------------------------------------------------------------------ */

/* Whether they are refused, and that they change nothing, is in sleep.txt. */
Test(sleep_set, a_refusal_says_what_stopped_it) {
    const ductile_sleep_tag both[] = {WEIGHTS, CACHE};
    const ductile_sleep_tag unknown = {"nothing", DUCTILE_CONTENTS_POLICY};
    const ductile_pool_id none = {7, 7};
    ductile_sleep_request r = tagged(&CACHE);
    ductile_sleep_report report;
    assert_status(resume(&r, &report), DUCTILE_ERR_AWAKE);
    assert_text(report.tag, "cache");
    assert_ok(pause(&r, &report));
    r = tagged(both);
    r.n_tags = 2;
    assert_status(pause(&r, &report), DUCTILE_ERR_ASLEEP);
    assert_text(report.tag, "cache");
    cr_assert_not_null(strstr(report.message, "sleeps already"), "%s", report.message);
    assert_ok(ductile_resume(a, parts[3].id));
    r = tagged(&unknown);
    assert_status(pause(&r, &report), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_text(report.tag, "nothing");
    r = (ductile_sleep_request){.struct_size = sizeof r, .pools = &none, .n_pools = 1};
    assert_status(pause(&r, &report), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_u64(report.pool.first, 7);
    r = (ductile_sleep_request){.struct_size = sizeof r};
    assert_status(pause(&r, &report), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(report.message, "names no pool"), "%s", report.message);
}

Test(sleep_set, malformed_requests_are_refused) {
    ductile_sleep_request r = all_pools();
    ductile_sleep_report report = {.struct_size = 1};
    const ductile_sleep_tag bad[] = {{NULL, 0}, {"", 0}, {"weights", (ductile_contents)9}};
    assert_status(ductile_pause_set(NULL, &r, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pause_set(a, NULL, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pause_set(a, &r, &report), DUCTILE_ERR_INVALID_ARGUMENT);
    for (size_t i = 0; i < 3; i++) {
        r = tagged(&bad[i]);
        assert_status(pause(&r, &report), DUCTILE_ERR_INVALID_ARGUMENT);
    }
    r = all_pools();
    r.contents = (ductile_contents)77;
    assert_status(pause(&r, &report), DUCTILE_ERR_INVALID_ARGUMENT);
    r = all_pools();
    r.n_pools = 1;
    assert_status(pause(&r, &report), DUCTILE_ERR_INVALID_ARGUMENT);
    r = all_pools();
    r.struct_size = sizeof r + 1;
    assert_status(ductile_pause_set(a, &r, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_u64(asleep(), 0);
}

Test(sleep_set, a_tag_is_set_while_its_pool_is_awake) {
    char longest[DUCTILE_TAG_BYTES + 1];
    memset(longest, 'x', sizeof longest);
    longest[DUCTILE_TAG_BYTES] = '\0';
    assert_status(ductile_pool_set_tag(a, parts[3].id, longest, 0), DUCTILE_ERR_INVALID_ARGUMENT);
    longest[DUCTILE_TAG_BYTES - 1] = '\0';
    assert_ok(ductile_pool_set_tag(a, DEFAULT, longest, DUCTILE_CONTENTS_DROP));
    assert_text(info_of(DEFAULT).tag, longest);
    assert_u64(info_of(DEFAULT).policy, DUCTILE_CONTENTS_DROP);
    assert_ok(ductile_pool_set_tag(a, DEFAULT, NULL, DUCTILE_CONTENTS_POLICY));
    assert_text(info_of(DEFAULT).tag, "");
    assert_ok(ductile_pause(a, parts[3].id, DUCTILE_CONTENTS_POLICY));
    assert_status(ductile_pool_set_tag(a, parts[3].id, "other", 0), DUCTILE_ERR_ASLEEP);
    assert_ok(ductile_resume(a, parts[3].id));
}

/* ---- Contents ------------------------------------------------------------------------------ */

Test(sleep_set, kept_contents_can_be_read_and_changed_without_waking) {
    uint8_t *host = NULL;
    uint64_t bytes = 0;
    ductile_addr inside = parts[1].block + 1000;
    assert_status(ductile_kept_contents(a, inside, (void **)&host, &bytes), DUCTILE_ERR_AWAKE);
    assert_ok(ductile_pause(a, parts[1].id, DUCTILE_CONTENTS_POLICY));
    assert_ok(ductile_kept_contents(a, inside, (void **)&host, &bytes));
    assert_u64(bytes, BLOCK_BYTES - 1000);
    for (uint64_t i = 0; i < bytes; i++) {
        cr_assert_eq(host[i], byte_of(1));
    }
    assert_ok(ductile_kept_contents(a, parts[1].block, (void **)&host, NULL));
    memset(host, 0x5A, BLOCK_BYTES);
    assert_ok(ductile_resume(a, parts[1].id));
    assert_holds(1, 0x5A);
}

/* The driver takes a copy's page-locked memory from one registration only. */
Test(sleep_set, kept_contents_of_a_block_can_be_copied_at_once_wherever_they_lie) {
    ductile_sleep_request all = all_pools();
    ductile_sleep_report report;
    for (uint64_t mib = 2; mib <= 12; mib += 2) { /* registrations that end within blocks */
        assert_ok(ductile_sleep_reserve(a, mib << 20, NULL));
    }
    all.contents = DUCTILE_CONTENTS_KEEP;
    assert_ok(pause(&all, &report));
    ductile_addr to;
    assert_ok(ductile_pool_begin(a, BYPASS, NULL, NULL));
    assert_ok(ductile_alloc(a, BLOCK_BYTES, f.streams[0], &to));
    assert_ok(ductile_pool_end(a, BYPASS));
    for (size_t i = 0; i < N_PARTS; i++) {
        uint64_t bytes = 0;
        void *host = NULL;
        assert_ok(ductile_kept_contents(a, parts[i].block, &host, &bytes));
        assert_u64(bytes, BLOCK_BYTES);
        assert_ok(ductile_virtual_upload(f.gpu, to, host, bytes, f.streams[0]));
    }
    assert_ok(resume(&all, &report));
    for (size_t i = 0; i < N_PARTS; i++) {
        assert_holds(i, byte_of(i));
    }
}

Test(sleep_set, contents_that_were_not_kept_have_no_host_address) {
    void *host = a;
    uint64_t bytes = 1;
    assert_ok(ductile_pause(a, parts[3].id, DUCTILE_CONTENTS_POLICY));
    assert_status(ductile_kept_contents(a, parts[3].block, &host, &bytes), DUCTILE_ERR_UNSUPPORTED);
    cr_assert_null(host);
    assert_u64(bytes, 0);
    assert_status(ductile_kept_contents(a, 4096, &host, &bytes), DUCTILE_ERR_FOREIGN_POINTER);
    assert_status(ductile_kept_contents(a, parts[3].block, NULL, &bytes),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_ok(ductile_resume(a, parts[3].id));
}

/* ---- Requests meanwhile -------------------------------------------------------------------- */

Test(sleep_set, a_request_to_sleeping_memory_is_told_the_tag) {
    ductile_addr none = 1;
    ductile_refusal refusal = {.struct_size = sizeof refusal};
    assert_ok(ductile_pause(a, parts[1].id, DUCTILE_CONTENTS_POLICY));
    assert_ok(ductile_pool_begin(a, parts[1].id, NULL, NULL));
    assert_status(ductile_alloc(a, 1024, f.streams[0], &none), DUCTILE_ERR_ASLEEP);
    assert_ok(ductile_sleep_refusal(a, &refusal));
    assert_text(refusal.tag, "weights");
    assert_u64(refusal.pool.first, 1);
    assert_u64(refusal.bytes, 1024);
    assert_ok(ductile_pool_end(a, parts[1].id));
    assert_ok(ductile_pool_release(a, parts[1].id));
    assert_ok(ductile_resume(a, parts[1].id));
}

/* ---- Map callbacks ------------------------------------------------------------------------- */

static void *pause_default(void *unused) {
    (void)unused;
    assert_ok(ductile_pause(a, DEFAULT, DUCTILE_CONTENTS_DROP));
    return NULL;
}

/* In the middle of a hit: once, another thread begins to pause the pool that it is served from. */
static void pause_meanwhile(void *user, dvmm_call call, int code, uint64_t address, uint64_t size) {
    (void)call, (void)code, (void)address, (void)size;
    dvmm_set_trace(a->driver, NULL, NULL, false);
    cr_assert_eq(pthread_create(user, NULL, pause_default, NULL), 0);
    while (info_of(DEFAULT).state != DUCTILE_POOL_PAUSING) {
        (void)sched_yield();
    }
}

/* The late thread has seen no route before the pause began, and is served from the quick path. */
Test(sleep_set, a_hit_that_began_before_the_pause_gets_nothing_that_sleeps) {
    pthread_t sleeper;
    ductile_addr used = 0, hits[4], late = 0;
    assert_ok(ductile_alloc(a, 512, f.streams[0], &used));
    assert_ok(ductile_record_stream(a, used, f.streams[1]));
    assert_ok(ductile_virtual_fill(f.gpu, used, 1, 512, f.streams[1]));
    assert_ok(ductile_free(a, used)); /* pending: the 1st, 2nd, 4th and 8th hit from here polls */
    for (int i = 0; i < 4; i++) {
        dvmm_set_trace(a->driver, i == 3 ? pause_meanwhile : NULL, &sleeper, true);
        assert_ok(ductile_alloc(a, 512, f.streams[0], &hits[i]));
    }
    cr_assert_eq(pthread_join(sleeper, NULL), 0);
    atomic_store(&a->has_routes, false);
    assert_status(ductile_alloc(a, 512, f.streams[0], &late), DUCTILE_ERR_ASLEEP);
    atomic_store(&a->has_routes, true);
    assert_ok(ductile_resume(a, DEFAULT));
    for (int i = 0; i < 4; i++) {
        assert_ok(ductile_free(a, hits[i]));
    }
}

static uint64_t heard[2][N_PARTS + 1]; /* by change and pool: bytes */
static bool tags_are_right;

static void hear(void *user, ductile_allocator *allocator, const ductile_map_event *event) {
    (void)user, (void)allocator;
    heard[event->change][event->pool.first] += event->size;
    bool is_weights = event->pool.first == 1 || event->pool.first == 2;
    tags_are_right &= (strcmp(event->tag, "weights") == 0) == is_weights;
}

Test(sleep_set, map_callbacks_hear_of_each_range_with_its_tag) {
    uint64_t id = 0;
    ductile_sleep_request r = all_pools();
    ductile_sleep_report report;
    memset(heard, 0, sizeof heard);
    tags_are_right = true;
    assert_ok(ductile_add_map_callback(a, hear, NULL, 0, &id));
    assert_ok(pause(&r, &report));
    uint64_t left = 0;
    for (size_t i = 0; i < N_PARTS; i++) {
        cr_assert_gt(heard[DUCTILE_MAP_LEAVING][i], 0);
        left += heard[DUCTILE_MAP_LEAVING][i];
    }
    assert_u64(left, report.bytes);
    assert_ok(resume(&r, &report));
    for (size_t i = 0; i < N_PARTS; i++) {
        assert_u64(heard[DUCTILE_MAP_MAPPED][i], heard[DUCTILE_MAP_LEAVING][i]);
    }
    cr_assert(tags_are_right);
    assert_ok(ductile_remove_map_callback(a, id));
}

static char told[DUCTILE_TAG_BYTES];

static void rename_pool(void *user, ductile_allocator *allocator, const ductile_map_event *event) {
    (void)user;
    assert_ok(ductile_pool_set_tag(allocator, event->pool, "renamed", DUCTILE_CONTENTS_DROP));
    if (told[0] == '\0') { /* of the first handle */
        (void)strncpy(told, event->tag, sizeof told - 1);
    }
}

Test(sleep_set, the_tag_of_an_event_stays_while_a_callback_sees_it) {
    uint64_t id = 0;
    ductile_addr block = 0;
    told[0] = '\0';
    assert_ok(ductile_add_map_callback(a, rename_pool, NULL, 0, &id));
    assert_ok(ductile_pool_begin(a, parts[3].id, NULL, NULL));
    assert_ok(ductile_alloc(a, 2 * G, f.streams[1], &block));
    assert_ok(ductile_pool_end(a, parts[3].id));
    assert_ok(ductile_pool_release(a, parts[3].id));
    assert_ok(ductile_remove_map_callback(a, id));
    assert_text(told, "cache");
    assert_text(info_of(parts[3].id).tag, "renamed");
    assert_ok(ductile_free(a, block));
}

static char logged[256];

static void keep_line(void *user, ductile_log_level level, const char *line) {
    (void)user, (void)level;
    (void)strncpy(logged, line, sizeof logged - 1);
}

Test(sleep_set, a_call_that_the_driver_failed_is_named_in_the_report_and_in_the_log) {
    ductile_sleep_request r = all_pools();
    ductile_sleep_report report;
    a->options.log = keep_line;
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "download", .nth = 1, .code = DVMM_UNKNOWN};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    assert_status(pause(&r, &report), DUCTILE_ERR_DRIVER);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    cr_assert_not_null(strstr(report.message, "download"), "%s", report.message);
    cr_assert_not_null(strstr(report.message, "999"), "%s", report.message);
    assert_text(logged, report.message);
    a->options.log = NULL;
}

/* ---- Copies that stay ---------------------------------------------------------------------- */

static void *kept(size_t i) {
    void *host = NULL;
    assert_ok(ductile_kept_contents(a, parts[i].block, &host, NULL));
    return host;
}

Test(sleep_set, retained_contents_stay_in_their_place_until_a_resume_does_not_retain_them) {
    ductile_sleep_request r = tagged(&WEIGHTS);
    ductile_sleep_report report;
    uint64_t bytes = 0;
    void *host = NULL;
    r.retain = 1;
    r.contents = DUCTILE_CONTENTS_KEEP;
    assert_ok(pause(&r, &report));
    void *place = kept(1);
    assert_ok(resume(&r, &report));
    cr_assert_eq(kept(1), place);
    assert_ok(pause(&r, &report));
    cr_assert_eq(kept(1), place);
    r.retain = 0;
    assert_ok(resume(&r, &report));
    assert_status(ductile_kept_contents(a, parts[1].block, &host, &bytes), DUCTILE_ERR_AWAKE);
    assert_holds(1, byte_of(1));
}

/* ---- Copies whose end is not seen ---------------------------------------------------------- */

enum { N_LARGE = 2 }; /* blocks, each of them a step of a save */

/* Behind the last copy out nothing can be waited for. */
static void fail_the_waits(void *user, dvmm_call call, int code, uint64_t address, uint64_t size) {
    (void)code, (void)address, (void)size;
    int *n_copies = user;
    *n_copies += call == DVMM_CALL_download;
    if (*n_copies == N_LARGE) {
        const ductile_virtual_fault all = {
            .struct_size = sizeof all, .nth = 1, .code = DVMM_UNKNOWN, .persistent = 1};
        dvmm_set_trace(a->driver, NULL, NULL, false);
        assert_ok(ductile_virtual_inject(f.gpu, &all));
    }
}

static uint64_t open_events(void) {
    return ductile_virtual_count(f.gpu, "event_create") -
           ductile_virtual_count(f.gpu, "event_destroy");
}

static void sleep_and_wake(void) {
    ductile_sleep_request r = tagged(&CACHE);
    ductile_sleep_report report;
    r.contents = DUCTILE_CONTENTS_KEEP;
    r.retain = 1;
    assert_ok(pause(&r, &report));
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    assert_ok(resume(&r, &report));
}

Test(sleep_alone, a_copy_whose_end_was_not_seen_leaves_no_event_behind) {
    const fixture_setup setup = {.capacity_bytes = GIB, .n_streams = 1};
    ductile_addr large[N_LARGE];
    int n_copies = 0;
    assert_fine(fixture_open(&f, &setup));
    a = f.allocator;
    assert_ok(ductile_pool_begin(a, BYPASS, NULL, NULL));
    assert_ok(ductile_pool_set_tag(a, BYPASS, "cache", DUCTILE_CONTENTS_KEEP));
    for (int i = 0; i < N_LARGE; i++) {
        assert_ok(ductile_alloc(a, 128 * MIB, f.streams[0], &large[i]));
    }
    assert_ok(ductile_pool_end(a, BYPASS));
    sleep_and_wake();
    uint64_t before = open_events();
    dvmm_set_trace(a->driver, fail_the_waits, &n_copies, true);
    sleep_and_wake();
    sleep_and_wake();
    assert_u64(open_events(), before);
    for (int i = 0; i < N_LARGE; i++) {
        assert_ok(ductile_free(a, large[i]));
    }
    assert_ok(ductile_pool_release(a, BYPASS));
    assert_fine(fixture_close(&f));
}

/* ---- What a thread gets that uses what sleeps ---------------------------------------------- */

static void *use_it(void *block) {
    const ductile_virtual_use store = {*(ductile_addr *)block, 512, 1};
    assert_status(ductile_virtual_launch(f.gpu, f.streams[1], &store, 1), DUCTILE_ERR_DEVICE_LOST);
    return NULL;
}

/* As of any address without memory. What sleeps cannot wake after that, and nothing else goes on.
 */
Test(sleep_alone, a_thread_that_uses_what_sleeps_ends_the_context_and_each_call_says_so) {
    const fixture_setup setup = {.capacity_bytes = 64 * MIB, .n_streams = 2};
    pthread_t thread;
    ductile_sleep_report report;
    ductile_addr other = 0;
    memcpy(parts, fresh_parts, sizeof parts);
    assert_fine(fixture_open(&f, &setup));
    a = f.allocator;
    make_part(1);
    const ductile_sleep_request all = {.struct_size = sizeof all, .all = 1};
    assert_ok(pause(&all, &report));
    cr_assert_eq(pthread_create(&thread, NULL, use_it, &parts[1].block), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_status(resume(&all, &report), DUCTILE_ERR_DEVICE_LOST);
    assert_status(ductile_alloc(a, 512, f.streams[0], &other), DUCTILE_ERR_DEVICE_LOST);
    assert_status(ductile_destroy(a), DUCTILE_ERR_DEVICE_LOST);
    f.allocator = NULL;
    fixture_abandon(&f);
}

/* ---- Copies in ----------------------------------------------------------------------------- */

typedef struct order_seen {
    uint64_t n_maps, n_maps_at_first_upload;
} order_seen;

static void note_order(void *user, dvmm_call call, int code, uint64_t address, uint64_t size) {
    (void)code, (void)address, (void)size;
    order_seen *seen = user;
    seen->n_maps += call == DVMM_CALL_map;
    if (call == DVMM_CALL_upload && seen->n_maps_at_first_upload == 0) {
        seen->n_maps_at_first_upload = seen->n_maps;
    }
}

Test(sleep_alone, contents_come_back_while_the_rest_is_still_being_mapped) {
    const fixture_setup setup = {.capacity_bytes = 4 * GIB, .n_streams = 1};
    ductile_sleep_report report;
    ductile_addr large = 0;
    order_seen seen = {0, 0};
    assert_fine(fixture_open(&f, &setup));
    a = f.allocator;
    assert_ok(ductile_alloc(a, GIB, f.streams[0], &large));
    const ductile_sleep_request all = {.struct_size = sizeof all, .all = 1};
    assert_ok(pause(&all, &report));
    dvmm_set_trace(a->driver, note_order, &seen, true);
    assert_ok(resume(&all, &report));
    dvmm_set_trace(a->driver, NULL, NULL, false);
    assert_u64(report.copied_bytes, GIB);
    cr_assert_lt(seen.n_maps_at_first_upload, seen.n_maps / 2, "%llu of %llu maps",
                 (unsigned long long)seen.n_maps_at_first_upload, (unsigned long long)seen.n_maps);
    assert_ok(ductile_free(a, large));
    assert_fine(fixture_close(&f));
}

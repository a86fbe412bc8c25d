/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private pools: which requests go to them, how long they live, and what may become of their
 * memory. The device is lazy where it matters what is proven.
 */
#include "tests/support/complain.h"
#include "tests/support/one_fixture.h"
#include "vmm/driver/driver.h"
#include "vmm/driver/open_virtual.h"

#include <pthread.h>
#include <stdatomic.h>

static const ductile_pool_id NONE = {0, 0};
static const ductile_pool_id ONE = {1, 0};
static const ductile_pool_id TWO = {0, 2};

static ductile_allocator *a;
static dvmm_driver *driver; /* a second way to the same device */

static void open_lazy(void) {
    open_fixture(&(fixture_setup){
        .capacity_bytes = 64 * MIB, .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3});
    a = f.allocator;
    assert_ok(dvmm_open_virtual(f.gpu, &driver, NULL, 0));
}

static void close_lazy(void) {
    dvmm_close(driver);
    close_audited();
}

TestSuite(pools, .init = open_lazy, .fini = close_lazy);

static ductile_pool_id pool_of(ductile_addr address) {
    ductile_block_info info = {.struct_size = sizeof info};
    assert_ok(ductile_query_block(a, address, &info));
    return info.pool;
}

#define assert_pool(address, expected)                                                             \
    do {                                                                                           \
        ductile_pool_id pool_got = pool_of(address);                                               \
        assert_u64(pool_got.first, (expected).first);                                              \
        assert_u64(pool_got.second, (expected).second);                                            \
    } while (0)

static void begin(ductile_pool_id id) {
    assert_ok(ductile_pool_begin(a, id, NULL, NULL));
}

static ductile_stats stats_of(ductile_pool_id id) {
    ductile_stats s = {.struct_size = sizeof s};
    assert_ok(ductile_pool_get_stats(a, id, &s));
    return s;
}

static ductile_pool_info info_of(ductile_pool_id id) {
    ductile_pool_info info = {.struct_size = sizeof info};
    assert_ok(ductile_pool_query(a, id, &info));
    return info;
}

static void assert_no_pool(ductile_pool_id id) {
    ductile_pool_info info = {.struct_size = sizeof info};
    assert_status(ductile_pool_query(a, id, &info), DUCTILE_ERR_INVALID_ARGUMENT);
}

/* A plain pool with one reference. */
static void make_plain(ductile_pool_id id) {
    assert_ok(ductile_pool_retain(a, id));
    assert_ok(ductile_pool_set_kind(a, id, DUCTILE_POOL_PLAIN));
}

static void wait_for_all(void) {
    assert_fine(fixture_sync_all(&f));
}

/* ---- Routing ------------------------------------------------------------------------------- */

Test(pools, requests_of_the_thread_go_to_the_pool_it_opened) {
    ductile_addr before = take(1000, 0);
    begin(ONE);
    ductile_addr inside = take(1000, 0);
    assert_ok(ductile_pool_end(a, ONE));
    ductile_addr after = take(1000, 0);
    assert_pool(before, NONE);
    assert_pool(inside, ONE);
    assert_pool(after, NONE);
    assert_u64(stats_of(ONE).live_blocks, 1);
    assert_u64(stats_of(NONE).live_blocks, 2);
    assert_u64(stats_of(ONE).reserved_bytes, FIXTURE_GRANULE);
    assert_ok(ductile_pool_release(a, ONE));
}

Test(pools, the_pool_opened_last_serves_first) {
    begin(ONE);
    begin(TWO);
    ductile_addr inner = take(1000, 0);
    assert_ok(ductile_pool_end(a, TWO));
    ductile_addr outer = take(1000, 0);
    assert_ok(ductile_pool_end(a, ONE));
    assert_pool(inner, TWO);
    assert_pool(outer, ONE);
    assert_ok(ductile_pool_release(a, ONE));
    assert_ok(ductile_pool_release(a, TWO));
}

Test(pools, the_outer_pool_may_end_first) {
    begin(ONE);
    begin(TWO);
    assert_ok(ductile_pool_end(a, ONE));
    assert_pool(take(1000, 0), TWO);
    assert_ok(ductile_pool_end(a, TWO));
    assert_pool(take(1000, 0), NONE);
    assert_ok(ductile_pool_release(a, ONE));
    assert_ok(ductile_pool_release(a, TWO));
}

static int is_that_stream(void *user, ductile_stream stream) {
    return stream == *(const ductile_stream *)user;
}

Test(pools, a_filter_chooses_by_stream) {
    assert_ok(ductile_pool_begin(a, ONE, is_that_stream, &f.streams[1]));
    assert_pool(take(1000, 1), ONE);
    assert_pool(take(1000, 0), NONE);
    assert_ok(ductile_pool_end(a, ONE));
    assert_pool(take(1000, 1), NONE);
    assert_ok(ductile_pool_release(a, ONE));
}

/* What another thread does, once. */
typedef struct errand {
    void (*run)(void);
    ductile_status status;
    ductile_addr address;
} errand;

static errand theirs;

static void *run_errand(void *unused) {
    (void)unused;
    theirs.run();
    return NULL;
}

static void on_another_thread(void (*run)(void)) {
    pthread_t thread;
    theirs.run = run;
    cr_assert_eq(pthread_create(&thread, NULL, run_errand, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_ok(theirs.status);
}

static void alloc_there(void) {
    theirs.status = ductile_alloc(a, 1000, f.streams[0], &theirs.address);
}

static void begin_there(void) {
    theirs.status = ductile_pool_begin(a, ONE, NULL, NULL);
}

static void end_there(void) {
    theirs.status = ductile_pool_end(a, ONE);
}

Test(pools, requests_of_other_threads_do_not) {
    begin(ONE);
    on_another_thread(alloc_there);
    assert_pool(theirs.address, NONE);
    assert_ok(ductile_pool_end(a, ONE));
    assert_ok(ductile_pool_release(a, ONE));
}

Test(pools, a_pool_may_be_ended_by_another_thread) {
    begin(ONE);
    on_another_thread(end_there);
    assert_u64(info_of(ONE).open, 0);
    assert_pool(take(1000, 0), NONE);
    assert_ok(ductile_pool_release(a, ONE));
}

Test(pools, a_thread_ends_its_own_before_anybody_elses) {
    begin(ONE);
    on_another_thread(begin_there); /* newer, and its thread is gone */
    assert_u64(info_of(ONE).open, 2);
    assert_pool(take(1000, 0), ONE);
    assert_ok(ductile_pool_end(a, ONE));
    assert_u64(info_of(ONE).open, 1);
    assert_pool(take(1000, 0), NONE);
    assert_ok(ductile_pool_end(a, ONE));
    assert_status(ductile_pool_end(a, ONE), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_ok(ductile_pool_release(a, ONE));
    assert_ok(ductile_pool_release(a, ONE));
}

/* A filter that is slow to answer: the end waits for it, and nobody asks it afterwards. */
typedef struct slow_filter {
    _Atomic int is_inside;
    _Atomic int may_leave;
    _Atomic int n_asked;
} slow_filter;

static slow_filter slow;

static int answer_slowly(void *user, ductile_stream stream) {
    (void)stream;
    slow_filter *s = user;
    atomic_fetch_add(&s->n_asked, 1);
    atomic_store(&s->is_inside, 1);
    while (atomic_load(&s->may_leave) == 0) {
    }
    atomic_store(&s->is_inside, 0);
    return 1;
}

static void *let_out_later(void *unused) {
    (void)unused;
    const struct timespec moment = {.tv_nsec = 20000000};
    (void)nanosleep(&moment, NULL);
    atomic_store(&slow.may_leave, 1);
    return NULL;
}

static void *ask(void *unused) {
    (void)unused;
    alloc_there();
    return NULL;
}

Test(pools, nobody_is_inside_the_filter_after_the_end) {
    pthread_t asker;
    pthread_t opener;
    assert_ok(ductile_pool_begin(a, ONE, answer_slowly, &slow));
    cr_assert_eq(pthread_create(&asker, NULL, ask, NULL), 0);
    while (atomic_load(&slow.is_inside) == 0) {
    }
    cr_assert_eq(pthread_create(&opener, NULL, let_out_later, NULL), 0);
    assert_ok(ductile_pool_end(a, ONE));
    cr_assert_eq(atomic_load(&slow.is_inside), 0);
    cr_assert_eq(pthread_join(asker, NULL), 0);
    cr_assert_eq(pthread_join(opener, NULL), 0);
    assert_pool(theirs.address, NONE); /* it had ended before the answer came */
    (void)take(1000, 0);
    cr_assert_eq(atomic_load(&slow.n_asked), 1);
    assert_ok(ductile_pool_release(a, ONE));
}

/* ---- References ---------------------------------------------------------------------------- */

Test(pools, wrong_calls_are_refused) {
    assert_status(ductile_pool_retain(a, NONE), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pool_begin(a, NONE, NULL, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pool_end(a, ONE), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pool_release(a, ONE), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pool_trim(a, ONE, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pool_set_kind(a, ONE, DUCTILE_POOL_PLAIN), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_no_pool(ONE);
}

Test(pools, a_pool_goes_with_its_last_reference) {
    assert_ok(ductile_pool_retain(a, ONE));
    begin(ONE);
    assert_u64(info_of(ONE).references, 2);
    assert_ok(ductile_pool_end(a, ONE));
    assert_ok(ductile_pool_release(a, ONE));
    assert_u64(info_of(ONE).references, 1);
    assert_ok(ductile_pool_release(a, ONE));
    assert_no_pool(ONE);
}

Test(pools, live_blocks_outlive_their_pool) {
    begin(ONE);
    ductile_addr address = take(1000, 0);
    assert_ok(ductile_pool_end(a, ONE));
    assert_ok(ductile_pool_release(a, ONE));
    assert_u64(info_of(ONE).references, 0);
    assert_pool(address, ONE);
    assert_ok(ductile_free(a, address));
    wait_for_all();
    assert_ok(ductile_empty_cache(a));
    assert_no_pool(ONE);
    assert_u64(fixture_stats(a).reserved_bytes, 0);
}

Test(pools, a_kind_is_chosen_before_there_is_memory) {
    make_plain(ONE);
    cr_assert_eq(info_of(ONE).kind, DUCTILE_POOL_PLAIN);
    assert_ok(ductile_pool_set_kind(a, ONE, DUCTILE_POOL_CAPTURE));
    begin(ONE);
    (void)take(1000, 0);
    assert_ok(ductile_pool_end(a, ONE));
    assert_status(ductile_pool_set_kind(a, ONE, DUCTILE_POOL_PLAIN), DUCTILE_ERR_BUSY);
    assert_ok(ductile_pool_release(a, ONE));
    assert_ok(ductile_pool_release(a, ONE));
}

/* ---- What becomes of memory ---------------------------------------------------------------- */

/* A pool that has had `n` blocks of one granule and holds no live one. */
static void fill_and_free(ductile_pool_id id, size_t n, size_t stream) {
    ductile_addr blocks[32];
    begin(id);
    for (size_t i = 0; i < n; i++) {
        blocks[i] = take(FIXTURE_GRANULE, stream);
    }
    for (size_t i = 0; i < n; i++) {
        assert_ok(ductile_free(a, blocks[i]));
    }
    assert_ok(ductile_pool_end(a, id));
}

Test(pools, a_pool_reuses_its_own_memory) {
    begin(ONE);
    ductile_addr first = take(5000, 0);
    assert_ok(ductile_free(a, first));
    ductile_addr again = take(5000, 0);
    assert_u64(again, first);
    assert_ok(ductile_pool_end(a, ONE));
    assert_ok(ductile_pool_release(a, ONE));
}

Test(pools, graph_memory_stays_where_it_is) {
    fill_and_free(ONE, 4, 0);
    wait_for_all();
    assert_ok(ductile_empty_cache(a));
    assert_ok(ductile_pool_trim(a, ONE, NULL));
    assert_u64(stats_of(ONE).reserved_bytes, 4 * FIXTURE_GRANULE);
    /* Nobody else gets it, whatever he asks for. */
    ductile_addr all = 0;
    assert_status(ductile_alloc(a, 60 * MIB, f.streams[0], &all), DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(stats_of(ONE).reserved_bytes, 4 * FIXTURE_GRANULE);
    /* Nor is it moved for a request of its own. */
    begin(ONE);
    ductile_addr five = take(5 * FIXTURE_GRANULE, 0);
    assert_ok(ductile_pool_end(a, ONE));
    assert_u64(stats_of(ONE).retiring_bytes, 0);
    assert_u64(fixture_stats(a).recycled_handles, 0);
    assert_ok(ductile_free(a, five));
    assert_ok(ductile_pool_release(a, ONE));
}

Test(pools, a_released_pool_gives_its_memory_to_others) {
    fill_and_free(ONE, 4, 0);
    assert_ok(ductile_pool_release(a, ONE));
    ductile_addr all = take(62 * MIB, 1);
    assert_ok(ductile_free(a, all));
}

/* A graph was launched on a stream that the pool has never seen. */
Test(pools, graphs_may_have_run_on_any_stream) {
    fill_and_free(ONE, 4, 0);
    begin(ONE);
    ductile_addr address = take(FIXTURE_GRANULE, 0);
    assert_ok(ductile_free(a, address));
    assert_ok(ductile_pool_end(a, ONE));
    assert_ok(ductile_virtual_fill(f.gpu, address, 7, FIXTURE_GRANULE, f.streams[2]));
    assert_ok(ductile_pool_release(a, ONE));
    assert_ok(ductile_pool_release(a, ONE));
    uint64_t released = 0;
    assert_ok(ductile_pool_trim(a, ONE, &released));
    assert_u64(released, 4 * FIXTURE_GRANULE);
    wait_for_all(); /* work on memory that is gone would poison the device */
    cr_assert_eq(fixture_state(&f).poisoned, 0);
}

Test(pools, a_plain_pool_gives_back_what_it_does_not_use) {
    make_plain(TWO);
    fill_and_free(TWO, 4, 0);
    uint64_t released = 0;
    assert_ok(ductile_pool_trim(a, TWO, &released));
    assert_u64(released, 4 * FIXTURE_GRANULE);
    assert_u64(stats_of(TWO).reserved_bytes, 0);
    assert_ok(ductile_pool_release(a, TWO));
    assert_ok(ductile_pool_release(a, TWO));
}

Test(pools, trimming_one_pool_leaves_the_others) {
    make_plain(TWO);
    fill_and_free(TWO, 4, 0);
    ductile_addr other = take(3 * FIXTURE_GRANULE, 0);
    assert_ok(ductile_free(a, other));
    uint64_t released = 0;
    assert_ok(ductile_pool_trim(a, NONE, &released));
    assert_u64(released, 3 * FIXTURE_GRANULE);
    assert_u64(stats_of(TWO).reserved_bytes, 4 * FIXTURE_GRANULE);
    assert_ok(ductile_pool_release(a, TWO));
    assert_ok(ductile_pool_release(a, TWO));
}

Test(pools, a_plain_pool_helps_others_only_under_pressure) {
    make_plain(TWO);
    fill_and_free(TWO, 4, 0);
    wait_for_all();
    begin(TWO); /* a later request, whose marker proves the frees */
    ductile_addr tiny = take(512, 0);
    assert_ok(ductile_pool_end(a, TWO));
    (void)take(20 * MIB, 1);
    assert_u64(stats_of(TWO).reserved_bytes, 4 * FIXTURE_GRANULE);
    (void)take(40 * MIB, 1); /* 64 MiB - 20 - 40 leave 4 */
    cr_assert_leq(stats_of(TWO).reserved_bytes, 2 * FIXTURE_GRANULE);
    assert_ok(ductile_free(a, tiny));
    assert_ok(ductile_pool_release(a, TWO));
    assert_ok(ductile_pool_release(a, TWO));
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

typedef struct checkpoint {
    ductile_addr addresses[16];
    uint64_t sizes[16];
    size_t n;
} checkpoint;

static int note_live(void *user, const ductile_block_info *b) {
    checkpoint *c = user;
    if (b->state == DUCTILE_BLOCK_LIVE) {
        c->addresses[c->n] = b->address;
        c->sizes[c->n++] = b->size;
    }
    return 0;
}

Test(pools, an_earlier_state_can_be_had_again) {
    checkpoint before = {.n = 0};
    checkpoint after = {.n = 0};
    begin(ONE);
    ductile_addr kept = take(3000, 0);
    ductile_addr freed = take(7000, 0);
    ductile_addr large = take(3 * MIB, 1);
    assert_ok(ductile_pool_walk(a, ONE, note_live, &before));
    assert_u64(before.n, 3);
    assert_ok(ductile_free(a, freed));
    assert_ok(ductile_free(a, large));
    ductile_addr later = take(2000, 0);
    assert_ok(ductile_pool_end(a, ONE));
    assert_status(ductile_pool_alloc_at(a, ONE, kept, 3000), DUCTILE_ERR_BUSY);
    assert_status(ductile_pool_alloc_at(a, TWO, freed, 7000), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pool_alloc_at(a, NONE, freed, 7000), DUCTILE_ERR_FOREIGN_POINTER);
    assert_status(ductile_pool_alloc_at(a, ONE, freed + 1, 7000), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pool_alloc_at(a, ONE, freed, 8 * GIB), DUCTILE_ERR_BUSY);
    assert_ok(ductile_free(a, later));
    assert_ok(ductile_pool_alloc_at(a, ONE, large, 3 * MIB));
    assert_ok(ductile_pool_alloc_at(a, ONE, freed, 7000));
    assert_ok(ductile_pool_walk(a, ONE, note_live, &after));
    assert_u64(after.n, before.n);
    for (size_t i = 0; i < after.n; i++) {
        assert_u64(after.addresses[i], before.addresses[i]);
        assert_u64(after.sizes[i], before.sizes[i]);
    }
    assert_fine(audit_allocator(a, NULL));
    assert_ok(ductile_pool_release(a, ONE));
}

/* One after another, and the wait for the device that the first one makes covers only the first. */
Test(gone_pool, gives_back_each_block_without_context_markers) {
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB,
                                  .schedule = DUCTILE_SCHEDULE_LAZY,
                                  .n_streams = 2,
                                  .no_context_events = 1});
    assert_ok(ductile_pool_begin(f.allocator, ONE, NULL, NULL));
    ductile_addr first = take(MIB, 0);
    ductile_addr second = take(MIB, 1);
    assert_ok(ductile_pool_end(f.allocator, ONE));
    assert_ok(ductile_pool_release(f.allocator, ONE));
    give(first);
    assert_ok(ductile_empty_cache(f.allocator));
    give(second);
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(fixture_stats(f.allocator).reserved_bytes, 0);
    close_audited();
}

/* ---- Statistics of one pool ---------------------------------------------------------------- */

TestSuite(pool_stats);

static ductile_stats stats_of_pool(ductile_pool_id id) {
    ductile_stats s = {.struct_size = sizeof s};
    assert_ok(ductile_pool_get_stats(f.allocator, id, &s));
    return s;
}

Test(pool_stats, they_count_what_waits_for_other_streams) {
    const ductile_pool_id id = {8, 1};
    const fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    assert_fine(fixture_open(&f, &setup));
    ductile_addr blocks[3];
    assert_ok(ductile_pool_begin(f.allocator, id, NULL, NULL));
    for (int i = 0; i < 3; i++) {
        assert_ok(ductile_alloc(f.allocator, 1 << 20, f.streams[0], &blocks[i]));
    }
    assert_ok(ductile_pool_end(f.allocator, id));
    assert_u64(stats_of_pool(id).pending_blocks, 0);
    for (int i = 0; i < 2; i++) {
        assert_ok(ductile_virtual_fill(f.gpu, blocks[i], 1, 1 << 20, f.streams[1]));
        assert_ok(ductile_free_on(f.allocator, blocks[i], f.streams[1]));
    }
    ductile_stats s = stats_of_pool(id);
    assert_u64(s.pending_blocks, 2);
    assert_u64(s.pending_bytes, 2 << 20);
    assert_u64(s.live_blocks, 1);
    assert_ok(ductile_free(f.allocator, blocks[2]));
    assert_ok(ductile_pool_release(f.allocator, id));
    assert_fine(fixture_close(&f));
}

Test(pool_stats, a_kind_that_is_none_is_refused) {
    const ductile_pool_id id = {8, 2};
    assert_fine(fixture_open(&f, NULL));
    assert_ok(ductile_pool_retain(f.allocator, id));
    assert_status(ductile_pool_set_kind(f.allocator, id, (ductile_pool_kind)2),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_ok(ductile_pool_release(f.allocator, id));
    assert_fine(fixture_close(&f));
}

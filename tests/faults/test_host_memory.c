/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory may run out like the device's: each request for it fails in turn while a scenario
 * runs, and then nothing has changed, nothing is lost, and the next call succeeds. What was asked
 * for is given back in the end.
 *
 * This program's own malloc family stands before the C library's and can be told to fail. The
 * sanitizers have theirs in the same place, so under them there is nothing to run.
 */
#include "pool/blocks/private_pool.h"
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/failing_malloc.h"
#include "tests/support/json_check.h"
#include "tests/support/shadow.h"
#include "tests/support/two_ends.h"
#include "vmm/driver/driver.h"

#include <ductile_elastic.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---- Scenarios ----------------------------------------------------------------------------- */

#define CAPACITY (32 * MIB)
#define N_BLOCKS 48

/* Each request for host memory in turn, until there is none more; at least so many are wanted. */
static void sweep(const char *(*once)(uint64_t nth, bool *failed), uint64_t least) {
    uint64_t nth = 1;
    for (bool failed = true; failed; nth++) {
        failed = false;
        const char *why = once(nth, &failed);
        cr_assert(why == NULL, "request %llu for host memory fails: %s", (unsigned long long)nth,
                  why);
    }
    cr_assert_gt(nth, least, "host memory is hardly asked for");
}

/* Calls of the allocator alone are armed: the device and the model keep their memory. */
typedef struct run {
    fixture f;
    model m;
    uint64_t left; /* requests until the one that fails; 0: it has */
    bool has_failed;
} run;

static const char *host_status(const char *call, ductile_status status, bool failed) {
    bool is_fine = status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY ||
                   (failed && is_for_lack_of_memory(status));
    NEED(is_fine, "%s: %s", call, ductile_status_name(status));
    return NULL;
}

static void begin(const run *r) {
    arm(r->left);
}

static bool end(run *r) {
    bool failed = disarm();
    r->has_failed |= failed;
    r->left = failed || r->left <= requests ? 0 : r->left - requests;
    return failed;
}

static const char *take(run *r, uint64_t size, size_t stream) {
    model_block b = {
        .address = 1, .requested = size, .size = model_rounded(size), .stream = stream};
    begin(r);
    ductile_status status = ductile_alloc(r->f.allocator, size, r->f.streams[stream], &b.address);
    bool failed = end(r);
    TRY(host_status("alloc", status, failed));
    if (status != DUCTILE_OK) {
        NEED(b.address == 0, "a failed alloc wrote an address");
        return audit_fixture(&r->f, &r->m);
    }
    TRY(model_add(&r->m, &b));
    ductile_virtual_use use = {.address = b.address, .size = b.size, .writes = 1};
    NEED_OK(ductile_virtual_launch(r->f.gpu, r->f.streams[stream], &use, 1));
    return audit_fixture(&r->f, &r->m);
}

static const char *share(run *r, size_t i, size_t stream) {
    ductile_stream other = r->f.streams[stream];
    begin(r);
    ductile_status status = ductile_record_stream(r->f.allocator, r->m.blocks[i].address, other);
    bool failed = end(r);
    return host_status("record_stream", status, failed);
}

/* The contract gives free no status for a lack of host memory: it cannot fail. */
static const char *give(run *r, size_t i) {
    begin(r);
    ductile_status status = ductile_free(r->f.allocator, r->m.blocks[i].address);
    (void)end(r);
    NEED(status == DUCTILE_OK, "free: %s", ductile_status_name(status));
    (void)model_remove(&r->m, i);
    return audit_fixture(&r->f, &r->m);
}

static const char *give_back(run *r) {
    begin(r);
    ductile_status status = ductile_trim(r->f.allocator, NULL, 4 * FIXTURE_GRANULE, NULL);
    bool failed = end(r);
    return host_status("trim", status, failed);
}

/* Growth, sharing, holes, pressure and giving back, on three streams. */
static const char *live(run *r) {
    for (size_t i = 0; i < N_BLOCKS; i++) {
        TRY(take(r, (i % 5 + 1) * 300000 + i * 512, i % 3));
        if (r->m.n > 0 && i % 2 == 0) {
            size_t at = i % r->m.n;
            TRY(share(r, at, (r->m.blocks[at].stream + 1) % 3));
        }
        if (r->m.n > 8) {
            TRY(give(r, (i * 7) % r->m.n));
        }
        if (i % 16 == 15) {
            TRY(give_back(r));
        }
    }
    return take(r, CAPACITY, 1);
}

static const char *recovers(run *r) {
    TRY(fixture_sync_all(&r->f));
    while (r->m.n > 0) {
        NEED_OK(ductile_free(r->f.allocator, model_remove(&r->m, 0).address));
    }
    ductile_addr all = 0;
    NEED_OK(ductile_alloc(r->f.allocator, CAPACITY, r->f.streams[0], &all));
    NEED_OK(ductile_free(r->f.allocator, all));
    return audit_fixture(&r->f, &r->m);
}

static const char *is_given_back(int64_t before) {
    NEED(pieces_held() == before, "%lld pieces of host memory are left",
         (long long)(pieces_held() - before));
    return NULL;
}

static const char *run_with_failure(uint64_t nth, bool *failed) {
    fixture_setup setup = {
        .capacity_bytes = CAPACITY, .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3};
    int64_t before = pieces_held();
    run r = {.left = nth};
    model_init(&r.m);
    TRY(fixture_open(&r.f, &setup));
    const char *why = live(&r);
    *failed = r.has_failed;
    why = why != NULL ? why : recovers(&r);
    model_fini(&r.m);
    const char *left = fixture_close(&r.f);
    why = why != NULL ? why : left;
    return why != NULL ? why : is_given_back(before);
}

Test(host_memory, each_request_may_fail) {
    NEEDS_FAILURES();
    sweep(run_with_failure, 5);
    cr_assert_eq(requests_for_nothing(), 0, "%llu requests for no bytes",
                 (unsigned long long)requests_for_nothing());
}

/* One that is refused for another reason. */
static const char *be_refused_for_an_option(ductile_options options) {
    ductile_allocator *none = NULL;
    options.sizes = 3 * MIB;
    NEED(ductile_create(&none, &options) == DUCTILE_ERR_INVALID_ARGUMENT, "it was not refused");
    return NULL;
}

/* Of the latest create, however early it failed. */
static const char *says_its_own_reason(ductile_status status) {
    const char *said = ductile_create_error();
    NEED((said[0] == '\0') == (status == DUCTILE_OK), "it says \"%s\"", said);
    NEED(strstr(said, "sizes") == NULL, "the one before it said \"%s\"", said);
    return NULL;
}

static const char *create_with_failure(uint64_t nth, bool *failed) {
    fixture f;
    TRY(fixture_open_device(&f, NULL));
    int64_t before = pieces_held();
    ductile_options options;
    ductile_options_init(&options);
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    options.virtual_gpu = f.gpu;
    ductile_allocator *a = NULL;
    TRY(be_refused_for_an_option(options));
    arm(nth);
    ductile_status status = ductile_create(&a, &options);
    *failed = disarm();
    TRY(says_its_own_reason(status));
    NEED(*failed ? is_for_lack_of_memory(status) : status == DUCTILE_OK, "create: %s",
         ductile_status_name(status));
    NEED((a == NULL) == (status != DUCTILE_OK), "an allocator with a failure");
    NEED_OK(ductile_destroy(a));
    TRY(fixture_leak_gate(&f));
    TRY(is_given_back(before));
    return fixture_close(&f);
}

Test(host_memory, create_undoes_itself) {
    NEEDS_FAILURES();
    sweep(create_with_failure, 1);
}

/* ---- Elastic ranges -------------------------------------------------------------------------- */

enum { N_UNITS = 1100 }; /* more than the address map has places for at first */

static uint64_t live_of(const fixture *g) {
    return fixture_stats(g->allocator).live_blocks;
}

/* What failed has committed, and decommitted, nothing; and goes the next time. */
static const char *grow_and_shrink(const fixture *g, ductile_elastic *range, uint64_t nth,
                                   bool *failed) {
    const uint64_t half = N_UNITS / 2 * FIXTURE_GRANULE;
    arm(nth);
    ductile_status got = ductile_elastic_commit(range, 0, 2 * half);
    ductile_status gave = ductile_elastic_decommit(range, half, half, &g->streams[1], 1);
    *failed = disarm();
    bool is_lack = is_for_lack_of_memory(got) || is_for_lack_of_memory(gave);
    NEED(*failed ? is_lack || got + gave == 0 : got + gave == 0, "commit %s, decommit %s",
         ductile_status_name(got), ductile_status_name(gave));
    uint64_t wanted = got != DUCTILE_OK ? 0 : gave != DUCTILE_OK ? N_UNITS : N_UNITS / 2;
    NEED(live_of(g) == wanted, "%llu units are live, not %llu", (unsigned long long)live_of(g),
         (unsigned long long)wanted);
    NEED_OK(ductile_elastic_commit(range, 0, 2 * half));
    NEED(live_of(g) == N_UNITS, "not all units are live");
    return audit_allocator(g->allocator, NULL);
}

static const char *range_with_failure(uint64_t nth, bool *failed) {
    const fixture_setup setup = {.capacity_bytes = N_UNITS * FIXTURE_GRANULE, .n_streams = 2};
    int64_t before = pieces_held();
    fixture g;
    ductile_elastic *range = NULL;
    TRY(fixture_open(&g, &setup));
    arm(nth);
    ductile_status status =
        ductile_elastic_open(g.allocator, N_UNITS * FIXTURE_GRANULE, g.streams[0], NULL, &range);
    *failed = disarm();
    NEED((range == NULL) == (status != DUCTILE_OK), "a range with a failure");
    NEED(status == DUCTILE_OK || (*failed && is_for_lack_of_memory(status)), "open: %s",
         ductile_status_name(status));
    if (range == NULL) {
        NEED(fixture_stats(g.allocator).address_bytes == 0, "addresses without a range");
    } else {
        uint64_t left = nth > requests ? nth - requests : 0;
        TRY(left > 0 && !*failed ? grow_and_shrink(&g, range, left, failed) : NULL);
        NEED_OK(ductile_elastic_close(range));
    }
    TRY(fixture_close(&g));
    return is_given_back(before);
}

Test(host_memory, a_commit_is_all_or_none_where_it_runs_out) {
    NEEDS_FAILURES();
    sweep(range_with_failure, 5);
}

/* ---- A pool's end -------------------------------------------------------------------------- */

/* A call that works on it may be the last to leave. */
Test(host_memory, a_pool_goes_with_its_last_user) {
    const ductile_pool_id id = {3, 3};
    fixture g;
    NEEDS_FAILURES();
    assert_fine(fixture_open(&g, NULL));
    int64_t before = pieces_held();
    assert_ok(ductile_pool_retain(g.allocator, id));
    dpool_private_pool *pool = dpool_pin_pool(g.allocator, id);
    assert_ok(ductile_pool_release(g.allocator, id));
    cr_assert_gt(pieces_held(), before, "a pool that is in use is gone");
    dpool_unpin(g.allocator, pool);
    assert_fine(is_given_back(before));
    assert_fine(fixture_close(&g));
}

/* ---- Passing blocks ------------------------------------------------------------------------ */

static bool is_outcome(ductile_status status) {
    return status == DUCTILE_OK || is_for_lack_of_memory(status) ||
           status == DUCTILE_ERR_BAD_MESSAGE ||    /* of the device, whose import failed for us, */
           status == DUCTILE_ERR_OUT_OF_ADDRESSES; /* and whose list of ranges could not grow */
}

static void hear(void *user, ductile_allocator *a, const ductile_map_event *event) {
    (void)user;
    (void)a;
    (void)event;
}

/* The other end of the socket, on a thread where nothing fails. */
typedef struct other_end {
    two_ends *t;
    ductile_addr block;
    ductile_addr there;
    ductile_status status;
    bool exports;
} other_end;

static ductile_status pass_one_way(other_end *e, bool exports) {
    two_ends *t = e->t;
    ductile_status status = exports ? ductile_export(t->f.allocator, e->block, t->out)
                                    : ductile_import(t->importer, t->in, NULL, &e->there, NULL);
    if (status != DUCTILE_OK) {
        (void)shutdown(exports ? t->out : t->in, SHUT_RDWR);
    }
    return status;
}

static void *play_other_end(void *argument) {
    other_end *e = argument;
    e->status = pass_one_way(e, e->exports);
    return NULL;
}

/* A pin, a callback, an export and an import, as far as they come; and all of it taken back. */
static const char *pass_block(two_ends *t, ductile_addr block, bool exports, uint64_t nth,
                              bool *failed) {
    other_end other = {.t = t, .block = block, .exports = !exports};
    uint64_t id = 0;
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, play_other_end, &other) == 0, "no thread");
    arm(nth);
    ductile_status pinned = ductile_pin(t->f.allocator, block);
    ductile_status added = ductile_add_map_callback(t->importer, hear, NULL, 0, &id);
    ductile_status here = pass_one_way(&other, exports);
    *failed = disarm();
    (void)pthread_join(thread, NULL);
    ductile_status sent = exports ? here : other.status;
    ductile_status got = exports ? other.status : here;
    NEED(is_outcome(pinned) && is_outcome(added) && is_outcome(sent) && is_outcome(got),
         "pin %s, callback %s, export %s, import %s", ductile_status_name(pinned),
         ductile_status_name(added), ductile_status_name(sent), ductile_status_name(got));
    NEED(*failed || (pinned == DUCTILE_OK && added == DUCTILE_OK && other.there != 0), "it failed");
    NEED((other.there != 0) == (got == DUCTILE_OK), "an address with a failure");
    NEED((id != 0) == (added == DUCTILE_OK), "a number with a failure");
    NEED(pinned != DUCTILE_OK || ductile_unpin(t->f.allocator, block) == DUCTILE_OK, "unpin");
    NEED(id == 0 || ductile_remove_map_callback(t->importer, id) == DUCTILE_OK, "remove");
    NEED_OK(ductile_import_close(t->importer, other.there));
    NEED(sent != DUCTILE_OK || ductile_unexport(t->f.allocator, block) == DUCTILE_OK, "unexport");
    return NULL;
}

static const char *pass_with_failure(bool exports, uint64_t nth, bool *failed) {
    two_ends t;
    ductile_addr block = 0;
    TRY(two_ends_open(&t, NULL, SOCK_STREAM));
    NEED_OK(ductile_alloc(t.f.allocator, 5 * FIXTURE_GRANULE, t.f.streams[0], &block));
    TRY(pass_block(&t, block, exports, nth, failed));
    ductile_stats left = fixture_stats(t.f.allocator);
    NEED(left.exported_bytes == 0 && left.pinned_bytes == 0, "it stays exported, or pinned");
    NEED(fixture_stats(t.importer).imported_bytes == 0, "it stays imported");
    NEED_OK(ductile_free(t.f.allocator, block));
    return two_ends_close(&t); /* and no descriptor */
}

static const char *export_with_failure(uint64_t nth, bool *failed) {
    return pass_with_failure(true, nth, failed);
}

static const char *import_with_failure(uint64_t nth, bool *failed) {
    return pass_with_failure(false, nth, failed);
}

Test(host_memory, passing_a_block_undoes_itself) {
    NEEDS_FAILURES();
    sweep(export_with_failure, 4);
    sweep(import_with_failure, 4);
}

/* ---- The end ------------------------------------------------------------------------------- */

static uint64_t give_nothing(void *user, ductile_allocator *a, uint64_t missing,
                             ductile_stream stream) {
    (void)user;
    (void)a;
    (void)missing;
    (void)stream;
    return 0;
}

static void leave_callbacks(const fixture *g) {
    uint64_t id = 0;
    assert_ok(ductile_add_map_callback(g->allocator, hear, NULL, 0, &id));
    assert_ok(ductile_add_oom_callback(g->allocator, give_nothing, NULL, 0, &id));
}

/* Blocks that another stream has used, freed, and handed out again once the host knows it done. */
static void use_blocks_again(const fixture *g) {
    ductile_addr blocks[4];
    for (size_t i = 0; i < 4; i++) {
        assert_ok(ductile_alloc(g->allocator, MIB, g->streams[0], &blocks[i]));
    }
    for (size_t i = 0; i < 4; i++) {
        assert_ok(ductile_free_ex(g->allocator, blocks[i], &g->streams[1], 1, NULL));
    }
    assert_fine(fixture_sync_all(g));
    for (size_t i = 0; i < 4; i++) {
        assert_ok(ductile_alloc(g->allocator, MIB, g->streams[0], &blocks[i]));
    }
}

/* A sleep forgets the waits of all blocks of its pool at once. */
static void sleep_used_blocks(const fixture *g) {
    const ductile_pool_id id = {9, 9};
    ductile_addr blocks[6];
    assert_ok(ductile_pool_begin(g->allocator, id, NULL, NULL));
    for (size_t i = 0; i < 6; i++) {
        assert_ok(ductile_alloc(g->allocator, MIB, g->streams[0], &blocks[i]));
    }
    assert_ok(ductile_pool_end(g->allocator, id));
    for (size_t i = 0; i < 6; i += 2) {
        assert_ok(ductile_free_ex(g->allocator, blocks[i], &g->streams[1], 1, NULL));
    }
    assert_ok(ductile_sleep(g->allocator, id, DUCTILE_CONTENTS_DROP));
    assert_ok(ductile_wake(g->allocator, id));
}

/* It ends with the allocator. */
static void leave_a_range(const fixture *g) {
    ductile_elastic *range = NULL;
    assert_ok(ductile_elastic_open(g->allocator, 8 * MIB, g->streams[0], NULL, &range));
    assert_ok(ductile_elastic_commit(range, 0, 4 * MIB));
}

static void be_refused_a_range(const fixture *g) {
    const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                         .call = "address_reserve",
                                         .nth = 1,
                                         .code = DVMM_OUT_OF_MEMORY,
                                         .persistent = 1};
    ductile_addr none = 0;
    assert_ok(ductile_virtual_inject(g->gpu, &fault));
    cr_assert_neq(ductile_alloc(g->allocator, MIB, g->streams[1], &none), DUCTILE_OK);
    assert_ok(ductile_virtual_inject(g->gpu, NULL));
}

static const char *live_and_go(const char *conf) {
    const fixture_setup setup = {.n_streams = 2, .conf = conf};
    fixture g;
    int64_t before = pieces_held();
    TRY(fixture_open(&g, &setup));
    leave_callbacks(&g);
    use_blocks_again(&g);
    sleep_used_blocks(&g);
    leave_a_range(&g);
    be_refused_a_range(&g);
    TRY(fixture_close(&g));
    return is_given_back(before);
}

Test(host_memory, is_all_free_once_the_allocator_is_gone) {
    (void)live_and_go("record_stream:wait"); /* the first makes what the C library keeps */
    assert_fine(live_and_go("record_stream:wait"));
}

/* ---- Announcing a sleep -------------------------------------------------------------------- */

typedef struct sleeper {
    shadow heard;
    fixture f;
    ductile_addr block;
    ductile_status slept;
    ductile_status woken;
} sleeper;

static const ductile_pool_id asleep = {1, 1};

/* What is told of needs room in a list: without it the pool neither sleeps nor wakes. */
static const char *sleep_with_failure(sleeper *s, ductile_contents contents, uint64_t nth,
                                      bool *failed) {
    memset(s, 0, sizeof *s);
    TRY(fixture_open(&s->f, NULL));
    TRY(shadow_open(&s->heard, s->f.allocator, s->f.gpu));
    NEED_OK(ductile_pool_begin(s->f.allocator, asleep, NULL, NULL));
    NEED_OK(ductile_alloc(s->f.allocator, 3 * FIXTURE_GRANULE, s->f.streams[0], &s->block));
    NEED_OK(ductile_pool_end(s->f.allocator, asleep));
    arm(nth);
    s->slept = ductile_sleep(s->f.allocator, asleep, contents);
    s->woken = s->slept == DUCTILE_OK ? ductile_wake(s->f.allocator, asleep) : DUCTILE_OK;
    *failed = disarm();
    NEED(is_outcome(s->slept) && is_outcome(s->woken), "sleep %s, wake %s",
         ductile_status_name(s->slept), ductile_status_name(s->woken));
    return NULL;
}

static const char *end_sleeper(sleeper *s) {
    NEED_OK(ductile_free(s->f.allocator, s->block));
    NEED_OK(ductile_pool_release(s->f.allocator, asleep));
    NEED_OK(ductile_trim(s->f.allocator, NULL, 0, NULL));
    ductile_stats left = fixture_stats(s->f.allocator);
    NEED(left.reserved_bytes == 0, "%llu bytes are held, %llu free, sleep %s, wake %s",
         (unsigned long long)left.reserved_bytes, (unsigned long long)left.free_bytes,
         ductile_status_name(s->slept), ductile_status_name(s->woken));
    TRY(shadow_is_true(&s->heard, s->f.allocator));
    return fixture_close(&s->f);
}

static const char *try_again(uint64_t nth, bool *failed) {
    static sleeper s;
    TRY(sleep_with_failure(&s, DUCTILE_CONTENTS_DROP, nth, failed));
    NEED(s.woken == DUCTILE_OK || ductile_wake(s.f.allocator, asleep) == DUCTILE_OK, "wake again");
    TRY(shadow_is_true(&s.heard, s.f.allocator));
    TRY(shadow_covers(&s.heard, s.block, 3 * FIXTURE_GRANULE));
    return end_sleeper(&s);
}

Test(host_memory, an_announced_sleep_undoes_itself) {
    NEEDS_FAILURES();
    sweep(try_again, 3);
}

static const char *give_up(ductile_contents contents, uint64_t nth, bool *failed) {
    static sleeper s;
    TRY(sleep_with_failure(&s, contents, nth, failed));
    if (fixture_state(&s.f).poisoned != 0) { /* the device had none for its own work */
        fixture_abandon(&s.f);
        return NULL;
    }
    return end_sleeper(&s);
}

static const char *give_up_dropped(uint64_t nth, bool *failed) {
    return give_up(DUCTILE_CONTENTS_DROP, nth, failed);
}

static const char *give_up_kept(uint64_t nth, bool *failed) {
    return give_up(DUCTILE_CONTENTS_KEEP, nth, failed);
}

Test(host_memory, what_a_failed_wake_has_mapped_goes_with_its_pool) {
    NEEDS_FAILURES();
    sweep(give_up_dropped, 3);
    sweep(give_up_kept, 3);
}

/* Also where the call has none before it knows its pools. */
static const char *sleep_beside_bypass(uint64_t nth, bool *failed) {
    const ductile_sleep_request all = {.struct_size = sizeof all, .all = 1, .bypass = {7, 7}};
    ductile_sleep_report report = {.struct_size = sizeof report};
    fixture f;
    TRY(fixture_open(&f, NULL));
    arm(nth);
    ductile_status status = ductile_sleep_set(f.allocator, &all, &report);
    *failed = disarm();
    NEED(is_outcome(status), "sleep %s", ductile_status_name(status));
    NEED((report.message[0] != '\0') == (status != DUCTILE_OK), "%s, and it says \"%s\"",
         ductile_status_name(status), report.message);
    return fixture_close(&f);
}

Test(host_memory, a_sleep_that_lacks_some_says_so) {
    NEEDS_FAILURES();
    sweep(sleep_beside_bypass, 1);
}

/* ---- A stream that comes while a sleep asks for memory --------------------------------------- */

static fixture busy;
static pthread_t newcomer;

static void *allocate_first(void *unused) {
    ductile_addr addr = 0;
    cr_expect_eq(ductile_alloc(busy.allocator, 512, busy.streams[1], &addr), DUCTILE_OK);
    return unused;
}

/* Gives the other thread some time: it may have to wait for the sleep. */
static void let_newcomer_in(void) {
    cr_expect_eq(pthread_create(&newcomer, NULL, allocate_first, NULL), 0);
    (void)usleep(20 * 1000);
}

/* Puts a pool to sleep under work. True: there was an nth request for memory. */
static bool sleep_beside_newcomer(uint64_t nth) {
    const fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    const ductile_pool_id id = {1, 1};
    ductile_addr block = 0;
    assert_fine(fixture_open(&busy, &setup));
    assert_ok(ductile_pool_retain(busy.allocator, id));
    assert_ok(ductile_pool_set_kind(busy.allocator, id, DUCTILE_POOL_PLAIN));
    assert_ok(ductile_pool_begin(busy.allocator, id, NULL, NULL));
    assert_ok(ductile_alloc(busy.allocator, 3 * FIXTURE_GRANULE, busy.streams[0], &block));
    assert_ok(ductile_pool_end(busy.allocator, id));
    assert_ok(ductile_virtual_fill(busy.gpu, block, 7, 3 * FIXTURE_GRANULE, busy.streams[0]));
    instead = let_newcomer_in;
    arm(nth);
    ductile_status slept = ductile_sleep(busy.allocator, id, DUCTILE_CONTENTS_DROP);
    bool came = disarm();
    instead = NULL;
    if (came) {
        cr_assert_eq(pthread_join(newcomer, NULL), 0);
    }
    assert_ok(slept);
    cr_assert_eq(fixture_state(&busy).violations, 0, "request %llu: memory went under work",
                 (unsigned long long)nth);
    assert_ok(ductile_wake(busy.allocator, id));
    assert_ok(ductile_pool_release(busy.allocator, id));
    assert_fine(fixture_close(&busy));
    return came;
}

Test(host_memory, a_stream_that_comes_while_a_sleep_lists_streams_hides_none) {
    NEEDS_FAILURES();
    uint64_t nth = 1;
    while (sleep_beside_newcomer(nth)) {
        nth++;
    }
    cr_assert_gt(nth, 1, "a sleep asks for no host memory");
}

/* ---- Others between two looks -------------------------------------------------------------- */

/* More than a snapshot leaves room for. */
static void add_blocks(void) {
    for (int i = 0; i < 300; i++) {
        ductile_addr block = 0;
        cr_expect_eq(ductile_alloc(busy.allocator, 512, busy.streams[0], &block), DUCTILE_OK);
    }
}

static uint64_t count_live(const char *text) {
    uint64_t n = 0;
    for (; (text = strstr(text, "\"live\"")) != NULL; text++) {
        n++;
    }
    return n;
}

/* They come after it has counted the blocks, and before it copies them. */
Test(host_memory, a_snapshot_has_all_blocks_that_come_while_it_asks_for_memory) {
    NEEDS_FAILURES();
    text_sink all = {.text = NULL};
    assert_fine(fixture_open(&busy, NULL));
    instead = add_blocks;
    arm(1);
    ductile_status status = ductile_snapshot_json(busy.allocator, text_sink_write, &all);
    bool came = disarm();
    instead = NULL;
    assert_ok(status);
    cr_assert(came, "a snapshot asks for no host memory");
    assert_u64(count_live(all.text), fixture_stats(busy.allocator).live_blocks);
    assert_u64(count_live(all.text), 300);
    free(all.text);
    (void)ductile_destroy(busy.allocator);
    fixture_abandon(&busy);
}

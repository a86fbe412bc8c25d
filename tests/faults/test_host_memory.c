/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory may run out like the device's: each request for it fails in turn while a scenario
 * runs, and then nothing has changed, nothing is lost, and the next call succeeds. What was asked
 * for is given back in the end.
 *
 * This program's own malloc family stands before the C library's and can be told to fail. The
 * sanitizers have theirs in the same place, so under them there is nothing to run.
 */
#include "pool/base/allocator.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/room.h"
#include "pool/growth/unused.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/shadow.h"
#include "tests/support/two_ends.h"
#include "tests/support/world.h"

#include <criterion/parameterized.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- Requests that fail -------------------------------------------------------------------- */

/* Only the test's thread plans, and only between arm and disarm does anything fail. */
static _Thread_local uint64_t fails_at; /* the request, counted from 1, that fails; 0: none */
static _Thread_local uint64_t requests;
static _Thread_local bool fails_all; /* from here on */
static _Thread_local bool has_failed;
static void (*instead)(
    void); /* happens before the request that would have failed, which succeeds */

/* What malloc gave and free did not get back, of this thread. */
static _Thread_local int64_t n_held;

static void arm(uint64_t nth) {
    requests = 0;
    has_failed = false;
    fails_at = nth;
}

static bool disarm(void) {
    fails_at = 0;
    return has_failed;
}

#if !IS_SANITIZED && defined(__GLIBC__)
#define CAN_FAIL 1

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static bool must_fail(void) {
    if (fails_all) {
        has_failed = true;
        errno = ENOMEM;
        return true;
    }
    if (fails_at == 0 || ++requests != fails_at) {
        return false;
    }
    has_failed = true;
    if (instead != NULL) {
        instead();
        return false;
    }
    errno = ENOMEM;
    return true;
}

static void *counted(void *memory) {
    n_held += memory != NULL;
    return memory;
}

void *malloc(size_t size) {
    return must_fail() ? NULL : counted(__libc_malloc(size));
}

void *calloc(size_t n, size_t size) {
    return must_fail() ? NULL : counted(__libc_calloc(n, size));
}

void *realloc(void *memory, size_t size) {
    void *moved = must_fail() ? NULL : __libc_realloc(memory, size);
    n_held += memory == NULL && moved != NULL;
    return moved;
}

void *aligned_alloc(size_t alignment, size_t size) {
    return must_fail() ? NULL : counted(__libc_memalign(alignment, size));
}

/* Tables come from here (vmm/base/table.h). The C library's own mappings do not. */
void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    return must_fail() ? MAP_FAILED
                       : (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}

void free(void *memory) {
    n_held -= memory != NULL;
    __libc_free(memory);
}
#else
#define CAN_FAIL 0
#endif

/* ---- Scenarios ----------------------------------------------------------------------------- */

#define CAPACITY (32 * MIB)
#define N_BLOCKS 48

/* Calls of the allocator alone are armed: the device and the model keep their memory. */
typedef struct run {
    world w;
    uint64_t left; /* requests until the one that fails; 0: it has */
    bool has_failed;
} run;

/* The virtual GPU asks for host memory too; where it gets none it is a driver that fails. */
static bool is_for_lack_of_memory(ductile_status status) {
    return status == DUCTILE_ERR_OUT_OF_HOST_MEMORY || status == DUCTILE_ERR_OUT_OF_MEMORY ||
           status == DUCTILE_ERR_OUT_OF_ADDRESSES || status == DUCTILE_ERR_DRIVER;
}

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
    ductile_status status =
        ductile_alloc(r->w.f.allocator, size, r->w.f.streams[stream], &b.address);
    bool failed = end(r);
    TRY(host_status("alloc", status, failed));
    if (status != DUCTILE_OK) {
        NEED(b.address == 0, "a failed alloc wrote an address");
        return world_audit(&r->w);
    }
    TRY(model_add(&r->w.m, &b));
    ductile_virtual_use use = {.address = b.address, .size = b.size, .writes = 1};
    NEED_OK(ductile_virtual_launch(r->w.f.gpu, r->w.f.streams[stream], &use, 1));
    return world_audit(&r->w);
}

static const char *share(run *r, size_t i, size_t stream) {
    ductile_stream other = r->w.f.streams[stream];
    begin(r);
    ductile_status status =
        ductile_record_stream(r->w.f.allocator, r->w.m.blocks[i].address, other);
    bool failed = end(r);
    return host_status("record_stream", status, failed);
}

/* The contract gives free no status for a lack of host memory: it cannot fail. */
static const char *give(run *r, size_t i) {
    begin(r);
    ductile_status status = ductile_free(r->w.f.allocator, r->w.m.blocks[i].address);
    (void)end(r);
    NEED(status == DUCTILE_OK, "free: %s", ductile_status_name(status));
    (void)model_remove(&r->w.m, i);
    return world_audit(&r->w);
}

static const char *give_back(run *r) {
    begin(r);
    ductile_status status = ductile_trim(r->w.f.allocator, 4 * FIXTURE_GRANULE, NULL);
    bool failed = end(r);
    return host_status("trim", status, failed);
}

/* Growth, sharing, holes, pressure and giving back, on three streams. */
static const char *live(run *r) {
    for (size_t i = 0; i < N_BLOCKS; i++) {
        TRY(take(r, (i % 5 + 1) * 300000 + i * 512, i % 3));
        if (r->w.m.n > 0 && i % 2 == 0) {
            size_t at = i % r->w.m.n;
            TRY(share(r, at, (r->w.m.blocks[at].stream + 1) % 3));
        }
        if (r->w.m.n > 8) {
            TRY(give(r, (i * 7) % r->w.m.n));
        }
        if (i % 16 == 15) {
            TRY(give_back(r));
        }
    }
    return take(r, CAPACITY, 1);
}

static const char *recovers(run *r) {
    TRY(fixture_sync_all(&r->w.f));
    TRY(world_free_all(&r->w));
    TRY(world_must_alloc(&r->w, CAPACITY, 0));
    return world_audit(&r->w);
}

static const char *is_given_back(int64_t before) {
    NEED(n_held == before, "%lld pieces of host memory are left", (long long)(n_held - before));
    return NULL;
}

static const char *run_with_failure(uint64_t nth, bool *failed) {
    fixture_setup setup = {
        .capacity_bytes = CAPACITY, .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3};
    int64_t before = n_held;
    run r = {.left = nth};
    TRY(world_open(&r.w, &setup, false));
    const char *why = live(&r);
    *failed = r.has_failed;
    why = why != NULL ? why : recovers(&r);
    const char *left = world_close(&r.w);
    why = why != NULL ? why : left;
    return why != NULL ? why : is_given_back(before);
}

Test(host_memory, each_request_may_fail) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    uint64_t nth = 1;
    for (bool failed = true; failed; nth++) {
        failed = false;
        const char *why = run_with_failure(nth, &failed);
        cr_assert(why == NULL, "request %llu for host memory fails: %s", (unsigned long long)nth,
                  why);
    }
    cr_assert_gt(nth, 5, "the scenario hardly asks for host memory");
}

/* Creating an allocator, with each of its requests failing in turn. */
Test(host_memory, create_undoes_itself) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    fixture f;
    assert_fine(fixture_open_device(&f, NULL));
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        int64_t before = n_held;
        ductile_options options;
        ductile_options_init(&options);
        options.driver = DUCTILE_DRIVER_VIRTUAL;
        options.virtual_gpu = f.gpu;
        ductile_allocator *a = NULL;
        arm(nth);
        ductile_status status = ductile_create(&a, &options);
        failed = disarm();
        bool is_fine = failed ? is_for_lack_of_memory(status) : status == DUCTILE_OK;
        cr_assert(is_fine, "request %llu: %s", (unsigned long long)nth,
                  ductile_status_name(status));
        cr_assert((a == NULL) == (status != DUCTILE_OK));
        assert_ok(ductile_destroy(a));
        assert_fine(fixture_leak_gate(&f));
        assert_fine(is_given_back(before));
    }
    assert_fine(fixture_close(&f));
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

static void sweep_end(bool exports) {
    uint64_t nth = 1;
    for (bool failed = true; failed; nth++) {
        two_ends t;
        ductile_addr block = 0;
        assert_fine(two_ends_open(&t, NULL, SOCK_STREAM));
        assert_ok(ductile_alloc(t.f.allocator, 5 * FIXTURE_GRANULE, t.f.streams[0], &block));
        const char *why = pass_block(&t, block, exports, nth, &failed);
        cr_assert(why == NULL, "request %llu: %s", (unsigned long long)nth, why);
        cr_assert_eq(fixture_stats(t.f.allocator).exported_bytes, 0);
        cr_assert_eq(fixture_stats(t.f.allocator).pinned_bytes, 0);
        cr_assert_eq(fixture_stats(t.importer).imported_bytes, 0);
        assert_ok(ductile_free(t.f.allocator, block));
        assert_fine(two_ends_close(&t)); /* and no descriptor */
    }
    cr_assert_gt(nth, 4, "sharing hardly asks for host memory");
}

Test(host_memory, passing_a_block_undoes_itself) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    sweep_end(true);
    sweep_end(false);
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
        assert_ok(ductile_free_on(g->allocator, blocks[i], g->streams[1]));
    }
    assert_fine(fixture_sync_all(g));
    for (size_t i = 0; i < 4; i++) {
        assert_ok(ductile_alloc(g->allocator, MIB, g->streams[0], &blocks[i]));
    }
}

/* A pause forgets the waits of all blocks of its pool at once. */
static void pause_used_blocks(const fixture *g) {
    const ductile_pool_id id = {9, 9};
    ductile_addr blocks[6];
    assert_ok(ductile_pool_begin(g->allocator, id, NULL, NULL));
    for (size_t i = 0; i < 6; i++) {
        assert_ok(ductile_alloc(g->allocator, MIB, g->streams[0], &blocks[i]));
    }
    assert_ok(ductile_pool_end(g->allocator, id));
    for (size_t i = 0; i < 6; i += 2) {
        assert_ok(ductile_free_on(g->allocator, blocks[i], g->streams[1]));
    }
    assert_ok(ductile_pause(g->allocator, id, 0));
    assert_ok(ductile_resume(g->allocator, id));
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

Test(host_memory, is_all_free_once_the_allocator_is_gone) {
    const fixture_setup setup = {.n_streams = 2, .conf = "record_stream:wait"};
    for (int round = 0; round < 2; round++) { /* the first makes what the C library keeps */
        fixture g;
        int64_t before = n_held;
        assert_fine(fixture_open(&g, &setup));
        leave_callbacks(&g);
        use_blocks_again(&g);
        pause_used_blocks(&g);
        be_refused_a_range(&g);
        assert_fine(fixture_close(&g));
        if (round > 0) {
            assert_fine(is_given_back(before));
        }
    }
}

/* ---- Announcing a pause -------------------------------------------------------------------- */

/* What is told of needs room in a list: without it the pool neither pauses nor resumes. */
static const char *sleep_and_wake(fixture *f, ductile_pool_id id, uint64_t nth, bool *failed) {
    arm(nth);
    ductile_status paused = ductile_pause(f->allocator, id, 0);
    ductile_status resumed = paused == DUCTILE_OK ? ductile_resume(f->allocator, id) : DUCTILE_OK;
    *failed = disarm();
    NEED(is_outcome(paused) && is_outcome(resumed), "pause %s, resume %s",
         ductile_status_name(paused), ductile_status_name(resumed));
    NEED(resumed == DUCTILE_OK || ductile_resume(f->allocator, id) == DUCTILE_OK, "resume again");
    return NULL;
}

Test(host_memory, an_announced_pause_undoes_itself) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    static shadow s;
    const ductile_pool_id id = {1, 1};
    uint64_t nth = 1;
    for (bool failed = true; failed; nth++) {
        fixture f;
        ductile_addr block = 0;
        memset(&s, 0, sizeof s);
        assert_fine(fixture_open(&f, NULL));
        assert_fine(shadow_open(&s, f.allocator, f.gpu));
        assert_ok(ductile_pool_begin(f.allocator, id, NULL, NULL));
        assert_ok(ductile_alloc(f.allocator, 3 * FIXTURE_GRANULE, f.streams[0], &block));
        assert_ok(ductile_pool_end(f.allocator, id));
        const char *why = sleep_and_wake(&f, id, nth, &failed);
        cr_assert(why == NULL, "request %llu: %s", (unsigned long long)nth, why);
        assert_fine(shadow_is_true(&s, f.allocator));
        assert_fine(shadow_covers(&s, block, 3 * FIXTURE_GRANULE));
        assert_ok(ductile_free(f.allocator, block));
        assert_ok(ductile_pool_release(f.allocator, id));
        assert_fine(fixture_close(&f));
    }
    cr_assert_gt(nth, 3, "a pause hardly asks for host memory");
}

/* ---- A stream that comes while a pause asks for memory --------------------------------------- */

static fixture busy;
static pthread_t newcomer;

static void *allocate_first(void *unused) {
    ductile_addr addr = 0;
    cr_expect_eq(ductile_alloc(busy.allocator, 512, busy.streams[1], &addr), DUCTILE_OK);
    return unused;
}

/* Gives the other thread some time: it may have to wait for the pause. */
static void let_newcomer_in(void) {
    cr_expect_eq(pthread_create(&newcomer, NULL, allocate_first, NULL), 0);
    (void)usleep(20 * 1000);
}

/* Pauses a pool under work, beside a capture or not. True: there was an nth request for memory. */
static bool pause_beside_newcomer(uint64_t nth, bool captures) {
    const fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    const ductile_pool_id id = {1, 1};
    const ductile_pool_id captured = {1, 2};
    ductile_addr block = 0;
    assert_fine(fixture_open(&busy, &setup));
    assert_ok(ductile_pool_retain(busy.allocator, id));
    assert_ok(ductile_pool_set_kind(busy.allocator, id, DUCTILE_POOL_PLAIN));
    assert_ok(ductile_pool_begin(busy.allocator, id, NULL, NULL));
    assert_ok(ductile_alloc(busy.allocator, 3 * FIXTURE_GRANULE, busy.streams[0], &block));
    assert_ok(ductile_pool_end(busy.allocator, id));
    assert_ok(ductile_virtual_fill(busy.gpu, block, 7, 3 * FIXTURE_GRANULE, busy.streams[0]));
    if (captures) {
        assert_ok(ductile_pool_begin(busy.allocator, captured, NULL, NULL));
    }
    instead = let_newcomer_in;
    arm(nth);
    ductile_status paused = ductile_pause(busy.allocator, id, 0);
    bool came = disarm();
    instead = NULL;
    if (came) {
        cr_assert_eq(pthread_join(newcomer, NULL), 0);
    }
    assert_ok(paused);
    cr_assert_eq(fixture_state(&busy).violations, 0, "request %llu: memory went under work",
                 (unsigned long long)nth);
    if (captures) {
        assert_ok(ductile_pool_end(busy.allocator, captured));
    }
    assert_ok(ductile_resume(busy.allocator, id));
    assert_ok(ductile_pool_release(busy.allocator, id));
    assert_fine(fixture_close(&busy));
    return came;
}

Test(host_memory, a_stream_that_comes_while_a_pause_lists_streams_hides_none) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    for (int captures = 0; captures <= 1; captures++) {
        uint64_t nth = 1;
        while (pause_beside_newcomer(nth, captures != 0)) {
            nth++;
        }
        cr_assert_gt(nth, 1, "a pause asks for no host memory");
    }
}

/* ---- None at all --------------------------------------------------------------------------- */

static const ductile_pool_id FULL = {3, 3};

/* Blocks of 512 bytes until only so many nodes of blocks are spare. */
static const char *use_up_nodes(fixture *g, uint32_t n_spare) {
    while (g->allocator->nodes.n_spare > n_spare) {
        ductile_addr small = 0;
        NEED_OK(ductile_alloc(g->allocator, 512, g->streams[0], &small));
    }
    return NULL;
}

static const char *without_memory(const char *call, ductile_status status) {
    NEED(status == DUCTILE_OK || is_for_lack_of_memory(status), "%s: %s", call,
         ductile_status_name(status));
    return NULL;
}

static int end_text(void *user, const char *text, size_t length) {
    (void)user;
    (void)text;
    return length == 0;
}

typedef struct held {
    fixture f;
    ductile_addr own[6];  /* of the default pool: every other one is free   */
    ductile_addr hole;    /* of the pool, where nothing is                  */
    ductile_addr made[4]; /* while there was no memory for the bookkeeping  */
} held;

static const char *hold(held *h, uint32_t n_spare) {
    const fixture_setup setup = {.capacity_bytes = 64 * MIB, .n_streams = 2};
    TRY(fixture_open(&h->f, &setup));
    ductile_allocator *a = h->f.allocator;
    ductile_addr rest = 0;
    NEED_OK(ductile_pool_begin(a, FULL, NULL, NULL));
    NEED_OK(ductile_alloc(a, 4096, h->f.streams[0], &h->hole));
    NEED_OK(ductile_alloc(a, 4096, h->f.streams[0], &rest));
    NEED_OK(ductile_pool_end(a, FULL));
    NEED_OK(ductile_free(a, h->hole));
    for (size_t i = 0; i < 6; i++) {
        NEED_OK(ductile_alloc(a, 3 * FIXTURE_GRANULE, h->f.streams[0], &h->own[i]));
    }
    TRY(use_up_nodes(&h->f, n_spare));
    for (size_t i = 0; i < 6; i += 2) {
        NEED_OK(ductile_free(a, h->own[i]));
    }
    return NULL;
}

/* What needs nodes of blocks, tables or lists: each is done, or refused for the one reason. */
static const char *do_all(held *h) {
    ductile_allocator *a = h->f.allocator;
    ductile_addr at = h->hole + 512;
    TRY(without_memory("alloc_at", ductile_pool_alloc_at(a, FULL, at, 512)));
    TRY(without_memory("a miss", ductile_alloc(a, 5 * FIXTURE_GRANULE, h->f.streams[0], h->made)));
    TRY(without_memory("another stream",
                       ductile_alloc(a, 5 * FIXTURE_GRANULE, h->f.streams[1], &h->made[1])));
    TRY(without_memory("dedicated", ductile_alloc_dedicated(a, 3 * FIXTURE_GRANULE, h->f.streams[0],
                                                            &h->made[2])));
    TRY(without_memory("pressure", ductile_alloc(a, 40 * MIB, h->f.streams[1], &h->made[3])));
    TRY(without_memory("snapshot", ductile_snapshot_json(a, end_text, NULL)));
    TRY(without_memory("trim", ductile_trim(a, 0, NULL)));
    TRY(without_memory("trim of a pool", ductile_pool_trim(a, FULL, NULL)));
    for (int i = 0; i < 200; i++) { /* maintenance comes by */
        ductile_addr small = 0;
        TRY(without_memory("small", ductile_alloc(a, 512, h->f.streams[0], &small)));
        NEED_OK(ductile_free(a, small));
    }
    return NULL;
}

static const char *is_whole_again(held *h) {
    ductile_allocator *a = h->f.allocator;
    char report[256] = "";
    NEED(ductile_check(a, report, sizeof report) == DUCTILE_OK, "check: %s", report);
    for (size_t i = 0; i < 4; i++) {
        NEED_OK(ductile_free(a, h->made[i]));
    }
    NEED_OK(ductile_trim(a, 0, NULL));
    NEED_OK(ductile_alloc(a, 5 * FIXTURE_GRANULE, h->f.streams[1], h->made));
    NEED(ductile_check(a, report, sizeof report) == DUCTILE_OK, "check: %s", report);
    return fixture_close(&h->f);
}

/* With every number of nodes that a call may find left. */
Test(host_memory, without_any_each_call_is_done_or_refused_and_changes_nothing) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    bool any_failed = false;
    for (uint32_t n_spare = 0; n_spare <= 24; n_spare++) {
        held h = {.hole = 0};
        assert_fine(hold(&h, n_spare));
        has_failed = false;
        fails_all = true;
        const char *why = do_all(&h);
        fails_all = false;
        any_failed |= has_failed;
        why = why != NULL ? why : is_whole_again(&h);
        cr_assert(why == NULL, "%u nodes left: %s", n_spare, why);
    }
    cr_assert(any_failed, "nobody asks for host memory");
}

/* Its lists come from one request for memory, the nodes of the blocks that it splits from others.
 */
Test(host_memory, each_request_of_a_trim_may_fail_with_any_number_of_nodes_left) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    const uint32_t spare[] = {0, 1, 2, 3,
                              4, 5, 6, 20}; /* the last: for one step, not for the next */
    for (size_t i = 0; i < sizeof spare / sizeof *spare; i++) {
        uint32_t n_spare = spare[i];
        bool failed = true;
        for (uint64_t nth = 1; failed; nth++) {
            held h = {.hole = 0};
            assert_fine(hold(&h, n_spare));
            arm(nth);
            ductile_status status = ductile_trim(h.f.allocator, 0, NULL);
            failed = disarm();
            const char *why = without_memory("trim", status);
            why = why != NULL ? why : is_whole_again(&h);
            cr_assert(why == NULL, "%u nodes left, request %llu: %s", n_spare,
                      (unsigned long long)nth, why);
        }
    }
}

/* Its region comes from one request, its nodes from another one, which may be for the last of them.
 */
Test(host_memory, each_request_of_a_dedicated_block_may_fail_with_any_number_of_nodes_left) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    for (uint32_t n_spare = 0; n_spare <= 8; n_spare++) {
        bool failed = true;
        for (uint64_t nth = 1; failed; nth++) {
            held h = {.hole = 0};
            assert_fine(hold(&h, n_spare));
            arm(nth);
            ductile_status status = ductile_alloc_dedicated(h.f.allocator, 3 * FIXTURE_GRANULE,
                                                            h.f.streams[0], &h.made[0]);
            failed = disarm();
            const char *why = without_memory("dedicated", status);
            why = why != NULL ? why : is_whole_again(&h);
            cr_assert(why == NULL, "%u nodes left, request %llu: %s", n_spare,
                      (unsigned long long)nth, why);
        }
    }
}

/* Nodes that other threads' hits take between two steps of a call, but for the last; from then on
 * there is no host memory for more. No other thread runs, so no lock is needed; the request may be
 * one of the device's, under a lock of its own. */
static ductile_allocator *robbed;
static dpool_block *taken;

static void take_nodes_but_one(void) {
    while (robbed->nodes.n_spare > 1) {
        dpool_block *node = dpool_node_take(&robbed->nodes);
        node->next = taken;
        taken = node;
    }
    fails_all = true;
}

static void give_nodes_back(void) {
    fails_all = false;
    while (taken != NULL) {
        dpool_block *node = taken;
        taken = node->next;
        dpool_node_give(&robbed->nodes, node);
    }
}

Test(host_memory, a_dedicated_block_whose_nodes_others_take_is_refused_and_undone) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    bool came = true;
    bool any_failed = false;
    for (uint64_t nth = 1; came; nth++) {
        held h = {.hole = 0};
        assert_fine(hold(&h, 8));
        robbed = h.f.allocator;
        instead = take_nodes_but_one;
        arm(nth);
        ductile_status status =
            ductile_alloc_dedicated(h.f.allocator, 3 * FIXTURE_GRANULE, h.f.streams[0], &h.made[0]);
        came = disarm();
        instead = NULL;
        give_nodes_back();
        any_failed |= status != DUCTILE_OK;
        const char *why = without_memory("dedicated", status);
        why = why != NULL ? why : is_whole_again(&h);
        cr_assert(why == NULL, "request %llu: %s", (unsigned long long)nth, why);
    }
    cr_assert(any_failed, "no node is missed");
}

/* [free][gap][free] in between others. */
static void hold_gap(held *h, uint32_t n_spare) {
    assert_fine(hold(h, n_spare));
    ductile_allocator *a = h->f.allocator;
    assert_ok(ductile_pin(a, h->own[1]));
    assert_ok(ductile_pin(a, h->own[5]));
    assert_ok(ductile_free(a, h->own[1]));
    assert_ok(ductile_free(a, h->own[5]));
    assert_ok(ductile_trim(a, 0, NULL));
    assert_ok(ductile_unpin(a, h->own[1]));
    assert_ok(ductile_unpin(a, h->own[5]));
}

static void hit_when_compaction_is_due(held *h) {
    ductile_addr small = 0;
    dti_lock_acquire(&h->f.allocator->index_lock);
    for (dpool_arena *arena = h->f.allocator->arenas; arena != NULL; arena = arena->next) {
        dpool_arena_want_compaction(arena);
    }
    dti_lock_release(&h->f.allocator->index_lock);
    assert_ok(ductile_alloc(h->f.allocator, 512, h->f.streams[0], &small));
}

/* The request that finds it due is served, and the next one heals. */
Test(host_memory, compaction_without_any_is_put_off) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    held h = {.hole = 0};
    hold_gap(&h, 40);
    assert_fine(use_up_nodes(&h.f, 8));
    has_failed = false;
    fails_all = true;
    hit_when_compaction_is_due(&h);
    fails_all = false;
    cr_assert(has_failed, "compaction asks for no host memory");
    assert_fine(is_whole_again(&h));
}

Test(host_memory, without_nodes_no_large_handle_is_given_back) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    held h = {.hole = 0};
    assert_fine(hold(&h, 4));
    ductile_allocator *a = h.f.allocator;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    has_failed = false;
    fails_all = true;
    uint64_t n = dpool_unused_shrink(a, a->arenas, 512);
    fails_all = false;
    dpool_grow_unlock(a, mode);
    assert_u64(n, 0);
    cr_assert(has_failed, "it asks for no host memory");
    assert_fine(is_whole_again(&h));
}

Test(host_memory, a_block_is_put_where_it_belongs_when_no_node_is_left_for_it) {
    for (uint32_t n_spare = 0; n_spare <= 2; n_spare++) {
        held h = {.hole = 0};
        assert_fine(hold(&h, n_spare));
        h.made[0] = h.hole + 512;
        assert_ok(ductile_pool_alloc_at(h.f.allocator, FULL, h.made[0], 512));
        assert_fine(is_whole_again(&h));
    }
}

/* ---- Others between two looks -------------------------------------------------------------- */

/* More than a snapshot leaves room for. */
static void add_blocks(void) {
    for (int i = 0; i < 300; i++) {
        ductile_addr block = 0;
        cr_expect_eq(ductile_alloc(busy.allocator, 512, busy.streams[0], &block), DUCTILE_OK);
    }
}

static int count_live(void *user, const char *text, size_t length) {
    uint64_t *n = user;
    (void)length;
    for (const char *at = text; (at = strstr(at, "\"live\"")) != NULL; at++) {
        ++*n;
    }
    return 0;
}

/* They come after it has counted the blocks, and before it copies them. */
Test(host_memory, a_snapshot_has_all_blocks_that_come_while_it_asks_for_memory) {
    if (!CAN_FAIL) {
        cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");
    }
    uint64_t n_live = 0;
    assert_fine(fixture_open(&busy, NULL));
    instead = add_blocks;
    arm(1);
    ductile_status status = ductile_snapshot_json(busy.allocator, count_live, &n_live);
    bool came = disarm();
    instead = NULL;
    assert_ok(status);
    cr_assert(came, "a snapshot asks for no host memory");
    assert_u64(n_live, fixture_stats(busy.allocator).live_blocks);
    assert_u64(n_live, 300);
    (void)ductile_destroy(busy.allocator);
    fixture_abandon(&busy);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile_stream_done beside threads that are about to name the stream, untold: in a trim, in a
 * sleep, at the close of an import, at a free that fails to. A thread stops just before it names
 * the stream; once ductile_stream_done has returned and the stream is destroyed, it must not. The
 * linker puts the stops in: see __wrap_. Frees and trims are beside it in tests/orders, in any
 * order.
 */
#include "pool/base/allocator.h"
#include "tests/support/audit.h"
#include "tests/support/one_pair.h"

#include <ductile_pools.h>
#include <ductile_sleep.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>

#define POOL ((ductile_pool_id){0, 1})

/* ---- A thread that stops ------------------------------------------------------------------- */

typedef enum deed { FREE, TRIM, SLEEP, CLOSE, DONE } deed;

/* What a thread does with the allocator. Owner: one test. */
typedef struct errand {
    deed what;
    ductile_allocator *allocator;
    ductile_addr address;
    ductile_stream stream;
    bool stops; /* before it names this stream */
    int passes; /* so often before it stops    */
    bool looks; /* it stops where it asks whether the stream is captured, not where it marks it */
    ductile_status status;
    atomic_bool is_back;
} errand;

static sem_t reached, released;
static _Thread_local errand *mine;

/* The linker sends calls of X to __wrap_X and those of __real_X to X. */
ductile_status __real_dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                         dvmm_marker **out);
ductile_status __wrap_dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                         dvmm_marker **out);
bool __real_dvmm_is_capturing(dvmm_driver *d, ductile_stream stream);
bool __wrap_dvmm_is_capturing(dvmm_driver *d, ductile_stream stream);

static void stop_before(ductile_stream stream, bool is_look) {
    bool is_here = mine != NULL && mine->stops && mine->looks == is_look && mine->stream == stream;
    if (is_here && mine->passes-- == 0) {
        mine->stops = false;
        (void)sem_post(&reached);
        (void)sem_wait(&released);
    }
}

ductile_status __wrap_dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                         dvmm_marker **out) {
    stop_before(stream, false);
    return __real_dvmm_marker_record(pool, stream, out);
}

bool __wrap_dvmm_is_capturing(dvmm_driver *d, ductile_stream stream) {
    stop_before(stream, true);
    return __real_dvmm_is_capturing(d, stream);
}

static ductile_status call(const errand *e) {
    switch (e->what) {
    case FREE:
        return ductile_free(e->allocator, e->address);
    case TRIM:
        return ductile_trim(e->allocator, NULL, 0, NULL);
    case SLEEP:
        return ductile_sleep(e->allocator, POOL, DUCTILE_CONTENTS_DROP);
    case CLOSE:
        return ductile_import_close(e->allocator, e->address);
    case DONE:
        break;
    }
    return ductile_stream_done(e->allocator, e->stream);
}

static void *run(void *user) {
    errand *e = mine = user;
    e->status = call(e);
    atomic_store(&e->is_back, true);
    if (e->stops) {
        (void)sem_post(&reached); /* it did not come by: the other thread need not wait for it */
    }
    return NULL;
}

static pthread_t begin_and_stop(errand *e) {
    pthread_t thread = begin_thread(run, e);
    cr_assert_eq(sem_wait(&reached), 0);
    cr_assert(!atomic_load(&e->is_back), "the thread did not name the stream");
    return thread;
}

static void end_errand(pthread_t thread, const errand *e) {
    end_thread(thread);
    assert_ok(e->status);
}

static void wait_a_moment(void) {
    const struct timespec moment = {.tv_nsec = 20000000};
    (void)nanosleep(&moment, NULL);
}

/* While the thread is stopped another one has the stream done. Returns whether that is over before
 * the first goes on. */
static bool is_done_beside(errand *e) {
    errand done = {.what = DONE, .allocator = e->allocator, .stream = e->stream};
    pthread_t slow = begin_and_stop(e);
    pthread_t waiter = begin_thread(run, &done);
    wait_a_moment();
    bool is_over = atomic_load(&done.is_back);
    cr_assert_eq(sem_post(&released), 0);
    end_errand(slow, e);
    end_errand(waiter, &done);
    return is_over;
}

/* ---- Frees and waits ----------------------------------------------------------------------- */

static void open_lazy(void) {
    const fixture_setup setup = {.capacity_bytes = 1 * GIB,
                                 .schedule = DUCTILE_SCHEDULE_LAZY,
                                 .n_streams = 3,
                                 .n_devices = 2};
    assert_fine(two_ends_open(&t, &setup, SOCK_STREAM));
    cr_assert_eq(sem_init(&reached, 0, 0), 0);
    cr_assert_eq(sem_init(&released, 0, 0), 0);
}

static void close_audited(void) {
    assert_fine(audit_allocator(t.f.allocator, NULL));
    close_ends();
}

TestSuite(stream_done_beside, .init = open_lazy, .fini = close_audited);

static ductile_stream last_stream(void) {
    return t.f.streams[t.f.n_streams - 1];
}

/* The last stream does not exist any more: a call that names it from now on makes a violation. */
static void end_stream(void) {
    assert_ok(ductile_virtual_stream_destroy(t.f.gpu, last_stream()));
    t.f.n_streams--;
}

static ductile_addr take_recorded(void) {
    ductile_addr address = take(20 * MIB);
    ductile_virtual_use use = {.address = address, .size = 20 * MIB, .writes = 1};
    assert_ok(ductile_virtual_launch(t.f.gpu, last_stream(), &use, 1));
    assert_ok(ductile_record_stream(t.f.allocator, address, last_stream()));
    return address;
}

static errand with_last_stream(deed what, ductile_addr address) {
    return (errand){.what = what,
                    .allocator = t.f.allocator,
                    .address = address,
                    .stream = last_stream(),
                    .stops = true};
}

/* What the free could not mark is not made up for on a stream that is gone. */
Test(stream_done_beside, a_free_that_could_not_mark_the_stream) {
    ductile_allocator *a = t.f.allocator;
    errand e = with_last_stream(FREE, take_recorded());
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "event_record", .nth = 2, .code = 1};
    assert_ok(ductile_virtual_inject(t.f.gpu, &fault));
    (void)is_done_beside(&e); /* the end has marked the stream by then, as far as it could */
    assert_u64(ductile_virtual_faults_fired(t.f.gpu), 1);
    end_stream();
    assert_ok(ductile_pool_begin(a, POOL, NULL, NULL));
    assert_ok(ductile_pool_end(a, POOL)); /* marks what could not be marked before */
    assert_ok(ductile_pool_release(a, POOL));
}

/* No context marker may be recorded: the trim waits for the stream. */
Test(stream_done_beside, a_trim_that_waits_for_the_stream) {
    ductile_addr address = 0;
    assert_ok(ductile_set_captures(t.f.allocator, DUCTILE_CAPTURES_UNANNOUNCED));
    assert_ok(ductile_alloc(t.f.allocator, 20 * MIB, last_stream(), &address));
    assert_ok(ductile_free(t.f.allocator, address));
    errand e = with_last_stream(TRIM, 0);
    e.looks = true;
    cr_expect(!is_done_beside(&e), "the stream is done, and will be named");
    end_stream();
}

/* Where another GPU has access, a sleep marks the streams that live blocks are recorded on. */
Test(stream_done_beside, a_sleep_that_marks_the_stream) {
    ductile_allocator *a = t.f.allocator;
    assert_ok(ductile_enable_peer(a, 1));
    assert_ok(ductile_pool_begin(a, POOL, NULL, NULL));
    ductile_addr address = take_recorded();
    assert_ok(ductile_pool_end(a, POOL));
    errand e = with_last_stream(SLEEP, address);
    cr_expect(!is_done_beside(&e), "the stream is done, and will be named");
    end_stream();
    assert_ok(ductile_wake(a, POOL));
    assert_ok(ductile_sleep(a, POOL, DUCTILE_CONTENTS_DROP)); /* asks for the marker alone */
    assert_ok(ductile_free(a, address));
    assert_ok(ductile_pool_release(a, POOL));
}

/* ---- Imports ------------------------------------------------------------------------------- */

/* An import of the first stream. */
static errand import_one(deed what, bool stops) {
    passing p = two_ends_pass(&t, take(2 * MIB));
    assert_ok(p.imported);
    return (errand){.what = what,
                    .allocator = t.importer,
                    .address = p.addr,
                    .stream = t.f.streams[0],
                    .stops = stops};
}

Test(stream_done_beside, an_import_that_is_being_closed) {
    errand e = import_one(CLOSE, true);
    cr_expect(!is_done_beside(&e), "the stream is done, and will be named");
}

/* The import is there all the while: no thread is told that it is not. */
Test(stream_done_beside, an_import_that_somebody_wants_to_close) {
    errand done = import_one(DONE, true);
    errand e = {.what = CLOSE, .allocator = done.allocator, .address = done.address};
    done.passes = 1; /* the first marker is for what was recorded */
    pthread_t marking = begin_and_stop(&done);
    ductile_block_info info = {.struct_size = sizeof info};
    assert_ok(ductile_query_block(t.importer, e.address, &info));
    pthread_t closing = begin_thread(run, &e);
    wait_a_moment();
    cr_assert_eq(sem_post(&released), 0);
    end_errand(closing, &e);
    end_errand(marking, &done);
}

/* A thread that is told that the import goes may end its stream. */
static void end_its_stream(void *user, ductile_allocator *allocator,
                           const ductile_map_event *event) {
    errand *e = user;
    (void)event;
    e->status = ductile_stream_done(allocator, e->stream);
}

Test(stream_done_beside, the_callback_that_is_told_of_a_close) {
    errand e = import_one(DONE, false);
    uint64_t id = 0;
    assert_ok(ductile_add_map_callback(t.importer, end_its_stream, &e, 0, &id));
    e.status = DUCTILE_ERR_BUSY;
    assert_ok(ductile_import_close(t.importer, e.address));
    assert_ok(e.status);
    assert_ok(ductile_remove_map_callback(t.importer, id));
}

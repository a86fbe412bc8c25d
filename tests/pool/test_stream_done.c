/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile_stream_done beside threads that are about to name the stream, untold: in a trim, in a
 * pause, at the close of an import, at a free that fails to. A thread stops just before it names
 * the stream; once ductile_stream_done has returned and the stream is destroyed, it must not. The
 * linker puts the stops in: see __wrap_. Frees and trims are beside it in tests/orders, in any
 * order.
 */
#include "tests/support/audit.h"
#include "tests/support/expect.h"
#include "tests/support/two_ends.h"
#include "vmm/capture_mode.h"
#include "vmm/marker.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>

#define POOL ((ductile_pool_id){0, 1})

/* ---- A thread that stops ------------------------------------------------------------------- */

/* What a thread does with the allocator. Owner: one test. */
typedef struct errand {
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
static _Thread_local bool stops_next;
static _Thread_local ductile_stream stops_for;
static _Thread_local int passes_left;
static _Thread_local bool stops_at_looks;

/* The linker sends calls of X to __wrap_X and those of __real_X to X. */
ductile_status __real_dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                         dvmm_marker **out);
ductile_status __wrap_dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                         dvmm_marker **out);
bool __real_dvmm_is_capturing(dvmm_driver *d, ductile_stream stream);
bool __wrap_dvmm_is_capturing(dvmm_driver *d, ductile_stream stream);

static void stop_before(ductile_stream stream, bool is_look) {
    bool is_here = stops_next && stops_at_looks == is_look && stops_for == stream;
    if (is_here && passes_left-- == 0) {
        stops_next = false;
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

static void make_stops(void) {
    cr_assert_eq(sem_init(&reached, 0, 0), 0);
    cr_assert_eq(sem_init(&released, 0, 0), 0);
}

static void get_ready(const errand *e) {
    stops_next = e->stops;
    stops_for = e->stream;
    passes_left = e->passes;
    stops_at_looks = e->looks;
}

static void come_back(errand *e) {
    atomic_store(&e->is_back, true);
    if (stops_next) {
        (void)sem_post(&reached); /* it did not come by: the other thread need not wait for it */
    }
}

static pthread_t start(void *(*body)(void *), errand *e) {
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, body, e), 0);
    return thread;
}

static void finish(pthread_t thread, const errand *e) {
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_ok(e->status);
}

static void *do_free(void *user) {
    errand *e = user;
    get_ready(e);
    e->status = ductile_free(e->allocator, e->address);
    come_back(e);
    return NULL;
}

static void *do_trim(void *user) {
    errand *e = user;
    get_ready(e);
    e->status = ductile_trim(e->allocator, NULL, 0, NULL);
    come_back(e);
    return NULL;
}

static void *do_pause(void *user) {
    errand *e = user;
    get_ready(e);
    e->status = ductile_pause(e->allocator, POOL, DUCTILE_CONTENTS_DROP);
    come_back(e);
    return NULL;
}

static void *do_close(void *user) {
    errand *e = user;
    get_ready(e);
    e->status = ductile_import_close(e->allocator, e->address);
    come_back(e);
    return NULL;
}

static void *do_stream_done(void *user) {
    errand *e = user;
    get_ready(e);
    e->status = ductile_stream_done(e->allocator, e->stream);
    come_back(e);
    return NULL;
}

static void wait_a_moment(void) {
    const struct timespec moment = {.tv_nsec = 20000000};
    (void)nanosleep(&moment, NULL);
}

/* The thread is stopped before it names the stream: the stream does not get done meanwhile. */
static void done_waits_for(void *(*body)(void *), errand *e) {
    errand done = {.allocator = e->allocator, .stream = e->stream};
    pthread_t slow = start(body, e);
    cr_assert_eq(sem_wait(&reached), 0);
    cr_assert(!atomic_load(&e->is_back), "the thread did not name the stream");
    pthread_t waiter = start(do_stream_done, &done);
    wait_a_moment();
    cr_expect(!atomic_load(&done.is_back), "the stream is done, and will be named");
    cr_assert_eq(sem_post(&released), 0);
    finish(slow, e);
    finish(waiter, &done);
}

/* ---- Frees and waits ----------------------------------------------------------------------- */

static fixture f;

static void open_lazy(void) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3, .n_devices = 2};
    assert_fine(fixture_open(&f, &setup));
    make_stops();
}

/* The first stream does not exist any more: a call that names it from now on makes a violation. */
static void end_stream(void) {
    assert_ok(ductile_virtual_stream_destroy(f.gpu, f.streams[f.n_streams - 1]));
    f.n_streams--;
}

static void close_audited(void) {
    assert_fine(audit_fixture(&f, NULL));
    assert_fine(fixture_close(&f));
}

static ductile_stream last_stream(void) {
    return f.streams[f.n_streams - 1];
}

static ductile_addr take_on(size_t stream) {
    ductile_addr address = 0;
    assert_ok(ductile_alloc(f.allocator, 20 * MIB, f.streams[stream], &address));
    return address;
}

static ductile_addr take_recorded(void) {
    ductile_addr address = take_on(0);
    ductile_virtual_use use = {.address = address, .size = 20 * MIB, .writes = 1};
    assert_ok(ductile_virtual_launch(f.gpu, last_stream(), &use, 1));
    assert_ok(ductile_record_stream(f.allocator, address, last_stream()));
    return address;
}

static errand with_last_stream(ductile_addr address, bool stops) {
    return (errand){
        .allocator = f.allocator, .address = address, .stream = last_stream(), .stops = stops};
}

TestSuite(stream_done_beside, .init = open_lazy);

/* What the free could not mark is not made up for on a stream that is gone. */
Test(stream_done_beside, a_free_that_could_not_mark_the_stream) {
    errand e = with_last_stream(take_recorded(), true);
    errand done = {.allocator = f.allocator, .stream = e.stream};
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "event_record", .nth = 2, .code = 1};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    pthread_t slow = start(do_free, &e);
    cr_assert_eq(sem_wait(&reached), 0);
    pthread_t waiter = start(do_stream_done, &done);
    wait_a_moment(); /* it has marked the stream by now, as far as it could */
    cr_assert_eq(sem_post(&released), 0);
    finish(slow, &e);
    finish(waiter, &done);
    assert_u64(ductile_virtual_faults_fired(f.gpu), 1);
    end_stream();
    assert_ok(ductile_pool_begin(f.allocator, POOL, NULL, NULL));
    assert_ok(ductile_pool_end(f.allocator, POOL)); /* marks what could not be marked before */
    assert_ok(ductile_pool_release(f.allocator, POOL));
    close_audited();
}

/* No context marker may be recorded: the trim waits for the stream. */
Test(stream_done_beside, a_trim_that_waits_for_the_stream) {
    assert_ok(ductile_set_captures(f.allocator, DUCTILE_CAPTURES_UNANNOUNCED));
    assert_ok(ductile_free(f.allocator, take_on(f.n_streams - 1)));
    errand e = with_last_stream(0, true);
    e.looks = true;
    done_waits_for(do_trim, &e);
    end_stream();
    close_audited();
}

/* Where another GPU has access, a pause marks the streams that live blocks are recorded on. */
Test(stream_done_beside, a_pause_that_marks_the_stream) {
    assert_ok(ductile_enable_peer(f.allocator, 1));
    assert_ok(ductile_pool_begin(f.allocator, POOL, NULL, NULL));
    ductile_addr address = take_recorded();
    assert_ok(ductile_pool_end(f.allocator, POOL));
    errand e = with_last_stream(address, true);
    done_waits_for(do_pause, &e);
    end_stream();
    assert_ok(ductile_resume(f.allocator, POOL));
    assert_ok(ductile_pause(f.allocator, POOL,
                            DUCTILE_CONTENTS_DROP)); /* asks for the marker, and not the stream */
    assert_ok(ductile_free(f.allocator, address));
    assert_ok(ductile_pool_release(f.allocator, POOL));
    close_audited();
}

/* ---- Imports ------------------------------------------------------------------------------- */

static two_ends t;

static void open_ends(void) {
    const fixture_setup setup = {.capacity_bytes = 1 * GIB, .n_streams = 2};
    assert_fine(two_ends_open(&t, &setup, SOCK_STREAM));
    make_stops();
}

/* An import of the first stream. */
static errand import_one(bool stops) {
    ductile_addr address = 0;
    assert_ok(ductile_alloc(t.f.allocator, 2 * MIB, t.f.streams[0], &address));
    passing p = two_ends_pass(&t, address);
    assert_ok(p.imported);
    return (errand){
        .allocator = t.importer, .address = p.addr, .stream = t.f.streams[0], .stops = stops};
}

TestSuite(stream_done_beside_import, .init = open_ends);

Test(stream_done_beside_import, that_is_being_closed) {
    errand e = import_one(true);
    done_waits_for(do_close, &e);
    assert_fine(two_ends_close(&t));
}

/* The import is there all the while: no thread is told that it is not. */
Test(stream_done_beside_import, that_somebody_wants_to_close) {
    errand done = import_one(true);
    errand e = {.allocator = done.allocator, .address = done.address, .stream = done.stream};
    done.passes = 1; /* the first marker is for what was recorded */
    pthread_t marking = start(do_stream_done, &done);
    cr_assert_eq(sem_wait(&reached), 0);
    cr_assert(!atomic_load(&done.is_back), "the import was not marked");
    ductile_block_info info = {.struct_size = sizeof info};
    assert_ok(ductile_query_block(t.importer, e.address, &info));
    pthread_t closing = start(do_close, &e);
    wait_a_moment();
    cr_assert_eq(sem_post(&released), 0);
    finish(closing, &e);
    finish(marking, &done);
    assert_fine(two_ends_close(&t));
}

/* A thread that is told that the import goes may end its stream. */
static void end_its_stream(void *user, ductile_allocator *allocator,
                           const ductile_map_event *event) {
    errand *e = user;
    (void)event;
    e->status = ductile_stream_done(allocator, e->stream);
}

Test(stream_done_beside_import, in_the_callback_that_is_told_of_the_close) {
    errand e = import_one(false);
    uint64_t id = 0;
    assert_ok(ductile_add_map_callback(t.importer, end_its_stream, &e, 0, &id));
    e.status = DUCTILE_ERR_BUSY;
    assert_ok(ductile_import_close(t.importer, e.address));
    assert_ok(e.status);
    assert_ok(ductile_remove_map_callback(t.importer, id));
    assert_fine(two_ends_close(&t));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two orders that only a slow thread brings about. A thread stops inside a driver step, right
 * after it recorded a marker or right before it reserves addresses, while another one does a lot.
 * The linker puts the stops in: see __wrap_.
 */
#include "pool/blocks/arena.h"
#include "tests/support/audit.h"
#include "tests/support/expect.h"
#include "vmm/base/check.h"

#include <pthread.h>
#include <semaphore.h>

enum {
    UNIT = 512, /* the smallest block */
    ROOM_FOR_HITS = 10 << 20,
    MANY_HITS = 128
};

/* ---- A thread that stops ------------------------------------------------------------------- */

typedef enum stop_at { NOWHERE, AFTER_A_RECORD, BEFORE_A_RESERVATION } stop_at;

/* Owner: one test. The stopped thread writes before `reached`, the other one reads after it. */
typedef struct slow_thread {
    fixture f;
    stop_at where;
    pthread_t thread;
    sem_t reached;
    sem_t released;
    dvmm_marker *marker; /* the one it had recorded, held */
    ductile_status status;
} slow_thread;

static slow_thread slow;
static _Thread_local stop_at stops_next;

static void stop_here(void) {
    stops_next = NOWHERE;
    (void)sem_post(&slow.reached);
    (void)sem_wait(&slow.released);
}

/* The linker sends calls of X to __wrap_X and those of __real_X to X. */
ductile_status __real_dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                         dvmm_marker **out);
ductile_status __wrap_dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                         dvmm_marker **out);
ductile_status __real_dvmm_marker_record_context(dvmm_marker_pool *pool, dvmm_marker **out);
ductile_status __wrap_dvmm_marker_record_context(dvmm_marker_pool *pool, dvmm_marker **out);
void __real_dvmm_captures_release(bool all_are_announced);
void __wrap_dvmm_captures_release(bool all_are_announced);
ductile_status __real_dvmm_address_reserve(dvmm_driver *d, uint64_t size, ductile_addr *out);
ductile_status __wrap_dvmm_address_reserve(dvmm_driver *d, uint64_t size, ductile_addr *out);

static bool keep_if_stopping(ductile_status status, dvmm_marker *marker) {
    bool is_stopping = stops_next == AFTER_A_RECORD && status == DUCTILE_OK;
    if (is_stopping) {
        slow.marker = marker;
        dvmm_marker_hold(slow.marker);
    }
    return is_stopping;
}

ductile_status __wrap_dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                         dvmm_marker **out) {
    ductile_status status = __real_dvmm_marker_record(pool, stream, out);
    if (keep_if_stopping(status, *out)) {
        stop_here();
    }
    return status;
}

ductile_status __wrap_dvmm_marker_record_context(dvmm_marker_pool *pool, dvmm_marker **out) {
    ductile_status status = __real_dvmm_marker_record_context(pool, out);
    (void)keep_if_stopping(status, *out);
    return status;
}

/* While the record is made, other threads cannot make one: the thread stops right after. */
void __wrap_dvmm_captures_release(bool all_are_announced) {
    __real_dvmm_captures_release(all_are_announced);
    if (slow.marker != NULL && stops_next == AFTER_A_RECORD) {
        stop_here();
    }
}

ductile_status __wrap_dvmm_address_reserve(dvmm_driver *d, uint64_t size, ductile_addr *out) {
    if (stops_next == BEFORE_A_RESERVATION) {
        stop_here();
    }
    return __real_dvmm_address_reserve(d, size, out);
}

static void open_slow(const fixture_setup *setup, stop_at where) {
    slow = (slow_thread){.where = where};
    assert_fine(fixture_open(&slow.f, setup));
    cr_assert_eq(sem_init(&slow.reached, 0, 0), 0);
    cr_assert_eq(sem_init(&slow.released, 0, 0), 0);
}

static void start_slow(void *(*body)(void *)) {
    cr_assert_eq(pthread_create(&slow.thread, NULL, body, NULL), 0);
    cr_assert_eq(sem_wait(&slow.reached), 0);
}

static void finish_slow(void) {
    cr_assert_eq(sem_post(&slow.released), 0);
    cr_assert_eq(pthread_join(slow.thread, NULL), 0);
    assert_ok(slow.status);
}

static ductile_addr take(size_t size, ductile_stream stream) {
    ductile_addr address = 0;
    assert_ok(ductile_alloc(slow.f.allocator, size, stream, &address));
    return address;
}

/* ---- Markers ------------------------------------------------------------------------------- */

/* Hits until one of them records a marker, as one in 64 does when enough was freed; never stops
 * when none does. */
static void *hit_until_marked(void *unused) {
    (void)unused;
    stops_next = slow.where;
    for (int i = 0; i < MANY_HITS && slow.status == DUCTILE_OK; i++) {
        ductile_addr address = 0;
        slow.status = ductile_alloc(slow.f.allocator, ROOM_FOR_HITS, slow.f.streams[0], &address);
        (void)ductile_free(slow.f.allocator, address);
        if (stops_next == NOWHERE) {
            return NULL;
        }
    }
    slow.status = DUCTILE_ERR_BUSY; /* the other thread waits for a stop that did not come */
    (void)sem_post(&slow.reached);
    return NULL;
}

/*
 * The slow thread has recorded its marker, which does not know of it. The kernel comes after that
 * marker, the memory it writes is freed and moved, its old addresses retire behind a marker of
 * their own: the slow thread's marker says nothing about them, whenever it gets into the list.
 */
Test(mark_order, a_marker_recorded_early_does_not_unmap_under_a_kernel) {
    fixture_setup setup = {
        .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2, .conf = "compact:off"};
    open_slow(&setup, AFTER_A_RECORD);
    ductile_stream stream = slow.f.streams[0];
    (void)take(UNIT, slow.f.streams[1]); /* markers are for programs of several streams */
    ductile_addr x = take(20 * MIB, stream);
    (void)take(2 * MIB, stream);
    ductile_addr y = take(20 * MIB, stream);
    (void)take(2 * MIB, stream);
    assert_ok(ductile_free(slow.f.allocator, take(ROOM_FOR_HITS, stream)));
    start_slow(hit_until_marked);
    cr_assert_not_null(slow.marker, "no hit recorded a marker");

    ductile_virtual_use uses[2] = {{x, 20 * MIB, 1}, {y, 20 * MIB, 1}};
    assert_ok(ductile_virtual_launch(slow.f.gpu, stream, uses, 2));
    assert_ok(ductile_free(slow.f.allocator, x));
    assert_ok(ductile_free(slow.f.allocator, y));
    (void)take(48 * MIB, stream);
    cr_assert_gt(fixture_stats(slow.f.allocator).retiring_bytes, 0, "nothing has moved");
    finish_slow();

    dvmm_marker_pool *markers = &slow.f.allocator->markers;
    assert_ok(dvmm_marker_wait(markers, slow.marker)); /* lazy: work up to there, nothing after */
    dvmm_marker_drop(markers, slow.marker);
    (void)take(40 * MIB, stream); /* looks at the list and unmaps what is proven */
    assert_ok(ductile_virtual_stream_sync(slow.f.gpu, stream));
    assert_u64((unsigned)fixture_state(&slow.f).poisoned, 0);
    assert_fine(audit_fixture(&slow.f, NULL));
    assert_fine(fixture_close(&slow.f));
}

static void *free_and_stop(void *address) {
    stops_next = slow.where;
    slow.status = ductile_free_on(slow.f.allocator, *(ductile_addr *)address, slow.f.streams[1]);
    return NULL;
}

/*
 * The slow thread's free has recorded its marker, which does not know of the kernel. The other free
 * comes behind the kernel, and is through first: the early marker says nothing about it (U11).
 */
Test(mark_order, a_use_marked_early_does_not_free_what_is_used_later) {
    fixture_setup setup = {
        .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2, .conf = "compact:off"};
    open_slow(&setup, AFTER_A_RECORD);
    ductile_addr early = take(UNIT, slow.f.streams[0]);
    ductile_addr late = take(UNIT, slow.f.streams[0]);
    assert_ok(ductile_virtual_fill(slow.f.gpu, early, 1, UNIT, slow.f.streams[1]));
    cr_assert_eq(pthread_create(&slow.thread, NULL, free_and_stop, &early), 0);
    cr_assert_eq(sem_wait(&slow.reached), 0);

    assert_ok(ductile_virtual_fill(slow.f.gpu, late, 2, UNIT, slow.f.streams[1]));
    assert_ok(ductile_free_on(slow.f.allocator, late, slow.f.streams[1]));
    finish_slow();

    dvmm_marker_pool *markers = &slow.f.allocator->markers;
    assert_ok(dvmm_marker_wait(markers, slow.marker)); /* lazy: work up to there, nothing after */
    dvmm_marker_drop(markers, slow.marker);
    bool is_early_free = false;
    for (int i = 0; i < MANY_HITS; i++) {
        ductile_addr address = take(UNIT, slow.f.streams[0]);
        cr_assert_neq(address, late, "its work is under way");
        is_early_free |= address == early;
    }
    cr_assert(is_early_free);
    assert_u64(fixture_stats(slow.f.allocator).pending_blocks, 1);
    assert_fine(audit_fixture(&slow.f, NULL));
    assert_fine(fixture_close(&slow.f));
}

/* ---- Nodes --------------------------------------------------------------------------------- */

static void *open_an_arena(void *unused) {
    (void)unused;
    stops_next = slow.where;
    ductile_addr address = 0;
    slow.status = ductile_alloc(slow.f.allocator, MIB, slow.f.streams[1], &address);
    return NULL;
}

/* The range needs a node for its one gap; while it is being reserved, hits use all nodes up. */
Test(mark_order, a_new_range_survives_hits_that_take_its_node) {
    if (DUCTILE_CHECK >= 3) {
        cr_skip_test("every call checks the whole heap, which waits for the stopped thread's lock");
    }
    fixture_setup setup = {.n_streams = 2, .conf = "compact:off"};
    open_slow(&setup, BEFORE_A_RESERVATION);
    assert_ok(ductile_free(slow.f.allocator, take(64 * MIB, slow.f.streams[0])));
    start_slow(open_an_arena);
    while (slow.f.allocator->nodes.n_spare > 0) { /* the other one is stopped, without that lock */
        (void)take(UNIT, slow.f.streams[0]);
    }
    finish_slow();
    assert_fine(audit_fixture(&slow.f, NULL));
    assert_fine(fixture_close(&slow.f));
}

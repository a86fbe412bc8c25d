/* SPDX-License-Identifier: Apache-2.0 */
/* What a walk and statistics say of pending memory, and beside a plan under way. How totals rise is
 * in tests/scenarios/limits.txt. */
#include "tests/support/one_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static void open_lagging(void) {
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAGGING, .lag = 40, .n_streams = 2});
}

TestSuite(totals, .init = open_lagging, .fini = close_audited);

static int find_pending(void *user, const ductile_block_info *block) {
    if (block->state == DUCTILE_BLOCK_PENDING) {
        *(ductile_block_info *)user = *block;
    }
    return 0;
}

Test(totals, a_pending_block_still_says_what_was_asked_for) {
    ductile_addr block = take(1000, 0);
    assert_ok(ductile_free_ex(f.allocator, block, &f.streams[1], 1, NULL));
    ductile_block_info found = {.struct_size = sizeof found};
    assert_ok(ductile_walk(f.allocator, NULL, find_pending, &found));
    assert_u64(found.address, block);
    assert_u64(found.requested_size, 1000);
}

/* ---- At any time --------------------------------------------------------------------------- */

enum { BEFORE, INSIDE, GO_ON };
static atomic_int phase;

/* Keeps the first growth of the second stream inside its callback. */
static void stay_inside(void *user, ductile_allocator *a, const ductile_map_event *event) {
    (void)user;
    (void)a;
    int before = BEFORE;
    if (event->stream == f.streams[1] && atomic_compare_exchange_strong(&phase, &before, INSIDE)) {
        while (atomic_load(&phase) == INSIDE) {
            (void)usleep(100);
        }
    }
}

static void *grow_second_stream(void *status) {
    ductile_addr addr = 0;
    *(ductile_status *)status = ductile_alloc(f.allocator, 6 * MIB, f.streams[1], &addr);
    return NULL;
}

static void expect_identity(void) {
    ductile_stats s = fixture_stats(f.allocator);
    assert_u64(s.reserved_bytes, s.allocated_bytes + s.free_bytes + s.pending_bytes +
                                     s.cached_bytes + s.quarantined_bytes);
}

Test(totals, add_up_while_another_threads_plan_is_announced) {
    uint64_t id = 0;
    pthread_t other;
    ductile_status grown = DUCTILE_ERR_BUSY;
    assert_ok(ductile_add_map_callback(f.allocator, stay_inside, NULL, 0, &id));
    cr_assert_eq(pthread_create(&other, NULL, grow_second_stream, &grown), 0);
    while (atomic_load(&phase) == BEFORE) {
        (void)usleep(100);
    }
    expect_identity();
    (void)take(MIB, 0);
    expect_identity();
    atomic_store(&phase, GO_ON);
    cr_assert_eq(pthread_join(other, NULL), 0);
    assert_ok(grown);
    expect_identity();
}

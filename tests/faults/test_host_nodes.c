/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No host memory at all, with any number of nodes of blocks left: each call is done or refused, and
 * changes nothing where it is refused. So it is where other threads take the nodes that a call has
 * made sure of.
 */
#include "pool/blocks/arena.h"
#include "pool/blocks/room.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/failing_malloc.h"
#include "tests/support/fixture_virtual.h"

#include <ductile_pools.h>
#include <ductile_share.h>

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
    TRY(without_memory("trim", ductile_trim(a, NULL, 0, NULL)));
    TRY(without_memory("trim of a pool", ductile_trim(a, &FULL, 0, NULL)));
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
    NEED_OK(ductile_trim(a, NULL, 0, NULL));
    NEED_OK(ductile_alloc(a, 5 * FIXTURE_GRANULE, h->f.streams[1], h->made));
    NEED(ductile_check(a, report, sizeof report) == DUCTILE_OK, "check: %s", report);
    return fixture_close(&h->f);
}

/* With every number of nodes that a call may find left. */
Test(host_nodes, without_any_each_call_is_done_or_refused_and_changes_nothing) {
    NEEDS_FAILURES();
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
    cr_assert(any_failed, "no call asks for host memory");
}

/* Each request of the call fails in turn, with so many nodes left. */
static void fail_each(ductile_status (*call)(held *h), uint32_t n_spare) {
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        held h = {.hole = 0};
        assert_fine(hold(&h, n_spare));
        arm(nth);
        ductile_status status = call(&h);
        failed = disarm();
        const char *why = without_memory("it", status);
        why = why != NULL ? why : is_whole_again(&h);
        cr_assert(why == NULL, "%u nodes left, request %llu: %s", n_spare, (unsigned long long)nth,
                  why);
    }
}

static ductile_status trim_all(held *h) {
    return ductile_trim(h->f.allocator, NULL, 0, NULL);
}

static ductile_status take_dedicated(held *h) {
    return ductile_alloc_dedicated(h->f.allocator, 3 * FIXTURE_GRANULE, h->f.streams[0],
                                   &h->made[0]);
}

/* A trim's lists come from one request for memory, the nodes of the blocks that it splits from
 * others; twenty are enough for one step, not for the next. A dedicated block's region comes from
 * one, its nodes from another one, which may be for the last of them. */
Test(host_nodes, each_request_of_a_trim_or_a_dedicated_block_may_fail_with_any_number_left) {
    NEEDS_FAILURES();
    for (uint32_t n_spare = 0; n_spare <= 8; n_spare++) {
        fail_each(trim_all, n_spare < 7 ? n_spare : 20);
        fail_each(take_dedicated, n_spare);
    }
}

/* Nodes that other threads' hits take between two steps of a call, all or all but one; from then on
 * there is no host memory for more. No other thread runs, so no lock is needed; the request may be
 * one of the device's, under a lock of its own. */
static ductile_allocator *robbed;
static uint32_t n_left;
static dpool_block *taken;

static void take_nodes(void) {
    while (robbed->nodes.n_spare > n_left) {
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

/* At the nth request of the call. False: it makes fewer. */
static bool robs_at(uint64_t nth, bool *is_refused) {
    held h = {.hole = 0};
    assert_fine(hold(&h, 8));
    robbed = h.f.allocator;
    uint64_t segments = fixture_stats(robbed).segments;
    instead = take_nodes;
    arm(nth);
    ductile_status status = take_dedicated(&h);
    bool came = disarm();
    instead = NULL;
    give_nodes_back();
    *is_refused |= status != DUCTILE_OK;
    cr_assert(status == DUCTILE_OK || fixture_stats(robbed).segments == segments,
              "request %llu: a range is left", (unsigned long long)nth);
    const char *why = without_memory("dedicated", status);
    why = why != NULL ? why : is_whole_again(&h);
    cr_assert(why == NULL, "request %llu: %s", (unsigned long long)nth, why);
    return came;
}

Test(host_nodes, a_dedicated_block_whose_nodes_others_take_is_refused_and_undone) {
    NEEDS_FAILURES();
    for (n_left = 0; n_left <= 1; n_left++) {
        bool is_refused = false;
        for (uint64_t nth = 1; robs_at(nth, &is_refused); nth++) {
        }
        cr_assert(is_refused, "no node is missed");
    }
}

/* [free][gap][free][gap][free] */
static void hold_gaps(held *h, uint32_t n_spare) {
    assert_fine(hold(h, n_spare));
    ductile_allocator *a = h->f.allocator;
    for (size_t i = 1; i < 6; i += 2) {
        assert_ok(ductile_pin(a, h->own[i]));
        assert_ok(ductile_free(a, h->own[i]));
    }
    assert_ok(ductile_trim(a, NULL, 0, NULL));
    for (size_t i = 1; i < 6; i += 2) {
        assert_ok(ductile_unpin(a, h->own[i]));
    }
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

/* The request that finds it due is served, and the next one compacts. */
Test(host_nodes, compaction_without_any_is_put_off) {
    NEEDS_FAILURES();
    held h = {.hole = 0};
    hold_gaps(&h, 40);
    assert_fine(use_up_nodes(&h.f, 8));
    has_failed = false;
    fails_all = true;
    hit_when_compaction_is_due(&h);
    fails_all = false;
    cr_assert(has_failed, "compaction asks for no host memory");
    assert_fine(is_whole_again(&h));
}

Test(host_nodes, a_block_is_put_where_it_belongs_when_no_node_is_left_for_it) {
    for (uint32_t n_spare = 0; n_spare <= 2; n_spare++) {
        held h = {.hole = 0};
        assert_fine(hold(&h, n_spare));
        h.made[0] = h.hole + 512;
        assert_ok(ductile_pool_alloc_at(h.f.allocator, FULL, h.made[0], 512));
        assert_fine(is_whole_again(&h));
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile_check finds what it says it looks for: one thing at a time is put out of order in a state
 * that has something of everything, and the report must name the invariant.
 */
#include "pool/blocks/arena.h"
#include "pool/blocks/region.h"
#include "pool/pools/sleep.h"
#include "pool/sharing/pin.h"
#include "pool/streams/stream_use.h"
#include "tests/support/internals.h"

#include <string.h>

static ductile_allocator *a;
static dpool_arena *arena; /* of the first stream: it has all kinds of blocks */

/* Live, free, pending and retiring blocks, and gaps. */
static void open_variety(void) {
    enum { N = 24 };
    ductile_addr made[N];
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2});
    a = f.allocator;
    for (size_t i = 0; i < N; i++) {
        made[i] = take(3000000 + i * 1000, i == N - 1);
        launch(made[i], 3000000, i == N - 1);
    }
    assert_ok(ductile_virtual_stream_wait(f.gpu, f.streams[1], f.streams[0]));
    launch(made[2], 3000000, 1);
    assert_ok(ductile_record_stream(a, made[2], f.streams[1]));
    for (size_t i = 5; i < N - 1; i += 2) {
        give(made[i]);
    }
    (void)take(9 * MIB, 0);
    give(made[2]);
    dti_lock_acquire(&a->index_lock);
    arena = dpool_arena_find_locked(a, a->default_pool, f.streams[0]);
    dti_lock_release(&a->index_lock);
    cr_assert_not_null(arena);
}

static dpool_private_pool *find_pool(ductile_pool_id id) {
    dti_lock_acquire(&a->index_lock);
    dpool_private_pool *pool = dpool_find_pool_locked(a, id);
    dti_lock_release(&a->index_lock);
    return pool;
}

TestSuite(validate, .init = open_variety, .fini = close_audited);

#define assert_finds(id)                                                                           \
    do {                                                                                           \
        char finds_report[256];                                                                    \
        assert_status(ductile_check(a, finds_report, sizeof finds_report), DUCTILE_ERR_CORRUPT);   \
        cr_assert(strncmp(finds_report, id ": ", 4) == 0, "\"%s\" is not about " id,               \
                  finds_report);                                                                   \
    } while (0)

/* Holds while the lvalue has another value, and no longer. */
#define assert_finds_change(id, lvalue, value)                                                     \
    do {                                                                                           \
        __typeof__(lvalue) change_before = (lvalue);                                               \
        (lvalue) = (value);                                                                        \
        assert_finds(id);                                                                          \
        (lvalue) = change_before;                                                                  \
        assert_sound();                                                                            \
    } while (0)

static dpool_block *first_in_state(dpool_state state) {
    dpool_block *b = arena->blocks.regions->first;
    while (b != NULL && b->state != (uint64_t)state) {
        b = b->next;
    }
    cr_assert_not_null(b, "there is no block in state %d", (int)state);
    return b;
}

static dseg_slot *first_slot(dseg_state state) {
    const dseg_segment *seg = arena->blocks.regions->seg;
    for (uint32_t g = seg->low; g < seg->high; g++) {
        if (seg->slots[g].state == (uint32_t)state && seg->slots[g].offset == 0) {
            return &seg->slots[g];
        }
    }
    cr_assert_fail("no granule is in state %d", (int)state);
    return NULL;
}

Test(validate, what_nobody_changed_is_sound) {
    assert_sound();
}

Test(validate, addresses_of_a_handle) {
    dvmm_handle *mapped = first_slot(DSEG_MAPPED)->handle;
    dvmm_handle *retiring = first_slot(DSEG_RETIRING)->handle;
    cr_assert_geq(retiring->n_mappings, 2);
    assert_finds_change("P6", mapped->n_mappings, mapped->n_mappings + 1);
    assert_finds_change("P6", mapped->n_mappings, mapped->n_mappings - 1);
    assert_finds_change("P6", retiring->n_mappings, retiring->n_mappings - 1);
}

Test(validate, a_check_leaves_the_handles_as_they_were) {
    const dvmm_handle *h = first_slot(DSEG_RETIRING)->handle;
    uint32_t before = h->n_mappings;
    assert_sound();
    assert_u64(h->n_mappings, before);
}

Test(validate, whole_handles) {
    dseg_slot *slot = first_slot(DSEG_MAPPED);
    assert_finds_change("S5", slot->offset, 1);
    assert_finds_change("S5", slot->handle->n_granules, slot->handle->n_granules + 1);
}

Test(validate, numbers_of_the_store) {
    assert_finds_change("P8", a->store.totals.n_handles, a->store.totals.n_handles + 1);
    dvmm_handle stray = {.n_granules = 1};
    assert_finds_change("P7", a->store.cached[0], &stray);
    stray.n_granules = 2;
    assert_finds_change("P7", a->store.cached[0], &stray);
}

Test(validate, gap_list_and_retire_queue) {
    assert_finds_change("A3", arena->blocks.gaps.count, arena->blocks.gaps.count + 1);
    assert_finds_change("A3", arena->blocks.gaps.first, arena->retiring.list.first);
    assert_finds_change("A3", arena->blocks.gaps.last, NULL);
    assert_finds_change("A3", arena->retiring.list.first->list_prev, arena->retiring.list.first);
}

Test(validate, a_closed_region_has_one_block) {
    assert_finds_change("B7", arena->blocks.regions->is_closed, true);
}

Test(validate, pending_list) {
    dpool_use *first = arena->pending.list.first;
    cr_assert_not_null(first);
    assert_finds_change("A7", arena->pending.list.first, NULL);
    assert_finds_change("A7", arena->pending.list.last, NULL);
    assert_finds_change("A7", first->pending_next, first); /* in transit, and yet in the list */
    assert_finds_change("A7", first->block, first_in_state(DPOOL_LIVE));
}

Test(validate, context_markers_under_way) {
    cr_assert_gt(a->marks.n, 0);
    dpool_mark *mark = &a->marks.all[a->marks.n - 1];
    assert_finds_change("A6", mark->age, a->age + 1);
    assert_finds_change("A6", mark->marker, NULL);
    assert_finds_change("A6", a->marks.n, DPOOL_MOST_MARKS + 1);
    assert_finds_change("A6", a->proven.age, a->age + 1);
}

/* Pushes all blocks from the front into the bins; returns one of them. */
static dpool_block *binned_block(dpool_free_index *index, unsigned *bin) {
    dpool_block *b = NULL;
    while (index->front.used != 0) {
        b = index->front.blocks[__builtin_ctz(index->front.used)];
        dpool_index_remove(index, b);
        dpool_bins_insert(index, b);
    }
    cr_assert_not_null(b, "the front holds no block");
    *bin = dpool_bin(b->size);
    return b;
}

Test(validate, free_index) {
    dpool_free_index *index = &arena->index;
    unsigned bin = 0;
    dpool_block *b = binned_block(index, &bin);
    assert_sound();
    assert_finds_change("A8", index->summary, index->summary ^ 1);
    assert_finds_change("A8", index->words[0], index->words[0] ^ 2);
    assert_finds_change("A8", index->words[bin / 64], 0);
    assert_finds_change("A8", b->right, b);
}

Test(validate, front_of_the_free_index) {
    dpool_front *front = &arena->index.front;
    cr_assert_neq(front->used, 0);
    unsigned slot = (unsigned)__builtin_ctz(front->used);
    unsigned empty = (unsigned)__builtin_ctz(~front->used);
    assert_finds_change("A8", front->classes[slot], front->classes[slot] ^ 1);
    assert_finds_change("A8", front->blocks[empty], front->blocks[slot]);
    assert_finds_change("A8", front->hand, DPOOL_FRONT_SLOTS);
}

static void make_pool(ductile_pool_id id) {
    ductile_addr address = 0;
    assert_ok(ductile_pool_begin(a, id, NULL, NULL));
    assert_ok(ductile_alloc(a, 5 * MIB, f.streams[0], &address));
    assert_ok(ductile_alloc(a, MIB, f.streams[0], &address));
}

Test(validate, private_pools) {
    const ductile_pool_id id = {1, 0};
    make_pool(id);
    dpool_private_pool *pool = find_pool(id);
    assert_sound();
    assert_finds_change("G2", pool->n_arenas, pool->n_arenas + 1);
    assert_finds_change("G2", pool->n_routes, pool->n_routes + 1);
    assert_finds_change("G3", pool->released_age, a->age + 1);
    assert_ok(ductile_pool_end(a, id));
    assert_ok(ductile_pool_release(a, id));
}

Test(validate, sleeping_pools) {
    const ductile_pool_id id = {1, 0};
    make_pool(id);
    assert_ok(ductile_pool_end(a, id));
    assert_ok(ductile_sleep(a, id, DUCTILE_CONTENTS_DROP));
    dpool_private_pool *pool = find_pool(id);
    dpool_region *region = dpool_next_region(a, pool, NULL);
    dpool_arena *asleep = region->arena;
    assert_sound();
    assert_finds_change("G4", pool->phase, DUCTILE_POOL_AWAKE);
    assert_finds_change("S2", pool->is_unbacked, false);
    assert_finds_change("A1", asleep->blocks.mapped_bytes,
                        asleep->blocks.mapped_bytes + FIXTURE_GRANULE);
    assert_finds_change("P1", a->counts.asleep, a->counts.asleep + 512);
    assert_finds_change("P1", a->counts.asleep_blocks, a->counts.asleep_blocks + 1);
    cr_assert_eq(region->first->state, DPOOL_ASLEEP);
    region->first->state = DPOOL_LIVE;
    assert_finds("A1");
    region->first->state = DPOOL_ASLEEP;
    assert_ok(ductile_wake(a, id));
    assert_sound();
    assert_ok(ductile_pool_release(a, id));
}

Test(validate, free_memory_beside_free_memory) {
    dpool_block *next = first_in_state(DPOOL_FREE)->next;
    cr_assert_not_null(next);
    dpool_state before = (dpool_state)next->state;
    next->state = DPOOL_FREE;
    assert_finds("B4");
    next->state = before;
    assert_sound();
}

Test(validate, a_block_that_is_no_multiple_of_a_unit) {
    dpool_block *b = first_in_state(DPOOL_LIVE);
    assert_finds_change("B2", b->size, b->size + 1);
    assert_finds_change("B2", b->size, 0);
}

Test(validate, pins) {
    ductile_addr address = take_granules(2, 0);
    assert_ok(ductile_pin(a, address));
    dpool_pin *pin = &a->pins.items[0];
    dvmm_handle *h = pin->seg->slots[pin->first].handle;
    assert_finds_change("P9", h->n_pins, h->n_pins + 1);
    assert_finds_change("P9", pin->n_pins, 0);
    assert_finds_change("P10", h->n_exports, h->n_exports + 1);
    assert_finds_change("P10", a->store.totals.pinned_bytes, a->store.totals.pinned_bytes + 1);
    assert_finds_change("P11", a->counts.imported, a->counts.imported + 1);
    assert_ok(ductile_unpin(a, address));
}

/* A finding ends with the address that it is about. */
#define assert_finds_nowhere(id, total)                                                            \
    do {                                                                                           \
        char nowhere_report[256];                                                                  \
        (total)++;                                                                                 \
        assert_finds(id);                                                                          \
        (void)!ductile_check(a, nowhere_report, sizeof nowhere_report);                            \
        cr_assert_not_null(strstr(nowhere_report, ", at 0x0"), "%s", nowhere_report);              \
        (total)--;                                                                                 \
    } while (0)

Test(validate, a_total_has_no_address) {
    assert_finds_nowhere("P1", a->counts.allocated);
    assert_finds_nowhere("P1", a->counts.requested);
    assert_finds_nowhere("P1", a->counts.pending);
    assert_finds_nowhere("P1", a->counts.mapped);
    assert_finds_nowhere("P1", a->counts.retiring);
    assert_finds_nowhere("P1", a->counts.pending_blocks);
    assert_finds_nowhere("P1", a->counts.asleep);
    assert_finds_nowhere("P1", a->counts.asleep_blocks);
    assert_finds_nowhere("P2", a->map.count);
    assert_finds_nowhere("P3", a->store.totals.held_bytes);
    assert_finds_nowhere("P10", a->store.totals.pinned_bytes);
    assert_finds_nowhere("P10", a->store.totals.exported_bytes);
    assert_sound();
}

/* ---- What only an option brings ------------------------------------------------------------ */

static void open_with(const char *conf) {
    open_fixture(&(fixture_setup){.n_streams = 2, .conf = conf});
    a = f.allocator;
}

Test(validate_options, a_wait_for_an_old_address) {
    open_with("record_stream:wait");
    ductile_virtual_set_schedule(f.gpu, DUCTILE_SCHEDULE_LAZY, 0);
    ductile_addr block = take(MIB, 0);
    launch(block, MIB, 1);
    assert_ok(ductile_free_ex(a, block, &f.streams[1], 1, NULL));
    a->waits.root->addr += 64 * MIB; /* where nothing is mapped */
    a->waits.root->end += 64 * MIB;
    assert_finds("W1");
    a->waits.root->addr -= 64 * MIB;
    a->waits.root->end -= 64 * MIB;
    close_audited();
}

Test(validate_options, memory_before_a_guarded_block) {
    open_with("find:overruns");
    (void)take(1000, 0);
    dpool_region *guarded = arena_of(0)->blocks.regions;
    assert_u64(guarded->first->state, DPOOL_FREE);
    assert_finds_change("B5", guarded->is_closed, false); /* the index would have it */
    close_audited();
}

/* What lies before a guarded block is less than a granule; two whole blocks are two blocks. */
Test(validate_options, a_closed_region_of_two_blocks_has_one_too_many) {
    open_with(NULL);
    ductile_addr block = take_granules(1, 0);
    dpool_region *region = arena_of(0)->blocks.regions;
    cr_assert(region->first->next != NULL && region->first->next->next == NULL);
    assert_finds_change("B7", region->is_closed, true);
    give(block);
    cr_assert(region->first->state == DPOOL_FREE && region->first->next->next == NULL);
    assert_finds_change("B7", region->is_closed, true);
    close_audited();
}

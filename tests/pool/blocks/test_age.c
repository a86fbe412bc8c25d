/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ages of parts of FREE memory: beside a model that knows when each 512 bytes were freed, while
 * blocks are freed, merged and split at random; and what a small free beside old memory hides.
 */
#include "pool/blocks/age.h"

#include "pool/blocks/address_map.h"
#include "pool/streams/marks.h"
#include "segments/granules.h"
#include "tests/support/inside.h"
#include "tests/support/numbered.h"
#include "tests/support/rng.h"

#define G FIXTURE_GRANULE

/* ---- The model ----------------------------------------------------------------------------- */

enum { UNIT = 512, ROOM_GRANULES = 24, MOST_LIVE = 200, N_STEPS = 3000 };

#define ROOM (ROOM_GRANULES * G)

static uint64_t freed_at[ROOM / UNIT];           /* the age at its latest free */
static uint64_t granule_freed_at[ROOM_GRANULES]; /* and of the latest free in it */
static ductile_addr start;

typedef struct live {
    ductile_addr addr;
    uint64_t size;
} live;

static live blocks[MOST_LIVE];
static size_t n_live;

static void note_free(ductile_addr addr, uint64_t size) {
    for (uint64_t at = addr - start; at < addr - start + size; at += UNIT) {
        freed_at[at / UNIT] = granule_freed_at[at / G] = f.allocator->age;
    }
}

static uint64_t youngest(ductile_addr from, ductile_addr to) {
    uint64_t age = 0;
    for (uint64_t at = from - start; at < to - start;) {
        bool is_granule = at % G == 0 && to - start - at >= G;
        uint64_t part = is_granule ? granule_freed_at[at / G] : freed_at[at / UNIT];
        age = part > age ? part : age;
        at += is_granule ? G : UNIT;
    }
    return age;
}

/* The topmost run of granules in the span that are older, by the model. */
static dseg_span model_older_part(const dseg_segment *seg, dseg_span s, uint64_t below) {
    uint64_t ages[ROOM_GRANULES];
    for (uint32_t g = s.first; g < s.end; g++) {
        ages[g - s.first] = youngest(dseg_addr(seg, g), dseg_addr(seg, g + 1));
    }
    uint32_t end = s.end;
    while (end > s.first && ages[end - 1 - s.first] >= below) {
        end--;
    }
    uint32_t first = end;
    while (first > s.first && ages[first - 1 - s.first] < below) {
        first--;
    }
    return (dseg_span){first, end};
}

static void check_part(const dpool_block *b, dseg_span s, uint64_t below) {
    dseg_span got = dpool_older_part(b, s, below);
    dseg_span expected = model_older_part(b->region->seg, s, below);
    bool are_empty = dseg_is_empty(got) && dseg_is_empty(expected);
    cr_assert(are_empty || (got.first == expected.first && got.end == expected.end),
              "older than %llu in [%u, %u): [%u, %u), not [%u, %u)", (unsigned long long)below,
              s.first, s.end, got.first, got.end, expected.first, expected.end);
}

static void check_block(rng *r, const dpool_block *b) {
    dseg_span s = dseg_granules_in(b->region->seg, b->addr, dpool_end(b));
    cr_assert_geq(b->age, youngest(b->addr, dpool_end(b)), "the block looks older than it is");
    for (int i = 0; i < 3 && !dseg_is_empty(s); i++) {
        check_part(b, s, rng_between(r, 0, f.allocator->age + 1));
        s.first += (uint32_t)rng_below(r, s.end - s.first + 1);
    }
}

static uint64_t check_all(rng *r) {
    uint64_t n_mixed = 0;
    index_lock();
    for (const dpool_block *b = block_at(start)->region->first; b != NULL; b = b->next) {
        if (b->state == DPOOL_FREE && b->addr >= start && dpool_end(b) <= start + ROOM) {
            check_block(r, b);
            n_mixed += b->is_mixed;
        }
    }
    index_unlock();
    return n_mixed;
}

/* ---- Steps --------------------------------------------------------------------------------- */

static void free_one(rng *r) {
    size_t i = rng_below(r, n_live);
    note_free(blocks[i].addr, blocks[i].size);
    give(blocks[i].addr);
    blocks[i] = blocks[--n_live];
}

/* Never grows. */
static void take_one(rng *r) {
    uint64_t most = rng_percent(r, 30) ? 4 * G : G / 4;
    uint64_t size = rng_between(r, 1, most / UNIT) * UNIT;
    index_lock();
    const dpool_block *largest = dpool_index_below(&block_at(start)->region->arena->index, NULL);
    bool fits = largest != NULL && largest->size >= size;
    index_unlock();
    if (fits) {
        blocks[n_live++] = (live){take(size, 0), size};
    }
}

static void free_the_room(void) {
    start = take(ROOM, 0);
    give(start);
    note_free(start, ROOM);
}

ParameterizedTestParameters(ages, of_granules_are_those_of_a_model) {
    return numbered(1, 6);
}

ParameterizedTest(uint64_t *seed, ages, of_granules_are_those_of_a_model) {
    rng r = rng_seeded(*seed);
    uint64_t n_mixed = 0;
    open_fixture(&(fixture_setup){.conf = "reuse:never,compact:off"});
    free_the_room();
    for (int i = 0; i < N_STEPS; i++) {
        if (n_live > 0 && (n_live == MOST_LIVE || rng_percent(&r, 50))) {
            free_one(&r);
        } else {
            take_one(&r);
        }
        if (rng_percent(&r, 30)) {
            (void)dpool_advance_clock(f.allocator);
        }
        n_mixed += check_all(&r);
    }
    cr_assert_gt(n_mixed, N_STEPS, "too few blocks of several ages");
    assert_u64(reserved(), ROOM);
    close_audited();
}

/* ---- What it is for ------------------------------------------------------------------------ */

/* 32 granules of stream 0 that are proven, and beside them 512 bytes whose work is under way. */
static ductile_addr free_old_and_young(const char *conf) {
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2, .conf = conf});
    ductile_addr old = take_granules(32, 0);
    ductile_addr young = take(512, 0);
    (void)take(512, 0);
    launch(old, 32 * G, 0);
    give(old);
    (void)take_granules(1, 1); /* records the marker */
    assert_fine(fixture_finish_work(&f));
    fill(young, 0x77, 512, 0);
    give(young);
    assert_u64(block_at(old)->size, 32 * G + 512); /* one block */
    return young;
}

Test(ages, a_small_young_free_beside_old_memory_hides_none_of_it) {
    ductile_addr young = free_old_and_young(NULL);
    uint64_t held = reserved();
    ductile_addr all = take_granules(32, 1);
    assert_u64(reserved(), held);
    assert_u64(fixture_stats(f.allocator).recycled_handles, 32);
    assert_u64(fixture_stats(f.allocator).stream_syncs, 0);
    fill(all, 0x11, 32 * G, 1);
    assert_u64(byte_at(young, 0), 0x77);
    assert_u64(byte_at(all, 1), 0x11);
    close_audited();
}

/* However many young parts divide it: all that is old goes, in one request. */
Test(ages, old_granules_between_several_young_ones_all_go) {
    enum { N_YOUNG = 4 };
    open_fixture(
        &(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2, .conf = "sizes:tight"});
    ductile_addr old[N_YOUNG + 1];
    ductile_addr young[N_YOUNG];
    for (int i = 0; i <= N_YOUNG; i++) {
        old[i] = take_granules(4, 0);
        if (i < N_YOUNG) {
            young[i] = take_granules(1, 0);
        }
    }
    for (int i = 0; i <= N_YOUNG; i++) {
        give(old[i]);
    }
    (void)take_granules(1, 1); /* records the marker */
    assert_fine(fixture_finish_work(&f));
    for (int i = 0; i < N_YOUNG; i++) {
        launch(young[i], G, 0);
        give(young[i]);
    }
    uint64_t held = reserved();
    (void)take_granules(4 * (N_YOUNG + 1), 1);
    assert_u64(reserved(), held);
    assert_u64(fixture_stats(f.allocator).recycled_handles, 4 * (N_YOUNG + 1));
    close_audited();
}

/* The whole granule that holds a young part stays, and the rest on both sides of it goes. */
Test(ages, a_young_granule_amid_old_ones_stays) {
    open_fixture(
        &(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2, .conf = "sizes:tight"});
    ductile_addr low = take_granules(8, 0);
    ductile_addr young = take_granules(1, 0);
    ductile_addr high = take_granules(8, 0);
    give(low);
    give(high);
    (void)take_granules(1, 1);
    assert_fine(fixture_finish_work(&f));
    launch(young, G, 0);
    give(young);
    uint64_t held = reserved();
    (void)take_granules(16, 1);
    assert_u64(reserved(), held);
    assert_u64(fixture_stats(f.allocator).recycled_handles, 16);
    (void)take_granules(1, 1);
    assert_u64(reserved(), held + G); /* its work is under way */
    close_audited();
}

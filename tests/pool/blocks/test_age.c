/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ages of parts of FREE memory, beside a model that knows when each 512 bytes were freed, while
 * blocks are freed, merged and split at random. What they are for is in tests/scenarios/proof.txt.
 */
#include "pool/blocks/age.h"

#include "pool/blocks/address_map.h"
#include "pool/streams/marks.h"
#include "segments/granules.h"
#include "tests/support/internals.h"
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots in front of the free index: the comparison of all at once agrees with the plain one,
 * and the index, front and bins together, answers as an unordered list does, whatever was pushed
 * from the front into the bins.
 */
#include "pool/blocks/free_index.h"
#include "tests/support/expect.h"
#include "tests/support/rng.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { N_ROUNDS = 20000, N_BLOCKS = 200 };

static unsigned a_class(rng *r) {
    static const unsigned edges[] = {0, 1, 2, 127, 128, DPOOL_CLASSES - 1, INT16_MAX};
    uint64_t kind = rng_below(r, 4);
    if (kind == 0) {
        return edges[rng_below(r, sizeof edges / sizeof *edges)];
    }
    return (unsigned)rng_below(r, kind == 1 ? 8 : DPOOL_CLASSES);
}

Test(free_front, comparing_all_slots_at_once_finds_what_comparing_each_finds) {
    rng r = rng_seeded(1);
    _Alignas(16) uint16_t slots[DPOOL_FRONT_SLOTS];
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int i = 0; i < DPOOL_FRONT_SLOTS; i++) {
            slots[i] = (uint16_t)a_class(&r);
        }
        unsigned least = a_class(&r);
        least += least == 0;
        cr_assert_eq(dpool_front_fits(slots, least), dpool_front_fits_plain(slots, least),
                     "round %d, class %u", round, least);
    }
}

Test(free_front, classes_are_in_the_order_of_sizes) {
    rng r = rng_seeded(3);
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t units =
            1 + (rng_next(&r) >> (64 - DPOOL_MAX_LOG2 + rng_below(&r, DPOOL_MAX_LOG2)));
        unsigned class = dpool_class(units * DPOOL_UNIT);
        unsigned below = dpool_class((units - 1) * DPOOL_UNIT);
        cr_assert(class == below || class == below + 1, "%llu units", (unsigned long long)units);
        cr_assert(units >= 2048 || class == units);
        cr_assert_lt(class, DPOOL_CLASSES);
    }
}

/* ---- Against a list ------------------------------------------------------------------------ */

typedef struct fixture {
    dpool_free_index *index;
    dpool_block *blocks;
    bool is_in[N_BLOCKS];
} fixture;

static bool comes_first(const dpool_block *a, const dpool_block *b) {
    return a->size != b->size ? a->size < b->size : a->addr < b->addr;
}

static dpool_block *best_of_list(const fixture *t, uint64_t size) {
    dpool_block *best = NULL;
    for (int i = 0; i < N_BLOCKS; i++) {
        dpool_block *b = &t->blocks[i];
        if (t->is_in[i] && b->size >= size && (best == NULL || comes_first(b, best))) {
            best = b;
        }
    }
    return best;
}

/* Few sizes, so that many are equal; large ones, of which many differ and yet share a class. */
static uint64_t a_block_size(rng *r) {
    uint64_t large = (uint64_t)1 << (12 + rng_below(r, 2) * 27);
    uint64_t units =
        rng_below(r, 4) == 0 ? large + rng_below(r, 12) : 1 + rng_below(r, 40) * rng_below(r, 40);
    return units * DPOOL_UNIT;
}

static void flip(fixture *t, rng *r, int i) {
    dpool_block *b = &t->blocks[i];
    if (t->is_in[i]) {
        dpool_index_remove(t->index, b);
    } else {
        b->size = a_block_size(r);
        dpool_index_insert(t->index, b);
    }
    t->is_in[i] = !t->is_in[i];
}

/* One block hands its place to another, as a split and a merge do. */
static void hand_over(fixture *t, rng *r, int from, int to) {
    if (!t->is_in[from] || t->is_in[to]) {
        return;
    }
    dpool_index_remove(t->index, &t->blocks[from]);
    t->blocks[to].size = a_block_size(r);
    dpool_index_insert(t->index, &t->blocks[to]);
    t->is_in[from] = false;
    t->is_in[to] = true;
}

static uint64_t count(const fixture *t) {
    uint64_t n = 0;
    for (int i = 0; i < N_BLOCKS; i++) {
        n += t->is_in[i];
    }
    return n;
}

static void compare(const fixture *t, uint64_t size, int round) {
    cr_assert_eq(dpool_index_best(t->index, size), best_of_list(t, size), "round %d", round);
    cr_assert_eq(dpool_index_count(t->index), count(t));
    cr_assert(dpool_index_check(t->index), "round %d", round);
}

static void compare_walk(const fixture *t) {
    uint64_t n = 0;
    const dpool_block *last = NULL;
    for (dpool_block *b = dpool_index_below(t->index, NULL); b != NULL;
         b = dpool_index_below(t->index, b)) {
        cr_assert(last == NULL || comes_first(b, last));
        cr_assert(dpool_index_holds(t->index, b));
        last = b;
        n++;
    }
    cr_assert_eq(n, count(t));
}

Test(free_front, front_and_bins_together_answer_as_a_list_does) {
    rng r = rng_seeded(2);
    fixture t = {.index = calloc(1, sizeof *t.index), .blocks = calloc(N_BLOCKS, sizeof *t.blocks)};
    cr_assert(t.index != NULL && t.blocks != NULL);
    for (int i = 0; i < N_BLOCKS; i++) {
        t.blocks[i].addr = ((uint64_t)1 << 40) + (uint64_t)i * 4096;
        t.blocks[i].state = DPOOL_FREE;
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        int most = round % 4000 < 2000 ? N_BLOCKS : DPOOL_FRONT_SLOTS;
        flip(&t, &r, (int)rng_below(&r, (uint64_t)most));
        hand_over(&t, &r, (int)rng_below(&r, N_BLOCKS), (int)rng_below(&r, N_BLOCKS));
        compare(&t, a_block_size(&r), round);
        if (round % 100 == 0) {
            compare_walk(&t);
        }
    }
    free(t.blocks);
    free(t.index);
}

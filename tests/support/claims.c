/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/claims.h"

#include "tests/support/complain.h"

#include <stdatomic.h>
#include <stdlib.h>

#define CELL_BYTES DUCTILE_ALIGNMENT
#define N_WORDS 64 /* of 64 cells each: one entry covers 2 MiB */
#define ENTRY_CELLS (N_WORDS * 64)
#define N_ENTRIES 32768 /* a power of two; distinct 2 MiB spans that a run may touch */

/* An open-addressed table: a key is written once and stays. 0 is no key. */
typedef struct entry {
    _Atomic uint64_t key; /* number of the span, plus 1 */
    _Atomic uint64_t words[N_WORDS];
} entry;

struct claims {
    entry entries[N_ENTRIES];
};

claims *claims_new(void) {
    return calloc(1, sizeof(claims));
}

void claims_delete(claims *c) {
    free(c);
}

static entry *find_or_add(claims *c, uint64_t span) {
    uint64_t key = span + 1;
    uint64_t at = key * 0x9E3779B97F4A7C15u >> 40;
    for (uint64_t i = 0; i < N_ENTRIES; i++) {
        entry *e = &c->entries[(at + i) % N_ENTRIES];
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&e->key, &found, key) || found == key) {
            return e;
        }
    }
    return NULL;
}

/* Bits first..last of a word. */
static uint64_t bits(uint64_t first, uint64_t last) {
    return (UINT64_MAX << first) & (UINT64_MAX >> (63 - last));
}

static const char *change_word(_Atomic uint64_t *word, uint64_t mask, bool takes) {
    uint64_t before = takes ? atomic_fetch_or(word, mask) : atomic_fetch_and(word, ~mask);
    NEED(!takes || (before & mask) == 0, "bytes were handed out that have an owner");
    NEED(takes || (before & mask) == mask, "bytes were given back that had no owner");
    return NULL;
}

static const char *change(claims *c, ductile_addr address, uint64_t size, bool takes) {
    uint64_t cell = address / CELL_BYTES;
    uint64_t end = cell + size / CELL_BYTES;
    while (cell < end) {
        entry *e = find_or_add(c, cell / ENTRY_CELLS);
        NEED(e != NULL, "the run touches more addresses than the claim table holds");
        uint64_t word_end = (cell / 64 + 1) * 64;
        uint64_t stop = word_end < end ? word_end : end;
        TRY(change_word(&e->words[cell % ENTRY_CELLS / 64], bits(cell % 64, (stop - 1) % 64),
                        takes));
        cell = stop;
    }
    return NULL;
}

const char *claims_take(claims *c, ductile_addr address, uint64_t size) {
    return change(c, address, size, true);
}

const char *claims_give(claims *c, ductile_addr address, uint64_t size) {
    return change(c, address, size, false);
}

uint64_t claims_count(const claims *c) {
    uint64_t n = 0;
    for (size_t i = 0; i < N_ENTRIES; i++) {
        for (size_t k = 0; k < N_WORDS; k++) {
            n += (uint64_t)__builtin_popcountll(atomic_load(&c->entries[i].words[k]));
        }
    }
    return n;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/services/fill/fill_map.h"

#include "pool/blocks/size_class.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"
#include "vmm/base/table.h"

#include <stdlib.h>

enum { WORD_BITS = 64 };

/* ---- Life ---------------------------------------------------------------------------------- */

static uint64_t n_words(const dpool_fill_map *map) {
    return (map->size / DPOOL_UNIT + WORD_BITS - 1) / WORD_BITS;
}

dpool_fill_map *dpool_fill_map_new(ductile_addr base, uint64_t size) {
    dpool_fill_map *map = calloc(1, sizeof *map);
    if (map == NULL) {
        return NULL;
    }
    *map = (dpool_fill_map){.base = base, .size = size};
    map->bits = dti_table_new(n_words(map), sizeof *map->bits);
    if (map->bits == NULL) {
        free(map);
        return NULL;
    }
    return map;
}

void dpool_fill_map_free(dpool_fill_map *map) {
    dti_table_free(map->bits, n_words(map), sizeof *map->bits);
    free(map);
}

/* ---- Bits ---------------------------------------------------------------------------------- */

/* Units [at, end) of a range. */
typedef struct units {
    uint64_t at;
    uint64_t end;
} units;

static units units_of(const dpool_fill_map *map, ductile_addr addr, ductile_addr end) {
    DTI_ASSERT(addr >= map->base && end - map->base <= map->size);
    return (units){(addr - map->base) / DPOOL_UNIT, (end - map->base) / DPOOL_UNIT};
}

/* The bits of the units that lie in the word of the first; goes on to the next word. */
static uint64_t next_mask(units *u) {
    uint64_t low = u->at % WORD_BITS;
    uint64_t n = dti_min(u->end - u->at, WORD_BITS - low);
    u->at += n;
    return (n == WORD_BITS ? UINT64_MAX : (UINT64_C(1) << n) - 1) << low;
}

void dpool_fill_set(const dpool_fill_map *map, ductile_addr addr, ductile_addr end) {
    for (units u = units_of(map, addr, end); u.at < u.end;) {
        uint64_t *word = &map->bits[u.at / WORD_BITS];
        *word |= next_mask(&u);
    }
}

void dpool_fill_forget(const dpool_fill_map *map, ductile_addr addr, ductile_addr end) {
    for (units u = units_of(map, addr, end); u.at < u.end;) {
        uint64_t *word = &map->bits[u.at / WORD_BITS];
        uint64_t mask = next_mask(&u);
        if ((*word & mask) != 0) { /* a page of zeros is not written */
            *word &= ~mask;
        }
    }
}

/* The first unit from u.at on whose bit is set, or is not set; u.end when there is none. */
static uint64_t find(const dpool_fill_map *map, units u, bool is_set) {
    while (u.at < u.end) {
        uint64_t first = u.at / WORD_BITS;
        uint64_t word = is_set ? map->bits[first] : ~map->bits[first];
        word &= next_mask(&u);
        if (word != 0) {
            return first * WORD_BITS + (uint64_t)__builtin_ctzll(word);
        }
    }
    return u.end;
}

bool dpool_fill_is_any(const dpool_fill_map *map, ductile_addr addr, ductile_addr end) {
    units all = units_of(map, addr, end);
    return find(map, all, true) < all.end;
}

bool dpool_fill_take(const dpool_fill_map *map, ductile_addr *addr, ductile_addr *end,
                     uint64_t most) {
    units all = units_of(map, *addr, *end);
    all.at = find(map, all, true);
    if (all.at == all.end) {
        return false;
    }
    units run = {all.at, dti_min(all.end, all.at + most / DPOOL_UNIT)};
    run.end = find(map, run, false);
    *addr = map->base + run.at * DPOOL_UNIT;
    *end = map->base + run.end * DPOOL_UNIT;
    dpool_fill_forget(map, *addr, *end);
    return true;
}

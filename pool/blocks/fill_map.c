/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/fill_map.h"

#include "pool/blocks/size_class.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"
#include "vmm/base/table.h"

enum { WORD_BITS = 64 };

/* ---- Life ---------------------------------------------------------------------------------- */

static uint64_t n_words(const dpool_region *region) {
    return (region->seg->range.size / DPOOL_UNIT + WORD_BITS - 1) / WORD_BITS;
}

ductile_status dpool_fill_map_init(const ductile_allocator *a, dpool_region *region) {
    if (a->options.find != DUCTILE_FIND_STALE_WRITES || region->is_dedicated) {
        return DUCTILE_OK;
    }
    region->filled = dti_table_new(n_words(region), sizeof *region->filled);
    return region->filled != NULL ? DUCTILE_OK : DUCTILE_ERR_OUT_OF_HOST_MEMORY;
}

void dpool_fill_map_fini(dpool_region *region) {
    dti_table_free(region->filled, n_words(region), sizeof *region->filled);
    region->filled = NULL;
}

/* ---- Bits ---------------------------------------------------------------------------------- */

/* Units [at, end) of a region. */
typedef struct units {
    uint64_t at;
    uint64_t end;
} units;

static units units_of(const dpool_region *region, ductile_addr addr, ductile_addr end) {
    ductile_addr base = region->seg->range.addr;
    DTI_ASSERT(addr >= base && end - base <= region->seg->range.size);
    return (units){(addr - base) / DPOOL_UNIT, (end - base) / DPOOL_UNIT};
}

/* The bits of the units that lie in the word of the first; goes on to the next word. */
static uint64_t next_mask(units *u) {
    uint64_t low = u->at % WORD_BITS;
    uint64_t n = dti_min(u->end - u->at, WORD_BITS - low);
    u->at += n;
    return (n == WORD_BITS ? UINT64_MAX : (UINT64_C(1) << n) - 1) << low;
}

void dpool_fill_set(const dpool_region *region, ductile_addr addr, ductile_addr end) {
    if (!dpool_has_fill_map(region)) {
        return;
    }
    for (units u = units_of(region, addr, end); u.at < u.end;) {
        uint64_t *word = &region->filled[u.at / WORD_BITS];
        *word |= next_mask(&u);
    }
}

void dpool_fill_forget(const dpool_region *region, ductile_addr addr, ductile_addr end) {
    if (!dpool_has_fill_map(region)) {
        return;
    }
    for (units u = units_of(region, addr, end); u.at < u.end;) {
        uint64_t *word = &region->filled[u.at / WORD_BITS];
        uint64_t mask = next_mask(&u);
        if ((*word & mask) != 0) { /* a page of zeros is not written */
            *word &= ~mask;
        }
    }
}

/* The first unit from u.at on whose bit is set, or is not set; u.end when there is none. */
static uint64_t find(const dpool_region *region, units u, bool is_set) {
    while (u.at < u.end) {
        uint64_t first = u.at / WORD_BITS;
        uint64_t word = is_set ? region->filled[first] : ~region->filled[first];
        word &= next_mask(&u);
        if (word != 0) {
            return first * WORD_BITS + (uint64_t)__builtin_ctzll(word);
        }
    }
    return u.end;
}

bool dpool_fill_is_any(const dpool_region *region, ductile_addr addr, ductile_addr end) {
    if (!dpool_has_fill_map(region)) {
        return false;
    }
    units all = units_of(region, addr, end);
    return find(region, all, true) < all.end;
}

bool dpool_fill_take(const dpool_region *region, ductile_addr *addr, ductile_addr *end,
                     uint64_t most) {
    if (!dpool_has_fill_map(region)) {
        return false;
    }
    ductile_addr base = region->seg->range.addr;
    units all = units_of(region, *addr, *end);
    all.at = find(region, all, true);
    if (all.at == all.end) {
        return false;
    }
    units run = {all.at, dti_min(all.end, all.at + most / DPOOL_UNIT)};
    run.end = find(region, run, false);
    *addr = base + run.at * DPOOL_UNIT;
    *end = base + run.end * DPOOL_UNIT;
    dpool_fill_forget(region, *addr, *end);
    return true;
}

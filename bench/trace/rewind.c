/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds of all regions cut the address space into cells. Each belongs to the first region that
 * covers it: what happened first after the moment tells how it was then. Cells beside each other
 * that belong together make a segment; in it lie blocks, and between them free memory.
 */
#include "bench/trace/rewind.h"

#include "bench/base/array.h"

#include <stdlib.h>

/* As PyTorch's allocator rounds and splits. */
#define ROUNDING ((uint64_t)512)
#define LARGE ((uint64_t)1 << 20)
/* No allocator holds more. */
#define LARGEST_REGION ((uint64_t)1 << 42)

bool rewind_add_region(rewind_state *r, rewind_region region) {
    return array_add(&r->regions, sizeof region, &r->regions_capacity, &r->n_regions, &region);
}

bool rewind_add_block(rewind_state *r, rewind_block block) {
    return array_add(&r->blocks, sizeof block, &r->blocks_capacity, &r->n_blocks, &block);
}

void rewind_drop(rewind_state *r) {
    free(r->regions);
    free(r->blocks);
    *r = (rewind_state){0};
}

/* ---- Cells --------------------------------------------------------------------------------- */

#define NONE UINT32_MAX

typedef struct cells {
    uint64_t *bounds; /* cell i is from bounds[i] to bounds[i + 1] */
    size_t n_bounds;
    uint32_t *owners; /* regions */
    size_t *next;     /* a cell without an owner at or behind it, found by going on from here */
} cells;

static void drop_cells(cells *c) {
    free(c->bounds);
    free(c->owners);
    free(c->next);
}

static bool make_cells(cells *c, const rewind_state *r) {
    size_t n = 2 * r->n_regions;
    *c = (cells){.bounds = calloc(n + 1, sizeof *c->bounds),
                 .owners = calloc(n + 1, sizeof *c->owners),
                 .next = calloc(n + 1, sizeof *c->next)};
    if (c->bounds == NULL || c->owners == NULL || c->next == NULL) {
        return false;
    }
    for (size_t i = 0; i < r->n_regions; i++) {
        c->bounds[2 * i] = r->regions[i].address;
        c->bounds[2 * i + 1] = r->regions[i].address + r->regions[i].size;
    }
    qsort(c->bounds, n, sizeof *c->bounds, array_by_number);
    for (size_t i = 0; i < n; i++) {
        if (c->n_bounds == 0 || c->bounds[i] != c->bounds[c->n_bounds - 1]) {
            c->bounds[c->n_bounds++] = c->bounds[i];
        }
    }
    for (size_t i = 0; i < c->n_bounds; i++) {
        c->owners[i] = NONE;
        c->next[i] = i;
    }
    return true;
}

/* The first cell without an owner, from here on; the last bound is none and has never one. */
static size_t find_free_cell(cells *c, size_t at) {
    size_t found = at;
    while (c->next[found] != found) {
        found = c->next[found];
    }
    while (c->next[at] != found) { /* shorter for the next who asks */
        size_t behind = c->next[at];
        c->next[at] = found;
        at = behind;
    }
    return found;
}

static size_t cell_at(const cells *c, uint64_t address) {
    const uint64_t *found =
        bsearch(&address, c->bounds, c->n_bounds, sizeof *c->bounds, array_by_number);
    return (size_t)(found - c->bounds);
}

static void give_cells(cells *c, const rewind_region *region, uint32_t owner) {
    size_t end = cell_at(c, region->address + region->size);
    size_t at = find_free_cell(c, cell_at(c, region->address));
    while (at < end) {
        c->owners[at] = owner;
        c->next[at] = at + 1;
        at = find_free_cell(c, at + 1);
    }
}

/* ---- Segments ------------------------------------------------------------------------------ */

typedef struct walk {
    const rewind_state *r;
    recorded_layout *out;
    const rewind_region *region; /* that the segment begins with */
    bool begins;                 /* the next span does, a segment */
    size_t next_block;
    bool has_failed;      /* the host has no memory */
    bool is_contradicted; /* a block lies where nothing was held, or two in one place */
} walk;

/* block: its number + 1; 0: none. */
static void put(walk *w, uint64_t address, uint64_t size, recorded_state state, uint32_t block) {
    recorded_span span = {.address = address,
                          .size = size,
                          .stream = w->region->stream,
                          .pool = w->region->pool,
                          .block = block,
                          .state = state,
                          .begins = w->begins};
    w->begins = false;
    w->has_failed = w->has_failed || !recorded_add_span(w->out, span);
}

static uint64_t rounded(uint64_t size) {
    return (size + ROUNDING - 1) / ROUNDING * ROUNDING;
}

/* What lies behind a block up to the next: large blocks of segments that do not expand keep what is
 * too little to be split off. */
static uint64_t tail_of(uint64_t size, uint64_t gap, bool is_expandable) {
    return !is_expandable && size > LARGE && gap <= LARGE ? gap : 0;
}

static uint64_t end_of_gap(const walk *w, uint64_t end) {
    bool is_block = w->next_block < w->r->n_blocks;
    uint64_t next = is_block ? w->r->blocks[w->next_block].address : end;
    return next < end ? next : end;
}

/* Returns where what is put ends. */
static uint64_t put_block(walk *w, uint64_t end, bool is_expandable) {
    const rewind_block *b = &w->r->blocks[w->next_block++];
    uint64_t size = rounded(b->size);
    uint64_t next = end_of_gap(w, end);
    if (size > next - b->address) {
        w->is_contradicted = true;
        return end;
    }
    size += tail_of(size, next - b->address - size, is_expandable);
    put(w, b->address, size, b->is_pending ? RECORDED_PENDING : RECORDED_LIVE, b->number + 1);
    return b->address + size;
}

static void put_segment(walk *w, uint64_t from, uint64_t end, const rewind_region *region) {
    w->region = region;
    w->begins = true;
    bool is_before = w->next_block < w->r->n_blocks && w->r->blocks[w->next_block].address < from;
    w->is_contradicted = w->is_contradicted || is_before;
    while (from < end && !w->has_failed && !w->is_contradicted) {
        uint64_t gap_end = end_of_gap(w, end);
        if (gap_end > from) {
            put(w, from, gap_end - from, RECORDED_FREE, 0);
            from = gap_end;
        } else {
            from = put_block(w, end, region->is_expandable);
        }
    }
}

static const rewind_region *holder(const walk *w, const cells *c, size_t cell) {
    uint32_t owner = c->owners[cell];
    const rewind_region *region = owner != NONE ? &w->r->regions[owner] : NULL;
    return region != NULL && region->was_held ? region : NULL;
}

static bool belong_together(const rewind_region *a, const rewind_region *b) {
    return a == b || (b != NULL && a->is_expandable && b->is_expandable && a->stream == b->stream &&
                      a->pool == b->pool);
}

static void put_segments(walk *w, const cells *c) {
    for (size_t i = 0; i + 1 < c->n_bounds;) {
        const rewind_region *region = holder(w, c, i);
        size_t end = i + 1;
        while (region != NULL && end + 1 < c->n_bounds &&
               belong_together(region, holder(w, c, end))) {
            end++;
        }
        if (region != NULL) {
            put_segment(w, c->bounds[i], c->bounds[end], region);
        }
        i = end;
    }
    w->is_contradicted = w->is_contradicted || w->next_block < w->r->n_blocks;
}

/* ---- The whole ----------------------------------------------------------------------------- */

static bool are_possible(const rewind_state *r) {
    for (size_t i = 0; i < r->n_regions; i++) {
        const rewind_region *region = &r->regions[i];
        if (region->size > LARGEST_REGION || region->address > UINT64_MAX - LARGEST_REGION) {
            return false;
        }
    }
    return r->n_regions > 0 && r->n_regions < NONE;
}

bool rewind_find(rewind_state *r, recorded_layout *out) {
    cells c = {0};
    walk w = {.r = r, .out = out};
    if (!are_possible(r)) {
        return true;
    }
    w.has_failed = !make_cells(&c, r);
    for (size_t i = 0; !w.has_failed && i < r->n_regions; i++) {
        give_cells(&c, &r->regions[i], (uint32_t)i);
    }
    if (!w.has_failed) {
        if (r->n_blocks > 0) {
            qsort(r->blocks, r->n_blocks, sizeof *r->blocks, array_by_number);
        }
        put_segments(&w, &c);
    }
    drop_cells(&c);
    out->is_known = !w.is_contradicted && !w.has_failed;
    if (!out->is_known) {
        recorded_forget(out);
    }
    return !w.has_failed;
}

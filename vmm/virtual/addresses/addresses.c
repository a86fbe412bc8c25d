/* SPDX-License-Identifier: Apache-2.0 */
/* The virtual GPU's address space: reservations, and a table from granule to mapping. */
#include "vmm/virtual/addresses/addresses.h"

#include "vmm/base/align.h"
#include "vmm/base/array.h"
#include "vmm/virtual/state/slots.h"
#include "vmm/virtual/state/state.h"

#include <stdlib.h>
#include <string.h>

/* 2^48: above what a host hands out to programs, so that a dereference faults as it would with a
 * device address. */
static const ductile_addr SPACE_BASE = (ductile_addr)1 << 48;

enum { GRANULES_PER_LEAF = 2048 };

/* Mapping numbers of some granules. Most of a large space never has any, so all are linked. */
struct vgpu_leaf {
    vgpu_leaf *next; /* made before this one */
    uint32_t numbers[GRANULES_PER_LEAF];
};

/* Spans for cuMemAlloc are powers of two of granules. The live ones of a size cover at most
 * twice the capacity and are reused, so that this much is always enough. */
static uint64_t alloc_area_bytes(const vgpu *gpu) {
    uint64_t one_size = 2 * dti_round_up(gpu->options.capacity_bytes, gpu->options.granule_bytes);
    return one_size * VGPU_SPAN_SIZES;
}

bool dvmm_vgpu_addresses_init(vgpu *gpu) {
    vgpu_memory *m = &gpu->memory;
    uint64_t leaf_bytes = (uint64_t)GRANULES_PER_LEAF << gpu->granule_shift;
    m->base = SPACE_BASE;
    m->alloc_base = m->base + dti_round_up(gpu->options.address_bytes, leaf_bytes);
    m->alloc_next = m->alloc_base;
    m->end = m->alloc_base + dti_round_up(alloc_area_bytes(gpu), leaf_bytes);
    m->leaves = calloc((m->end - m->base) / leaf_bytes, sizeof(*m->leaves));
    return m->leaves != NULL;
}

void dvmm_vgpu_addresses_fini(vgpu *gpu) {
    vgpu_memory *m = &gpu->memory;
    while (m->last_leaf != NULL) {
        vgpu_leaf *leaf = m->last_leaf;
        m->last_leaf = leaf->next;
        free(leaf);
    }
    free(m->leaves);
    free(m->ranges);
}

bool dvmm_vgpu_is_granules(const vgpu *gpu, uint64_t n) {
    return n != 0 && dti_is_aligned(n, gpu->options.granule_bytes);
}

/* ---- From granule to mapping --------------------------------------------------------------- */

static uint64_t granule_of(const vgpu *gpu, ductile_addr addr) {
    return (addr - gpu->memory.base) >> gpu->granule_shift;
}

vgpu_mapping *dvmm_vgpu_mapping_at(const vgpu *gpu, ductile_addr addr) {
    const vgpu_memory *m = &gpu->memory;
    if (addr < m->base || addr >= m->end) {
        return NULL;
    }
    uint64_t granule = granule_of(gpu, addr);
    const vgpu_leaf *leaf = m->leaves[granule / GRANULES_PER_LEAF];
    return leaf != NULL ? dvmm_slots_find(&m->mappings, leaf->numbers[granule % GRANULES_PER_LEAF])
                        : NULL;
}

static bool make_leaf(vgpu_memory *m, uint64_t i) {
    vgpu_leaf *leaf = calloc(1, sizeof *leaf);
    if (leaf == NULL) {
        return false;
    }
    leaf->next = m->last_leaf;
    m->last_leaf = m->leaves[i] = leaf;
    return true;
}

static bool have_leaves(vgpu *gpu, uint64_t first, uint64_t last) {
    vgpu_memory *m = &gpu->memory;
    for (uint64_t i = first / GRANULES_PER_LEAF; i <= last / GRANULES_PER_LEAF; i++) {
        if (m->leaves[i] == NULL && !make_leaf(m, i)) {
            return false;
        }
    }
    return true;
}

bool dvmm_vgpu_point_at(vgpu *gpu, ductile_addr addr, uint64_t size, uint32_t mapping_number) {
    uint64_t first = granule_of(gpu, addr);
    uint64_t last = granule_of(gpu, addr + size - 1);
    if (mapping_number != 0 && !have_leaves(gpu, first, last)) {
        return false;
    }
    for (uint64_t i = first; i <= last; i++) {
        gpu->memory.leaves[i / GRANULES_PER_LEAF]->numbers[i % GRANULES_PER_LEAF] = mapping_number;
    }
    return true;
}

/* ---- Reservations -------------------------------------------------------------------------- */

/* The first range that ends above addr; n_ranges when there is none. */
static uint32_t range_above(const vgpu_memory *m, ductile_addr addr) {
    uint32_t at = 0;
    DTI_FIRST(at, m->n_ranges, m->ranges[at].start + m->ranges[at].size > addr);
    return at;
}

static bool holds(const vgpu_range *range, ductile_addr addr, uint64_t size) {
    return range->start <= addr && size <= range->size && addr - range->start <= range->size - size;
}

vgpu_range *dvmm_vgpu_range_of(const vgpu *gpu, ductile_addr addr, uint64_t size) {
    const vgpu_memory *m = &gpu->memory;
    uint32_t i = range_above(m, addr);
    return i < m->n_ranges && holds(&m->ranges[i], addr, size) ? &m->ranges[i] : NULL;
}

vgpu_range *dvmm_vgpu_range_to_map(const vgpu *gpu, ductile_addr addr, uint64_t size) {
    const vgpu_memory *m = &gpu->memory;
    uint32_t i = range_above(m, addr);
    if (i == m->n_ranges || m->ranges[i].start > addr) {
        return NULL;
    }
    ductile_addr limit = i + 1 < m->n_ranges ? m->ranges[i + 1].start : m->alloc_base;
    return size <= limit - addr ? &m->ranges[i] : NULL;
}

/* The gap below range i; i == n_ranges is the one above all. */
static vgpu_range gap_below(const vgpu *gpu, size_t i) {
    const vgpu_memory *m = &gpu->memory;
    ductile_addr start = i == 0 ? m->base : m->ranges[i - 1].start + m->ranges[i - 1].size;
    ductile_addr end = i == m->n_ranges ? m->base + gpu->options.address_bytes : m->ranges[i].start;
    return (vgpu_range){.start = start, .size = end - start};
}

static bool fits_gap(vgpu_range gap, uint64_t size, uint64_t alignment, ductile_addr *out) {
    ductile_addr start = dti_round_up(gap.start, alignment);
    *out = start;
    return start - gap.start <= gap.size && size <= gap.size - (start - gap.start);
}

static bool lowest_fit(const vgpu *gpu, uint64_t size, uint64_t alignment, ductile_addr *out) {
    for (size_t i = 0; i <= gpu->memory.n_ranges; i++) {
        if (fits_gap(gap_below(gpu, i), size, alignment, out)) {
            return true;
        }
    }
    return false;
}

static bool highest_fit(const vgpu *gpu, uint64_t size, uint64_t alignment, ductile_addr *out) {
    for (size_t i = gpu->memory.n_ranges + 1; i-- > 0;) {
        vgpu_range gap = gap_below(gpu, i);
        if (fits_gap(gap, size, alignment, out)) {
            *out = dti_round_down(gap.start + gap.size - size, alignment);
            return true;
        }
    }
    return false;
}

static bool is_free_at(const vgpu *gpu, ductile_addr addr, uint64_t size) {
    const vgpu_memory *m = &gpu->memory;
    ductile_addr end = m->base + gpu->options.address_bytes;
    if (addr < m->base || addr >= end || size > end - addr) {
        return false;
    }
    uint32_t i = range_above(m, addr);
    return i == m->n_ranges || addr + size <= m->ranges[i].start;
}

/* With a seed, every other reservation goes to the upper end, so that no test can rely on
 * neighbours; either end keeps the space in one piece. */
static bool choose_place(vgpu *gpu, uint64_t size, uint64_t alignment, ductile_addr hint,
                         ductile_addr *out) {
    if (hint != 0 && is_free_at(gpu, hint, size)) {
        *out = hint;
        return true;
    }
    gpu->memory.placements = gpu->memory.placements * 6364136223846793005u + 1442695040888963407u;
    bool from_above = gpu->options.seed != 0 && gpu->memory.placements >> 63 != 0;
    return from_above ? highest_fit(gpu, size, alignment, out)
                      : lowest_fit(gpu, size, alignment, out);
}

static void insert_range(vgpu_memory *m, ductile_addr start, uint64_t size) {
    const vgpu_range range = {.start = start, .size = size};
    dti_insert(m->ranges, sizeof range, &m->n_ranges, range_above(m, start), &range);
    m->reserved_bytes += size;
}

static void remove_range(vgpu_memory *m, uint32_t i) {
    m->reserved_bytes -= m->ranges[i].size;
    dti_remove(m->ranges, sizeof *m->ranges, &m->n_ranges, i);
}

int dvmm_vgpu_address_reserve(vgpu *gpu, uint64_t size, uint64_t alignment, ductile_addr hint,
                              ductile_addr *out) {
    vgpu_memory *m = &gpu->memory;
    if (!dvmm_vgpu_is_granules(gpu, size) || (alignment & (alignment - 1)) != 0) {
        return DVMM_INVALID_VALUE;
    }
    alignment = dti_max(alignment, gpu->options.granule_bytes);
    if (!dti_is_aligned(hint, alignment)) {
        return DVMM_INVALID_VALUE;
    }
    if (!choose_place(gpu, size, alignment, hint, out) ||
        !dti_have_room(&m->ranges, sizeof *m->ranges, &m->ranges_room, m->n_ranges + 1)) {
        return DVMM_OUT_OF_MEMORY;
    }
    insert_range(m, *out, size);
    return DVMM_SUCCESS;
}

int dvmm_vgpu_address_free(vgpu *gpu, ductile_addr addr, uint64_t size) {
    vgpu_memory *m = &gpu->memory;
    uint32_t i = range_above(m, addr);
    if (i == m->n_ranges || m->ranges[i].start != addr || m->ranges[i].size != size ||
        m->ranges[i].n_mappings != 0) {
        return DVMM_INVALID_VALUE;
    }
    remove_range(m, i);
    return DVMM_SUCCESS;
}

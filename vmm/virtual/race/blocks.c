/* SPDX-License-Identifier: Apache-2.0 */
/* Live blocks, as allocators announce them. A block may span many handles and share the
 * first and the last of them; each handle keeps its parts, ascending and disjoint. */
#include "vmm/virtual/race/blocks.h"

#include "vmm/base/align.h"
#include "vmm/base/array.h"
#include "vmm/virtual/addresses/addresses.h"
#include "vmm/virtual/race/order.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/state/watch.h"

#include <string.h>

/* ---- Of one handle ------------------------------------------------------------------------- */

/* The first part that ends above the offset. */
static uint32_t live_above(const vgpu_shadow *shadow, uint64_t offset) {
    uint32_t at = 0;
    DTI_FIRST(at, shadow->n_lives, shadow->lives[at].end > offset);
    return at;
}

static bool insert(vgpu_shadow *shadow, uint32_t i, vgpu_live live) {
    if (!dti_have_room(&shadow->lives, sizeof live, &shadow->lives_room, shadow->n_lives + 1)) {
        return false;
    }
    dti_insert(shadow->lives, sizeof live, &shadow->n_lives, i, &live);
    return true;
}

/* The part of a live block that begins at or holds the address, seen through this mapping. */
static const vgpu_live *live_at(const vgpu_mapping *mapping, ductile_addr address) {
    const vgpu_shadow *shadow = &mapping->phys->shadow;
    uint64_t offset = address - mapping->start;
    uint32_t i = live_above(shadow, offset);
    bool is_there = i < shadow->n_lives && shadow->lives[i].start <= offset &&
                    shadow->lives[i].mapping == mapping->start;
    return is_there ? &shadow->lives[i] : NULL;
}

uint64_t dvmm_vgpu_block_at(const vgpu_mapping *mapping, ductile_addr address, uint64_t size) {
    const vgpu_live *live = live_at(mapping, address);
    uint64_t offset = address - mapping->start;
    uint64_t in_handle = dti_min(size, mapping->phys->size - offset);
    return live != NULL && live->end - offset >= in_handle ? live->block : 0;
}

uint64_t dvmm_vgpu_block_behind(const vgpu_mapping *mapping) {
    const vgpu_shadow *shadow = &mapping->phys->shadow;
    for (uint32_t i = 0; i < shadow->n_lives; i++) {
        if (shadow->lives[i].mapping == mapping->start) {
            return shadow->lives[i].block;
        }
    }
    return 0;
}

/* ---- Announcing ---------------------------------------------------------------------------- */

static bool *announced(const vgpu *gpu, ductile_addr address) {
    vgpu_range *range = dvmm_vgpu_range_of(gpu, address, 1);
    return range != NULL ? &range->is_announced : NULL;
}

/* Allocations of cuMemAlloc lie outside every reservation, all in one area. */
bool dvmm_vgpu_is_announced(const vgpu *gpu, ductile_addr address) {
    const bool *in_range = announced(gpu, address);
    return in_range != NULL ? *in_range : gpu->memory.allocs_are_announced;
}

static void announce(vgpu *gpu, ductile_addr address) {
    bool *in_range = announced(gpu, address);
    if (in_range != NULL) {
        *in_range = true;
    } else {
        gpu->memory.allocs_are_announced = true;
    }
}

static ductile_virtual_side side_of(const vgpu_phys *phys, ductile_addr address, uint64_t size,
                                    uint64_t block) {
    return (ductile_virtual_side){.is_host = 1,
                                  .address = address,
                                  .size = size,
                                  .handle = phys != NULL ? phys->slot.number : 0,
                                  .block = block};
}

static void report_overlap(vgpu *gpu, const vgpu_phys *phys, const vgpu_live *other,
                           const ductile_virtual_side *block) {
    ductile_virtual_side first =
        side_of(phys, other->mapping + other->start, other->end - other->start, other->block);
    dvmm_vgpu_report(gpu, DUCTILE_VIOLATION_OVERLAP, &first, block);
}

/* False: there is an end to it, for this block or for all. */
static bool begin_part(vgpu *gpu, vgpu_mapping *mapping, const ductile_virtual_side *block,
                       uint64_t *done) {
    vgpu_shadow *shadow = &mapping->phys->shadow;
    uint64_t start = block->address + *done - mapping->start;
    uint64_t end = dti_min(start + (block->size - *done), mapping->phys->size);
    uint32_t i = live_above(shadow, start);
    if (i < shadow->n_lives && shadow->lives[i].start < end) {
        report_overlap(gpu, mapping->phys, &shadow->lives[i], block);
        return false;
    }
    if (!insert(shadow, i, (vgpu_live){start, end, mapping->start, block->block})) {
        dvmm_vgpu_stop_detecting(gpu);
        return false;
    }
    *done += end - start;
    return true;
}

void dvmm_vgpu_block_begin(vgpu *gpu, ductile_addr address, uint64_t size) {
    if (!dvmm_vgpu_detects(gpu) || size == 0) {
        return;
    }
    announce(gpu, address);
    ductile_virtual_side block = side_of(NULL, address, size, ++gpu->race.n_blocks);
    for (uint64_t done = 0; done < size;) {
        vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, address + done);
        if (mapping == NULL) {
            dvmm_vgpu_report(gpu, DUCTILE_VIOLATION_UNMAPPED_USE, &(ductile_virtual_side){0},
                             &block);
            return;
        }
        if (!begin_part(gpu, mapping, &block, &done)) {
            return;
        }
    }
}

/* A part that was live and has been unmapped went with its handle. */
void dvmm_vgpu_block_end(vgpu *gpu, ductile_addr address) {
    uint64_t block = 0;
    while (dvmm_vgpu_detects(gpu)) {
        vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, address);
        const vgpu_live *live = mapping != NULL ? live_at(mapping, address) : NULL;
        if (live == NULL || (block != 0 && live->block != block)) {
            return;
        }
        block = live->block;
        address += live->end - live->start;
        vgpu_shadow *shadow = &mapping->phys->shadow;
        dti_remove(shadow->lives, sizeof *live, &shadow->n_lives, (uint32_t)(live - shadow->lives));
    }
}

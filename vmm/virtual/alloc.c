/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuMemAlloc and cuMemFree: a handle that its caller never sees, mapped in an area of its own.
 * From one granule up, an allocation is whole granules of its own; smaller ones are carved out
 * of shared granules, as the driver does.
 */
#include "vmm/virtual/alloc.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"
#include "vmm/virtual/addresses/addresses.h"
#include "vmm/virtual/memory/memory.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/work/capture.h"
#include "vmm/virtual/work/streams.h"

#include <stdlib.h>

/* ---- Addresses ----------------------------------------------------------------------------- */

static unsigned span_class(const vgpu *gpu, uint64_t size) {
    unsigned class = 0;
    while ((gpu->options.granule_bytes << class) < size) {
        class ++;
    }
    return class;
}

/* A span that exists can always go back: the list has room for every span of its size. */
static bool have_room_for_span(vgpu_spans *spans) {
    if (spans->n_carved % 64 != 0) {
        return true;
    }
    ductile_addr *room = realloc(spans->free, (spans->n_carved + 64) * sizeof(*room));
    if (room == NULL) {
        return false;
    }
    spans->free = room;
    return true;
}

static bool take_span(vgpu *gpu, uint64_t size, ductile_addr *out) {
    unsigned class = span_class(gpu, size);
    vgpu_spans *spans = &gpu->memory.spans[class];
    if (spans->n_free > 0) {
        *out = spans->free[--spans->n_free];
        return true;
    }
    uint64_t span_bytes = gpu->options.granule_bytes << class;
    if (span_bytes > gpu->memory.end - gpu->memory.alloc_next || !have_room_for_span(spans)) {
        return false;
    }
    spans->n_carved++;
    *out = gpu->memory.alloc_next;
    gpu->memory.alloc_next += span_bytes;
    return true;
}

static void give_span(vgpu *gpu, ductile_addr addr, uint64_t size) {
    vgpu_spans *spans = &gpu->memory.spans[span_class(gpu, size)];
    spans->free[spans->n_free++] = addr;
}

/* ---- Whole granules ------------------------------------------------------------------------ */

static int map_new_phys(vgpu *gpu, ductile_addr addr, uint64_t size) {
    dvmm_phys name;
    const dvmm_phys_props plain = {0};
    DTI_TRY(dvmm_vgpu_phys_create(gpu, size, &plain, &name));
    vgpu_phys *phys = dvmm_vgpu_find_phys(gpu, name);
    int code = dvmm_vgpu_map_anywhere(gpu, addr, phys, DVMM_ACCESS_RW);
    dvmm_vgpu_drop_ref(gpu, phys); /* from here on the mapping alone keeps it */
    return code;
}

static int alloc_granules(vgpu *gpu, uint64_t size, ductile_addr *out) {
    if (!take_span(gpu, size, out)) {
        return DVMM_OUT_OF_MEMORY;
    }
    int code = map_new_phys(gpu, *out, size);
    if (code != DVMM_SUCCESS) {
        give_span(gpu, *out, size);
    }
    return code;
}

static void free_granules(vgpu *gpu, vgpu_mapping *mapping) {
    ductile_addr addr = mapping->start;
    uint64_t size = mapping->phys->size;
    dvmm_vgpu_drop_mapping(gpu, mapping);
    give_span(gpu, addr, size);
}

/* ---- Small ones ---------------------------------------------------------------------------- */

/* Only the granules touched last are searched, so that a request costs the same however many
 * there are. */
enum { UNIT_BYTES = 512, SLABS_SEARCHED = 16 };

/* One granule shared by small allocations. Its runs of units tile it. */
typedef struct vgpu_slab {
    struct vgpu_slab *next;
    struct vgpu_slab **link; /* what points to this one */
    ductile_addr addr;
    uint32_t n_free;
    uint32_t first_free;   /* a run starts there, and all below are live */
    uint32_t longest_free; /* at most; exact after a search that failed  */
    uint32_t n_units;
    struct {
        uint32_t length;
        bool is_live;
    } runs[]; /* by the unit they start at; elsewhere not live, length meaningless */
} vgpu_slab;

static void link_slab(vgpu_memory *m, vgpu_slab *slab) {
    slab->next = m->slabs;
    slab->link = &m->slabs;
    if (m->slabs != NULL) {
        m->slabs->link = &slab->next;
    }
    m->slabs = slab;
}

static void unlink_slab(vgpu_slab *slab) {
    *slab->link = slab->next;
    if (slab->next != NULL) {
        slab->next->link = slab->link;
    }
}

static int new_slab(vgpu *gpu, vgpu_slab **out) {
    uint32_t n_units = (uint32_t)(gpu->options.granule_bytes / UNIT_BYTES);
    vgpu_slab *slab = calloc(1, sizeof(*slab) + n_units * sizeof(slab->runs[0]));
    if (slab == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    int code = alloc_granules(gpu, gpu->options.granule_bytes, &slab->addr);
    if (code != DVMM_SUCCESS) {
        free(slab);
        return code;
    }
    slab->n_units = slab->n_free = slab->longest_free = slab->runs[0].length = n_units;
    dvmm_vgpu_mapping_at(gpu, slab->addr)->phys->slab = slab;
    link_slab(&gpu->memory, slab);
    *out = slab;
    return DVMM_SUCCESS;
}

static void merge_free_runs_from(vgpu_slab *slab, uint32_t at) {
    uint32_t next = at + slab->runs[at].length;
    while (next < slab->n_units && !slab->runs[next].is_live) {
        next += slab->runs[next].length;
    }
    slab->runs[at].length = next - at;
}

/* The first free run of at least n units; n_units when there is none. */
static uint32_t find_run(vgpu_slab *slab, uint32_t n) {
    uint32_t longest = 0;
    for (uint32_t at = slab->first_free; at < slab->n_units; at += slab->runs[at].length) {
        if (slab->runs[at].is_live) {
            continue;
        }
        merge_free_runs_from(slab, at);
        if (slab->runs[at].length >= n) {
            return at;
        }
        longest = slab->runs[at].length > longest ? slab->runs[at].length : longest;
    }
    slab->longest_free = longest;
    return slab->n_units;
}

static void carve(vgpu_slab *slab, uint32_t at, uint32_t n) {
    uint32_t rest = slab->runs[at].length - n;
    if (rest != 0) {
        slab->runs[at + n].length = rest;
        slab->runs[at + n].is_live = false;
    }
    slab->runs[at].length = n;
    slab->runs[at].is_live = true;
    slab->n_free -= n;
    if (slab->first_free == at) {
        slab->first_free = at + n;
    }
}

static bool carve_from(vgpu_slab *slab, uint32_t n, ductile_addr *out) {
    uint32_t at = slab->longest_free >= n ? find_run(slab, n) : slab->n_units;
    if (at == slab->n_units) {
        return false;
    }
    carve(slab, at, n);
    *out = slab->addr + (uint64_t)at * UNIT_BYTES;
    return true;
}

static int alloc_units(vgpu *gpu, uint64_t size, ductile_addr *out) {
    uint32_t n = (uint32_t)(dti_round_up(size, UNIT_BYTES) / UNIT_BYTES);
    vgpu_slab *slab = gpu->memory.slabs;
    for (int i = 0; i < SLABS_SEARCHED && slab != NULL; i++, slab = slab->next) {
        if (carve_from(slab, n, out)) {
            return DVMM_SUCCESS;
        }
    }
    int code = new_slab(gpu, &slab);
    if (code == DVMM_SUCCESS) {
        (void)carve_from(slab, n, out); /* a fresh granule holds whatever is smaller */
    }
    return code;
}

static uint32_t unit_of(const vgpu_slab *slab, ductile_addr addr) {
    return (uint32_t)((addr - slab->addr) / UNIT_BYTES);
}

static uint64_t small_allocation_size(const vgpu_slab *slab, ductile_addr addr) {
    uint32_t at = unit_of(slab, addr);
    bool starts_here = addr % UNIT_BYTES == 0 && slab->runs[at].is_live;
    return starts_here ? (uint64_t)slab->runs[at].length * UNIT_BYTES : 0;
}

static void free_units(vgpu *gpu, vgpu_slab *slab, uint32_t at) {
    slab->runs[at].is_live = false;
    if (at < slab->first_free) {
        slab->first_free = at;
    }
    slab->n_free += slab->runs[at].length;
    slab->longest_free = slab->n_free;
    unlink_slab(slab);
    if (slab->n_free < slab->n_units) {
        link_slab(&gpu->memory, slab);
    } else {
        free_granules(gpu, dvmm_vgpu_mapping_at(gpu, slab->addr));
        free(slab);
    }
}

/* ---- Both ---------------------------------------------------------------------------------- */

static vgpu_mapping *allocation_mapping(const vgpu *gpu, ductile_addr addr) {
    return addr >= gpu->memory.alloc_base ? dvmm_vgpu_mapping_at(gpu, addr) : NULL;
}

uint64_t dvmm_vgpu_allocation_size(const vgpu *gpu, ductile_addr addr) {
    const vgpu_mapping *mapping = allocation_mapping(gpu, addr);
    if (mapping == NULL) {
        return 0;
    }
    if (mapping->phys->slab != NULL) {
        return small_allocation_size(mapping->phys->slab, addr);
    }
    return mapping->start == addr ? mapping->phys->size : 0;
}

int dvmm_vgpu_mem_alloc(vgpu *gpu, uint64_t size, ductile_addr *out) {
    DTI_TRY(dvmm_vgpu_check_prohibited(gpu));
    if (size == 0 || size > gpu->options.capacity_bytes) {
        return size == 0 ? DVMM_INVALID_VALUE : DVMM_OUT_OF_MEMORY;
    }
    uint64_t granule = gpu->options.granule_bytes;
    int code = size < granule ? alloc_units(gpu, size, out)
                              : alloc_granules(gpu, dti_round_up(size, granule), out);
    gpu->memory.n_allocations += code == DVMM_SUCCESS;
    return code;
}

/* Waits for all work of the device first, as the driver does. Freeing 0 does nothing. */
int dvmm_vgpu_mem_free(vgpu *gpu, ductile_addr addr) {
    int code = dvmm_vgpu_check_prohibited(gpu);
    if (code != DVMM_SUCCESS || addr == 0) {
        return code;
    }
    code = dvmm_vgpu_drain(gpu);
    if (code != DVMM_SUCCESS) {
        return code;
    }
    if (dvmm_vgpu_allocation_size(gpu, addr) == 0) {
        return DVMM_INVALID_VALUE;
    }
    vgpu_mapping *mapping = allocation_mapping(gpu, addr);
    vgpu_slab *slab = mapping->phys->slab;
    if (slab == NULL) {
        free_granules(gpu, mapping);
    } else {
        free_units(gpu, slab, unit_of(slab, addr));
    }
    gpu->memory.n_allocations--;
    return DVMM_SUCCESS;
}

void dvmm_vgpu_alloc_fini(vgpu *gpu) {
    while (gpu->memory.slabs != NULL) {
        vgpu_slab *slab = gpu->memory.slabs;
        unlink_slab(slab);
        free(slab);
    }
    for (int i = 0; i < VGPU_SPAN_SIZES; i++) {
        free(gpu->memory.spans[i].free);
    }
}

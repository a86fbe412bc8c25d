/* SPDX-License-Identifier: Apache-2.0 */
/* Physical handles and their mappings. The codes are those measured on an H200. */
#include "vmm/virtual/memory/memory.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"
#include "vmm/virtual/addresses/addresses.h"
#include "vmm/virtual/addresses/content.h"
#include "vmm/virtual/race/race.h"
#include "vmm/virtual/state/slots.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/state/watch.h"

/* ---- Handles ------------------------------------------------------------------------------- */

static dvmm_phys name_of(const vgpu_phys *phys) {
    return (dvmm_phys)phys->slot.generation << 32 | phys->slot.number;
}

/* A handle that was released stays alive while it is mapped. */
static vgpu_phys *find_alive(const vgpu *gpu, dvmm_phys name) {
    vgpu_phys *phys = dvmm_slots_find(&gpu->memory.handles, name & UINT32_MAX);
    return phys != NULL && name_of(phys) == name ? phys : NULL;
}

vgpu_phys *dvmm_vgpu_find_phys(const vgpu *gpu, dvmm_phys name) {
    vgpu_phys *phys = find_alive(gpu, name);
    return phys != NULL && phys->n_refs > 0 ? phys : NULL;
}

static bool has_memory_for(const vgpu *gpu, uint64_t size, bool is_host) {
    uint64_t held = gpu->memory.used_bytes + gpu->memory.external_bytes;
    return is_host ? size <= gpu->options.host_bytes - gpu->memory.host_bytes
                   : size <= gpu->options.capacity_bytes - held;
}

static uint64_t *bytes_of(vgpu *gpu, const vgpu_phys *phys) {
    return phys->is_host ? &gpu->memory.host_bytes : &gpu->memory.used_bytes;
}

/* The codes for properties that a machine lacks: 800 for the fabric was measured, the others were
 * not. */
static int refusal_of(const vgpu *gpu, const dvmm_phys_props *props) {
    const ductile_virtual_options *o = &gpu->options;
    if ((props->handle_types & DVMM_SHARE_FABRIC) != 0 && o->has_fabric == 0) {
        return DVMM_NOT_PERMITTED;
    }
    bool lacks_fd = (props->handle_types & DVMM_SHARE_FD) != 0 && o->no_descriptors != 0;
    bool lacks_rdma = props->rdma && o->rdma == DUCTILE_VIRTUAL_RDMA_NONE;
    bool lacks_host = props->is_host && o->no_host_handles != 0;
    return lacks_fd || lacks_rdma || lacks_host ? DVMM_NOT_SUPPORTED : DVMM_SUCCESS;
}

int dvmm_vgpu_phys_create(vgpu *gpu, uint64_t size, const dvmm_phys_props *props, dvmm_phys *out) {
    vgpu_memory *m = &gpu->memory;
    if (!dvmm_vgpu_is_granules(gpu, size)) {
        return DVMM_INVALID_VALUE;
    }
    DTI_TRY(refusal_of(gpu, props));
    vgpu_phys *phys =
        has_memory_for(gpu, size, props->is_host) ? dvmm_slots_take(&m->handles) : NULL;
    if (phys == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    phys->size = size;
    phys->n_refs = 1;
    phys->handle_types = props->handle_types;
    phys->is_rdma = props->rdma;
    phys->is_host = props->is_host;
    *bytes_of(gpu, phys) += size;
    m->used_peak_bytes = dti_max(m->used_peak_bytes, m->used_bytes);
    *out = name_of(phys);
    return DVMM_SUCCESS;
}

static void free_if_unused(vgpu *gpu, vgpu_phys *phys) {
    if (phys->n_refs == 0 && phys->n_mappings == 0) {
        *bytes_of(gpu, phys) -= phys->size;
        dvmm_vgpu_content_fini(&phys->content);
        dvmm_vgpu_shadow_fini(&phys->shadow);
        dvmm_slots_give(&gpu->memory.handles, phys);
    }
}

void dvmm_vgpu_drop_ref(vgpu *gpu, vgpu_phys *phys) {
    DTI_ASSERT(phys->n_refs > 0);
    phys->n_refs--;
    free_if_unused(gpu, phys);
}

/* Releasing a handle that is not held is undefined on hardware: worse than an error. */
int dvmm_vgpu_phys_release(vgpu *gpu, dvmm_phys name) {
    vgpu_phys *phys = dvmm_vgpu_find_phys(gpu, name);
    if (phys == NULL) {
        dvmm_vgpu_violation(gpu, "phys_release of %#llx, which is no handle held", name);
        return DVMM_INVALID_VALUE;
    }
    dvmm_vgpu_drop_ref(gpu, phys);
    return DVMM_SUCCESS;
}

/* ---- Map and unmap ------------------------------------------------------------------------- */

static bool is_unmapped(const vgpu *gpu, ductile_addr addr, uint64_t size) {
    for (uint64_t done = 0; done < size; done += gpu->options.granule_bytes) {
        if (dvmm_vgpu_mapping_at(gpu, addr + done) != NULL) {
            return false;
        }
    }
    return true;
}

int dvmm_vgpu_map_anywhere(vgpu *gpu, ductile_addr addr, vgpu_phys *phys, dvmm_access access) {
    DTI_ASSERT_HELD(&gpu->lock);
    vgpu_mapping *mapping = dvmm_slots_take(&gpu->memory.mappings);
    if (mapping == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    if (!dvmm_vgpu_point_at(gpu, addr, phys->size, mapping->slot.number)) {
        dvmm_slots_give(&gpu->memory.mappings, mapping);
        return DVMM_OUT_OF_MEMORY;
    }
    mapping->start = addr;
    mapping->phys = phys;
    mapping->access = access;
    phys->n_mappings++;
    return DVMM_SUCCESS;
}

void dvmm_vgpu_drop_mapping(vgpu *gpu, vgpu_mapping *mapping) {
    vgpu_phys *phys = mapping->phys;
    dvmm_vgpu_race_unmap(gpu, mapping);
    phys->shadow.n_graphs -= mapping->users.n_graphs;
    dvmm_vgpu_users_fini(&mapping->users);
    (void)dvmm_vgpu_point_at(gpu, mapping->start, phys->size, 0);
    dvmm_slots_give(&gpu->memory.mappings, mapping);
    phys->n_mappings--;
    free_if_unused(gpu, phys);
}

/* On hardware a released handle maps while another mapping keeps it, and crashes the process when
 * none does. */
static vgpu_phys *find_to_map(vgpu *gpu, dvmm_phys name) {
    vgpu_phys *phys = find_alive(gpu, name);
    if (name != 0 && (phys == NULL || phys->n_refs == 0)) {
        dvmm_vgpu_violation(gpu, "map of %#llx, which is no handle held", name);
    }
    return phys;
}

/* The hardware lets a mapping run past the end of its reservation, where nothing is reserved. */
static int map_in(vgpu *gpu, vgpu_range *range, ductile_addr addr, vgpu_phys *phys) {
    dvmm_vgpu_race_map(gpu, phys, addr);
    DTI_TRY(dvmm_vgpu_map_anywhere(gpu, addr, phys, DVMM_ACCESS_NONE));
    range->n_mappings++;
    if (dvmm_vgpu_range_of(gpu, addr, phys->size) == NULL) {
        dvmm_vgpu_violation(gpu, "map of %#llx, %llu bytes, past the end of its reservation", addr,
                            (unsigned long long)phys->size);
    }
    return DVMM_SUCCESS;
}

int dvmm_vgpu_map(vgpu *gpu, ductile_addr addr, uint64_t size, uint64_t offset, dvmm_phys name) {
    vgpu_phys *phys = find_to_map(gpu, name);
    if (phys == NULL || size == 0) {
        return DVMM_INVALID_VALUE;
    }
    if (offset != 0 || size != phys->size) {
        return DVMM_NOT_SUPPORTED;
    }
    vgpu_range *range = dvmm_vgpu_range_to_map(gpu, addr, size);
    if (range == NULL || !dvmm_vgpu_is_granules(gpu, addr) || !is_unmapped(gpu, addr, size)) {
        return DVMM_INVALID_VALUE;
    }
    return map_in(gpu, range, addr, phys);
}

/* The mappings of a span of granules. */
typedef struct span_survey {
    bool cuts_mapping; /* part of some mapping lies outside */
    uint64_t hole_bytes;
    uint64_t n_mappings;
} span_survey;

static bool lies_within(const vgpu_mapping *mapping, ductile_addr addr, uint64_t size) {
    return mapping->start >= addr && mapping->start - addr + mapping->phys->size <= size;
}

static span_survey survey(const vgpu *gpu, ductile_addr addr, uint64_t size) {
    span_survey found = {0};
    ductile_addr end = addr + size;
    for (ductile_addr at = addr; at < end;) {
        const vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, at);
        if (mapping == NULL) {
            found.hole_bytes += gpu->options.granule_bytes;
            at += gpu->options.granule_bytes;
            continue;
        }
        found.cuts_mapping |= !lies_within(mapping, addr, size);
        found.n_mappings++;
        at = mapping->start + mapping->phys->size;
    }
    return found;
}

static bool is_one_mapping(const vgpu *gpu, ductile_addr addr, uint64_t size) {
    const vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, addr);
    return addr < gpu->memory.alloc_base && mapping != NULL && mapping->start == addr &&
           mapping->phys->size == size;
}

/* A mapping past the end of its reservation is served alone. */
static bool is_reserved_span(const vgpu *gpu, ductile_addr addr, uint64_t size) {
    return dvmm_vgpu_is_granules(gpu, addr) && dvmm_vgpu_is_granules(gpu, size) &&
           (dvmm_vgpu_range_of(gpu, addr, size) != NULL || is_one_mapping(gpu, addr, size));
}

/* 0 for a span that is not made of granules: the call that asked will fail. */
uint64_t dvmm_vgpu_count_mappings(const vgpu *gpu, ductile_addr addr, uint64_t size) {
    return is_reserved_span(gpu, addr, size) ? survey(gpu, addr, size).n_mappings : 0;
}

static void unmap_all_in(vgpu *gpu, ductile_addr addr, uint64_t size) {
    vgpu_range *range = dvmm_vgpu_range_of(gpu, addr, gpu->options.granule_bytes);
    ductile_addr end = addr + size;
    for (ductile_addr at = addr; at < end; at += gpu->options.granule_bytes) {
        vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, at);
        if (mapping != NULL) {
            dvmm_vgpu_drop_mapping(gpu, mapping);
            range->n_mappings--;
        }
    }
}

int dvmm_vgpu_unmap(vgpu *gpu, ductile_addr addr, uint64_t size) {
    if (!is_reserved_span(gpu, addr, size)) {
        return DVMM_INVALID_VALUE;
    }
    span_survey found = survey(gpu, addr, size);
    if (found.cuts_mapping) {
        return DVMM_INVALID_VALUE;
    }
    if (found.hole_bytes != 0) {
        dvmm_vgpu_violation(gpu, "unmap of %#llx, %llu bytes, of which %llu were not mapped", addr,
                            (unsigned long long)size, (unsigned long long)found.hole_bytes);
    }
    unmap_all_in(gpu, addr, size);
    return DVMM_SUCCESS;
}

/* ---- Access -------------------------------------------------------------------------------- */

static bool is_access(dvmm_access access) {
    return access == DVMM_ACCESS_NONE || access == DVMM_ACCESS_READ || access == DVMM_ACCESS_RW;
}

static void set_bit(uint64_t *bits, int i, bool on) {
    *bits = on ? *bits | (uint64_t)1 << i : *bits & ~((uint64_t)1 << i);
}

static void set_one(vgpu_mapping *mapping, int device, dvmm_access access) {
    if (device == 0) {
        mapping->access = access;
        return;
    }
    set_bit(&mapping->peers_read, device, access != DVMM_ACCESS_NONE);
    set_bit(&mapping->peers_write, device, access == DVMM_ACCESS_RW);
}

dvmm_access dvmm_vgpu_access_of(const vgpu_mapping *mapping, int device) {
    if (device == 0) {
        return mapping->access;
    }
    if ((mapping->peers_write >> device & 1) != 0) {
        return DVMM_ACCESS_RW;
    }
    return (mapping->peers_read >> device & 1) != 0 ? DVMM_ACCESS_READ : DVMM_ACCESS_NONE;
}

static void set_until_hole(vgpu *gpu, ductile_addr addr, uint64_t size, int device,
                           dvmm_access access) {
    vgpu_mapping *mapping;
    ductile_addr end = addr + size;
    while (addr < end && (mapping = dvmm_vgpu_mapping_at(gpu, addr)) != NULL) {
        if ((dvmm_vgpu_access_of(mapping, device) & ~access) != 0) {
            dvmm_vgpu_race_close(gpu, mapping, device);
        }
        set_one(mapping, device, access);
        addr += mapping->phys->size;
    }
}

static bool ends_are_mapped(const vgpu *gpu, ductile_addr addr, uint64_t size) {
    return dvmm_vgpu_mapping_at(gpu, addr) != NULL &&
           dvmm_vgpu_mapping_at(gpu, addr + size - 1) != NULL;
}

/* Some systems say that they can do RDMA and refuse access to the memory. */
static bool holds_trap(const vgpu *gpu, ductile_addr addr) {
    const vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, addr);
    return gpu->options.rdma == DUCTILE_VIRTUAL_RDMA_TRAP && mapping != NULL &&
           mapping->phys->is_rdma;
}

/* The hardware refuses a hole at either end. At one in between it stops, and says nothing. */
int dvmm_vgpu_set_device_access(vgpu *gpu, ductile_addr addr, uint64_t size, int device,
                                dvmm_access access) {
    if (!is_reserved_span(gpu, addr, size) || !is_access(access)) {
        return DVMM_INVALID_VALUE;
    }
    span_survey found = survey(gpu, addr, size);
    if (found.cuts_mapping || !ends_are_mapped(gpu, addr, size)) {
        return DVMM_INVALID_VALUE;
    }
    if (found.hole_bytes != 0) {
        dvmm_vgpu_violation(gpu, "set_access of %#llx, %llu bytes, of which %llu were not mapped",
                            addr, (unsigned long long)size, (unsigned long long)found.hole_bytes);
    }
    if (holds_trap(gpu, addr)) {
        return DVMM_UNKNOWN;
    }
    set_until_hole(gpu, addr, size, device, access);
    return DVMM_SUCCESS;
}

bool dvmm_vgpu_is_accessible(const vgpu *gpu, ductile_addr addr, uint64_t size, int device,
                             dvmm_access access) {
    if (size > gpu->memory.end - gpu->memory.base) {
        return false;
    }
    ductile_addr end = addr + size;
    for (ductile_addr at = addr; at < end;) {
        const vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, at);
        if (mapping == NULL || (dvmm_vgpu_access_of(mapping, device) & access) != access) {
            return false;
        }
        at = mapping->start + mapping->phys->size;
    }
    return true;
}

/* ---- Life ---------------------------------------------------------------------------------- */

void dvmm_vgpu_memory_init(vgpu *gpu) {
    dvmm_slots_init(&gpu->memory.handles, sizeof(vgpu_phys));
    dvmm_slots_init(&gpu->memory.mappings, sizeof(vgpu_mapping));
}

void dvmm_vgpu_memory_fini(vgpu *gpu) {
    vgpu_memory *m = &gpu->memory;
    vgpu_phys *phys = dvmm_slots_next(&m->handles, 1);
    for (; phys != NULL; phys = dvmm_slots_next(&m->handles, phys->slot.number + 1)) {
        dvmm_vgpu_content_fini(&phys->content);
        dvmm_vgpu_shadow_fini(&phys->shadow);
    }
    vgpu_mapping *mapping = dvmm_slots_next(&m->mappings, 1);
    for (; mapping != NULL; mapping = dvmm_slots_next(&m->mappings, mapping->slot.number + 1)) {
        dvmm_vgpu_users_fini(&mapping->users);
    }
    dvmm_slots_fini(&m->handles);
    dvmm_slots_fini(&m->mappings);
}

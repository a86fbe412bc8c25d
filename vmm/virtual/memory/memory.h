/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the virtual GPU: addresses, handles, mappings, allocations, contents.
 * Every function is called with gpu->lock held; those that return int return the driver's code. */
#ifndef DUCTILE_VMM_VIRTUAL_MEMORY_MEMORY_H
#define DUCTILE_VMM_VIRTUAL_MEMORY_MEMORY_H

#include "vmm/driver/driver.h"
#include "vmm/virtual/race/race.h"
#include "vmm/virtual/slots.h"

typedef struct ductile_virtual_gpu vgpu;

/* One address reservation. Kept in an array, ascending and disjoint. */
typedef struct vgpu_range {
    ductile_addr start;
    uint64_t size;
    uint64_t n_mappings; /* that start in it                      */
    bool is_announced;   /* some block in it was announced as live */
} vgpu_range;

/* Contents of a handle: pieces that tile it, ascending. One byte value over the whole piece, or
 * its bytes. See driver_virtual_content.c. */
typedef struct vgpu_piece {
    uint64_t start;
    uint8_t *bytes; /* owned; NULL: the piece is uniform */
    uint8_t value;  /* valid when uniform                */
} vgpu_piece;

typedef struct vgpu_content {
    vgpu_piece *pieces; /* NULL: all zero, as fresh memory reads on the hardware modelled */
    size_t n_pieces;
    size_t room;
} vgpu_content;

/* Physical memory: alive while it is referenced or mapped anywhere. */
typedef struct vgpu_phys {
    dvmm_slot slot;
    uint64_t size;
    uint32_t n_refs;
    uint32_t n_mappings;
    uint32_t handle_types; /* dvmm_share_type it may be exported as          */
    bool is_rdma;
    struct vgpu_slab *slab; /* small cuMemAlloc allocations live in it; NULL: none do */
    vgpu_content content;
    vgpu_shadow shadow;
} vgpu_phys;

/* The whole of one handle at one address. */
typedef struct vgpu_mapping {
    dvmm_slot slot;
    ductile_addr start;
    vgpu_phys *phys;
    dvmm_access access;
    uint64_t peers_read, peers_write; /* bit i: device i may */
    vgpu_users users;
} vgpu_mapping;

/* A descriptor somewhere; see driver_virtual_share.c. */
typedef struct vgpu_export {
    vgpu_phys *phys;
    int kept;
} vgpu_export;

/* Free address spans of one size for cuMemAlloc, last freed first. */
typedef struct vgpu_spans {
    ductile_addr *free;
    size_t n_free;
    size_t n_carved; /* spans of this size that exist; `free` has room for all */
} vgpu_spans;

enum { VGPU_SPAN_SIZES = 40 }; /* 1, 2, 4, ... granules */

/*
 * The address space: [base, alloc_base) is for reservations, [alloc_base, end) for cuMemAlloc.
 * `leaves` is a two-level table from granule to mapping number, as a device's page table is.
 */
typedef struct vgpu_memory {
    ductile_addr base, alloc_base, alloc_next, end; /* all but alloc_next constant */
    uint32_t **leaves;
    size_t n_leaves;

    vgpu_range *ranges;
    size_t n_ranges, ranges_room;
    uint64_t reserved_bytes;
    uint64_t placements; /* state of the choice where the next one goes, from the seed */

    dvmm_slots handles;  /* of vgpu_phys; a dvmm_phys is generation << 32 | number */
    dvmm_slots mappings; /* of vgpu_mapping */
    uint64_t used_bytes, used_peak_bytes, external_bytes;

    vgpu_spans spans[VGPU_SPAN_SIZES];
    struct vgpu_slab *slabs;
    uint64_t n_allocations;

    vgpu_export *exports;
    size_t n_exports, exports_room;
    bool allocs_are_announced; /* some block among them was announced as live */
} vgpu_memory;

/* ---- driver_virtual_addresses.c ------------------------------------------------------------ */

bool dvmm_vgpu_addresses_init(vgpu *gpu);
void dvmm_vgpu_addresses_fini(vgpu *gpu);
bool dvmm_vgpu_is_granules(const vgpu *gpu, uint64_t n);
/* The reservation that holds all of the span, or NULL; valid until the next reservation. */
vgpu_range *dvmm_vgpu_range_of(const vgpu *gpu, ductile_addr addr, uint64_t size);
/* The reservation in which a mapping of the span would start, or NULL when there is none or the
 * span reaches into the next one. */
vgpu_range *dvmm_vgpu_range_to_map(const vgpu *gpu, ductile_addr addr, uint64_t size);
int dvmm_vgpu_address_reserve(vgpu *gpu, uint64_t size, uint64_t alignment, ductile_addr hint,
                              ductile_addr *out);
int dvmm_vgpu_address_free(vgpu *gpu, ductile_addr addr, uint64_t size);
/* The mapping that holds the address, or NULL. */
vgpu_mapping *dvmm_vgpu_mapping_at(const vgpu *gpu, ductile_addr addr);
/* Points the granules of a span at a mapping; 0 always succeeds. Pre: inside the space. */
bool dvmm_vgpu_point_at(vgpu *gpu, ductile_addr addr, uint64_t size, uint32_t mapping_number);

/* ---- driver_virtual_memory.c --------------------------------------------------------------- */

void dvmm_vgpu_memory_init(vgpu *gpu);
void dvmm_vgpu_memory_fini(vgpu *gpu);
int dvmm_vgpu_phys_create(vgpu *gpu, uint64_t size, const dvmm_phys_props *props, dvmm_phys *out);
int dvmm_vgpu_phys_release(vgpu *gpu, dvmm_phys phys);
vgpu_phys *dvmm_vgpu_find_phys(const vgpu *gpu, dvmm_phys phys);
int dvmm_vgpu_map(vgpu *gpu, ductile_addr addr, uint64_t size, uint64_t offset, dvmm_phys phys);
int dvmm_vgpu_unmap(vgpu *gpu, ductile_addr addr, uint64_t size);
int dvmm_vgpu_set_access(vgpu *gpu, ductile_addr addr, uint64_t size, dvmm_access access);
int dvmm_vgpu_get_access(vgpu *gpu, ductile_addr addr, dvmm_access *out);
int dvmm_vgpu_set_device_access(vgpu *gpu, ductile_addr addr, uint64_t size, int device,
                                dvmm_access access);
dvmm_access dvmm_vgpu_access_of(const vgpu_mapping *mapping, int device);
/* Maps without asking for a reservation. */
int dvmm_vgpu_map_anywhere(vgpu *gpu, ductile_addr addr, vgpu_phys *phys, dvmm_access access);
void dvmm_vgpu_drop_mapping(vgpu *gpu, vgpu_mapping *mapping);
void dvmm_vgpu_drop_ref(vgpu *gpu, vgpu_phys *phys);
/* Whether all of the span is mapped with at least that access. */
bool dvmm_vgpu_is_accessible(const vgpu *gpu, ductile_addr addr, uint64_t size, int device,
                             dvmm_access access);
uint64_t dvmm_vgpu_count_mappings(const vgpu *gpu, ductile_addr addr, uint64_t size);

/* ---- driver_virtual_share.c ---------------------------------------------------------------- */

int dvmm_vgpu_can_access_peer(const vgpu *gpu, int device, int *out);
int dvmm_vgpu_set_access_for(vgpu *gpu, ductile_addr addr, uint64_t size, dvmm_access access,
                             const int *devices, size_t n_devices);
int dvmm_vgpu_get_access_for(const vgpu *gpu, ductile_addr addr, int device, dvmm_access *out);
int dvmm_vgpu_phys_export(vgpu *gpu, dvmm_phys phys, dvmm_share_type type, dvmm_shared *out);
int dvmm_vgpu_phys_import(vgpu *gpu, const dvmm_shared *shared, dvmm_phys *out);
/* Lets go of memory that only descriptors kept which are closed by now. */
void dvmm_vgpu_exports_sweep(vgpu *gpu);
void dvmm_vgpu_exports_fini(vgpu *gpu);

/* ---- driver_virtual_alloc.c ---------------------------------------------------------------- */

void dvmm_vgpu_alloc_fini(vgpu *gpu);
int dvmm_vgpu_mem_alloc(vgpu *gpu, uint64_t size, ductile_addr *out);
int dvmm_vgpu_mem_free(vgpu *gpu, ductile_addr addr);
/* Size of the live allocation that starts there; 0: none does. */
uint64_t dvmm_vgpu_allocation_size(const vgpu *gpu, ductile_addr addr);

/* ---- driver_virtual_content.c -------------------------------------------------------------- */

/* Pre of all: the span is mapped. False: the host has no memory left; contents are lost. */
bool dvmm_vgpu_write_value(vgpu *gpu, ductile_addr to, uint8_t value, uint64_t size);
bool dvmm_vgpu_write_bytes(vgpu *gpu, ductile_addr to, const uint8_t *bytes, uint64_t size);
bool dvmm_vgpu_copy_bytes(vgpu *gpu, ductile_addr to, ductile_addr from, uint64_t size);
void dvmm_vgpu_read_bytes(const vgpu *gpu, uint8_t *to, ductile_addr from, uint64_t size);
void dvmm_vgpu_content_fini(vgpu_content *content);

#endif

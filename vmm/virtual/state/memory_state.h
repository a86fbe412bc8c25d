/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the virtual GPU: addresses, handles, mappings, allocations, contents. */
#ifndef DUCTILE_VMM_VIRTUAL_STATE_MEMORY_STATE_H
#define DUCTILE_VMM_VIRTUAL_STATE_MEMORY_STATE_H

#include "vmm/driver/driver.h"
#include "vmm/virtual/state/race_state.h"
#include "vmm/virtual/state/slots.h"

/* One address reservation. Kept in an array, ascending and disjoint. */
typedef struct vgpu_range {
    ductile_addr start;
    uint64_t size;
    uint64_t n_mappings; /* that start in it                      */
    bool is_announced;   /* some block in it was announced as live */
} vgpu_range;

/* Contents of a handle: pieces that tile it, ascending. One byte value over the whole piece, or
 * its bytes. See content.c. */
typedef struct vgpu_piece {
    uint64_t start;
    uint8_t *bytes; /* owned; NULL: the piece is uniform */
    uint8_t value;  /* valid when uniform                */
} vgpu_piece;

typedef struct vgpu_content {
    vgpu_piece *pieces; /* NULL: all zero, as fresh memory reads on the hardware modelled */
    uint32_t n_pieces, room;
} vgpu_content;

/* Physical memory: alive while it is referenced or mapped anywhere. */
typedef struct vgpu_phys {
    dvmm_slot slot;
    uint64_t size;
    uint32_t n_refs;
    uint32_t n_mappings;
    uint32_t handle_types; /* dvmm_share_type it may be exported as          */
    bool is_rdma;
    bool is_host;           /* memory of the host: used_bytes does not count it */
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

/* A descriptor in some process; see exports.c. */
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

typedef struct vgpu_leaf vgpu_leaf;

/*
 * The address space: [base, alloc_base) is for reservations, [alloc_base, end) for cuMemAlloc.
 * `leaves` is a two-level table from granule to mapping number, as a device's page table is.
 */
typedef struct vgpu_memory {
    ductile_addr base, alloc_base, alloc_next, end; /* all but alloc_next constant */
    vgpu_leaf **leaves;                             /* NULL where nothing was mapped yet */
    vgpu_leaf *last_leaf;                           /* made, and linked to those before  */

    vgpu_range *ranges;
    uint32_t n_ranges, ranges_room;
    uint64_t reserved_bytes;
    uint64_t placements; /* state of the choice where the next one goes, from the seed */

    dvmm_slots handles;  /* of vgpu_phys; a dvmm_phys is generation << 32 | number */
    dvmm_slots mappings; /* of vgpu_mapping */
    uint64_t used_bytes, used_peak_bytes, external_bytes;
    uint64_t host_bytes;

    vgpu_spans spans[VGPU_SPAN_SIZES];
    struct vgpu_slab *slabs;
    uint64_t n_allocations;

    vgpu_export *exports;
    uint32_t n_exports, exports_room;
    bool allocs_are_announced; /* some block among them was announced as live */
} vgpu_memory;

#endif
